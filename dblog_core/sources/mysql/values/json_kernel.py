"""MySQL's binary JSON as the text that the server prints: compiled (sql-common/json_binary.h).

A document is a tree of containers whose headers tell where keys and values lie. It is walked with a stack of its own,
every place checked against the document's end, and no more values are visited than its bytes can hold, so that a
document that points into itself ends. Numbers with a point whose shortest form needs more than 15 digits, and opaque
values of other types than decimals, dates and times, are not printed here: such a document is left to `jsontext`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy import uintp  # unsigned indexes: nobody looks whether they count from the end

from dblog_core.rows.jit import (
    BYTES,
    INT32S,
    INT64S,
    RAW,
    int64,
    kernel,
    part,
)

Number = Any  # numpy's number where it was read, Python's where it is written here
Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

PRINTED, ELSEWHERE, BROKEN = 0, 1, 2
"""What became of a document: its text; left to `jsontext`; it is none."""

DEPTH = 101
"""Containers in one another: a server stores no more than 100."""
STACK = 4 * DEPTH
_FULL, _OTHER, _BAD = -1, -2, -3
"""No room; a value that is left to `jsontext`; no document."""

_ARRAY_SMALL, _ARRAY_LARGE, _LITERAL, _INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(2, 13)
_OPAQUE = 15
_DECIMAL, _DATE, _TIME, _DATETIME, _TIMESTAMP = 246, 10, 11, 12, 7
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_LITERALS = np.frombuffer(b"null\0true\0false", dtype=np.uint8)
_LAST_LITERAL = 2
# How a byte of a string is printed: as it is (0), with a letter after a backslash, or (1) by its number.
_ESCAPES = np.zeros(256, dtype=np.uint8)
_ESCAPES[:32] = 1
for _byte, _letter in zip(b'"\\\b\t\n\f\r', b'"\\btnfr', strict=True):
    _ESCAPES[_byte] = _letter
_TENS = np.array([float(10**i) for i in range(23)])
_POWERS = np.array([10**i for i in range(10)], dtype=np.int64)
_GROUP_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], dtype=np.int64)
"""Bytes that hold 0 to 9 digits of a packed decimal."""
_LONGEST = 81
_QUOTE, _BACKSLASH, _ZERO, _MINUS, _POINT, _COLON = 34, 92, 48, 45, 46, 58
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY, _COMMA, _SPACE = 123, 125, 91, 93, 44, 32
_NUMBER = 128
"""Room for a number, a date or a literal, or a sign; _ENDS: and for the ends of all containers behind it."""
_ENDS = _NUMBER + DEPTH


@part
def _little(raw: Bytes, at: Number, size: Number) -> Number:
    value = np.int64(0)
    for i in range(size):
        value |= np.int64(raw[uintp(at + i)]) << (8 * i)
    return int(value)


@part
def _offset(raw: Bytes, at: Number, size: Number) -> Number:
    """A count or offset of 2 or 4 bytes."""
    return _little(raw, at, 2) if size == 2 else _little(raw, at, 4)


@part
def _decimal(out: Bytes, at: Number, number: Number, places: Number) -> Number:
    """Writes a number below 2^63 with `places` digits after its point; returns the place behind it."""
    count, rest = 1, number // 10
    while rest > 0:
        count += 1
        rest //= 10
    if count <= places:
        count = places + 1
    end = at + count + (places > 0)
    here = end - 1
    for i in range(count):
        if i == places and i > 0:
            out[uintp(here)] = _POINT
            here -= 1
        out[uintp(here)] = _ZERO + number % 10
        number //= 10
        here -= 1
    return end


@part
def _signed(out: Bytes, at: Number, number: Number) -> Number:
    if number < 0:
        out[uintp(at)] = _MINUS
        if number == -number:  # the smallest: its opposite has no place
            return _decimal(out, _decimal(out, at + 1, 922337203685477580, 0), 8, 0)
        return _decimal(out, at + 1, -number, 0)
    return _decimal(out, at, number, 0)


@part
def _unsigned(out: Bytes, at: Number, bits: Number) -> Number:
    if bits < 0:  # 2^63 and more: the last digit apart
        tenth = (bits >> 1 & 0x7FFFFFFFFFFFFFFF) // 5
        return _decimal(out, _decimal(out, at, tenth, 0), bits - tenth * 10, 0)
    return _decimal(out, at, bits, 0)


@kernel(int64, BYTES, int64, int64)
def _double(out: Bytes, at: Number, bits: Number) -> Number:
    """Writes a double of up to 15 digits from 1e-5 on and below 1e15; others return _OTHER.

    m / 10^k is the double nearest to the decimal of the digits m, since both are exact; the first k that gives the
    value back gives its shortest form, for no two decimals of 15 digits have the same nearest double.
    """
    value = np.int64(bits).view(np.float64)
    size = abs(value)
    if size == 0:
        if bits < 0:
            out[uintp(at)] = _MINUS
            at += 1
        return _decimal(out, at, 0, 1)
    if not (1e-5 <= size < 1e15):
        return _OTHER
    for places in range(21):
        scaled = math.floor(size * _TENS[uintp(places)] + 0.5)
        if scaled >= 1e15:
            return _OTHER
        if scaled / _TENS[uintp(places)] == size:
            if bits < 0:
                out[uintp(at)] = _MINUS
                at += 1
            number = int(scaled)
            return _decimal(out, at, number if places else number * 10, max(places, 1))
    return _OTHER


@part
def _digits(out: Bytes, at: Number, number: Number, count: Number) -> Number:
    """Writes the last `count` digits; returns the place behind them."""
    for i in range(count):
        out[uintp(at + count - 1 - i)] = _ZERO + number % 10
        number //= 10
    return at + count


@kernel(int64, RAW, int64, int64, BYTES, int64)
def _packed_decimal(raw: Bytes, at: Number, end: Number, out: Bytes, to: Number) -> Number:
    """Writes a decimal that brings its precision and scale along; see `_value`."""
    if at + 2 > end:
        return _OTHER
    precision, scale, at = np.int64(raw[uintp(at)]), np.int64(raw[uintp(at + 1)]), at + 2
    whole = precision - scale
    if precision == 0 or precision > _LONGEST or whole < 0 or at >= end:
        return _OTHER
    mask = 0 if raw[uintp(at)] & 0x80 else 0xFF
    flip, started, some = mask ^ 0x80, whole == 0, np.int64(0)
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
        size, group = _GROUP_BYTES[uintp(count)], np.int64(0)
        if at + size > end:
            return _OTHER
        for i in range(size):
            group = group << 8 | (np.int64(raw[uintp(at + i)]) ^ flip)
            flip = mask
        at += size
        if group >= _POWERS[uintp(count)]:
            return _OTHER
        if done == whole:
            out[uintp(to)] = _POINT
            to += 1
        done, some = done + count, some | group
        if started:
            to = _digits(out, to, group, count)
        elif group > 0 or done == whole:  # without the zeros in front
            to = _decimal(out, to, group, 0)
            started = True
    return to if some or not mask else _OTHER


@part
def _clock(out: Bytes, at: Number, packed: Number, hours: Number) -> Number:
    """Writes hours (so many digits), minutes, seconds and microseconds."""
    at = _digits(out, at, packed >> 36, hours)
    out[uintp(at)] = _COLON
    at = _digits(out, at + 1, packed >> 30 & 63, 2)
    out[uintp(at)] = _COLON
    at = _digits(out, at + 1, packed >> 24 & 63, 2)
    out[uintp(at)] = _POINT
    return _digits(out, at + 1, packed & 0xFFFFFF, 6)


@kernel(int64, BYTES, int64, int64, int64)
def _moment(out: Bytes, at: Number, packed: Number, kind: Number) -> Number:
    """Writes a date or time as a string, if it is one that a server makes; see `_value`."""
    out[uintp(at)] = _QUOTE
    at += 1
    if kind == _TIME:
        if packed < 0:
            out[uintp(at)] = _MINUS
            at += 1
            packed = -packed
        if packed < 0 or packed >> 36 > 999 or packed & 0xFFFFFF > 999_999:
            return _OTHER
        at = _clock(out, at, packed, 3 if packed >> 36 > 99 else 2)
    else:
        date = packed >> 41
        if packed < 0 or date >> 5 > 9999 * 13 + 12 or packed & 0xFFFFFF > 999_999:
            return _OTHER
        at = _digits(out, at, (date >> 5) // 13, 4)
        out[uintp(at)] = _MINUS
        at = _digits(out, at + 1, (date >> 5) % 13, 2)
        out[uintp(at)] = _MINUS
        at = _digits(out, at + 1, date & 31, 2)
        if kind != _DATE:
            out[uintp(at)] = 32
            at = _clock(out, at + 1, packed & (1 << 41) - 1, 2)
    out[uintp(at)] = _QUOTE
    return at + 1


@kernel(int64, RAW, int64, int64, int64, BYTES, int64)
def _opaque(raw: Bytes, kind: Number, start: Number, end: Number, out: Bytes, at: Number) -> Number:
    """Writes a value that only functions make; see `_value`."""
    if kind == _DECIMAL:
        return _packed_decimal(raw, start, end, out, at)
    if (kind == _DATE) | (kind == _TIME) | (kind == _DATETIME) | (kind == _TIMESTAMP) and start + 8 <= end:
        return _moment(out, at, _little(raw, start, 8), kind)
    return _OTHER


@part
def _quoted(raw: Bytes, start: Number, end: Number, out: Bytes, at: Number) -> Number:
    """Writes a string with its quotes and escapes: at most six bytes for each, and two."""
    out[uintp(at)] = _QUOTE
    at += 1
    for i in range(start, end):
        byte = raw[uintp(i)]
        escape = _ESCAPES[uintp(byte)]
        if escape == 0:
            out[uintp(at)] = byte
            at += 1
        else:
            out[uintp(at)] = _BACKSLASH
            if escape > 1:
                out[uintp(at + 1)] = escape
                at += 2
            else:
                out[uintp(at + 1)], out[uintp(at + 2)], out[uintp(at + 3)] = 117, _ZERO, _ZERO
                out[uintp(at + 4)], out[uintp(at + 5)] = _HEX[uintp(byte >> 4)], _HEX[uintp(byte & 15)]
                at += 6
    out[uintp(at)] = _QUOTE
    return at + 1


@part
def _fits(raw: Bytes, start: Number, end: Number, at: Number, room: Number) -> Number:
    """Whether a string and a number have room: all but always told without a look at its bytes."""
    if at + 6 * (end - start) + _NUMBER <= room:
        return 1
    for i in range(start, end):
        at += 1 if _ESCAPES[uintp(raw[uintp(i)])] == 0 else 6
    return int(at + _NUMBER <= room)


@part
def _length_bytes(raw: Bytes, at: Number, end: Number) -> Number:
    """How many bytes a length takes that has seven bits a byte; 0 if it does not end within the document."""
    for count in range(1, 6):
        if at + count > end:
            return 0
        if raw[uintp(at + count - 1)] < 0x80:
            return count
    return 0


@part
def _length(raw: Bytes, at: Number, count: Number) -> Number:
    """A length of so many bytes, the lowest bits first."""
    length = np.int64(0)
    for i in range(count):
        length |= (np.int64(raw[uintp(at + i)]) & 0x7F) << (7 * i)
    return int(length)


@part
def _literal(out: Bytes, at: Number, which: Number) -> Number:
    first = 5 * which
    count = 5 if which == 2 else 4
    for i in range(count):
        out[uintp(at + i)] = _LITERALS[uintp(first + i)]
    return at + count


@part
def _count(raw: Bytes, kind: Number, base: Number, end: Number) -> Number:
    """How many entries a container has; -1 where their table does not lie within the document."""
    size = 4 if kind & 1 else 2
    if base + 2 * size > end:
        return -1
    count = _offset(raw, base, size)
    entry = 1 + size + (size + 2 if kind < _ARRAY_SMALL else 0)
    return -1 if base + 2 * size + count * entry > end else count


@part
def _entered(
    raw: Bytes, base: Number, index: Number, size: Number, keys: Number, end: Number, out: Bytes, at: Number
) -> Number:
    """Writes what stands before a container's value: the comma after the one before, and the key; see `_value`."""
    if at + _NUMBER > len(out):
        return _FULL
    if index > 0:
        out[uintp(at)], out[uintp(at + 1)] = _COMMA, _SPACE
        at += 2
    if keys:
        entry = base + 2 * size + index * (size + 2)
        first = base + _offset(raw, entry, size)
        last = first + _little(raw, entry + size, 2)
        if last > end:
            return _BAD
        if not _fits(raw, first, last, at, len(out)):
            return _FULL
        at = _quoted(raw, first, last, out, at)
        out[uintp(at)], out[uintp(at + 1)] = _COLON, _SPACE
        at += 2
    return at


@part
def _opened(keys: Number, out: Bytes, at: Number) -> Number:
    out[uintp(at)] = _OPEN_OBJECT if keys else _OPEN_ARRAY
    return at + 1


@part
def _closed(keys: Number, out: Bytes, at: Number) -> Number:
    out[uintp(at)] = _CLOSE_OBJECT if keys else _CLOSE_ARRAY
    return at + 1


@part
def _push(stack: Int64s, depth: Number, base: Number, count: Number, index: Number, form: Number) -> None:
    """Keeps a container while one inside it is printed; `form`: bytes of its offsets, and 1 more if it has keys."""
    stack[uintp(4 * depth)], stack[uintp(4 * depth + 1)] = base, count
    stack[uintp(4 * depth + 2)], stack[uintp(4 * depth + 3)] = index, form


@part
def _string(raw: Bytes, kind: Number, place: Number, end: Number, out: Bytes, at: Number) -> Number:
    """Writes a value that brings its length along; see `_value`."""
    first = place + (kind == _OPAQUE)
    count = _length_bytes(raw, first, end)
    start = first + count
    last = start + _length(raw, first, count)
    if count == 0 or last > end:
        return _BAD
    if kind == _OPAQUE:
        return _opaque(raw, np.int64(raw[uintp(place)]), start, last, out, at)
    return _quoted(raw, start, last, out, at) if _fits(raw, start, last, at, len(out)) else _FULL


@part
def _value(raw: Bytes, kind: Number, place: Number, end: Number, out: Bytes, at: Number) -> Number:
    """Writes a value that holds no others; returns the place behind it, or _FULL, _OTHER or _BAD."""
    if (kind == _STRING) | (kind == _OPAQUE):
        return _string(raw, kind, place, end, out, at)
    width = 1 if kind == _LITERAL else 2 if kind <= _UINT16 else 4 if kind <= _UINT32 else 8
    if kind > _DOUBLE or place + width > end:
        return _BAD
    bits = _little(raw, place, width)
    if kind == _LITERAL:
        return _literal(out, at, bits) if bits <= _LAST_LITERAL else _BAD
    if kind == _DOUBLE:
        return _double(out, at, bits)
    if (kind == _INT16) | (kind == _INT32) | (kind == _INT64):
        shift = 64 - 8 * width
        return _signed(out, at, bits << shift >> shift)
    return _unsigned(out, at, bits)


@part
def _place(raw: Bytes, base: Number, entry: Number, size: Number, kind: Number) -> Number:
    """Where the value of an entry lies: small ones stand in the entry itself, in place of their offset; -1: nowhere."""
    at = _offset(raw, entry + 1, size)
    if kind == _LITERAL:
        return entry + 1 if at <= _LAST_LITERAL else -1
    within = kind > _LITERAL and (kind <= _UINT16 or (size == 4 and kind <= _UINT32))
    return entry + 1 if within else base + at


@kernel(int64, RAW, int64, int64, BYTES, int64, INT64S)
def _document(raw: Bytes, start: Number, end: Number, out: Bytes, at: Number, stack: Int64s) -> Number:
    """Writes one document; returns as `_value` does. `stack`: room for the containers around the innermost."""
    if start == end:  # what ALTER TABLE leaves in a NOT NULL column; the server reads it as JSON null
        return _literal(out, at, 0) if at + _NUMBER <= len(out) else _FULL
    kind, place, left, depth, other = np.int64(raw[uintp(start)]), start + 1, end - start, 0, False
    base: Number = 0
    count: Number = 0
    index: Number = 0
    size: Number = 2
    keys: Number = 0
    while True:
        left -= 1
        if left < 0 or place >= end:
            return _BAD
        if at + _ENDS > len(out):
            return _FULL
        if kind <= _ARRAY_LARGE:
            entries = _count(raw, kind, place, end)
            if entries < 0 or depth == DEPTH:
                return _BAD
            _push(stack, depth, base, count, index, size + keys)
            base, count, index, depth = place, entries, 0, depth + 1
            size, keys = 4 if kind & 1 else 2, int(kind < _ARRAY_SMALL)
            at = _opened(keys, out, at)
        else:
            after = _value(raw, kind, place, end, out, at)
            if (after == _FULL) | (after == _BAD):
                return after
            other = other or after == _OTHER
            at = max(at, after)
        while depth > 0 and index == count:
            at, depth = _closed(keys, out, at), depth - 1
            base, count, index = stack[uintp(4 * depth)], stack[uintp(4 * depth + 1)], stack[uintp(4 * depth + 2)]
            keys = stack[uintp(4 * depth + 3)] & 1
            size = stack[uintp(4 * depth + 3)] - keys
        if depth == 0:
            return _OTHER if other else at
        at = _entered(raw, base, index, size, keys, end, out, at)
        if at < 0:
            return at
        entry = base + 2 * size + (count * (size + 2) if keys else 0) + index * (1 + size)
        kind, index = np.int64(raw[uintp(entry)]), index + 1
        place = _place(raw, base, entry, size, kind)
        if place < 0:
            return _BAD


@kernel(int64, RAW, INT64S, INT64S, int64, INT32S, BYTES, BYTES, INT64S)
def print_documents(
    raw: Bytes,
    starts: Int64s,
    lengths: Int64s,
    row: Number,
    offsets: Int32s,
    out: Bytes,
    states: Bytes,
    stack: Int64s,
) -> Number:
    """Writes documents from `row` on as Arrow lays out strings, and what became of each.

    One that is not printed is empty; a length below 0 is a NULL, and empty. `stack`: room for STACK numbers. Returns
    the first row that found no room in `out`, or the number of rows.
    """
    at = np.int64(offsets[row])
    while row < len(starts):
        offsets[row] = at
        states[row] = PRINTED
        if lengths[row] >= 0:
            after = _document(raw, starts[row], starts[row] + lengths[row], out, at, stack)
            if after == _FULL:
                return row
            if after < 0:
                states[row] = ELSEWHERE if after == _OTHER else BROKEN
            at = max(at, after)
        row += 1
    offsets[row] = at
    return row
