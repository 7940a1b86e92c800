"""Values of fixed width as numbers: compiled. A start below 0 is a NULL, and becomes 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy import uintp  # unsigned indexes: nobody looks whether they count from the end

from dblog_core.rows.jit import (
    FLAGS,
    INT64S,
    RAW,
    int64,
    kernel,
    part,
    void,
)

Number = Any  # numpy's number where it was read, Python's where it is written here
Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0, 0, 0], dtype=np.int64)
_POWERS = np.array([10**i for i in range(10)], dtype=np.int64)
_WORD = 32
_LOW = 0xFFFFFFFF


@part
def _little(raw: Bytes, at: Number, width: Number) -> Number:
    """Up to eight bytes, the lowest first."""
    value = np.int64(0)
    for i in range(width):
        value |= np.int64(raw[uintp(at + i)]) << (8 * i)
    return int(value)


@part
def _big(raw: Bytes, at: Number, width: Number) -> Number:
    """Up to seven bytes, the highest first."""
    value = np.int64(0)
    for i in range(width):
        value = value << 8 | np.int64(raw[uintp(at + i)])
    return int(value)


@kernel(void, RAW, INT64S, int64, INT64S)
def read_unsigned(raw: Bytes, starts: Int64s, width: Number, out: Int64s) -> None:
    """Little-endian numbers; those of eight bytes come as they are."""
    for row in range(len(starts)):
        at = starts[row]
        if at < 0:
            out[row] = 0
        elif width == 4:
            out[row] = _little(raw, at, 4)
        elif width == 8:
            out[row] = _little(raw, at, 8)
        elif width == 1:
            out[row] = raw[uintp(at)]
        else:
            out[row] = _little(raw, at, width)


@kernel(void, RAW, INT64S, int64, INT64S)
def read_signed(raw: Bytes, starts: Int64s, width: Number, out: Int64s) -> None:
    """Little-endian numbers in two's complement."""
    shift = 64 - 8 * width
    for row in range(len(starts)):
        at = starts[row]
        if at < 0:
            out[row] = 0
        elif width == 4:
            out[row] = _little(raw, at, 4) << 32 >> 32
        elif width == 8:
            out[row] = _little(raw, at, 8)
        elif width == 1:
            out[row] = np.int64(raw[uintp(at)]) << 56 >> 56
        else:
            out[row] = _little(raw, at, width) << shift >> shift


@kernel(int64, RAW, INT64S, INT64S, INT64S, INT64S)
def decimals(raw: Bytes, starts: Int64s, digits: Int64s, sizes: Int64s, out: Int64s) -> Number:
    """Packed decimals without their point, in 128 bits: the low and the high half of each.

    `digits` and `sizes` (bytes) of each group, the most significant first, 38 digits at most. Returns the row of the
    first value that is none, or -1.
    """
    total = 0
    for g in range(len(digits)):
        total += digits[g]
    for row in range(len(starts)):
        at = starts[row]
        out[uintp(2 * row)] = 0
        out[uintp(2 * row + 1)] = 0
        if at < 0:
            continue
        # The first bit is set for numbers from 0 on; of negative ones all other bits are inverted, so that bytes sort
        # like numbers.
        mask = 0 if raw[uintp(at)] & 0x80 else 0xFF
        flip = mask ^ 0x80
        number = np.int64(0)
        # Four words of 32 bits each, the lowest first: each times a group's power of ten fits into 64.
        a = np.int64(0)
        b = np.int64(0)
        c = np.int64(0)
        d = np.int64(0)
        for g in range(len(digits)):
            group = np.int64(0)
            for i in range(sizes[g]):
                group = group << 8 | (np.int64(raw[uintp(at + i)]) ^ flip)
                flip = mask
            at += sizes[g]
            power = _POWERS[uintp(digits[g])]
            if group >= power:
                return row
            if total <= 18:
                number = number * power + group
            else:
                group += a * power
                a = group & _LOW
                group = b * power + (group >> _WORD)
                b = group & _LOW
                group = c * power + (group >> _WORD)
                c = group & _LOW
                d = d * power + (group >> _WORD)
        low = number
        high = np.int64(0)
        if total > 18:
            low = a | b << _WORD
            high = c | d << _WORD
        if mask:
            low = -low
            high = ~high if low else -high
        out[uintp(2 * row)] = low
        out[uintp(2 * row + 1)] = high
    return -1


@part
def _days(year: Number, month: Number, day: Number) -> Number:
    """Days since 1970 in the proleptic Gregorian calendar, of years that begin in March and end with the leap day."""
    shifted = year - (month <= 2)
    era = shifted // 400
    of_era = shifted % 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@part
def _exists(year: Number, month: Number, day: Number) -> Number:
    """Whether there is such a date, from year 1 on."""
    if year < 1 or month < 1 or month > 12 or day < 1:
        return 0
    leap = month == 2 and ((year % 4 == 0 and year % 100 != 0) or year % 400 == 0)
    return int(day <= _MONTH_DAYS[month] + leap)


@kernel(int64, RAW, INT64S, INT64S, FLAGS)
def dates(raw: Bytes, starts: Int64s, out: Int64s, missing: Flags) -> Number:
    """DATE: days since 1970; `missing`: those that do not exist, as a server may hold them.

    Returns the row of the first value that no server holds, or -1; so do the others.
    """
    for row in range(len(starts)):
        at = starts[row]
        out[row] = 0
        missing[row] = False
        if at >= 0:
            # 15 bits of year, 4 of month, 5 of day.
            packed = _little(raw, at, 3)
            year = packed >> 9
            month = packed >> 5 & 15
            day = packed & 31
            if month > 12 or year > 9999:
                return row
            if _exists(year, month, day):
                out[row] = _days(year, month, day)
            else:
                missing[row] = True
    return -1


@kernel(int64, RAW, INT64S, int64, INT64S, FLAGS)
def datetimes(raw: Bytes, starts: Int64s, fraction: Number, out: Int64s, missing: Flags) -> Number:
    """DATETIME2 with `fraction` bytes after the seconds: microseconds since 1970 without a zone."""
    unit = 1
    for _ in range(3 - fraction):
        unit *= 100
    for row in range(len(starts)):
        at = starts[row]
        out[row] = 0
        missing[row] = False
        if at >= 0:
            # 40 bits: a sign, 17 of year * 13 + month, 5 of day, 5 of hour, 6 each of minute and second.
            packed = _big(raw, at, 5) - 0x8000000000
            date = packed >> 17
            clock = packed & 0x1FFFF
            year = (date >> 5) // 13
            month = (date >> 5) % 13
            day = date & 31
            hour = clock >> 12
            minute = clock >> 6 & 63
            second = clock & 63
            micros = _big(raw, at + 5, fraction) * unit
            if packed < 0 or year > 9999 or hour > 23 or minute > 59 or second > 59 or micros > 999_999:
                return row
            if _exists(year, month, day):
                seconds = hour * 3600 + minute * 60 + second
                out[row] = (_days(year, month, day) * 86400 + seconds) * 1_000_000 + micros
            else:
                missing[row] = True
    return -1


@kernel(int64, RAW, INT64S, int64, INT64S, FLAGS)
def timestamps(raw: Bytes, starts: Int64s, fraction: Number, out: Int64s, missing: Flags) -> Number:
    """TIMESTAMP2: microseconds since 1970 UTC; second 0 stands for the zero date."""
    unit = 1
    for _ in range(3 - fraction):
        unit *= 100
    for row in range(len(starts)):
        at = starts[row]
        out[row] = 0
        missing[row] = False
        if at >= 0:
            # Seconds of UTC, whatever the time zone of server and session is.
            seconds = _big(raw, at, 4)
            micros = _big(raw, at + 4, fraction) * unit
            if micros > 999_999:
                return row
            missing[row] = seconds == 0
            out[row] = seconds * 1_000_000 + micros
    return -1
