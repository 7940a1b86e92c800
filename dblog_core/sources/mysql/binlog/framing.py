"""Received bytes become stretches of events: one reusable buffer, walked by the kernels of `headers`."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

from dblog_core.errors import SourceUnavailable
from dblog_core.sources.mysql.binlog import events, headers
from dblog_core.sources.mysql.binlog.events import Event
from dblog_core.sources.mysql.binlog.headers import Bytes, Int64s

_BUFFER = 1 << 20
_ROOM = 64 << 10
"""Bytes of room below which what is left of a buffer is moved to its beginning."""
_EVENTS = 4096
"""Events of one stretch at most."""

Row = tuple[int, int, int, int, int, int, int, int, int]
"""Number in the stretch, code, end, size, start and stop of the body, and A, B, C of `headers`."""


class NoEvent(Exception):
    """A packet that holds something else, as `payload`: an error, or the stream's end."""

    def __init__(self, payload: bytes) -> None:
        super().__init__(f"a packet of {len(payload)} bytes is no event")
        self.payload = payload


class Events:
    """Events that follow each other in one buffer. `rest`: those that are not taken yet; a loop may be gone on with.

    They are valid until the next bytes are received. `inner`: they lie in a compressed transaction, so that their
    places in the file are unknown.
    """

    __slots__ = ("_columns", "inner", "raw", "rest")

    def __init__(self, raw: Bytes, fields: Int64s, *, inner: bool) -> None:
        self.raw = raw
        self.inner = inner
        self._columns: list[list[int]] = fields.tolist()
        columns = self._columns
        self.rest: Iterator[Row] = zip(
            range(fields.shape[1]),
            columns[headers.CODE],
            columns[headers.END],
            columns[headers.SIZE],
            columns[headers.START],
            columns[headers.STOP],
            columns[headers.A],
            columns[headers.B],
            columns[headers.C],
            strict=True,
        )

    def event(self, number: int) -> Event:
        """The event of this number, with a copy of its body."""
        columns = self._columns
        start = columns[headers.START][number]
        flags = self.raw[start - 2]  # the low byte of the last two of the header
        return Event(
            columns[headers.TYPE][number],
            columns[headers.TIMESTAMP][number],
            columns[headers.SERVER][number],
            columns[headers.END][number],
            columns[headers.SIZE][number],
            bool(columns[headers.ARTIFICIAL][number]),
            self.raw[start : columns[headers.STOP][number]].tobytes(),
            bool(flags & events.IGNORABLE),
            bool(flags & events.OF_SESSION),
        )

    def server(self, number: int) -> int:
        """The server id of the event of this number."""
        return self._columns[headers.SERVER][number]

    def timestamp(self, number: int) -> int:
        """The time of the event of this number, in seconds since 1970 UTC."""
        return self._columns[headers.TIMESTAMP][number]


class Framing:
    """Splits received bytes into events. `packets`: they come in the protocol's packets, `sequence` being the number
    of the next one; otherwise they follow each other as in a file."""

    def __init__(self, *, packets: bool, checksums: bool, sequence: int = 1) -> None:
        self._raw: Bytes = np.empty(_BUFFER, dtype=np.uint8)
        self._filled = 0
        self._state: Int64s = np.zeros(headers.STATE, dtype=np.int64)
        self._state[headers.SEQUENCE] = sequence
        self._state[headers.PACKETS] = packets
        self._state[headers.CHECKSUMS] = checksums
        self._out = np.empty((headers.FIELDS, _EVENTS), dtype=np.int64)
        self._head: list[bytes] = []
        self._fault: Exception | None = None
        self._forget()

    def room(self) -> memoryview:
        """Where the next bytes belong, at least one; all events before must have been taken. `add_received` follows."""
        at = int(self._state[headers.AT])
        needed = int(self._state[headers.NEEDED])
        # Arrays made of this buffer would break by a move: so only once all events before are taken.
        if len(self._raw) - self._filled < max(_ROOM, at + needed - self._filled):
            self._move(max(_BUFFER, needed + _ROOM))
        return self._raw.data[self._filled :]

    def add_received(self, count: int) -> None:
        """Tells that so many bytes were written into `room`."""
        self._filled += count

    @property
    def rest(self) -> int:
        """Bytes that are not yet part of an event."""
        return self._filled - int(self._state[headers.AT])

    @property
    def needed_bytes(self) -> int:
        """Bytes, from the beginning of `rest` on, with which the next event (or its packet) is whole."""
        return int(self._state[headers.NEEDED])

    def next(self, *, brief: bool = False) -> Events | None:
        """The events that have arrived whole; None until more is received. `brief`: without those that say nothing
        new, if all others are taken: a BEGIN after its GTID, and the same table map again.

        Raises NoEvent; SourceUnavailable if the stream is out of step; ValueError where length or checksum is wrong.
        """
        if self._fault is not None:
            raise self._fault
        if self._head:
            return self._go_on()
        self._state[headers.BRIEF] = brief
        why = headers.walk(self._raw, self._filled, self._state, self._out)
        if count := int(self._state[headers.COUNT]):
            return self._verify_checksums(self._raw, self._out[:, :count])
        if why == headers.LARGE:
            self._take_piece(headers.LARGEST)
            return self._go_on()
        if why != headers.MORE:
            raise self._error(why)
        return None

    def _move(self, size: int) -> None:
        """Moves what is left to the beginning, of a buffer of `size` bytes if this one is smaller, or far larger."""
        left = self._raw[int(self._state[headers.AT]) : self._filled]
        # A buffer that one large event has made large is given back with the next move.
        raw = self._raw if size <= len(self._raw) <= 4 * size else np.empty(size, dtype=np.uint8)
        raw[: len(left)] = left
        self._raw = raw
        self._filled = len(left)
        self._state[headers.AT] = 0
        self._forget()

    def _forget(self) -> None:
        """What the kernels remember of earlier bytes of the buffer."""
        self._state[headers.OWNER] = -1
        self._state[headers.MAPS :] = -1

    def _verify_checksums(self, raw: Bytes, fields: Int64s) -> Events:
        """The events up to the first one whose checksum is wrong, which is raised when it is its turn."""
        data = raw.data
        size = fields[headers.SIZE]
        # Each event itself shows whether it has one: a description in between may have changed it.
        checked = fields[headers.STOP] - fields[headers.START] + headers.HEADER < size
        for n in np.flatnonzero(checked & (size > headers.SMALL)).tolist():
            start = int(fields[headers.START, n]) - headers.HEADER
            stop = int(fields[headers.STOP, n])
            if zlib.crc32(data[start:stop]) != int.from_bytes(data[stop : stop + headers.CHECKSUM], "little"):
                self._fault = _mismatch(int(fields[headers.TYPE, n]))
                if n == 0:
                    raise self._fault
                return Events(raw, fields[:, :n], inner=not self._state[headers.PACKETS])
        return Events(raw, fields, inner=not self._state[headers.PACKETS])

    def _take_piece(self, length: int) -> None:
        """Takes the packet at our place as a piece of an event that is larger than a packet."""
        at = int(self._state[headers.AT])
        self._head.append(self._raw[at + 4 : at + 4 + length].tobytes())
        self._state[headers.AT] = at + 4 + length
        self._state[headers.SEQUENCE] = (int(self._state[headers.SEQUENCE]) + 1) & 255

    def _go_on(self) -> Events | None:
        """The rest of an event that is larger than a packet, if it has arrived."""
        length = headers.LARGEST
        # A packet of exactly the largest length says that another one follows, even an empty one.
        while length == headers.LARGEST:
            at = int(self._state[headers.AT])
            self._state[headers.NEEDED] = 4
            if self._filled - at < 4:
                return None
            length = int.from_bytes(self._raw[at : at + 3], "little")
            self._state[headers.NEEDED] = 4 + length
            if self._filled - at < 4 + length:
                return None
            if int(self._raw[at + 3]) != int(self._state[headers.SEQUENCE]):
                raise self._error(headers.OUT_OF_STEP)
            self._take_piece(length)
        whole = np.frombuffer(b"".join(self._head), dtype=np.uint8)
        self._head.clear()
        return self._large(whole)

    def _large(self, whole: Bytes) -> Events | None:
        if whole[0] != 0:
            raise NoEvent(whole.tobytes())
        # It lies in an array of its own, without packet headers, behind the status byte of the first packet.
        state = self._state.copy()
        state[headers.PACKETS] = 0
        state[headers.AT] = 1
        # What was remembered are places in the other buffer.
        state[headers.OWNER] = -1
        state[headers.MAPS :] = -1
        out = np.empty((headers.FIELDS, 1), dtype=np.int64)
        why = headers.walk(whole, len(whole), state, out)
        if why != headers.FULL or int(state[headers.AT]) != len(whole):
            raise self._error(headers.BAD_SIZE)
        self._forget()  # it may have described a table again
        return self._verify_checksums(whole, out)

    def _error(self, why: int) -> Exception:
        at = int(self._state[headers.AT])
        raw = self._raw[at : self._filled]
        match why:
            # It may pass: a new connection begins in step, from the last place that is recorded.
            case headers.OUT_OF_STEP:
                return SourceUnavailable(
                    f"packet {raw[3]} came where {self._state[headers.SEQUENCE]} was due: the connection is out of step"
                )
            case headers.NO_EVENT:
                return NoEvent(raw[4 : int(self._state[headers.NEEDED])].tobytes())
            case headers.BAD_ALGORITHM:
                return ValueError("the checksum algorithm of the file is unknown")
            case headers.BAD_CHECKSUM:
                return _mismatch(int(raw[9 if self._state[headers.PACKETS] else 4]))
            case _:
                return ValueError("an event has another length than its header says")


def _mismatch(kind: int) -> ValueError:
    return ValueError(f"an event of type {events.name(kind)} does not match its checksum")
