"""pgoutput's messages, made by hand, and a plain reading of row messages: what the compiled one is held against."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dblog_core.model.schema import Column, TableName
from dblog_core.sources.postgres.values.types import from_text

Values = dict[str, Any]


def begin(final: int = 100, xid: int = 7) -> bytes:
    return struct.pack(">cQqI", b"B", final, 0, xid)


def commit(end: int = 110) -> bytes:
    return struct.pack(">cBQQq", b"C", 0, end - 10, end, 0)


def relation(name: str, columns: list[tuple[int, str, int]], *, oid: int = 1, identity: str = "d") -> bytes:
    head = struct.pack(">cI", b"R", oid) + b"public\0" + name.encode() + b"\0" + identity.encode()
    listed = [bytes([flag]) + text.encode() + b"\0" + struct.pack(">Ii", kind, -1) for flag, text, kind in columns]
    return head + struct.pack(">H", len(columns)) + b"".join(listed)


def row(*values: str | bytes | None) -> bytes:
    """A row image of texts; `bytes` stand for a value's kind alone."""
    return struct.pack(">H", len(values)) + b"".join(map(_value, values))


def _value(value: str | bytes | None) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, bytes):
        return value
    return b"t" + struct.pack(">I", len(value.encode())) + value.encode()


def binary(value: bytes) -> bytes:
    """A value in binary form."""
    return b"b" + struct.pack(">I", len(value)) + value


def change(kind: bytes, *images: tuple[bytes, bytes], oid: int = 1) -> bytes:
    return kind + struct.pack(">I", oid) + b"".join(marker + image for marker, image in images)


def stream_start(xid: int, *, first: bool) -> bytes:
    return struct.pack(">cIB", b"S", xid, first)


def stream_commit(final: int = 100, end: int = 110, xid: int = 7) -> bytes:
    return struct.pack(">cIBQQq", b"c", xid, 0, final, end, 0)


def stream_abort(xid: int, sub: int) -> bytes:
    return struct.pack(">cII", b"A", xid, sub)


def streamed_message(message: bytes, xid: int) -> bytes:
    """The message as it lies in a block of a stream."""
    return message[:1] + struct.pack(">I", xid) + message[1:]


@dataclass(frozen=True, slots=True)
class Read:
    """One row change, as a reader makes it out that takes byte by byte; `old` and `new` are images, None for none."""

    op: str
    key_only: bool
    unchanged: list[str] | None
    old: Values | None
    new: Values | None


class Wrong(Exception):
    """The message is none that pgoutput sends."""


def read_change(message: bytes, columns: tuple[Column, ...]) -> Read:
    """The row change of a text message. Raises Wrong for one that no such row makes."""
    place = 5
    old = None
    new = None
    marker = message[5:6]
    if marker in (b"K", b"O"):
        old, place = _read_image(message, place + 1, columns)
    if message[:1] != b"D":
        if message[place : place + 1] != b"N":
            raise Wrong
        new, place = _read_image(message, place + 1, columns)
    if place != len(message) or (message[:1] == b"I" and old is not None) or (message[:1] == b"D" and old is None):
        raise Wrong
    if new is not None and old is not None:
        new = {
            name: old[name] if value == b"u" and isinstance(old[name], str) else value for name, value in new.items()
        }
    unchanged_names = [name for name, value in (new or {}).items() if value == b"u"]
    op = {b"I": "c", b"U": "u", b"D": "d"}[message[:1]]
    return Read(op, marker == b"K", unchanged_names or None, _convert_image(old, columns), _convert_image(new, columns))


def _read_image(message: bytes, place: int, columns: tuple[Column, ...]) -> tuple[Values, int]:
    if message[place : place + 2] != struct.pack(">H", len(columns)):
        raise Wrong
    image: Values = {}
    place += 2
    for column in columns:
        kind = message[place : place + 1]
        place += 1
        if kind == b"t":
            length = message[place : place + 4]
            end = place + 4 + int.from_bytes(length)
            if len(length) < 4 or end > len(message):
                raise Wrong
            image[column.name] = message[place + 4 : end].decode(errors="surrogateescape")
            place = end
        elif kind in (b"n", b"u"):
            image[column.name] = None if kind == b"n" else b"u"
        else:
            raise Wrong
    return image, place


def _convert_image(image: Values | None, columns: tuple[Column, ...]) -> Values | None:
    if image is None:
        return None
    table = TableName("public", "t")
    values = {}
    for column in columns:
        value = image[column.name]
        raw = value.encode(errors="surrogateescape") if isinstance(value, str) else None
        values[column.name] = from_text(pa.array([raw], pa.binary()), column, table)[0].as_py()
    return values
