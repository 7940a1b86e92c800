"""Compressed transactions (TRANSACTION_PAYLOAD): their events, unpacked piece by piece, since one may be very large."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from dblog_core.sources.mysql.binlog.framing import Events, Framing
from dblog_core.sources.mysql.row_events.table_map import lenenc

_ALGORITHM, _PLAIN_SIZE = 2, 3
_ZSTD, _NONE = 0, 255


def unpacked(body: bytes) -> Iterator[Events]:
    """The events inside, in stretches; each is to be taken before the next one is asked for. They carry no checksums.

    Raises ValueError.
    """
    at, algorithm, size = 0, _NONE, 0
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
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as plain:
            yield from _split(plain, size)
    except OSError as error:
        raise ValueError(f"a compressed transaction cannot be unpacked: {error}") from error


def _split(plain: pa.NativeFile, size: int) -> Iterator[Events]:
    framing, left = Framing(packets=False, checksums=False), size
    while True:
        while (found := framing.next()) is not None:
            yield found
        if framing.needed - framing.rest > left:
            break
        count = plain.readinto(framing.room()[:left])
        framing.received(count)
        left -= count
        if not count:
            break
    if left or framing.rest or plain.read(1):
        raise ValueError("a compressed transaction has another length than it says, or its last event is cut short")
