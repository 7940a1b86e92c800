"""Which changes of a shape the lake follows, told from two shapes."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.schema_evolution import compatibility
from dblog_core.schema_evolution.compatibility import is_widening

DAY = pa.date32()
TIME = pa.timestamp("us")
MOMENT = pa.timestamp("us", tz="UTC")
WIDER = [
    (pa.int8(), pa.int16()), (pa.int8(), pa.int64()), (pa.int32(), pa.int64()),
    (pa.int16(), pa.float64()), (pa.int32(), pa.float64()), (pa.float32(), pa.float64()),
    (pa.int32(), pa.decimal128(10, 0)), (pa.int8(), pa.decimal128(12, 2)), (pa.int64(), pa.decimal128(20, 0)),
    (pa.decimal128(5, 2), pa.decimal128(6, 2)), (pa.decimal128(5, 2), pa.decimal128(6, 3)), (DAY, TIME),
]  # fmt: skip
OTHER = [
    (pa.int16(), pa.int8()), (pa.int64(), pa.float64()), (pa.int32(), pa.float32()), (pa.float64(), pa.float32()),
    (pa.int32(), pa.decimal128(11, 2)), (pa.int64(), pa.decimal128(19, 0)), (pa.decimal128(10, 0), pa.int64()),
    (pa.decimal128(5, 2), pa.decimal128(6, 4)), (pa.decimal128(5, 2), pa.decimal128(5, 1)), (DAY, MOMENT),
    (TIME, MOMENT), (TIME, DAY), (pa.int32(), pa.string()), (pa.string(), pa.binary()), (pa.bool_(), pa.int8()),
]  # fmt: skip


def shape(*columns: tuple[str, str, pa.DataType], key: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema(TableName("shop", "t"), tuple(Column(*c) for c in columns), key)


@pytest.mark.parametrize(("old", "new"), WIDER)
def test_a_type_widens_where_every_value_of_it_stays_the_same(old: pa.DataType, new: pa.DataType) -> None:
    assert is_widening(old, new) and not is_widening(new, old)


@pytest.mark.parametrize(("old", "new"), [*OTHER, *((kind, kind) for pair in WIDER for kind in pair)])
def test_nothing_else_is_wider(old: pa.DataType, new: pa.DataType) -> None:
    assert not is_widening(old, new)


def test_a_change_tells_of_each_column_what_became_of_it_and_of_a_fault_both_types() -> None:
    before = shape(("id", "int", pa.int32()), ("v", "text", pa.string()), ("w", "int", pa.int32()))
    after = shape(("id", "bigint", pa.int64()), ("x", "int", pa.int32()), ("w", "varchar(9)", pa.string()))
    difference = compatibility.compare_schemas(before, after)
    assert (difference.added, difference.dropped, difference.widened) == (("x",), ("v",), ("id",))
    assert not difference.rekeyed
    assert difference.faults == ["column w was int (int32) and is varchar(9) (string)"]


def test_a_change_of_the_key_tells_the_old_and_the_new_one() -> None:
    one = shape(("id", "int", pa.int32()), key=("id",))
    two = replace(one, key=("id", "v"))
    keyless = replace(one, key=())
    assert compatibility.compare_schemas(one, one).faults == []
    assert compatibility.compare_schemas(two, one).faults == ["the key was (id, v) and is (id)"]
    assert compatibility.compare_schemas(one, two).faults == ["the key was (id) and is (id, v)"]
    assert compatibility.compare_schemas(one, keyless).faults == ["the key was (id) and is none"]
