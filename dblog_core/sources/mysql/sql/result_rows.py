"""Rows of a text result set: received bytes split into the places of their values, with no object per row or value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dblog_core.errors import SourceUnavailable
from dblog_core.interfaces import VALUE_BYTES
from dblog_core.rows.arrow_buffers import Bytes, Int64s
from dblog_core.rows.jit import INT64S, RAW, int64, kernel

Receive = Callable[[memoryview], int]
"""Fills the beginning of a buffer with received bytes, and returns how many; 0: the server closed the connection."""

_FIRST = 1 << 20  # bytes of the buffer to begin with
_KEPT = 64 << 20  # a larger buffer is given back with its rows
_ROOM = 64 << 10  # free bytes that a read of the socket finds at least
_USUAL_ROWS = 1_000
_MOST_EXPECTED = 100_000

_LARGEST = 0xFFFFFF  # a packet of this length goes on in the next one
_NULL = 251
_TWO_BYTES = 252
_EIGHT_BYTES = 254
_NO_LENGTH = 255
_END_MARK = 0xFE
_FAULT_MARK = 0xFF

_AT, _ROWS, _SEQUENCE, _JOINED, _WHOLE = range(5)
"""What is kept between two scans: place of the next packet; rows split; the number that the next packet must carry;
payload bytes of a large packet that stand together already; whether those are all."""
_MORE, _FULL, _PIECE, _END, _FAULT, _OUT_OF_STEP, _BROKEN = range(1, 8)
"""Why a scan ends: bytes are missing; places are missing; a packet has another piece; the result's end; the server's
error; a packet has a wrong number; a packet's values do not fill it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Value `row` of column `c` is `raw[starts[c][row]:]`, `lengths[c][row]` bytes; NULL where that is negative.

    the next result fills `raw` again: what is kept of it is copied before that. `counted_bytes` as in `Chunk`.
    """

    raw: Bytes
    starts: list[Int64s]
    lengths: list[Int64s]
    counted_bytes: int


@kernel(int64, RAW, int64, int64, int64, int64, int64, INT64S, INT64S)
def _row(raw: Bytes, at: int, stop: int, width: int, capacity: int, row: int, starts: Int64s, lengths: Int64s) -> int:
    """Splits one row that lies in `raw[here:stop]`; whether its values fill it."""
    size: Any
    for place in range(row, row + width * capacity, capacity):
        if at >= stop:
            return 0
        size = np.int64(raw[at])
        at += 1
        # In front of each value stands its length: one byte up to 250; 251 is NULL; 252, 253 and 254 announce 2, 3 and
        # 8 bytes.
        if size == _NULL:
            starts[place] = at
            lengths[place] = -1
            continue
        if size > _NULL:
            digits = 8 if size == _EIGHT_BYTES else size - _TWO_BYTES + 2
            if size == _NO_LENGTH or stop - at < digits:
                return 0
            size = np.int64(0)
            for i in range(digits):
                size |= np.int64(raw[at + i]) << (8 * i)
            at += digits
        if size < 0 or size > stop - at:
            return 0
        starts[place] = at
        lengths[place] = size
        at += size
    return 1 if at == stop else 0


@kernel(int64, RAW, int64, INT64S)
def _payload(raw: Bytes, end: int, state: Int64s) -> int:
    """Bytes of the next whole packet, without its header; or why there is none, as a negative number."""
    at = state[_AT]
    if state[_JOINED]:
        return state[_JOINED] if state[_WHOLE] else -_PIECE
    if end - at < 4:
        return -_MORE
    if np.int64(raw[at + 3]) != state[_SEQUENCE]:
        return -_OUT_OF_STEP
    length: Any = np.int64(raw[at]) | np.int64(raw[at + 1]) << 8 | np.int64(raw[at + 2]) << 16
    if end - at - 4 < length:
        return -_MORE
    state[_SEQUENCE] = (state[_SEQUENCE] + 1) & 255
    if length == _LARGEST:
        state[_JOINED] = length
        return -_PIECE
    return length or -_BROKEN


@kernel(int64, RAW, int64, int64, int64, INT64S, INT64S, INT64S)
def _scan(raw: Bytes, end: int, width: int, capacity: int, state: Int64s, starts: Int64s, lengths: Int64s) -> int:
    """Splits the whole packets of `raw[:end]`; the places of column `c` begin at `c * capacity`."""
    while state[_ROWS] < capacity:
        length = _payload(raw, end, state)
        if length < 0:
            return -length
        begin = state[_AT] + 4
        stop = state[_AT] + 4 + length
        # 0xFE ends the result only in a packet this short: in a row it announces a length of 8 bytes.
        if raw[begin] == _END_MARK and length < 9:
            return _END
        if raw[begin] == _FAULT_MARK:
            return _FAULT
        if not _row(raw, begin, stop, width, capacity, state[_ROWS], starts, lengths):
            return _BROKEN
        state[_AT] = stop
        state[_JOINED] = 0
        state[_WHOLE] = 0
        state[_ROWS] += 1
    return _FULL


class TooLarge(Exception):
    """A result counts for more bytes than it may; `rows`: those that had arrived whole, and fit. The connection is of
    no use then."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


@dataclass(frozen=True, slots=True)
class _Limit:
    """How many bytes a result may count for (None: any number), where each row counts for `row_bytes` of its own."""

    row_bytes: int
    most: int | None

    def expect_rows(self, rows: int) -> int:
        """Of so many rows those for which places are kept ready: no more than may come. Large arrays may lie in memory
        whole, however little of them is used."""
        rows = min(rows, _MOST_EXPECTED)
        return rows if self.most is None else min(rows, self.most // self.row_bytes + 1)

    def check(self, state: Int64s, received: int, *, slack: int = 0) -> None:
        """Raises TooLarge where so many bytes, and the rows in them, are more than it may have, and `slack`."""
        rows = int(state[_ROWS])
        if self.most is None or received + rows * self.row_bytes <= self.most + slack:
            return
        counted = int(state[_AT]) + rows * self.row_bytes  # of the rows alone, without one that arrives
        raise TooLarge(rows if counted <= self.most else rows * self.most // counted)


class TextRows:
    """Reads results of one connection, one after the other, into one buffer."""

    def __init__(self) -> None:
        self._raw: Bytes = np.empty(_FIRST, dtype=np.uint8)
        self._end = 0
        self._capacity = 0
        self._starts = self._lengths = np.empty(0, dtype=np.int64)

    def read(
        self,
        receive: Receive,
        width: int,
        *,
        sequence: int,
        ahead: bytes = b"",
        expected: int | None = None,
        most: int | None = None,
    ) -> Rows | bytes:
        """The rows up to the result's end; the error packet's payload if the server breaks off.

        `sequence`: the number of the first packet; `ahead`: what has been received already; `expected`: about how many
        rows; `most`: bytes that they may count for. Raises SourceUnavailable where the connection ends, or what it
        brings is no result of that width; TooLarge; and what `receive` raises.
        """
        limit = _Limit(width * VALUE_BYTES, most)
        self._begin(width, limit.expect_rows(expected or _USUAL_ROWS), ahead)
        state = np.array([0, 0, sequence & 255, 0, 0], dtype=np.int64)
        while True:
            code = _scan(self._raw, self._end, width, self._capacity, state, self._starts, self._lengths)
            if code == _FULL:
                limit.check(state, self._end)
                self._grow_places(width)
            elif code == _MORE or (code == _PIECE and not self._join(state)):
                limit.check(state, self._end)
                self._fill(receive, most)
            elif code == _END:
                limit.check(state, self._end, slack=2 * _ROOM)  # it was received, and may have a little more
                return self._rows(width, int(state[_ROWS]))
            elif code == _FAULT:
                return self._error(state)
            elif code in (_OUT_OF_STEP, _BROKEN):
                raise _out_of_step()

    def _begin(self, width: int, rows: int, ahead: bytes) -> None:
        if len(self._raw) > _KEPT:
            self._raw = np.empty(_FIRST, dtype=np.uint8)
        self._end = len(ahead)
        self._raw[: self._end] = np.frombuffer(ahead, dtype=np.uint8)
        # One for the end; and an odd number: columns a power of two apart would share lines of the cache.
        self._capacity = (rows + 1) | 1
        self._starts = np.empty(width * self._capacity, dtype=np.int64)
        self._lengths = np.empty(width * self._capacity, dtype=np.int64)

    def _grow_places(self, width: int) -> None:
        before = self._capacity
        self._capacity = self._capacity * 2 | 1
        self._starts = _widen(self._starts, width, before, self._capacity)
        self._lengths = _widen(self._lengths, width, before, self._capacity)

    def _fill(self, receive: Receive, most: int | None) -> None:
        if len(self._raw) - self._end < _ROOM:
            needed = self._end + 2 * _ROOM  # where `most` ends, a little more shows that it is too much
            size = 2 * len(self._raw) if most is None else max(needed, min(2 * len(self._raw), most + 2 * _ROOM))
            larger = np.empty(size, dtype=np.uint8)
            larger[: self._end] = self._raw[: self._end]
            self._raw = larger
        stop = len(self._raw) if most is None else min(len(self._raw), max(most, self._end) + _ROOM)
        count = receive(self._raw[self._end : stop].data)
        if not count:
            raise SourceUnavailable("the server closed the connection", fix="check that the server runs")
        self._end += count

    def _join(self, state: Int64s) -> bool:
        """Takes the header from before the next piece of a large packet; False until the piece has arrived."""
        head = int(state[_AT]) + 4 + int(state[_JOINED])
        if self._end - head < 4:
            return False
        length = int.from_bytes(self._raw[head : head + 3].tobytes(), "little")
        if self._raw[head + 3] != state[_SEQUENCE]:
            raise _out_of_step()
        if self._end - head - 4 < length:
            return False
        self._raw[head : self._end - 4] = self._raw[head + 4 : self._end]
        self._end -= 4
        state[_JOINED] += length
        state[_SEQUENCE] = (state[_SEQUENCE] + 1) & 255
        state[_WHOLE] = length < _LARGEST
        return True

    def _error(self, state: Int64s) -> bytes:
        at = int(state[_AT])
        length = int.from_bytes(self._raw[at : at + 3].tobytes(), "little")
        return self._raw[at + 4 : at + 4 + length].tobytes()

    def _rows(self, width: int, count: int) -> Rows:
        begins = [column * self._capacity for column in range(width)]
        return Rows(
            self._raw,
            [self._starts[at : at + count] for at in begins],
            [self._lengths[at : at + count] for at in begins],
            self._end + count * width * VALUE_BYTES,
        )


def _widen(places: Int64s, width: int, before: int, capacity: int) -> Int64s:
    wider = np.empty((width, capacity), dtype=np.int64)
    # Each column has a stretch of its own, so that all of them move.
    wider[:, :before] = places.reshape(width, before)
    return wider.ravel()


def _out_of_step() -> SourceUnavailable:
    return SourceUnavailable(
        "what the server sent is no row of this result: the connection is out of step",
    )
