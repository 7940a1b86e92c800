"""Numbers, decimals, dates and times as a SELECT prints them, compiled: from their places in the bytes to Arrow's form.

Only the usual form is read here. A kernel answers False at the first value of another one (a date that does not exist,
a number that does not fit), and the slow way judges the column: what is an error, and which, is said in one place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.rows import arrow_buffers
from dblog_core.rows.arrow_buffers import Bytes, Int64s
from dblog_core.rows.jit import (
    INT64S,
    RAW,
    boolean,
    int64,
    kernel,
    void,
)

_MOST_DIGITS = 18
"""Decimal digits that any 64-bit integer holds."""
_LARGEST = 2**63 - 1
_HALF = 0xFFFFFFFF
_SPACE, _MINUS, _DASH, _POINT, _ZERO, _NINE, _COLON = b" --.09:"
_DAYS_BEFORE_1970 = 719_468  # from the first of March of the year 0
_DAY = 86_400_000_000  # microseconds
_NONE = -(2**62)


def to_arrow(kind: pa.DataType, raw: Bytes, starts: Int64s, lengths: Int64s) -> pa.Array | None:
    """The array of a type that is read here; None where a value has another form, or the type another way."""
    if not _is_read(kind):
        return None
    decimal = pa.types.is_decimal128(kind)
    values = np.empty(len(starts) * (2 if decimal else 1), dtype=np.int64)
    if decimal:
        whole = _decimals(raw, starts, lengths, kind.precision, kind.scale, values)
    elif pa.types.is_integer(kind):
        whole = _integers(raw, starts, lengths, -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1, values)
    else:
        whole = _times(raw, starts, lengths, pa.types.is_date(kind), values)
    return _array(kind, values, lengths) if whole else None


def _is_read(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_signed_integer(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_decimal128(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
    )


def _array(kind: pa.DataType, values: Int64s, lengths: Int64s) -> pa.Array:
    present = lengths >= 0
    fitting: npt.NDArray[Any] = values
    if kind.bit_width < 64:
        fitting = values.astype(f"i{kind.bit_width // 8}")
    mask = None if present.all() else present
    if pa.types.is_decimal(kind):
        fitting = values.reshape(len(lengths), 2)
    return arrow_buffers.fixed_width_array(fitting, mask, kind)


@kernel(int64, RAW, int64, int64)
def _digits(raw: Bytes, start: int, stop: int) -> int:
    """The number of at most 18 digits; -1 where there is anything else, or nothing."""
    if stop <= start or stop - start > _MOST_DIGITS:
        return -1
    number: Any = np.int64(0)
    for at in range(start, stop):
        digit = np.int64(raw[at]) - 48
        if digit < 0 or digit > 9:
            return -1
        number = number * 10 + digit
    return int(number)


@kernel(int64, RAW, int64, int64)
def _after_zeros(raw: Bytes, start: int, stop: int) -> int:
    """Where the digits begin behind the zeros that ZEROFILL puts in front."""
    while start < stop and raw[start] == _ZERO:
        start += 1
    return start


@kernel(int64, RAW, int64, int64)
def _natural(raw: Bytes, start: int, stop: int) -> int:
    """The number of digits that a 64-bit integer holds; -1 where it does not, or they are none."""
    if stop - start <= _MOST_DIGITS:
        return _digits(raw, start, stop)
    start = _after_zeros(raw, start, stop - _MOST_DIGITS)
    if stop - start <= _MOST_DIGITS:
        return _digits(raw, start, stop)
    if stop - start > _MOST_DIGITS + 1:
        return -1
    # Of 19 digits only those up to 9223372036854775807 fit: the last one is looked at apart.
    head = _digits(raw, start, stop - 1)
    last = _digits(raw, stop - 1, stop)
    if head < 0 or last < 0 or head > _LARGEST // 10 or (head == _LARGEST // 10 and last > _LARGEST % 10):
        return -1
    return head * 10 + last


@kernel(boolean, RAW, INT64S, INT64S, int64, int64, INT64S)
def _integers(raw: Bytes, starts: Int64s, lengths: Int64s, least: int, most: int, values: Int64s) -> bool:
    for row in range(len(starts)):
        values[row] = 0
        start = starts[row]
        stop = starts[row] + lengths[row]
        if lengths[row] < 0:
            continue
        if lengths[row] == 0 or start < 0 or stop > len(raw):
            return False
        negative = raw[start] == _MINUS
        number = _natural(raw, start + 1 if negative else start, stop)
        if number < 0:
            return False
        if negative:
            number = -number
        if number < least or number > most:
            return False
        values[row] = number
    return True


@kernel(void, RAW, int64, int64, boolean, INT64S, int64)
def _wide(raw: Bytes, start: int, stop: int, negative: bool, values: Int64s, place: int) -> None:
    """The 128-bit number of the digits in `raw[start:stop]` (a point among them is passed over), its low half first."""
    first: Any
    second: Any
    third: Any
    fourth: Any
    # Times ten in parts of 32 bits: a part and its carry always fit into 64 bits.
    first = second = third = fourth = np.int64(0)  # 32 bits in each, the lowest first
    for at in range(start, stop):
        if raw[at] == _POINT:
            continue
        first = first * 10 + np.int64(raw[at]) - 48
        second = second * 10 + (first >> 32)
        third = third * 10 + (second >> 32)
        fourth = fourth * 10 + (third >> 32)
        first = first & _HALF
        second = second & _HALF
        third = third & _HALF
        fourth = fourth & _HALF
    low = second << 32 | first
    high = fourth << 32 | third
    if negative:
        # Two's complement over both halves: only a low half of 0 carries into the high one.
        high = ~high if low != 0 else -high
        low = -low
    values[place] = low
    values[place + 1] = high


@kernel(boolean, RAW, int64, int64)
def _all_digits(raw: Bytes, start: int, stop: int) -> bool:
    at = start
    while at < stop and _ZERO <= raw[at] <= _NINE:
        at += 1
    return at == stop


@kernel(boolean, RAW, int64, int64, int64, int64, INT64S, int64)
def _decimal(raw: Bytes, start: int, stop: int, precision: int, scale: int, values: Int64s, place: int) -> bool:
    negative = raw[start] == _MINUS
    if negative:
        start += 1
    point = stop - scale - 1 if scale else stop
    if point <= start or (scale and raw[point] != _POINT):
        return False
    if not (_all_digits(raw, start, point) and (not scale or _all_digits(raw, point + 1, stop))):
        return False
    start = _after_zeros(raw, start, point)
    if point - start + scale > precision:
        return False
    if point - start + scale > _MOST_DIGITS:
        _wide(raw, start, stop, negative, values, place)
        return True
    number: Any = np.int64(0)
    for at in range(start, stop):
        if at != point:
            number = number * 10 + np.int64(raw[at]) - 48
    if negative:
        number = -number
    values[place] = number
    values[place + 1] = number >> 63
    return True


@kernel(boolean, RAW, INT64S, INT64S, int64, int64, INT64S)
def _decimals(raw: Bytes, starts: Int64s, lengths: Int64s, precision: int, scale: int, values: Int64s) -> bool:
    """Two integers for each value, the low one first."""
    for row in range(len(starts)):
        values[2 * row] = values[2 * row + 1] = 0
        start = starts[row]
        stop = starts[row] + lengths[row]
        if lengths[row] < 0:
            continue
        if lengths[row] == 0 or start < 0 or stop > len(raw):
            return False
        if not _decimal(raw, start, stop, precision, scale, values, 2 * row):
            return False
    return True


@kernel(int64, RAW, int64)
def _day(raw: Bytes, start: int) -> int:
    """Days since 1970 of the ten bytes `YYYY-MM-DD`; _NONE where they are no date that exists."""
    year = _digits(raw, start, start + 4)
    month = _digits(raw, start + 5, start + 7)
    day = _digits(raw, start + 8, start + 10)
    if raw[start + 4] != _DASH or raw[start + 7] != _DASH or year < 1 or month < 1 or month > 12 or day < 1:
        return _NONE
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    # Months have 31 and 30 days in turn, and August begins the turn again.
    longest = 31 - (month - 1) % 7 % 2 if month != 2 else 28 + leap
    if day > longest:
        return _NONE
    # Years that begin in March: the leap day is the last of its year, and months have a formula.
    if month <= 2:
        year -= 1
    in_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + in_year - _DAYS_BEFORE_1970


@kernel(int64, RAW, int64, int64)
def _time_of_day(raw: Bytes, start: int, stop: int) -> int:
    """Microseconds of `HH:MM:SS`, with up to six digits after a point; _NONE where they are none."""
    hour = _digits(raw, start, start + 2)
    minute = _digits(raw, start + 3, start + 5)
    second = _digits(raw, start + 6, start + 8)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return _NONE
    if raw[start + 2] != _COLON or raw[start + 5] != _COLON:
        return _NONE
    fraction: Any = np.int64(0)
    if stop > start + 8:
        fraction = _digits(raw, start + 9, stop)
        if raw[start + 8] != _POINT or fraction < 0:
            return _NONE
        for _ in range(start + 15 - stop):
            fraction *= 10
    return int(((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction)


@kernel(boolean, RAW, INT64S, INT64S, boolean, INT64S)
def _times(raw: Bytes, starts: Int64s, lengths: Int64s, dates: bool, values: Int64s) -> bool:
    """Days, or microseconds, since 1970."""
    for row in range(len(starts)):
        values[row] = 0
        start = starts[row]
        size = lengths[row]
        if size < 0:
            continue
        if start < 0 or start + size > len(raw) or size < 10 or (dates and size != 10):
            return False
        day = _day(raw, start)
        if day == _NONE:
            return False
        if dates:
            values[row] = day
            continue
        # 19 characters, or up to 26 with a point and six digits; 20 would be a point alone.
        if size < 19 or size > 26 or size == 20 or raw[start + 10] != _SPACE:
            return False
        time = _time_of_day(raw, start + 11, start + size)
        if time == _NONE:
            return False
        values[row] = day * _DAY + time
    return True
