"""Row hashes of Arrow columns: those of the definition, for random values of every type, in every slice."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
import struct
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.rows import arrow_hashes
from dblog_core.rows.arrow_hashes import NotHashable, hash_rows
from tests.plain_hashes import row_hash

TYPES: dict[str, tuple[str, pa.DataType]] = {
    "id": ("bigint", pa.int64()),
    "tiny": ("tinyint", pa.int8()),
    "single": ("real", pa.float32()),
    "double": ("double precision", pa.float64()),
    "long_scale": ("numeric(38,20)", pa.decimal128(38, 20)),
    "all_scale": ("numeric(5,5)", pa.decimal128(5, 5)),
    "amount": ("numeric(12,2)", pa.decimal128(12, 2)),
    "unsigned": ("bigint unsigned", pa.decimal128(20, 0)),
    "text": ("text", pa.string()),
    "raw": ("bytea", pa.binary()),
    "day": ("date", pa.date32()),
    "local": ("timestamp(6)", pa.timestamp("us")),
    "moment": ("timestamptz", pa.timestamp("us", tz="UTC")),
    "flag": ("boolean", pa.bool_()),
    "document": ("json", pa.string()),
}
SCHEMA = TableSchema(TableName("s", "t"), tuple(Column(name, *kind) for name, kind in TYPES.items()), ("id",))
FIRST_DAY, LAST_DAY = dt.date(1, 1, 1), dt.date(9999, 12, 31)


def draw(chance: random.Random, kind: pa.DataType) -> Any:
    """A value of a type; its ends, and what is printed oddly, more often than others."""
    if chance.random() < 0.15:
        return None
    if pa.types.is_boolean(kind):
        return chance.random() < 0.5
    if pa.types.is_integer(kind):
        ends = (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
        return chance.choice((*ends, 0, -1, chance.randint(*ends)))
    if pa.types.is_floating(kind):
        return draw_float(chance, 24 if kind == pa.float32() else 53)
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        unscaled = chance.choice((most, -most, 0, 1, -1, 10 ** (kind.scale - 1) if kind.scale else 10, -99))
        return decimal.Context(prec=60).scaleb(decimal.Decimal(unscaled), -kind.scale)
    if pa.types.is_string(kind):
        return chance.choice(("", "a,b", "-1", "é" * chance.randint(0, 600), "x" * 1024, "x" * 1025, "日\x00本"))
    if pa.types.is_binary(kind):
        return chance.choice((b"", b"\x00\xff", chance.randbytes(7), chance.randbytes(1024), chance.randbytes(1025)))
    if pa.types.is_date(kind):
        return chance.choice((FIRST_DAY, LAST_DAY, dt.date(1969, 12, 31), dt.date(2024, 2, 29)))
    texts = ("2024-02-29 10:00:00.5", "2024-01-01 00:00:10", "1969-12-31 23:59:59.000100")
    ends = (dt.datetime.combine(FIRST_DAY, dt.time.min), dt.datetime.combine(LAST_DAY, dt.time.max))
    moment = chance.choice((*ends, *map(dt.datetime.fromisoformat, texts)))
    return moment.replace(tzinfo=dt.UTC) if kind.tz else moment


def draw_float(chance: random.Random, digits: int) -> float:
    form = "<d" if digits == 53 else "<f"
    edge = math.ldexp(1.0, chance.randint(-1074, 1023) if digits == 53 else chance.randint(-149, 127))
    drawn = struct.unpack(form, chance.randbytes(struct.calcsize(form)))[0]
    return float(chance.choice((drawn, edge, -edge, 0.0, -0.0, math.nan, math.inf, -math.inf)))


def columns(rows: pa.Table) -> dict[str, pa.Array]:
    return {name: pa.concat_arrays(rows[name].chunks) for name in rows.column_names}


@pytest.mark.parametrize("seed", range(3))
def test_random_rows_have_the_hashes_of_the_definition(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_hashes, "_ROWS", 97)  # several parts
    chance = random.Random(seed)
    drawn = [{name: draw(chance, kind) for name, (_, kind) in TYPES.items()} for _ in range(500)]
    rows = pa.Table.from_pylist(drawn, schema=SCHEMA.arrow)
    expected = [row_hash(SCHEMA, row) for row in rows.to_pylist()]
    arrays = columns(rows)
    assert hash_rows(arrays, SCHEMA).tolist() == expected
    sliced = {name: array.slice(11, 300) for name, array in arrays.items()}
    assert hash_rows(sliced, SCHEMA).tolist() == expected[11:311]


def test_wide_rows_are_hashed_in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_hashes, "_BYTES", 1000)
    schema = TableSchema(TableName("s", "t"), (Column("v", "text", pa.string()),), ())
    texts = [f"{n} {'x' * 300}" for n in range(20)]
    expected = [row_hash(schema, {"v": text}) for text in texts]
    assert hash_rows({"v": pa.array(texts)}, schema).tolist() == expected


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.date32(), 2_932_897),  # 10000-01-01
        (pa.date32(), -719_163),  # the day before 0001-01-01
        (pa.timestamp("us"), 253_402_300_800_000_000),
        (pa.timestamp("us", tz="UTC"), -62_135_596_800_000_001),
    ],
)
def test_a_year_without_four_digits_has_no_hash(kind: pa.DataType, value: int) -> None:
    schema = TableSchema(TableName("s", "t"), (Column("v", "odd", kind),), ())
    integers = pa.int32() if kind == pa.date32() else pa.int64()
    with pytest.raises(NotHashable, match="years"):
        hash_rows({"v": pa.array([value], integers).cast(kind)}, schema)


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.time64("us"), pa.uint64(), pa.list_(pa.int8())])
def test_a_type_that_nobody_stages_has_no_hash(kind: pa.DataType) -> None:
    schema = TableSchema(TableName("s", "t"), (Column("v", "odd", kind),), ())
    with pytest.raises(NotHashable, match="column v"):
        hash_rows({"v": pa.nulls(1, kind)}, schema)


def test_a_column_of_another_type_than_the_shape_says_has_no_hash() -> None:
    schema = TableSchema(TableName("s", "t"), (Column("v", "bigint", pa.int64()),), ())
    with pytest.raises(NotHashable, match="int32"):
        hash_rows({"v": pa.array([1], pa.int32())}, schema)


def test_no_rows_have_no_hashes() -> None:
    assert hash_rows(columns(SCHEMA.arrow.empty_table().combine_chunks()), SCHEMA).tolist() == []


def test_floats_of_every_order_have_the_hash_of_the_definition() -> None:
    """At the ends of the windows, where a logarithm would go wrong, and one step beside them."""
    ends = [2.0**n for n in range(-1074, 1024)]
    values = [v for end in ends for v in (math.nextafter(end, 0), end, math.nextafter(end, math.inf))]
    values += [v * -1.1 for v in ends] + [0.0, -0.0, math.nan, math.inf, -math.inf, math.pi, 1 / 3]
    schema = TableSchema(
        TableName("s", "t"), (Column("d", "double", pa.float64()), Column("f", "real", pa.float32())), ()
    )
    singles = pa.array(values).cast(pa.float32(), safe=False)
    rows = [{"d": d, "f": f} for d, f in zip(values, singles.to_pylist(), strict=True)]
    hashes = hash_rows({"d": pa.array(values), "f": singles}, schema)
    assert hashes.tolist() == [row_hash(schema, row) for row in rows]
