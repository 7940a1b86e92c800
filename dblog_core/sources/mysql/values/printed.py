"""Values that become text digit by digit or byte by byte: compiled. A start or length below 0 is a NULL, and empty.

Each fills `offsets` and `out` as Arrow lays out strings, and returns the row of the first value that is none, or -1.
"""

from __future__ import annotations

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

ZERO = 48
MINUS = 45
POINT = 46
COLON = 58
LETTER_A = 97
_POWERS = np.array([10**i for i in range(10)], dtype=np.int64)
TIME = 17
"""Bytes of the longest TIME, with a sign and six digits after the point."""
UUID = 36
INET4 = 15
INET6 = 39
"""Bytes of the longest text of each."""
_WORDS = 8
"""Of 16 bits, in an IPv6 address."""


@part
def _digits(out: Bytes, at: Number, number: Number, count: Number) -> Number:
    """Writes the last `count` digits; returns the place behind them."""
    for i in range(count):
        out[uintp(at + count - 1 - i)] = ZERO + number % 10
        number //= 10
    return at + count


@kernel(int64, RAW, INT64S, INT64S, INT64S, int64, BYTES, INT32S, BYTES)
def long_decimals(
    raw: Bytes,
    starts: Int64s,
    digits: Int64s,
    sizes: Int64s,
    scale: Number,
    all_digits: Bytes,
    offsets: Int32s,
    out: Bytes,
) -> Number:
    """Packed decimals as the server prints them: every digit of the scale, one zero before a bare fraction.

    `digits` and `sizes` (bytes) of each group, the most significant first; `all_digits`: room for these. A value takes
    them and 3 bytes at most.
    """
    total = len(all_digits)
    at = 0
    for row in range(len(starts)):
        offsets[row] = at
        start = starts[row]
        if start < 0:
            continue
        # The first bit is the sign, turned around; of negative numbers all bits are inverted.
        mask = 0 if raw[uintp(start)] & 0x80 else 0xFF
        flip = mask ^ 0x80
        used = 0
        sum_ = np.int64(0)
        for g in range(len(digits)):
            group = np.int64(0)
            for i in range(sizes[g]):
                group = group << 8 | (np.int64(raw[uintp(start + i)]) ^ flip)
                flip = mask
            start += sizes[g]
            if group >= _POWERS[uintp(digits[g])]:
                return row
            sum_ |= group
            used = _digits(all_digits, used, group, digits[g])
        # Zero is printed without a sign, however it is packed.
        if mask and sum_:
            out[uintp(at)] = MINUS
            at += 1
        first = 0
        while first < total - scale - 1 and all_digits[uintp(first)] == ZERO:
            first += 1
        if total == scale:
            out[uintp(at)] = ZERO
            at += 1
        for i in range(first, total):
            if i == total - scale:
                out[uintp(at)] = POINT
                at += 1
            out[uintp(at)] = all_digits[uintp(i)]
            at += 1
    offsets[len(starts)] = at
    return -1


@kernel(int64, RAW, INT64S, int64, INT32S, BYTES)
def times(raw: Bytes, starts: Int64s, scale: Number, offsets: Int32s, out: Bytes) -> Number:
    """TIME2 as the server prints it: hours up to 838, a sign, and `scale` digits."""
    at = 0
    size = (scale + 1) // 2
    unit = 1
    for _ in range(3 - size):
        unit *= 100
    for row in range(len(starts)):
        offsets[row] = at
        start = starts[row]
        if start < 0:
            continue
        whole = np.int64(0)
        part = np.int64(0)
        for i in range(3):
            whole = whole << 8 | np.int64(raw[uintp(start + i)])
        for i in range(size):
            part = part << 8 | np.int64(raw[uintp(start + 3 + i)])
        # 24 bits: a sign, one that is not used, 10 of hours, 6 each of minutes and seconds.
        whole -= 0x800000
        # Below zero the fraction is stored as a complement of its own, except where whole and fraction are one number.
        if size == 3 or whole >= 0 or part == 0:
            packed = (whole << 24) + part * unit
        else:
            packed = (whole << 24) + (1 << 24) + (part - (1 << 8 * size)) * unit
        if packed < 0:
            out[uintp(at)] = MINUS
            at += 1
            packed = -packed
        clock = packed >> 24
        micros = packed & 0xFFFFFF
        hours = clock >> 12
        minutes = clock >> 6 & 63
        seconds = clock & 63
        if hours > 838 or minutes > 59 or seconds > 59 or micros > 999_999:
            return row
        at = _digits(out, at, hours, 3 if hours > 99 else 2)
        out[uintp(at)] = COLON
        at = _digits(out, at + 1, minutes, 2)
        out[uintp(at)] = COLON
        at = _digits(out, at + 1, seconds, 2)
        if scale:
            out[uintp(at)] = POINT
            at = _digits(out, at + 1, micros, 6) - 6 + scale
    offsets[len(starts)] = at
    return -1


@kernel(int64, RAW, INT64S, INT64S, RAW, INT64S, INT32S, BYTES)
def recode(
    raw: Bytes, starts: Int64s, lengths: Int64s, table: Bytes, sizes: Int64s, offsets: Int32s, out: Bytes
) -> Number:
    """Text of a single-byte character set as UTF-8: byte b becomes `sizes[b]` bytes from `table[4 * b]` on."""
    at = 0
    for row in range(len(starts)):
        offsets[row] = at
        for i in range(lengths[row]):
            byte = np.int64(raw[uintp(starts[row] + i)])
            out[uintp(at)] = table[uintp(4 * byte)]
            for k in range(1, sizes[byte]):
                out[uintp(at + k)] = table[uintp(4 * byte + k)]
            at += sizes[byte]
    offsets[len(starts)] = at
    return -1


@kernel(int64, RAW, INT64S, INT64S, int64, INT32S, BYTES)
def pad(raw: Bytes, starts: Int64s, lengths: Int64s, width: Number, offsets: Int32s, out: Bytes) -> Number:
    """Values with the zero bytes that the log leaves out at their end, up to `width`."""
    at = 0
    for row in range(len(starts)):
        offsets[row] = at
        if lengths[row] < 0:
            continue
        if lengths[row] > width:
            return row
        for i in range(lengths[row]):
            out[uintp(at + i)] = raw[uintp(starts[row] + i)]
        for i in range(lengths[row], width):
            out[uintp(at + i)] = 0
        at += width
    offsets[len(starts)] = at
    return -1


@part
def _byte(raw: Bytes, start: Number, length: Number, i: Number) -> Number:
    """Byte `i` of a value; the log leaves zero bytes at the end out."""
    return np.int64(raw[uintp(start + i)]) if i < length else np.int64(0)


@part
def _word(raw: Bytes, start: Number, length: Number, i: Number) -> Number:
    """Sixteen bits, the high ones first."""
    return _byte(raw, start, length, 2 * i) << 8 | _byte(raw, start, length, 2 * i + 1)


@part
def _hex_digit(out: Bytes, at: Number, digit: Number) -> Number:
    out[uintp(at)] = ZERO + digit if digit < 10 else LETTER_A + digit - 10
    return at + 1


@part
def _hex_word(word: Number, out: Bytes, at: Number) -> Number:
    """Writes a word without zeros in front; returns the place behind it."""
    has_digit = False
    for i in range(4):
        digit = word >> (12 - 4 * i) & 15
        if digit or has_digit or i == 3:
            at = _hex_digit(out, at, digit)
            has_digit = True
    return at


@part
def _longest_gap(raw: Bytes, start: Number, length: Number) -> tuple[Number, Number]:
    """The first of the longest runs of zero words, and its length; 0 where there is none."""
    gap = -1
    gap_length = 0
    run = 0
    for i in range(_WORDS):
        run = run + 1 if _word(raw, start, length, i) == 0 else 0
        if run > gap_length:
            gap_length = run
            gap = i + 1 - run
    return gap, gap_length


@part
def _dotted(raw: Bytes, start: Number, length: Number, first: Number, out: Bytes, at: Number) -> Number:
    """Writes four bytes, from byte `first` of the value on, as an IPv4 address; returns the place behind it."""
    for i in range(4):
        if i:
            out[uintp(at)] = POINT
            at += 1
        byte = _byte(raw, start, length, first + i)
        at = _digits(out, at, byte, 3 if byte > 99 else 2 if byte > 9 else 1)
    return at


@kernel(int64, RAW, INT64S, INT64S, INT32S, BYTES)
def uuids(raw: Bytes, starts: Int64s, lengths: Int64s, offsets: Int32s, out: Bytes) -> Number:
    """Sixteen bytes as a UUID, in lower case."""
    at = 0
    for row in range(len(starts)):
        offsets[row] = at
        if lengths[row] < 0:
            continue
        if lengths[row] > 16:
            return row
        for i in range(16):
            if i == 4 or i == 6 or i == 8 or i == 10:
                out[uintp(at)] = MINUS
                at += 1
            byte = _byte(raw, starts[row], lengths[row], i)
            at = _hex_digit(out, at, byte >> 4)
            at = _hex_digit(out, at, byte & 15)
    offsets[len(starts)] = at
    return -1


@kernel(int64, RAW, INT64S, INT64S, INT32S, BYTES)
def inet4s(raw: Bytes, starts: Int64s, lengths: Int64s, offsets: Int32s, out: Bytes) -> Number:
    """Four bytes as an IPv4 address."""
    at = 0
    for row in range(len(starts)):
        offsets[row] = at
        if lengths[row] < 0:
            continue
        if lengths[row] > 4:
            return row
        at = _dotted(raw, starts[row], lengths[row], 0, out, at)
    offsets[len(starts)] = at
    return -1


@kernel(int64, RAW, INT64S, INT64S, INT32S, BYTES)
def inet6s(raw: Bytes, starts: Int64s, lengths: Int64s, offsets: Int32s, out: Bytes) -> Number:
    """Sixteen bytes as MariaDB prints an IPv6 address: the first of the longest runs of zero words is `::`, also one of
    a single word, and what begins with six such, or with five and ffff, ends in an IPv4 address."""
    at = 0
    for row in range(len(starts)):
        offsets[row] = at
        if lengths[row] < 0:
            continue
        if lengths[row] > 2 * _WORDS:
            return row
        gap, gap_length = _longest_gap(raw, starts[row], lengths[row])
        is_mapped = gap_length == 5 and _word(raw, starts[row], lengths[row], 5) == 0xFFFF
        holds_inet4 = gap == 0 and (gap_length == 6 or is_mapped)
        i = 0
        while i < _WORDS:
            if i == gap:
                if i == 0:
                    out[uintp(at)] = COLON
                    at += 1
                out[uintp(at)] = COLON
                at += 1
                i += gap_length
                continue
            if i == 6 and holds_inet4:
                at = _dotted(raw, starts[row], lengths[row], 12, out, at)
                break
            at = _hex_word(_word(raw, starts[row], lengths[row], i), out, at)
            if i < _WORDS - 1:
                out[uintp(at)] = COLON
                at += 1
            i += 1
    offsets[len(starts)] = at
    return -1


def buffers(rows: Number, room: Number) -> tuple[Int32s, Any]:
    """`offsets` and `out` for so many rows and bytes."""
    return np.empty(rows + 1, dtype=np.int32), np.empty(room, dtype=np.uint8)
