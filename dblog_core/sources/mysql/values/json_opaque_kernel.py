"""Decimals, dates and times in JSON documents, printed in place of the marks of `json_kernel`: compiled.

Only functions put such values into documents (JSON_OBJECT over a DECIMAL column, say). A document stores them as opaque
bytes with the type of a column (sql-common/json_dom.cc). The kernel that walks documents is another module: kernels of
two modules do not call each other (`dblog_core.rows.jit`), so that this is a second pass over texts that have marks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy import uintp  # unsigned indexes: nobody looks whether they count from the end

from dblog_core.rows.jit import BYTES, INT32S, RAW, int64, kernel, part
from dblog_core.sources.mysql.values.json_kernel import MARK

Number = Any  # numpy's number where it was read, Python's where it is written here
Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]

LONGEST = 128
"""Bytes that no printed decimal, date or time has more than, nor a mark."""
_LEFT = -1
"""The value is not one of these, or none that a server makes: its mark stays."""
# enum_field_types
_TIMESTAMP = 7
_DATE = 10
_TIME = 11
_DATETIME = 12
_DECIMAL = 246
_MOST_DIGITS = 81
_POWERS = np.array([10**i for i in range(10)], dtype=np.int64)
_GROUP_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], dtype=np.int64)
"""Bytes that hold 0 to 9 digits of a packed decimal."""
_QUOTE, _ZERO, _MINUS, _POINT, _COLON, _SPACE = b'"0-.: '


@part
def _packed_number(raw: Bytes, at: Number) -> Number:
    value = np.int64(0)
    for i in range(8):
        value |= np.int64(raw[uintp(at + i)]) << (8 * i)
    return int(value)


@part
def _seven_bits(text: Bytes, at: Number, count: Number) -> Number:
    """A number of a mark: seven bits in each of `count` bytes, the lowest first."""
    number = np.int64(0)
    for i in range(count):
        number |= (np.int64(text[uintp(at + i)]) & 0x7F) << (7 * i)
    return int(number)


@part
def _write_digits(out: Bytes, at: Number, number: Number, count: Number) -> Number:
    """Writes the last `count` digits; returns the place behind them."""
    for i in range(count):
        out[uintp(at + count - 1 - i)] = _ZERO + number % 10
        number //= 10
    return at + count


@part
def _write_number(out: Bytes, at: Number, number: Number) -> Number:
    """Writes a number without zeros in front; returns the place behind it."""
    count = 1
    rest = number // 10
    while rest > 0:
        count += 1
        rest //= 10
    return _write_digits(out, at, number, count)


@kernel(int64, RAW, int64, int64, BYTES, int64)
def _write_decimal(raw: Bytes, at: Number, end: Number, out: Bytes, to: Number) -> Number:
    """Writes a decimal, which brings its precision and scale along, or returns _LEFT."""
    if at + 2 > end:
        return _LEFT
    precision = np.int64(raw[uintp(at)])
    scale = np.int64(raw[uintp(at + 1)])
    at = at + 2
    whole = precision - scale
    if precision == 0 or precision > _MOST_DIGITS or whole < 0 or at >= end:
        return _LEFT
    # The first bit is the sign, turned around; negative numbers have all their bits inverted.
    mask = 0 if raw[uintp(at)] & 0x80 else 0xFF
    flip = mask ^ 0x80
    started = whole == 0
    some = np.int64(0)
    done: Number = 0
    count: Number = 0
    out[uintp(to)] = _MINUS
    to += mask != 0
    if started:
        out[uintp(to)] = _ZERO
        to += 1
    while done < precision:
        if done < whole:
            count = whole % 9 if done == 0 and whole % 9 else 9
        else:
            count = min(9, precision - done)
        size = _GROUP_BYTES[uintp(count)]
        group = np.int64(0)
        if at + size > end:
            return _LEFT
        for i in range(size):
            group = group << 8 | (np.int64(raw[uintp(at + i)]) ^ flip)
            flip = mask
        at += size
        # Nine digits make four bytes, which could hold more: then it is no decimal of a server.
        if group >= _POWERS[uintp(count)]:
            return _LEFT
        if done == whole:
            out[uintp(to)] = _POINT
            to += 1
        done = done + count
        some = some | group
        if started:
            to = _write_digits(out, to, group, count)
        elif group > 0 or done == whole:  # without the zeros in front
            to = _write_number(out, to, group)
            started = True
    return to if some or not mask else _LEFT


@part
def _write_clock(out: Bytes, at: Number, packed: Number, hours: Number) -> Number:
    """Writes hours (so many digits), minutes, seconds and microseconds."""
    at = _write_digits(out, at, packed >> 36, hours)
    out[uintp(at)] = _COLON
    at = _write_digits(out, at + 1, packed >> 30 & 63, 2)
    out[uintp(at)] = _COLON
    at = _write_digits(out, at + 1, packed >> 24 & 63, 2)
    out[uintp(at)] = _POINT
    return _write_digits(out, at + 1, packed & 0xFFFFFF, 6)


@kernel(int64, BYTES, int64, int64, int64)
def _write_moment(out: Bytes, at: Number, packed: Number, kind: Number) -> Number:
    """Writes a date or time as a string, or returns _LEFT for one that no server makes."""
    out[uintp(at)] = _QUOTE
    at += 1
    if kind == _TIME:
        if packed < 0:
            out[uintp(at)] = _MINUS
            at += 1
            packed = -packed
        if packed < 0 or packed >> 36 > 999 or packed & 0xFFFFFF > 999_999:
            return _LEFT
        at = _write_clock(out, at, packed, 3 if packed >> 36 > 99 else 2)
    else:
        # Bits, from below: 24 of microseconds, 17 of the time of day, 5 of the day, and year * 13 + month.
        date = packed >> 41
        if packed < 0 or date >> 5 > 9999 * 13 + 12 or packed & 0xFFFFFF > 999_999:
            return _LEFT
        at = _write_digits(out, at, (date >> 5) // 13, 4)
        out[uintp(at)] = _MINUS
        at = _write_digits(out, at + 1, (date >> 5) % 13, 2)
        out[uintp(at)] = _MINUS
        at = _write_digits(out, at + 1, date & 31, 2)
        if kind != _DATE:
            out[uintp(at)] = _SPACE
            at = _write_clock(out, at + 1, packed & (1 << 41) - 1, 2)
    out[uintp(at)] = _QUOTE
    return at + 1


@kernel(int64, RAW, int64, int64, int64, BYTES, int64)
def _write_value(raw: Bytes, kind: Number, start: Number, end: Number, out: Bytes, at: Number) -> Number:
    """Writes a value, or returns _LEFT."""
    if kind == _DECIMAL:
        return _write_decimal(raw, start, end, out, at)
    is_moment = (kind == _DATE) | (kind == _TIME) | (kind == _DATETIME) | (kind == _TIMESTAMP)
    if is_moment and start + 8 <= end:
        return _write_moment(out, at, _packed_number(raw, start), kind)
    return _LEFT


@kernel(int64, RAW, RAW, INT32S, INT32S, BYTES)
def print_marked(raw: Bytes, text: Bytes, places: Int32s, offsets: Int32s, out: Bytes) -> Number:
    """Copies texts with the values that their marks stand for; a value that is not printed here keeps its mark.

    `places`: where in `text` each document begins, and the last one ends; `offsets` and `out` are filled as Arrow lays
    out strings. Returns the number of marks that stay; -1 less the row of the first that found no room: LONGEST bytes
    for each mark, beside the text, are enough.
    """
    at = np.int64(0)
    left = 0
    for row in range(len(places) - 1):
        offsets[row] = at
        place = np.int64(places[row])
        stop = np.int64(places[row + 1])
        if at + stop - place > len(out):
            return -1 - row
        while place < stop:
            byte = text[uintp(place)]
            if byte != 0:
                out[uintp(at)] = byte
                at += 1
                place += 1
                continue
            # What follows the mark has room still if it is copied as it is.
            if at + LONGEST + stop - place > len(out):
                return -1 - row
            kind = _seven_bits(text, place + 1, 2)
            start = _seven_bits(text, place + 3, 5)
            after = _write_value(raw, kind, start, start + _seven_bits(text, place + 8, 5), out, at)
            if after == _LEFT:
                left += 1
                for i in range(MARK):
                    out[uintp(at + i)] = text[uintp(place + i)]
                after = at + MARK
            at = after
            place += MARK
    offsets[len(places) - 1] = at
    return left
