"""MySQL's binary JSON as the text that the server prints: compiled (sql-common/json_binary.h).

A document is a tree of containers whose headers tell where keys and values lie. It is walked with a stack of its own,
every place checked against the document's end, and it visits at most as many values as its bytes can hold, so that a
document that points into itself ends. Two kinds of values are not printed here: doubles whose shortest form needs more
than 15 digits, and opaque values, which only functions put into documents. A mark in the text shows where each of them
lies (`json_text`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy import uintp  # unsigned indexes: nobody looks whether they count from the end

from dblog_core.rows.jit import BYTES, INT32S, INT64S, RAW, int64, kernel, part

Number = Any  # numpy's number where it was read, Python's where it is written here
Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

DEPTH = 101
"""Containers in one another: a server stores no more than 100."""
_MARKS = 4 * DEPTH
STACK = _MARKS + 1
"""Numbers of `print_documents`' stack: four for each container, and how many marks were written."""
MARK = 13
"""Bytes of a mark: a zero byte, which no printed document holds, and seven bits in each of the others, none of which is
zero: two for the type of an opaque value or LONG_DOUBLE, five for the place in `raw`, five for the length."""
LONG_DOUBLE = 256
"""The type of a mark for a double; those of opaque values (`enum_field_types`) take a byte."""
_FULL, _BAD, _NOT_SHORT = range(-1, -4, -1)
"""No room; no document; a double that is left to a mark."""

_ARRAY_SMALL, _ARRAY_LARGE, _LITERAL, _INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(2, 13)
_OPAQUE = 15
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_LITERALS = np.frombuffer(b"null\0true\0false", dtype=np.uint8)
_LAST_LITERAL = 2
# How a byte of a string is printed: as it is (0), with a letter after a backslash, or (1) by its number.
_ESCAPES = np.zeros(256, dtype=np.uint8)
_ESCAPES[:32] = 1
for _byte, _letter in zip(b'"\\\b\t\n\f\r', b'"\\btnfr', strict=True):
    _ESCAPES[_byte] = _letter
_TENS = np.array([float(10**i) for i in range(23)])
_QUOTE, _BACKSLASH, _ZERO, _MINUS, _POINT, _COLON, _COMMA, _SPACE = b'"\\0-.:, '
_BRACKETS = np.frombuffer(b"[]{}", dtype=np.uint8)
_NUMBER = 128
"""Room for a number, a literal, a mark or a sign; _ENDS: and for the ends of all containers behind it."""
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
def _write_decimal(out: Bytes, at: Number, number: Number, places: Number) -> Number:
    """Writes a number below 2^63 with `places` digits after its point; returns the place behind it."""
    count = 1
    rest = number // 10
    while rest > 0:
        count += 1
        rest //= 10
    if count <= places:
        count = places + 1
    end = at + count + (places > 0)
    place = end - 1
    for i in range(count):
        if i == places and i > 0:
            out[uintp(place)] = _POINT
            place -= 1
        out[uintp(place)] = _ZERO + number % 10
        number //= 10
        place -= 1
    return end


@part
def _write_signed(out: Bytes, at: Number, number: Number) -> Number:
    if number < 0:
        out[uintp(at)] = _MINUS
        if number == -number:  # the smallest: its opposite has no place
            return _write_decimal(out, _write_decimal(out, at + 1, 922337203685477580, 0), 8, 0)
        return _write_decimal(out, at + 1, -number, 0)
    return _write_decimal(out, at, number, 0)


@part
def _write_unsigned(out: Bytes, at: Number, bits: Number) -> Number:
    if bits < 0:  # 2^63 and more: the last digit apart
        tenth = (bits >> 1 & 0x7FFFFFFFFFFFFFFF) // 5
        return _write_decimal(out, _write_decimal(out, at, tenth, 0), bits - tenth * 10, 0)
    return _write_decimal(out, at, bits, 0)


@kernel(int64, BYTES, int64, int64)
def _write_double(out: Bytes, at: Number, bits: Number) -> Number:
    """Writes a double of up to 15 digits from 1e-5 on and below 1e15; others return _NOT_SHORT.

    m / 10^k is the double nearest to the decimal of the digits m, since both are exact; the first k that gives the
    value back gives its shortest form, for no two decimals of 15 digits have the same nearest double.
    """
    value = np.int64(bits).view(np.float64)
    size = abs(value)
    if size == 0:
        if bits < 0:
            out[uintp(at)] = _MINUS
            at += 1
        return _write_decimal(out, at, 0, 1)
    if not (1e-5 <= size < 1e15):
        return _NOT_SHORT
    for places in range(21):
        scaled = math.floor(size * _TENS[uintp(places)] + 0.5)
        if scaled >= 1e15:
            return _NOT_SHORT
        if scaled / _TENS[uintp(places)] == size:
            if bits < 0:
                out[uintp(at)] = _MINUS
                at += 1
            number = int(scaled)
            return _write_decimal(out, at, number if places else number * 10, max(places, 1))
    return _NOT_SHORT


@part
def _write_quoted(raw: Bytes, start: Number, end: Number, out: Bytes, at: Number) -> Number:
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
                out[uintp(at + 1)] = 117
                out[uintp(at + 2)] = _ZERO
                out[uintp(at + 3)] = _ZERO
                out[uintp(at + 4)] = _HEX[uintp(byte >> 4)]
                out[uintp(at + 5)] = _HEX[uintp(byte & 15)]
                at += 6
    out[uintp(at)] = _QUOTE
    return at + 1


@part
def _fits(raw: Bytes, start: Number, end: Number, at: Number, room: Number) -> Number:
    """Whether a string and a number have room: its length alone nearly always answers that."""
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
def _write_literal(out: Bytes, at: Number, which: Number) -> Number:
    count = 5 if which == 2 else 4
    for i in range(count):
        out[uintp(at + i)] = _LITERALS[uintp(5 * which + i)]
    return at + count


@part
def _count(raw: Bytes, kind: Number, base: Number, end: Number) -> Number:
    """How many entries a container has; -1 where their table does not lie within the document."""
    # 0 and 1 are objects, 2 and 3 arrays; the odd ones have counts and offsets of four bytes.
    size = 4 if kind & 1 else 2
    if base + 2 * size > end:
        return -1
    count = _offset(raw, base, size)
    # For each value type and offset; for each key of an object its offset, and its length in two bytes.
    entry = 1 + size + (size + 2 if kind < _ARRAY_SMALL else 0)
    return -1 if base + 2 * size + count * entry > end else count


@part
def _write_head(
    raw: Bytes, base: Number, index: Number, size: Number, keys: Number, end: Number, out: Bytes, at: Number
) -> Number:
    """Writes what stands before a container's value: a comma after another one, and the key; see `_write_value`."""
    if at + _NUMBER > len(out):
        return _FULL
    if index > 0:
        out[uintp(at)] = _COMMA
        out[uintp(at + 1)] = _SPACE
        at += 2
    if keys:
        entry = base + 2 * size + index * (size + 2)
        first = base + _offset(raw, entry, size)
        last = first + _little(raw, entry + size, 2)
        if last > end:
            return _BAD
        if not _fits(raw, first, last, at, len(out)):
            return _FULL
        at = _write_quoted(raw, first, last, out, at)
        out[uintp(at)] = _COLON
        out[uintp(at + 1)] = _SPACE
        at += 2
    return at


@part
def _write_bracket(keys: Number, closes: Number, out: Bytes, at: Number) -> Number:
    out[uintp(at)] = _BRACKETS[uintp(2 * keys + closes)]
    return at + 1


@part
def _push(stack: Int64s, depth: Number, base: Number, count: Number, index: Number, form: Number) -> None:
    """Keeps a container while one inside it is printed; `form`: bytes of its offsets, and 1 more if it has keys."""
    stack[uintp(4 * depth)] = base
    stack[uintp(4 * depth + 1)] = count
    stack[uintp(4 * depth + 2)] = index
    stack[uintp(4 * depth + 3)] = form


@part
def _write_mark(out: Bytes, at: Number, kind: Number, start: Number, length: Number) -> Number:
    """Writes the mark of a value that is printed later; see MARK."""
    out[uintp(at)] = 0
    out[uintp(at + 1)] = 0x80 | kind & 0x7F
    out[uintp(at + 2)] = 0x80 | kind >> 7
    for i in range(5):
        out[uintp(at + 3 + i)] = 0x80 | start >> (7 * i) & 0x7F
        out[uintp(at + 8 + i)] = 0x80 | length >> (7 * i) & 0x7F
    return at + MARK


@part
def _write_sized(raw: Bytes, kind: Number, place: Number, end: Number, out: Bytes, at: Number) -> Number:
    """Writes a value that brings its length along, or its mark; see `_write_value`."""
    first = place + (kind == _OPAQUE)
    count = _length_bytes(raw, first, end)
    start = first + count
    last = start + _length(raw, first, count)
    if count == 0 or last > end:
        return _BAD
    if kind == _OPAQUE:
        return _write_mark(out, at, np.int64(raw[uintp(place)]), start, last - start)
    return _write_quoted(raw, start, last, out, at) if _fits(raw, start, last, at, len(out)) else _FULL


@part
def _write_value(raw: Bytes, kind: Number, place: Number, end: Number, out: Bytes, at: Number) -> Number:
    """Writes a value that holds no others, or its mark; returns the place behind it, or _FULL or _BAD."""
    if (kind == _STRING) | (kind == _OPAQUE):
        return _write_sized(raw, kind, place, end, out, at)
    width = 1 if kind == _LITERAL else 2 if kind <= _UINT16 else 4 if kind <= _UINT32 else 8
    if kind > _DOUBLE or place + width > end:
        return _BAD
    bits = _little(raw, place, width)
    if kind == _LITERAL:
        return _write_literal(out, at, bits) if bits <= _LAST_LITERAL else _BAD
    if kind == _DOUBLE:
        after = _write_double(out, at, bits)
        return after if after >= 0 else _write_mark(out, at, LONG_DOUBLE, place, width)
    if (kind == _INT16) | (kind == _INT32) | (kind == _INT64):
        shift = 64 - 8 * width
        return _write_signed(out, at, bits << shift >> shift)
    return _write_unsigned(out, at, bits)


@part
def _place(raw: Bytes, base: Number, entry: Number, size: Number, kind: Number) -> Number:
    """Where the value of an entry lies: small ones stand in the entry itself, in place of their offset; -1: nowhere."""
    at = _offset(raw, entry + 1, size)
    if kind == _LITERAL:
        return entry + 1 if at <= _LAST_LITERAL else -1
    within = kind > _LITERAL and (kind <= _UINT16 or (size == 4 and kind <= _UINT32))
    return entry + 1 if within else base + at


@kernel(int64, RAW, int64, int64, BYTES, int64, INT64S)
def _write_document(raw: Bytes, start: Number, end: Number, out: Bytes, at: Number, stack: Int64s) -> Number:
    """Writes one document; returns as `_write_value` does. `stack`: see STACK."""
    if start == end:  # what ALTER TABLE leaves in a NOT NULL column; the server reads it as JSON null
        return _write_literal(out, at, 0) if at + _NUMBER <= len(out) else _FULL
    # A document begins with the type of its one value.
    kind = np.int64(raw[uintp(start)])
    place = start + 1
    left = end - start
    depth = 0
    base: Number = 0
    count: Number = 0
    index: Number = 0
    size: Number = 2
    keys: Number = 0
    while True:
        left -= 1
        # Each value has a byte of its own at least: more visits than bytes, and the document points into itself.
        if left < 0 or place >= end:
            return _BAD
        # What follows writes without a look: at most a number, and the ends of all open containers.
        if at + _ENDS > len(out):
            return _FULL
        if kind <= _ARRAY_LARGE:
            entries = _count(raw, kind, place, end)
            if entries < 0 or depth == DEPTH:
                return _BAD
            _push(stack, depth, base, count, index, size + keys)
            base = place
            count = entries
            index = 0
            depth = depth + 1
            size = 4 if kind & 1 else 2
            keys = int(kind < _ARRAY_SMALL)
            at = _write_bracket(keys, 0, out, at)
        else:
            after = _write_value(raw, kind, place, end, out, at)
            if after < 0:
                return after
            stack[uintp(_MARKS)] += out[uintp(at)] == 0
            at = after
        # The last value of a container ends it, and perhaps the one around it.
        while depth > 0 and index == count:
            at = _write_bracket(keys, 1, out, at)
            depth = depth - 1
            base = stack[uintp(4 * depth)]
            count = stack[uintp(4 * depth + 1)]
            index = stack[uintp(4 * depth + 2)]
            keys = stack[uintp(4 * depth + 3)] & 1
            size = stack[uintp(4 * depth + 3)] - keys
        if depth == 0:
            return at
        at = _write_head(raw, base, index, size, keys, end, out, at)
        if at < 0:
            return at
        # Entries of keys come first, all together, then those of the values.
        entry = base + 2 * size + (count * (size + 2) if keys else 0) + index * (1 + size)
        kind = np.int64(raw[uintp(entry)])
        index = index + 1
        place = _place(raw, base, entry, size, kind)
        if place < 0:
            return _BAD


@kernel(int64, RAW, INT64S, INT64S, int64, INT32S, BYTES, INT64S)
def print_documents(
    raw: Bytes, starts: Int64s, lengths: Int64s, row: Number, offsets: Int32s, out: Bytes, stack: Int64s
) -> Number:
    """Writes documents from `row` on as Arrow lays out strings, with marks for the values that are not printed here.

    A length below 0 is a NULL, and empty. `stack`: STACK numbers, the last of which grows with each mark. Returns the
    first row that found no room in `out`, or the number of rows; -1 less the row of the first that is no document.
    """
    at = np.int64(offsets[row])
    while row < len(starts):
        offsets[row] = at
        if lengths[row] >= 0:
            after = _write_document(raw, starts[row], starts[row] + lengths[row], out, at, stack)
            if after == _FULL:
                return row
            if after < 0:
                return -1 - row
            at = after
        row += 1
    offsets[row] = at
    return row
