"""Rows are found by their keys as Python compares keys, whatever the columns' types."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.values import keys_of, rows_with

TYPES: dict[Any, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-3, 3),
    pa.int64(): st.integers(-2, 2) | st.sampled_from([-(2**63), 2**63 - 1]),
    pa.bool_(): st.booleans(),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, float("inf"), float("nan")]),
    pa.decimal128(10, 2): st.sampled_from([decimal.Decimal(t) for t in ("0.00", "1.00", "1.50", "-99999999.99")]),
    pa.string(): st.sampled_from(["", "a", "A", "é", "e\u0301", "a\0"]),
    pa.binary(): st.sampled_from([b"", b"a", b"\xff"]),
    pa.date32(): st.sampled_from([dt.date(1, 1, 1), dt.date(2024, 2, 29)]),
    pa.timestamp("us", tz="UTC"): st.sampled_from(
        [dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)]
    ),
}


@given(st.data())
def test_every_row_that_has_a_wanted_key_is_found(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=3))
    columns = tuple(Column(f"k{i}", "x", kind) for i, kind in enumerate(types))
    schema = TableSchema(TableName("s", "t"), columns, tuple(c.name for c in columns))
    some = st.lists(st.tuples(*(TYPES[kind] for kind in types)), max_size=12)
    had = data.draw(some)
    strange = data.draw(st.lists(st.sampled_from([("a",) * len(types), (2**70,) * len(types), (None,) * len(types)])))
    keys_to_find = {*data.draw(some), *strange}
    rows = pa.RecordBatch.from_arrays(
        [pa.array([key[i] for key in had], c.type) for i, c in enumerate(columns)], schema=schema.arrow
    )
    keys = keys_of(rows, schema)
    row_numbers = [number for number, key in rows_with(rows, schema, keys_to_find) if key in keys_to_find]
    assert row_numbers == [number for number, key in enumerate(keys) if key in keys_to_find]
