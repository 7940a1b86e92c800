"""Where the rows of the log's row events lie in the bytes, and where the values of each row's images: compiled.

`walk` is the only one that reads bytes nobody has looked at: it checks every length against the end of its event. What
it has found good `locate` splits into columns, without looking for ends again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy import uintp  # unsigned indexes: nobody looks whether they count from the end

from dblog_core.rows.jit import (
    BYTES,
    FLAGS,
    INT64_ROWS,
    INT64S,
    RAW,
    int64,
    kernel,
    part,
)

Number = Any  # numpy's number where it was read, Python's where it is written here
Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

CREATED = 0
UPDATED = 1
DELETED = 2
"""Which images each row of an event has: the image after, both, the image before."""
BAD_IMAGE = -1
NO_ROOM = -2
"""What `complete` returns instead of a number of bytes."""


@part
def _length(raw: Bytes, at: Number, size: Number) -> Number:
    """A length of 1 to 4 bytes."""
    length = np.int64(raw[uintp(at)])
    if size > 1:
        length |= np.int64(raw[uintp(at + 1)]) << 8
        for i in range(2, size):
            length |= np.int64(raw[uintp(at + i)]) << (8 * i)
    return int(length)


@part
def _end(raw: Bytes, at: Number, end: Number, widths: Int64s, prefixes: Int64s, gaps: Int64s, sizes: Int64s) -> Number:
    """The offset after the image at `at`; -1 where it does not end by `end`.

    `gaps`: bytes of fixed width before each value of variable width, and after the last one.
    """
    # A bit for each column stands in front of an image. Where it is set the column is NULL, and has no bytes.
    place = at + (len(widths) + 7) // 8
    if place > end:
        return -1
    nulls = 0
    for i in range(at, place):
        nulls |= raw[uintp(i)]
    # Without a NULL the columns of fixed width between two others are one step: most rows are so.
    if nulls == 0:
        for i in range(len(sizes)):
            place += gaps[i]
            if place + sizes[i] > end:
                return -1
            place += sizes[i] + _length(raw, place, sizes[i])
        place += gaps[len(sizes)]
    else:
        for c in range(len(widths)):
            if raw[uintp(at + (c >> 3))] >> (c & 7) & 1:
                continue
            if prefixes[c] == 0:
                place += widths[c]
            elif place + prefixes[c] > end:
                return -1
            else:
                place += prefixes[c] + _length(raw, place, prefixes[c])
    return place if place <= end else -1


@kernel(int64, RAW, int64, INT64S, INT64S, INT64S, INT64S, INT64S, INT64S, INT64S, INT64S, INT64S)
def walk(
    raw: Bytes,
    at: Number,
    ends: Int64s,
    images: Int64s,
    widths: Int64s,
    prefixes: Int64s,
    gaps: Int64s,
    sizes: Int64s,
    counts: Int64s,
    before: Int64s,
    after: Int64s,
) -> Number:
    """Fills in where the images of all rows begin (-1: the row has none), and how many rows each event has.

    The events lie one behind the other in `raw` from `at` on and end at `ends`. Returns the number of rows, or -1 - e
    where those of event e do not end with it; with one more than the last e, `before` and `after` have too little room.
    """
    row = 0
    if len(widths) == 0:
        return -1
    for e in range(len(ends)):
        first = row
        end = ends[e]
        # Lengths are the server's word: no length may lead out of the buffer.
        if end > len(raw):
            return -1 - e
        while at < end:
            # The caller makes more room and walks again: how many rows an event has, it does not say.
            if row == len(before):
                return -1 - len(ends)
            before[row] = -1
            after[row] = -1
            if images[e] != CREATED:
                before[row] = at
                at = _end(raw, at, end, widths, prefixes, gaps, sizes)
                if at < 0:
                    return -1 - e
            if images[e] != DELETED:
                after[row] = at
                at = _end(raw, at, end, widths, prefixes, gaps, sizes)
                if at < 0:
                    return -1 - e
            row += 1
        counts[e] = row - first
    return row


@part
def _copy(raw: Bytes, start: Number, stop: Number, out: Bytes, filled: Number) -> Number:
    """How far `out` is filled after these bytes; NO_ROOM where they do not fit."""
    if filled + stop - start > len(out):
        return NO_ROOM
    for i in range(start, stop):
        out[filled + i - start] = raw[i]
    return filled + stop - start


@part
def _complete(
    raw: Bytes, at: Number, present: Any, widths: Int64s, prefixes: Int64s, out: Bytes, filled: Number
) -> tuple[Number, Number]:
    """The offset after the image at `at`, and how far `out` is filled with it: either may say what is wrong."""
    shown = 0
    for c in range(len(widths)):
        shown += present[c]
    place = at + (shown + 7) // 8
    nulls = filled
    filled += (len(widths) + 7) // 8
    if place > len(raw) or filled > len(out):
        return (BAD_IMAGE, filled) if place > len(raw) else (place, NO_ROOM)
    for i in range(nulls, filled):
        out[i] = 0
    bit = -1
    for c in range(len(widths)):
        bit += present[c]
        if not present[c] or raw[at + (bit >> 3)] >> (bit & 7) & 1:
            out[nulls + (c >> 3)] |= np.uint8(1 << (c & 7))
            continue
        size = widths[c]
        if prefixes[c] != 0:
            size = prefixes[c]
            if place + size <= len(raw):
                size += _length(raw, place, prefixes[c])
        if place + size > len(raw):
            return BAD_IMAGE, filled
        filled = _copy(raw, place, place + size, out, filled)
        if filled < 0:
            return place, filled
        place += size
    return place, filled


@kernel(int64, RAW, int64, FLAGS, FLAGS, INT64S, INT64S, BYTES)
def complete(
    raw: Bytes,
    images: Number,
    before: npt.NDArray[np.bool_],
    after: npt.NDArray[np.bool_],
    widths: Int64s,
    prefixes: Int64s,
    out: Bytes,
) -> Number:
    """Fills in the images of an event, of which those before a change hold the columns `before` alone, and those after
    it the columns `after`: in `out` the others are NULL. `images`: as `walk` takes them, of this event.

    Returns the number of bytes; BAD_IMAGE where the images do not end with the event; NO_ROOM where `out` is too small.
    """
    at = 0
    filled = 0
    while at < len(raw):
        if images != CREATED:
            at, filled = _complete(raw, at, before, widths, prefixes, out, filled)
            if at < 0 or filled < 0:
                return min(at, filled)
        if images != DELETED:
            at, filled = _complete(raw, at, after, widths, prefixes, out, filled)
            if at < 0 or filled < 0:
                return min(at, filled)
    return filled


@kernel(int64, RAW, INT64S, INT64S, INT64S, INT64S, INT64_ROWS, INT64_ROWS, INT64S)
def locate(
    raw: Bytes,
    images: Int64s,
    widths: Int64s,
    prefixes: Int64s,
    slots: Int64s,
    starts: npt.NDArray[Any],
    lengths: npt.NDArray[Any],
    nulls: Int64s,
) -> Number:
    """Fills in where each value begins, by column and row, and how long those of variable width are: -1 is a NULL.

    `images` are those that `walk` found; `slots`: a column's row of `lengths`, -1 for a fixed width; `nulls`: how many
    of each column. Returns the number of images.
    """
    image_count = 0
    head = (len(widths) + 7) // 8
    for row in range(len(images)):
        at = images[row]
        place = at + head
        image_count += at >= 0
        for c in range(len(widths)):
            if at < 0 or raw[uintp(at + (c >> 3))] >> (c & 7) & 1:
                starts[c, row] = -1
                if slots[c] >= 0:
                    lengths[slots[c], row] = -1
                nulls[c] += 1
            elif prefixes[c] == 0:
                starts[c, row] = place
                place += widths[c]
            else:
                length = _length(raw, place, prefixes[c])
                place += prefixes[c]
                starts[c, row] = place
                lengths[slots[c], row] = length
                place += length
    return image_count
