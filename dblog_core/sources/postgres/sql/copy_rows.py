"""The rows of a `COPY … TO STDOUT (FORMAT binary)`: where in its bytes each value lies.

A header, rows of counted fields, each with its length before it (-1: NULL), and a trailer: see "Binary Format" under
COPY in the PostgreSQL manual.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dblog_core.rows.jit import INT64_ROWS, RAW, int64, kernel

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEADER = len(_SIGNATURE) + 8  # flags, and the length of what may follow
_TRAILER = b"\xff\xff"


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """The value of column `c` in row `r` begins at `starts[c, r]` in `raw` and has `lengths[c, r]` bytes; -1: NULL."""

    raw: Bytes
    starts: Int64s
    lengths: Int64s


@kernel(int64, RAW, int64, int64)
def _number(raw: Bytes, at: int, width: int) -> int:
    number = 0
    for i in range(at, at + width):
        number = number << 8 | int(raw[i])
    return number


@kernel(int64, RAW, int64, int64, INT64_ROWS, INT64_ROWS)
def _places(raw: Bytes, begin: int, end: int, starts: Int64s, lengths: Int64s) -> int:
    """Fills in the places of all values; returns the number of rows, or -1 for bytes that are no rows."""
    columns, room = starts.shape
    at = begin
    row = 0
    while at < end:
        # `room` is for the shortest rows, so that more of them cannot be: bytes that lie about themselves.
        if row == room or end - at < 2 or _number(raw, at, 2) != columns:
            return -1
        at += 2
        for column in range(columns):
            if end - at < 4:
                return -1
            size = _number(raw, at, 4)
            at += 4
            starts[column, row] = at
            if size == 0xFFFFFFFF:
                lengths[column, row] = -1
            elif size > end - at:
                return -1
            else:
                lengths[column, row] = size
                at += size
        row += 1
    return row


def parse(raw: Bytes, columns: int) -> CopiedRows:
    """Raises ValueError for bytes that are no such COPY of so many columns."""
    begin = raw[:_HEADER].tobytes()
    end = raw[_HEADER:][-2:].tobytes()
    if begin != _SIGNATURE + bytes(8) or end != _TRAILER:
        raise ValueError("not a COPY in binary format, or cut short")
    room = len(raw) // (2 + 4 * columns) + 1
    starts = np.empty((columns, room), dtype=np.int64)
    lengths = np.empty((columns, room), dtype=np.int64)
    rows = _places(raw, _HEADER, len(raw) - 2, starts, lengths)
    if rows < 0:
        raise ValueError("rows of another number of columns, or of lengths that lie")
    return CopiedRows(raw, starts[:, :rows], lengths[:, :rows])
