"""Writes binlog events and packets, and splits them again in plain Python: what the kernels must agree with."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

import pyarrow as pa

from dblog_core.sources.mysql.binlog import events
from dblog_core.sources.mysql.binlog.events import Event, Type
from dblog_core.sources.mysql.row_events.table_map import lenenc

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER_UUID = "aaaaaaaa-71ca-11e1-9e33-c80aa9429562"
LARGEST = 0xFFFFFF


def event(
    kind: int, body: bytes = b"", *, end: int = 0, checksummed: bool = False, flags: int = 0, time: int = 1
) -> bytes:
    size = events.HEADER + len(body) + (4 if checksummed else 0)
    data = struct.pack("<IBIIIH", time, kind, 7, size, end & 0xFFFFFFFF, flags) + body
    return data + zlib.crc32(data).to_bytes(4, "little") if checksummed else data


def description(*, checksums: bool) -> bytes:
    """A FORMAT_DESCRIPTION, which says whether the events after it have checksums."""
    return event(Type.FORMAT_DESCRIPTION, bytes(76) + bytes([checksums]) + (b"" if checksums else bytes(4)),
                 checksummed=checksums)  # fmt: skip


_HEADER = struct.Struct("<IBIIIH")


def parse(packet: bytes, at: int, checksummed: bool) -> Event:
    """The event that begins at `at` and fills the rest. Raises ValueError where length or checksum is wrong."""
    timestamp, kind, server_id, size, end, flags = _HEADER.unpack_from(packet, at)
    if len(packet) - at != size:
        raise ValueError(f"an event of type {kind} has {len(packet) - at} bytes where its header says {size}")
    stop = len(packet)
    if checksummed:
        stop -= events.CHECKSUM
        if zlib.crc32(memoryview(packet)[at:stop]) != int.from_bytes(packet[stop:], "little"):
            raise ValueError(f"an event of type {kind} does not match its checksum")
    body = packet[at + events.HEADER : stop]
    is_artificial, is_ignorable = bool(flags & events.ARTIFICIAL), bool(flags & events.IGNORABLE)
    is_of_session = bool(flags & events.OF_SESSION)
    return Event(kind, timestamp, server_id, end, size, is_artificial, body, is_ignorable, is_of_session)


def has_checksums(body: bytes) -> bool:
    """Whether the events after a FORMAT_DESCRIPTION carry CRC32. Raises ValueError for another algorithm.

    `body`: with the checksum field that this event has in any case.
    """
    algorithm = body[-events.CHECKSUM - 1]
    if algorithm not in (0, 1):
        raise ValueError(f"checksum algorithm {algorithm} is unknown")
    return algorithm == 1


def packets(bodies: Iterable[bytes], *, sequence: int = 1) -> bytes:
    """The events in the protocol's packets; those of 16 MiB and more in several."""
    stream = bytearray()
    for data in bodies:
        payload = b"\0" + data
        while True:
            piece = payload[:LARGEST]
            payload = payload[LARGEST:]
            stream += len(piece).to_bytes(3, "little") + bytes([sequence & 255]) + piece
            sequence += 1
            if len(piece) < LARGEST:
                break
    return bytes(stream)


def split(stream: bytes, *, checksums: bool = False, sequence: int = 1) -> Iterator[Event]:
    """The events of whole packets, one at a time. Raises ValueError."""
    at = 0
    head = b""
    while len(stream) - at >= 4:
        length = int.from_bytes(stream[at : at + 3], "little")
        if at + 4 + length > len(stream):
            return
        if stream[at + 3] != sequence & 255:
            raise ValueError("out of step")
        packet = head + stream[at + 4 : at + 4 + length]
        at = at + 4 + length
        sequence += 1
        if length == LARGEST:
            head = packet
            continue
        head = b""
        if not packet or packet[0] != 0:
            raise ValueError("no event")
        if len(packet) <= events.HEADER:
            raise ValueError("too short")
        if packet[5] == Type.FORMAT_DESCRIPTION:
            if len(packet) < 1 + events.HEADER + 5:
                raise ValueError("too short")
            checksums = has_checksums(packet)
        if checksums and len(packet) < 1 + events.HEADER + 4:
            raise ValueError("too short")
        yield parse(packet, 1, checksums)


def gtid(number: int, *, uuid: str = UUID, **more: int) -> bytes:
    sid = bytes.fromhex(uuid.replace("-", ""))
    moment = (1_700_000_000_000_000 + number).to_bytes(7, "little")
    return event(Type.GTID, b"\1" + sid + struct.pack("<QBQQ", number, 2, 0, 1) + moment, **more)


def mariadb_gtid(number: int, flags: int, *, domain: int = 0, more_flags: int = 0, **more: int) -> bytes:
    """`more_flags`: the second byte of flags, which newer servers write."""
    body = struct.pack("<QIBB", number, domain, flags, more_flags) + bytes(5)
    return event(Type.MARIADB_GTID, body, **more)


def query(sql: str, *, schema: str = "shop", variables: bytes = b"", **more: int) -> bytes:
    head = struct.pack("<IIBHH", 1, 0, len(schema), 0, len(variables))
    return event(Type.QUERY, head + variables + schema.encode() + b"\0" + sql.encode(), **more)


def xid(**more: int) -> bytes:
    return event(Type.XID, bytes(8), **more)


def _field(kind: int, data: bytes) -> bytes:
    return bytes([kind, len(data)]) + data


def table_map(
    table_id: int,
    name: str,
    *,
    schema: str = "shop",
    columns: tuple[str, ...] = ("id", "v"),
    code: int = 15,
    named: bool = True,
    keyed: bool = True,
    **more: int,
) -> bytes:
    """A table with an int key and varchar(20) columns after it (or what `code` says), in utf8mb4, with all metadata. It
    may be without the names of its columns, or without the key."""
    count = len(columns)
    body = table_id.to_bytes(6, "little") + b"\1\0" + bytes([len(schema)]) + schema.encode() + b"\0"
    body += bytes([len(name)]) + name.encode() + b"\0" + bytes([count]) + bytes([3] + [code] * (count - 1))
    body += bytes([2 * (count - 1)]) + b"\x50\0" * (count - 1) + bytes((count + 7) // 8)
    names = b"".join(bytes([len(c)]) + c.encode() for c in columns)
    body += _field(1, b"\0") + _field(2, b"\x2d") + (_field(4, names) if named else b"")
    body += _field(8, b"\0") if keyed else b""
    return event(Type.TABLE_MAP, body, **more)


def image(number: int, *texts: str | None) -> bytes:
    """A row image of such a table."""
    nulls = sum(1 << i + 1 for i, text in enumerate(texts) if text is None)
    data = nulls.to_bytes((len(texts) + 8) // 8, "little") + struct.pack("<i", number)
    return data + b"".join(bytes([len(t.encode())]) + t.encode() for t in texts if t is not None)


def rows(
    kind: int, table_id: int, images: Iterable[bytes], *, columns: int = 2, whole: bool = True, **more: int
) -> bytes:
    """A row event; `whole`: with all columns, as it must be."""
    every = (1 << columns) - 1 if whole else (1 << columns) - 2
    bitmap = every.to_bytes((columns + 7) // 8, "little")
    updates = kind in (Type.UPDATE_ROWS, Type.UPDATE_ROWS_V1)
    extra = b"\2\0" if kind >= Type.WRITE_ROWS else b""
    head = table_id.to_bytes(6, "little") + b"\1\0" + extra + bytes([columns]) + bitmap * (2 if updates else 1)
    return event(kind, head + b"".join(images), **more)


def payload(inner: bytes, *, size: int | None = None, compress: bool = True) -> bytes:
    """The body of a TRANSACTION_PAYLOAD."""
    plain = b"\xfe" + (len(inner) if size is None else size).to_bytes(8, "little")
    data = pa.Codec("zstd").compress(inner, asbytes=True) if compress else inner
    return _field(2, b"\0" if compress else b"\xfc\xff\0") + _field(3, plain) + b"\0" + data


def unpack_events(body: bytes) -> Iterator[Event]:
    """The events inside, as a whole."""
    at = 0
    size = 0
    while body[at] != 0:
        field, at = lenenc(body, at)
        length, at = lenenc(body, at)
        if field == 3:
            size = lenenc(body[at : at + length], 0)[0]
        at += length
    plain = pa.Codec("zstd").decompress(body[at + 1 :], decompressed_size=size, asbytes=True)
    at = 0
    while at < len(plain):
        length = int.from_bytes(plain[at + 9 : at + 13], "little")
        yield parse(plain[at : at + length], 0, False)
        at += length
