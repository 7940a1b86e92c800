"""Row images as a server logs them: column types, values for each, and the bytes of a row event."""

# ruff: noqa: E501  (the types and their values read better as a list)
from __future__ import annotations

import codecs
import math
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.sources.mysql.row_events.table_map import TableVersion
from dblog_core.sources.mysql.values import decimals, types
from dblog_core.sources.mysql.values.types import ColumnType, Kind

Make = Callable[[random.Random], bytes]

LATIN = "".join(chr(i) for i in range(0x80)) + "".join(chr(0x20AC + i) for i in range(0x80))
"""A single-byte character set whose upper half takes three bytes in UTF-8."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A column type and a way to make values of it, in the log's form without the length."""

    column: ColumnType
    make: Make


def version(columns: Sequence[ColumnType], key: tuple[str, ...] = ("c0",)) -> TableVersion:
    shape = tuple(Column(f"c{i}", c.text, c.arrow) for i, c in enumerate(columns))
    return TableVersion(TableSchema(TableName("shop", "t"), shape, key if shape else ()), tuple(columns))


def image(columns: Sequence[ColumnType], values: Sequence[bytes | None]) -> bytes:
    """One row image."""
    nulls = sum(1 << i for i, value in enumerate(values) if value is None)
    parts = [nulls.to_bytes((len(columns) + 7) // 8, "little")]
    for column, value in zip(columns, values, strict=True):
        if value is not None:
            parts.append(len(value).to_bytes(column.prefix, "little") + value if column.prefix else value)
    return b"".join(parts)


def packed_decimal(number: int, precision: int, scale: int) -> bytes:
    digits = f"{abs(number):0{precision}d}"
    out = b""
    at = 0
    for count, size in decimals.groups(precision, scale):
        out += int(digits[at : at + count]).to_bytes(size, "big")
        at += count
    if number < 0:
        out = bytes(b ^ 0xFF for b in out)
    return bytes([out[0] ^ 0x80]) + out[1:]


def _text(r: random.Random) -> str:
    alphabet = 'ab "\\\n\x01é日😀'
    return "".join(r.choice(alphabet) for _ in range(r.choice((0, 1, 5, 40))))


def _bytes(longest: int) -> Make:
    return lambda r: r.randbytes(r.choice((0, 1, longest // 2, longest)))


def _decimal(precision: int, scale: int) -> Sample:
    def make(r: random.Random) -> bytes:
        number = r.choice((0, 1, 10**precision - 1, r.randrange(10**precision), 10 ** r.randrange(precision)))
        return packed_decimal(number * r.choice((1, -1)), precision, scale)

    return Sample(types.decimal(precision, scale), make)


def _date(r: random.Random) -> tuple[int, int, int]:
    """Also dates that do not exist."""
    return r.choice(
        ((0, 0, 0), (r.randrange(10000), r.randrange(1, 13), r.randrange(1, 32)), (2023, r.randrange(13), 29))
    )


def _packed_date(r: random.Random) -> bytes:
    year, month, day = _date(r)
    return (year << 9 | month << 5 | day).to_bytes(3, "little")


def _fraction(r: random.Random, fsp: int) -> bytes:
    size = (fsp + 1) // 2
    return (r.randrange(100**size) if size else 0).to_bytes(size, "big")


def _datetime(fsp: int) -> Sample:
    def make(r: random.Random) -> bytes:
        year, month, day = _date(r)
        clock = r.randrange(24) << 12 | r.randrange(60) << 6 | r.randrange(60)
        packed = (year * 13 + month) << 22 | day << 17 | clock
        return (packed + 0x8000000000).to_bytes(5, "big") + _fraction(r, fsp)

    column = ColumnType(Kind.DATETIME, pa.timestamp("us"), "datetime", width=5 + (fsp + 1) // 2, scale=fsp)
    return Sample(column, make)


def _timestamp(fsp: int) -> Sample:
    def make(r: random.Random) -> bytes:
        return r.choice((0, 1, r.randrange(2**32), 2**32 - 1)).to_bytes(4, "big") + _fraction(r, fsp)

    kind = pa.timestamp("us", tz="UTC")
    return Sample(ColumnType(Kind.TIMESTAMP, kind, "timestamp", width=4 + (fsp + 1) // 2, scale=fsp), make)


def _time(fsp: int) -> Sample:
    size = (fsp + 1) // 2

    def make(r: random.Random) -> bytes:
        clock = r.randrange(839) << 12 | r.randrange(60) << 6 | r.randrange(60)
        part = r.randrange(100**size) if size else 0
        packed = (clock << 8 * size | part) * r.choice((1, -1))
        return (packed + (0x800000 << 8 * size)).to_bytes(3 + size, "big")

    return Sample(ColumnType(Kind.TIME, pa.string(), "time", width=3 + size, scale=fsp), make)


def _number(column: ColumnType) -> Sample:
    return Sample(
        column,
        lambda r: (
            r.choice((b"\0", b"\xff", b"\x80", b"\x7f")) * column.width
            if r.random() < 0.3
            else r.randbytes(column.width)
        ),
    )


def _finite(column: ColumnType, form: str) -> Sample:
    def make(r: random.Random) -> bytes:
        while True:
            raw = _number(column).make(r)
            if math.isfinite(*struct.unpack(form, raw)):
                return raw

    return Sample(column, make)


def _textual(prefix: int, encode: Callable[[str], bytes], decode: Any = None) -> Sample:
    return Sample(ColumnType(Kind.TEXT, pa.string(), "text", prefix=prefix, decode=decode), lambda r: encode(_text(r)))


def _labels(kind: Kind, width: int, count: int) -> Sample:
    labels = tuple(f"é{i}" for i in range(count))
    most = count + 1 if kind is Kind.ENUM else 2**count
    column = ColumnType(kind, pa.string(), kind.name.lower(), width=width, labels=labels)
    return Sample(column, lambda r: r.randrange(most).to_bytes(width, "little"))


def _native(width: int) -> Make:
    """Words of any kind, many of them zero; the log leaves zero bytes at the end out."""

    def make(r: random.Random) -> bytes:
        words = [r.choice((b"\0\0", b"\0\0", b"\xff\xff", b"\0\x0a", r.randbytes(2))) for _ in range(width // 2)]
        if r.random() < 0.3:
            words[:5] = [b"\0\0"] * min(5, width // 2)
        return b"".join(words).rstrip(b"\0")

    return make


def _utf(codec: str) -> Any:
    decode = codecs.lookup(codec).decode
    return lambda value: decode(value, "strict")[0]


SAMPLES: tuple[Sample, ...] = (
    *(_number(types.integer(width, unsigned)) for width in (1, 2, 3, 4, 8) for unsigned in (False, True)),
    *(_decimal(p, s) for p, s in ((1, 0), (5, 5), (9, 2), (18, 9), (19, 0), (20, 20), (38, 10), (38, 0), (65, 30), (40, 0), (65, 65))),
    _finite(ColumnType(Kind.FLOAT, pa.float32(), "float", width=4), "<f"),
    _finite(ColumnType(Kind.DOUBLE, pa.float64(), "double", width=8), "<d"),
    *(_textual(prefix, str.encode) for prefix in (1, 2, 3, 4)),
    Sample(
        ColumnType(Kind.TEXT, pa.string(), "char", prefix=1, decode=lambda v: codecs.charmap_decode(v, "strict", LATIN)[0]),
        _bytes(40),
    ),
    *(_textual(1, lambda text, c=codec: text.encode(c), _utf(codec)) for codec in ("utf_16_be", "utf_16_le", "utf_32_be")),
    *(Sample(ColumnType(Kind.BINARY, pa.binary(), "blob", prefix=prefix), _bytes(250)) for prefix in (1, 2, 3, 4)),
    Sample(ColumnType(Kind.PADDED, pa.binary(), "binary", prefix=1, width=16), _bytes(16)),
    *(
        Sample(ColumnType(kind, pa.string(), name, prefix=1, width=types.NATIVE_WIDTHS[name]), _native(types.NATIVE_WIDTHS[name]))
        for name, kind in types.NATIVE.items()
    ),
    Sample(ColumnType(Kind.DATE, pa.date32(), "date", width=3), _packed_date),
    *(_datetime(fsp) for fsp in (0, 1, 4, 6)),
    *(_timestamp(fsp) for fsp in (0, 3, 6)),
    *(_time(fsp) for fsp in (0, 1, 2, 3, 4, 5, 6)),
    Sample(ColumnType(Kind.YEAR, pa.int16(), "year", width=1), lambda r: r.randbytes(1)),
    *(_labels(Kind.ENUM, width, 9) for width in (1, 2)),
    *(_labels(Kind.SET, width, 8 * width) for width in (1, 2, 3, 4, 8)),
    *(Sample(ColumnType(Kind.BIT, pa.binary(), "bit", width=width), lambda r, w=width: r.randbytes(w)) for width in (1, 3, 8)),
    Sample(ColumnType(Kind.JSON, pa.string(), "json", prefix=4), lambda r: document(json_value(r, 3))),
)  # fmt: skip


# -- JSON


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that only functions of the server make."""

    field_type: int
    data: bytes


def json_value(r: random.Random, depth: int) -> Any:
    """Any value of JSON, also decimals, dates and times."""
    if depth and r.random() < 0.6:
        values = [json_value(r, depth - 1) for _ in range(r.choice((0, 1, 3, 9)))]
        return values if r.random() < 0.5 else {f"{_text(r)}{i}": value for i, value in enumerate(values)}
    return r.choice(_SCALARS)(r)


_SCALARS: tuple[Callable[[random.Random], Any], ...] = (
    lambda r: None,
    lambda r: r.random() < 0.5,
    lambda r: r.choice((0, 1, -1)) * 2 ** r.randrange(64) - (r.random() < 0.5),
    lambda r: r.choice((2**64 - 1, 2**63, -(2**63), 65535, 65536, -32769, 10**19)),
    lambda r: r.randrange(10**6) / 10 ** r.randrange(8),
    lambda r: r.choice((0.0, -0.0, 0.1, -1.5, 1e15, 1e14, 123456789012345.6, 1e-5, 1e-6, 5e-324, 1.7976931348623157e308)),
    lambda r: r.random() * 10.0 ** r.randrange(-20, 20),
    _text,
    lambda r: "z" * r.choice((127, 128, 300, 20000)),
    lambda r: Opaque(246, bytes([20, 4]) + packed_decimal(r.randrange(-(10 ** r.randrange(1, 20)), 10**19), 20, 4)),
    lambda r: Opaque(246, bytes([3, 3]) + packed_decimal(r.randrange(-999, 1000), 3, 3)),
    lambda r: Opaque(
        r.choice((7, 10, 12)),
        ((((r.randrange(10000) * 13 + r.randrange(13)) << 5 | r.randrange(32)) << 17 | r.randrange(1 << 17)) << 24).to_bytes(8, "little"),
    ),
    lambda r: Opaque(11, (r.choice((1, -1)) * (r.randrange(839 << 12) << 24 | r.randrange(10**6))).to_bytes(8, "little", signed=True)),
    lambda r: Opaque(252, r.randbytes(r.randrange(9))),
)  # fmt: skip


def document(value: Any, *, large: bool = False) -> bytes:
    """A value in the server's binary form. `large`: containers with offsets of four bytes throughout."""
    kind, data = _encode_value(value, large)
    return bytes([kind]) + data


def _encode_value(value: Any, large: bool) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return 4, bytes([{None: 0, True: 1, False: 2}[value]])
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, str):
        return 12, _length(len(value.encode())) + value.encode()
    if isinstance(value, Opaque):
        return 15, bytes([value.field_type]) + _length(len(value.data)) + value.data
    if not large:
        small = _container(value, False)
        if len(small) < 65536:
            return (0 if isinstance(value, dict) else 2), small
    return (1 if isinstance(value, dict) else 3), _container(value, True)


def _integer(value: int) -> tuple[int, bytes]:
    for kind, form, low, high in (
        (5, "<h", -(2**15), 2**15),
        (6, "<H", 0, 2**16),
        (7, "<i", -(2**31), 2**31),
        (8, "<I", 0, 2**32),
        (9, "<q", -(2**63), 2**63),
    ):
        if low <= value < high:
            return kind, struct.pack(form, value)
    return 10, struct.pack("<Q", value % 2**64)


def _length(length: int) -> bytes:
    out = b""
    while length >= 0x80:
        out += bytes([length & 0x7F | 0x80])
        length >>= 7
    return out + bytes([length])


def _container(value: Any, large: bool) -> bytes:
    """Its header, the entries of keys and values, keys, values. Offsets that do not fit are cut: its size tells."""
    size = 4 if large else 2
    keys = [key.encode() for key in value] if isinstance(value, dict) else []
    items = list(value.values()) if isinstance(value, dict) else list(value)
    at = 2 * size + len(keys) * (size + 2) + len(items) * (size + 1)
    key_entries = b""
    entries = b""
    body = b""
    for key in keys:
        key_entries += _cut(at + len(body), size) + len(key).to_bytes(2, "little")
        body += key
    for item in items:
        kind, data = _encode_value(item, large)
        entries += bytes([kind])
        if kind in ((4, 5, 6, 7, 8) if large else (4, 5, 6)):
            entries += data.ljust(size, b"\0")
        else:
            entries += _cut(at + len(body), size)
            body += data
    return _cut(len(items), size) + _cut(at + len(body), size) + key_entries + entries + body


def _cut(number: int, size: int) -> bytes:
    return (number % 256**size).to_bytes(size, "little")
