"""Kernels over PostgreSQL's binary value forms (`typsend`): big-endian numbers, base-10000 numerics, clocks, ids.

Each returns the number of the first value that it cannot convert, or -1. A negative length is a NULL, whose place stays
as it is, or is empty. `binary_values.py` puts them together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from dblog_core.rows.jit import (
    BYTES,
    INT32S,
    INT64S,
    RAW,
    boolean,
    int64,
    kernel,
    void,
)

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
UINT64S = types.uint64[::1]

NUMERIC_HEAD = 8  # digits, weight, sign, dscale: two bytes each
NEGATIVE = 0x4000
NAN = 0xC000
INFINITY = 0xD000
NEGATIVE_INFINITY = 0xF000
LONGEST_CLOCK = 24
"""Bytes of the longest text of a time of day."""
_DAY = 86_400_000_000  # microseconds
_CARRY = 2**64 // 10_000 - 1  # a higher half up to this can be multiplied by 10,000
_LOW = np.uint64(2**32 - 1)
_HALF = np.uint64(32)
_NARROW = 4  # so many base-10000 digits are joined in 64 bits
_NAMES = np.frombuffer(b"NaN-Infinity", dtype=np.uint8)
_BEGINS = np.array([0, 0, 4, 3])
_ENDS = np.array([0, 3, 12, 12])
_LARGEST_SCALE = 16_383


@kernel(int64, RAW, INT64S, INT64S, int64, BYTES)
def numbers(raw: Bytes, starts: Int64s, lengths: Int64s, width: int, out: Bytes) -> int:
    """Big-endian values of `width` bytes, as little-endian ones side by side."""
    for row in range(len(starts)):
        if lengths[row] < 0:
            continue
        start = starts[row]
        if lengths[row] != width or start < 0 or start > len(raw) - width:
            return row
        at = row * width
        if width == 8:  # written out: a loop over the width would take several times as long
            for i in range(8):
                out[at + i] = raw[start + 7 - i]
        elif width == 4:
            for i in range(4):
                out[at + i] = raw[start + 3 - i]
        else:
            for i in range(width):
                out[at + i] = raw[start + width - 1 - i]
    return -1


@kernel(int64, RAW, int64)
def _short(raw: Bytes, at: int) -> int:
    return int(raw[at]) << 8 | int(raw[at + 1])


@kernel(int64, RAW, int64, int64)
def _numeric(raw: Bytes, start: int, length: int) -> int:
    """The number of base-10000 digits of a well-formed numeric that is a number; otherwise -1."""
    if length < NUMERIC_HEAD or start < 0 or start > len(raw) - length:
        return -1
    # In front stand the number of base-10000 digits, the weight of the first, the sign and the scale, two bytes each.
    count = _short(raw, start)
    sign = _short(raw, start + 4)
    if length != NUMERIC_HEAD + 2 * count or (sign != 0 and sign != NEGATIVE):
        return -1
    for i in range(count):
        if _short(raw, start + NUMERIC_HEAD + 2 * i) > 9999:
            return -1
    return count


@kernel(int64, RAW, int64)
def _weight(raw: Bytes, start: int) -> int:
    weight = _short(raw, start + 2)
    return weight - 65536 if weight >= 32768 else weight


@kernel(void, int64, int64, UINT64S, int64)
def _append(factor: int, digit: int, pairs: UInt64s, at: int) -> None:
    """Multiplies the 128-bit number (lower half, higher half) at `at` and adds; below 2 ** 64 both."""
    low = pairs[at]
    high = pairs[at + 1]
    lower = (low & _LOW) * np.uint64(factor) + np.uint64(digit)
    upper = (low >> _HALF) * np.uint64(factor) + (lower >> _HALF)
    pairs[at] = (lower & _LOW) | (upper << _HALF)
    pairs[at + 1] = high * np.uint64(factor) + (upper >> _HALF)


@kernel(boolean, RAW, int64, int64, int64, int64, UINT64S, int64)
def _join(raw: Bytes, digits: int, count: int, last: int, cut: int, pairs: UInt64s, at: int) -> bool:
    """The base-10000 digits up to number `last` as one number, the last of them divided by `cut`. False: too large, or
    something would be lost."""
    for i in range(max(last + 1, 0), count):
        if _short(raw, digits + 2 * i) != 0:
            return False
    small = 0
    for i in range(last + 1):
        digit = _short(raw, digits + 2 * i) if i < count else 0
        factor = 10_000
        if i == last:
            if digit % cut != 0:
                return False
            digit //= cut
            factor //= cut
        if i < _NARROW:
            small = small * factor + digit
            pairs[at] = np.uint64(small)
        elif pairs[at + 1] > np.uint64(_CARRY * (10_000 // factor)):
            return False
        else:
            _append(factor, digit, pairs, at)
    return True


@kernel(int64, RAW, INT64S, INT64S, UINT64S, int64, UINT64S)
def decimals(raw: Bytes, starts: Int64s, lengths: Int64s, limit: UInt64s, scale: int, out: UInt64s) -> int:
    """Numerics below `limit` as decimal128 of that scale: lower and higher half of each in turn, as in `limit`; `out`
    holds zeros."""
    groups = (scale + 3) // 4  # after the point; of the last of them `scale` may want a part only
    cut = 1
    for _ in range(4 * groups - scale):
        cut *= 10
    for row in range(len(starts)):
        if lengths[row] < 0:
            continue
        start = starts[row]
        count = _numeric(raw, start, lengths[row])
        if count < 0:
            return row
        weight = _weight(raw, start) if count > 0 else -1
        if weight > 9:  # more than 38 decimal digits before the point: the first of them is no zero
            return row
        if not _join(raw, start + NUMERIC_HEAD, count, weight + groups, cut, out, 2 * row):
            return row
        low = out[2 * row]
        high = out[2 * row + 1]
        if high > limit[1] or (high == limit[1] and low >= limit[0]):
            return row
        if _short(raw, start + 4) == NEGATIVE:
            out[2 * row] = ~low + np.uint64(1)
            out[2 * row + 1] = ~high + np.uint64(1 if low == 0 else 0)
    return -1


@kernel(int64, RAW, int64, int64)
def _special(raw: Bytes, start: int, length: int) -> int:
    """The number in `_BEGINS` and `_ENDS` of a numeric that is no number; 0 for a number."""
    if length != NUMERIC_HEAD or start < 0 or start > len(raw) - length or _short(raw, start) != 0:
        return 0
    sign = _short(raw, start + 4)
    return 1 if sign == NAN else 2 if sign == INFINITY else 3 if sign == NEGATIVE_INFINITY else 0


@kernel(int64, RAW, INT64S, INT64S, INT64S)
def numeric_offsets(raw: Bytes, starts: Int64s, lengths: Int64s, offsets: Int64s) -> int:
    """Where the text of each numeric will lie: one more offset than values."""
    offsets[0] = 0
    for row in range(len(starts)):
        size = 0
        if lengths[row] >= 0:
            start = starts[row]
            special = _special(raw, start, lengths[row])
            size = _ENDS[special] - _BEGINS[special]
            if size == 0:
                count = _numeric(raw, start, lengths[row])
                scale = _short(raw, start + 6) if count >= 0 else 0
                if count < 0 or scale > _LARGEST_SCALE:
                    return row
                weight = _weight(raw, start)
                first = _short(raw, start + NUMERIC_HEAD) if count > 0 and weight >= 0 else 0
                size = 4 * max(weight, 0) + (4 if first > 999 else 3 if first > 99 else 2 if first > 9 else 1)
                size += 1 + scale if scale > 0 else 0
                size += 1 if _short(raw, start + 4) == NEGATIVE else 0
        offsets[row + 1] = offsets[row] + size
    return -1


@kernel(int64, RAW, int64, int64, int64, BYTES, int64)
def _print_whole(raw: Bytes, digits: int, count: int, weight: int, out: Bytes, at: int) -> int:
    """Prints what stands before the point; returns where it continues."""
    if weight < 0:
        out[at] = 48
        return at + 1
    is_printing = False
    for i in range(weight + 1):
        digit = _short(raw, digits + 2 * i) if i < count else 0
        power = 1000
        while power > 0:
            figure = digit // power % 10
            if figure > 0 or power == 1:
                is_printing = True
            if is_printing:
                out[at] = 48 + figure
                at += 1
            power //= 10
    return at


@kernel(void, RAW, INT64S, INT64S, INT64S, BYTES)
def numeric_texts(raw: Bytes, starts: Int64s, lengths: Int64s, offsets: Int64s, out: Bytes) -> None:
    """The texts of what `numeric_offsets` has checked, as the server prints them."""
    for row in range(len(starts)):
        if lengths[row] < 0:
            continue
        start = starts[row]
        at = offsets[row]
        special = _special(raw, start, lengths[row])
        if special:
            for i in range(_BEGINS[special], _ENDS[special]):
                out[at] = _NAMES[i]
                at += 1
            continue
        count = _short(raw, start)
        weight = _weight(raw, start)
        scale = _short(raw, start + 6)
        digits = start + NUMERIC_HEAD
        if _short(raw, start + 4) == NEGATIVE:
            out[at] = 45  # -
            at += 1
        at = _print_whole(raw, digits, count, weight, out, at)
        if scale > 0:
            out[at] = 46  # .
        for place in range(scale):
            i = weight + 1 + place // 4
            digit = _short(raw, digits + 2 * i) if 0 <= i < count else 0
            for _ in range(3 - place % 4):
                digit //= 10
            out[at + 1 + place] = 48 + digit % 10


@kernel(int64, RAW, INT64S, INT64S, int64, INT32S, BYTES)
def hex_texts(
    raw: Bytes, starts: Int64s, lengths: Int64s, width: int, offsets: npt.NDArray[np.int32], out: Bytes
) -> int:
    """UUIDs (16 bytes) and MAC addresses (6 or 8) as text."""
    at = 0
    offsets[0] = 0
    for row in range(len(starts)):
        if lengths[row] >= 0:
            start = starts[row]
            if lengths[row] != width or start < 0 or start > len(raw) - width:
                return row
            for i in range(width):
                if width < 16 and i > 0:
                    out[at] = 58  # :
                    at += 1
                elif i == 4 or i == 6 or i == 8 or i == 10:
                    out[at] = 45  # -
                    at += 1
                for shift in range(4, -1, -4):
                    figure = raw[start + i] >> shift & 15
                    out[at] = figure + (48 if figure < 10 else 87)
                    at += 1
        offsets[row + 1] = at
    return -1


@kernel(int64, BYTES, int64, int64)
def _two(out: Bytes, at: int, number: int) -> int:
    out[at] = 48 + number // 10
    out[at + 1] = 48 + number % 10
    return at + 2


@kernel(int64, INT64S, INT32S, BYTES, int64, INT32S, BYTES)
def clock_texts(
    micros: Int64s,
    zones: npt.NDArray[np.int32],
    present: Bytes,
    zoned: int,
    offsets: npt.NDArray[np.int32],
    out: Bytes,
) -> int:
    """Times of day as text; `zoned`: with their zones, in seconds *west* of UTC. `LONGEST_CLOCK` bytes a value."""
    at = 0
    offsets[0] = 0
    for row in range(len(micros)):
        if present[row]:
            time = int(micros[row])
            zone = int(zones[row]) if zoned else 0
            if time < 0 or time > _DAY or zone <= -86_400 or zone >= 86_400:
                return row
            seconds = time // 1_000_000
            fraction = time % 1_000_000
            at = _two(out, at, seconds // 3600)
            out[at] = 58
            at = _two(out, at + 1, seconds // 60 % 60)
            out[at] = 58
            at = _two(out, at + 1, seconds % 60)
            if fraction:
                out[at] = 46
                at += 1
                while fraction:
                    out[at] = 48 + fraction // 100_000
                    fraction = fraction % 100_000 * 10
                    at += 1
            if zoned:
                out[at] = 43 if zone <= 0 else 45  # + east, - west
                zone = abs(zone)
                at = _two(out, at + 1, zone // 3600)
                if zone % 3600:
                    out[at] = 58
                    at = _two(out, at + 1, zone // 60 % 60)
                if zone % 60:
                    out[at] = 58
                    at = _two(out, at + 1, zone % 60)
        offsets[row + 1] = at
    return -1
