"""Compressed transactions (TRANSACTION_PAYLOAD): their events, unpacked piece by piece, since one may be very large."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from dblog_core.sources.mysql.binlog.framing import Events, Framing
from dblog_core.sources.mysql.row_events.table_map import lenenc

_ALGORITHM = 2
_PLAIN_SIZE = 3
_ZSTD = 0
_NONE = 255


def unpack_events(body: bytes) -> Iterator[Events]:
    """The events inside, in stretches; take each before you ask for the next one. They carry no checksums.

    Raises ValueError.
    """
    at = 0
    algorithm = _NONE
    size = 0
    # Fields of id, length and value stand before the events; unknown ones are stepped over.
    while at < len(body) and body[at] != 0:
        field, at = lenenc(body, at)
        length, at = lenenc(body, at)
        value = body[at : at + length]
        at += length
        if field == _ALGORITHM:
            algorithm = lenenc(value, 0)[0]
        elif field == _PLAIN_SIZE:
            size = lenenc(value, 0)[0]
    packed = pa.py_buffer(body).slice(min(at + 1, len(body)))  # after the end mark of the fields
    if algorithm not in (_ZSTD, _NONE):
        raise ValueError(f"compression algorithm {algorithm} of a transaction is unknown")
    if algorithm == _NONE:
        yield from _split(pa.BufferReader(packed), packed.size)
        return
    try:
        # Unpacked as it is read: a transaction may be larger than memory, and its plain size is its own claim.
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as plain:
            yield from _split(plain, size)
    except OSError as error:
        raise ValueError(f"a compressed transaction cannot be unpacked: {error}") from error


def _split(plain: pa.NativeFile, size: int) -> Iterator[Events]:
    framing = Framing(packets=False, checksums=False)
    bytes_left = size
    while True:
        while (stretch := framing.next()) is not None:
            yield stretch
        # Its last event is longer than what is left: reading on would wait for bytes that never come.
        if framing.needed_bytes - framing.rest > bytes_left:
            break
        count = plain.readinto(framing.room()[:bytes_left])
        framing.add_received(count)
        bytes_left -= count
        if not count:
            break
    # All that was announced must have come, in whole events, and nothing behind it.
    if bytes_left or framing.rest or plain.read(1):
        raise ValueError("a compressed transaction has another length than it says, or its last event is cut short")
