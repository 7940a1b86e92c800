"""Rows with values that have no form: which columns and rows they are, and how little is read for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pyarrow as pa

from dblog_core.errors import ValueOutOfRange
from dblog_core.interfaces import Chunk, ChunkReader
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.rows.column_rules import Rules
from dblog_core.verify.unreadable_values import UnreadableValues

NAMES = ("id", *(f"c{number}" for number in range(50)))
SCHEMA = TableSchema(TableName("shop", "t"), tuple(Column(name, "int", pa.int32()) for name in NAMES), ("id",))


class Reader:
    """Of a table in which some columns of some rows cannot be read."""

    def __init__(self, unreadable: Mapping[int, set[str]]) -> None:
        self._unreadable = unreadable
        self.reads = 0

    def read_keys(self, schema: TableSchema, keys: Sequence[tuple[int]]) -> Chunk:
        self.reads += 1
        names = {column.name for column in schema.columns}
        if any(names & self._unreadable.get(key, set()) for (key,) in keys):
            raise ValueOutOfRange("a value has no form", where="shop.t")
        columns = [pa.array([0] * len(keys), column.type) for column in schema.columns]
        return Chunk(schema, pa.RecordBatch.from_arrays(columns, schema=schema.arrow), None)


def find(unreadable: Mapping[int, set[str]], keys: Sequence[int]) -> tuple[UnreadableValues, Reader]:
    reader = Reader(unreadable)
    values = UnreadableValues()
    values.find(cast(ChunkReader, reader), SCHEMA, keys, Rules({}))
    return values, reader


def test_each_row_is_named_with_its_columns_and_they_differ_beside_what_else_does() -> None:
    values, _ = find({3: {"c7"}, 5: {"c7", "c9"}, 99: {"c1"}}, range(10))
    assert [values.columns_of(key) for key in (1, 3, 5, 99)] == [(), ("c7",), ("c7", "c9"), ()]
    assert {c.column: c.reason.partition("in the rows ")[2] for c in values.explain()} == {"c7": "3, 5", "c9": "5"}
    named: dict[str, tuple[str, ...]] = {"1": ("c0",), "5": ("c0",)}
    assert values.add_columns(named, range(10)) == {"1": ("c0",), "3": ("c7",), "5": ("c0", "c7", "c9")}


def test_a_column_that_no_row_has_a_form_of_costs_a_few_reads_a_row_however_many_columns_there_are() -> None:
    values, reader = find({key: {"c7"} for key in range(200)}, range(200))
    (column,) = values.explain()
    assert column.reason.endswith("18, 19 and 180 more")
    assert reader.reads < 5 * 200


def test_rows_that_can_be_read_are_read_once() -> None:
    values, reader = find({}, range(200))
    assert (values.explain(), reader.reads) == ((), 1)
