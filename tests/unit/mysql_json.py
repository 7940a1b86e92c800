"""MySQL's binary JSON printed value by value, in plain Python: what the compiled printer must agree with."""

from __future__ import annotations

import struct
from functools import lru_cache

from dblog_core.sources.mysql.values.json_text import double, opaque, quote

_OBJECT_SMALL = 0
_OBJECT_LARGE = 1
_ARRAY_SMALL = 2
_ARRAY_LARGE = 3
_LITERAL = 4
_DOUBLE = 0x0B
_STRING = 0x0C
_OPAQUE = 0x0F
_LITERALS = {0: "null", 1: "true", 2: "false"}
_INTEGERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
_INLINE_SMALL = {5, 6}
_INLINE_LARGE = {5, 6, 7, 8}


def to_text(document: bytes) -> str:
    """The text of a stored document. Raises ValueError, IndexError or struct.error where it is not one."""
    if not document:  # what ALTER TABLE leaves in a NOT NULL column; the server reads it as JSON null
        return "null"
    return _value(document[0], document, 1)


def _value(kind: int, data: bytes, at: int) -> str:
    if kind <= _ARRAY_LARGE:
        return _container(kind, data, at)
    if kind == _LITERAL:
        return _LITERALS[data[at]]
    if kind in _INTEGERS:
        return str(struct.unpack_from(_INTEGERS[kind], data, at)[0])
    if kind == _DOUBLE:
        return double(struct.unpack_from("<d", data, at)[0])
    if kind == _STRING:
        length, at = _length(data, at)
        return quote(data[at : at + length].decode())
    if kind == _OPAQUE:
        length, start = _length(data, at + 1)
        return opaque(data[at], data[start : start + length])
    raise ValueError(f"{kind} is not a type of JSON value")


def _container(kind: int, data: bytes, base: int) -> str:
    large = kind in (_OBJECT_LARGE, _ARRAY_LARGE)
    size = 4 if large else 2
    count = int.from_bytes(data[base : base + size], "little")
    at = base + 2 * size
    keys: list[str] = []
    if kind in (_OBJECT_SMALL, _OBJECT_LARGE):
        entries = _layout("IH" if large else "HH", count).unpack_from(data, at)
        keys = [
            _key(data[base + start : base + start + length]) for start, length in zip(*_halves(entries), strict=True)
        ]
        at += count * (size + 2)
    entries = _layout("BI" if large else "BH", count).unpack_from(data, at)
    values = [_entry(code, place, large, data, base) for code, place in zip(*_halves(entries), strict=True)]
    if kind in (_ARRAY_SMALL, _ARRAY_LARGE):
        return "[" + ", ".join(values) + "]"
    return "{" + ", ".join([f"{key}: {value}" for key, value in zip(keys, values, strict=True)]) + "}"


@lru_cache(maxsize=1024)
def _layout(entry: str, count: int) -> struct.Struct:
    """The entries of a container, read in one step: documents of one table tend to have few shapes."""
    return struct.Struct("<" + entry * count)


def _halves(entries: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return entries[::2], entries[1::2]


@lru_cache(maxsize=4096)
def _key(name: bytes) -> str:
    return quote(name.decode())


def _entry(code: int, place: int, large: bool, data: bytes, base: int) -> str:
    """A value by its entry: small ones stand in the entry itself, in place of their offset."""
    if code == _STRING:
        start = base + place
        length = data[start]
        if length < 0x80:  # a short string: the usual case
            return quote(data[start + 1 : start + 1 + length].decode())
        return _value(code, data, start)
    if code == _LITERAL:
        return _LITERALS[place]
    if code in (_INLINE_LARGE if large else _INLINE_SMALL):
        return str(struct.unpack_from(_INTEGERS[code], place.to_bytes(4, "little"))[0])
    return _value(code, data, base + place)


def _length(data: bytes, at: int) -> tuple[int, int]:
    """A variable-length integer: seven bits a byte, the lowest first."""
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return length, at
        shift += 7
