"""The server's packets, framed from our own buffer: the driver's reader makes several Python calls for each of them."""

from __future__ import annotations

from collections.abc import Callable

from dblog_core.errors import SourceUnavailable

_LARGEST = 0xFFFFFF
"""A packet of this length goes on in the next one."""


class Packets:
    """Splits received bytes into packets. `sequence` is the number that the next packet must carry."""

    def __init__(self, sequence: int = 1) -> None:
        self._buffer = b""
        self._at = 0
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._missing = 4
        self._sequence = sequence
        self._head: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Adds received bytes. They are joined only when a whole packet is there, so a large one costs one copy."""
        self._pieces.append(data)
        self._waiting += len(data)

    def next(self) -> bytes | None:
        """The next whole packet, or None until more is fed. Raises SourceUnavailable if the stream is out of step."""
        while True:
            if len(self._buffer) - self._at < self._missing:
                if len(self._buffer) - self._at + self._waiting < self._missing:
                    return None
                self._buffer = b"".join([self._buffer[self._at :], *self._pieces])
                self._at, self._waiting = 0, 0
                self._pieces.clear()
            buffer, at = self._buffer, self._at
            length = buffer[at] | buffer[at + 1] << 8 | buffer[at + 2] << 16
            end = at + 4 + length
            if end > len(buffer):
                self._missing = 4 + length
                continue
            if buffer[at + 3] != self._sequence:
                raise SourceUnavailable(
                    f"packet {buffer[at + 3]} came where {self._sequence} was due: the connection is out of step"
                )
            self._sequence = (self._sequence + 1) & 255
            self._at, self._missing = end, 4
            payload = buffer[at + 4 : end]
            if length == _LARGEST:
                self._head.append(payload)
                continue
            if self._head:
                payload = b"".join([*self._head, payload])
                self._head.clear()
            return payload


def read_rows(packets: Packets, receive: Callable[[], bytes], width: int) -> list[list[bytes | None]] | bytes:
    """The columns of a text result set, up to its end; the error packet's payload if the server breaks off."""
    columns: list[list[bytes | None]] = [[] for _ in range(width)]
    appends = [column.append for column in columns]
    while True:
        packet = packets.next()
        if packet is None:
            packets.feed(receive())
            continue
        first = packet[0]
        if first == 0xFE and len(packet) < 9:
            return columns
        if first == 0xFF:
            return packet
        at = 0
        for append in appends:
            length = packet[at]
            at += 1
            if length >= 251:
                if length == 251:
                    append(None)
                    continue
                size = (2, 3, 8)[length - 252]
                length = int.from_bytes(packet[at : at + size], "little")
                at += size
            append(packet[at : at + length])
            at += length
