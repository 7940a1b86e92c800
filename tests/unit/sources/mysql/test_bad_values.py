"""Bytes that are a value of no server: each makes its table unreadable, is named with its place, and never a value."""

from __future__ import annotations

import struct
from dataclasses import replace

import pyarrow as pa
import pytest

from dblog_core.model.events import CREATE, Transaction, Unreadable
from dblog_core.sources.mysql.row_events.change_batch import BatchBuilder
from dblog_core.sources.mysql.values import types
from dblog_core.sources.mysql.values.types import ColumnType, Kind
from tests.unit import mysql_rows
from tests.unit.mysql_rows import SAMPLES, Sample, document


def of(kind: Kind, *, width: int = -1, scale: int = 0) -> list[Sample]:
    return [s for s in SAMPLES if s.column.kind is kind and width in (-1, s.column.width) and s.column.scale == scale]


def date(year: int, month: int, day: int) -> bytes:
    return (year << 9 | month << 5 | day).to_bytes(3, "little")


def moment(year: int, month: int, day: int, hour: int, minute: int, second: int, fraction: bytes = b"") -> bytes:
    packed = (year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | second
    return (packed + 0x8000000000).to_bytes(5, "big") + fraction


def clock(hour: int, minute: int, second: int, fraction: bytes = b"") -> bytes:
    return ((hour << 12 | minute << 6 | second) + 0x800000).to_bytes(3, "big") + fraction


(DATE,) = of(Kind.DATE)
(PLAIN,) = of(Kind.DATETIME)
(FINE,) = of(Kind.DATETIME, scale=6)
(STAMP,) = of(Kind.TIMESTAMP, scale=6)
(TIME,) = of(Kind.TIME)
(FINE_TIME,) = of(Kind.TIME, scale=6)
FLOAT = of(Kind.FLOAT)[0]
DOUBLE = of(Kind.DOUBLE)[0]
JSON = of(Kind.JSON)[0]
TEXT = of(Kind.TEXT)[0]
PADDED = of(Kind.PADDED)[0]
ENUM = of(Kind.ENUM, width=1)[0]
BITS = ColumnType(Kind.BIT, pa.binary(), "bit(12)", width=2, precision=12)
FEW = ColumnType(Kind.SET, pa.string(), "set", width=1, labels=("a", "b", "c"))

BAD: list[tuple[str, ColumnType, bytes]] = [
    ("decimal: a group above its digits", types.decimal(9, 2), b"\xff\xff\xff\xff\x7f"[:5]),
    ("decimal: a whole group above its digits", types.decimal(18, 0), b"\xbb\x9a\xca\x00\0\0\0\0"),
    ("long decimal: a group above its digits", types.decimal(65, 30), b"\xff" * 1 + b"\x7f" * 29),
    ("enum: no label of that number", ENUM.column, b"\x0a"),
    ("set: more bits than labels", FEW, b"\x08"),
    ("bit: more bits than the column has", BITS, b"\x10\0"),
    ("float: infinity", FLOAT.column, struct.pack("<f", float("inf"))),
    ("float: not a number", FLOAT.column, struct.pack("<f", float("nan"))),
    ("double: infinity", DOUBLE.column, struct.pack("<d", float("-inf"))),
    ("double: not a number", DOUBLE.column, struct.pack("<d", float("nan"))),
    ("date: month 13", DATE.column, date(2024, 13, 1)),
    ("date: year 10000", DATE.column, date(10_000, 1, 1)),
    ("datetime: hour 24", PLAIN.column, moment(2024, 1, 1, 24, 0, 0)),
    ("datetime: minute 60", PLAIN.column, moment(2024, 1, 1, 0, 60, 0)),
    ("datetime: second 60", PLAIN.column, moment(2024, 1, 1, 0, 0, 60)),
    ("datetime: year 10000", PLAIN.column, moment(10_000, 1, 1, 0, 0, 0)),
    ("datetime: before all", PLAIN.column, b"\0" * 5),
    ("datetime: a whole second as its fraction", FINE.column, moment(2024, 1, 1, 0, 0, 0, (10**6).to_bytes(3, "big"))),
    ("timestamp: a whole second as its fraction", STAMP.column, b"\0\0\0\1" + (10**6).to_bytes(3, "big")),
    ("time: hour 839", TIME.column, clock(839, 0, 0)),
    ("time: minute 60", TIME.column, clock(0, 60, 0)),
    ("time: second 60", TIME.column, clock(0, 0, 60)),
    ("time: a whole second as its fraction", FINE_TIME.column, clock(0, 0, 0, (10**6).to_bytes(3, "big"))),
    ("text: no UTF-8", TEXT.column, b"ab\xff"),
    ("text: a character cut short", TEXT.column, "é".encode()[:1]),
    ("utf16: half a character", of(Kind.TEXT)[-3].column, b"\0"),
    ("utf16: half a pair", of(Kind.TEXT)[-3].column, b"\xd8\x00"),
    ("utf32: beyond all characters", of(Kind.TEXT)[-1].column, b"\x00\x11\x00\x00"),
    ("binary: longer than its column", PADDED.column, b"x" * 17),
    ("json: an unknown type", JSON.column, b"\x20abc"),
    ("json: cut short", JSON.column, document({"a": [1, "text"]})[:-3]),
    ("json: a container of more than there is", JSON.column, b"\x02\xff\xff\xff\xff"),
    ("json: a key that is no UTF-8", JSON.column, document({"abc": 1}).replace(b"abc", b"a\xffc")),
    ("json: text that is no UTF-8", JSON.column, document(["abc"]).replace(b"abc", b"a\xffc")),
    ("json: a literal that is none", JSON.column, b"\x04\x07"),
]
BAD += [
    (f"{name}, as text", replace(column, arrow=pa.string()), value)
    for name, column, value in BAD
    if name.startswith(("date", "timestamp"))
]


@pytest.mark.parametrize("zero_dates", ["error", "null"])
@pytest.mark.parametrize(("column", "value"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_value_of_no_server_makes_its_table_unreadable_and_its_place_is_named(
    column: ColumnType, value: bytes, zero_dates: str
) -> None:
    number = types.integer(4, False)
    version = mysql_rows.version([number, column])
    builder = BatchBuilder(zero_dates)
    transaction = Transaction("uuid:7", "binlog.000003:4711", 1)
    builder.rows_event(version, CREATE, transaction, mysql_rows.image([number, column], [bytes(4), None]), 0, 0)
    builder.rows_event(version, CREATE, transaction, mysql_rows.image([number, column], [bytes(4), value]), 0, 0)
    batch = builder.build("p", 0)
    (signal,) = batch.signals
    assert isinstance(signal, Unreadable) and signal.fix
    assert signal.why.startswith("shop.t at binlog.000003:4711 (transaction uuid:7): column c1: a value ")
    assert [changes.batch.num_rows for changes in batch.changes] == [1]
