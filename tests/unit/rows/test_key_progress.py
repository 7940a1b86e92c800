"""Chunks that lack rows up to their last one, by their keys and by what a server counts."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.values import Key
from dblog_core.rows.key_progress import RowsOutOfOrder, check_ascent, check_count, check_last

ONE = TableSchema(TableName("s", "t"), (Column("k", "bigint", pa.int64()),), ("k",))
TWO = TableSchema(
    TableName("s", "t"),
    (Column("k", "date", pa.date32()), Column("l", "numeric(9,2)", pa.decimal128(9, 2))),
    ("k", "l"),
)
TEXTS = TableSchema(
    TableName("s", "t"), (Column("k", "text", pa.string()), Column("l", "text", pa.string())), ("k", "l")
)


def batch(schema: TableSchema, *keys: Any) -> pa.RecordBatch:
    columns = [pa.array([key[i] for key in keys], column.type) for i, column in enumerate(schema.columns)]
    return pa.RecordBatch.from_arrays(columns, names=[column.name for column in schema.columns])


def day(number: int, amount: str) -> Key:
    return dt.date(2024, 1, number), Decimal(amount)


def test_keys_that_ascend_from_the_one_before_are_in_order() -> None:
    check_ascent(batch(ONE), ONE, (5,))
    check_ascent(batch(ONE, (1,)), ONE, None)
    check_ascent(batch(ONE, (6,), (7,), (9,)), ONE, (5,))
    check_ascent(batch(TWO, day(1, "2.00"), day(1, "3.00"), day(2, "1.00")), TWO, day(1, "1.00"))


@pytest.mark.parametrize("keys", [[(5,), (6,)], [(4,), (6,)], [(6,), (6,)], [(7,), (6,), (8,)]])
def test_keys_of_one_column_that_do_not_ascend_are_out_of_order(keys: list[Key]) -> None:
    with pytest.raises(RowsOutOfOrder, match="do not ascend") as out_of_order:
        check_ascent(batch(ONE, *keys), ONE, (5,))
    assert "s.t" in str(out_of_order.value) and "6" not in str(out_of_order.value)


@pytest.mark.parametrize(
    "keys",
    [
        [day(2, "1.00"), day(1, "3.00")],
        [day(2, "1.00"), day(2, "1.00")],
        [day(2, "2.00"), day(2, "1.00")],
        [day(1, "1.00"), day(1, "3.00")],
    ],
)
def test_keys_of_two_columns_that_do_not_ascend_are_out_of_order(keys: list[Key]) -> None:
    with pytest.raises(RowsOutOfOrder):
        check_ascent(batch(TWO, *keys), TWO, day(1, "1.00"))


def test_a_full_chunk_holds_as_many_rows_as_the_server_counts() -> None:
    rows = batch(TEXTS, ("b", "x"), ("B", "x"), ("c", "y"))
    asked: list[Key] = []

    def count(last: Key) -> int:
        asked.append(last)
        return 3

    check_count(rows, TEXTS, ("a", "z"), 3, count)
    assert asked == [("c", "y")]
    check_count(rows, TEXTS, None, 4, lambda _: 0)  # of less than a chunk nothing follows
    check_count(batch(TEXTS), TEXTS, None, 4, lambda _: 9)
    for counted in (2, 4):
        with pytest.raises(RowsOutOfOrder, match=f"gave 3 rows up to a key, and counts {counted}"):
            check_count(rows, TEXTS, None, 3, lambda _, counted=counted: counted)  # type: ignore[misc]


@pytest.mark.parametrize("after", [("a", "x"), ("c", "y"), None])
def test_rows_with_one_key_have_no_place_behind_it(after: Key | None) -> None:
    keys = [("a", "x"), ("b", "x"), ("c", "y")] if after else [("a", "x"), ("a", "x"), ("c", "y")]
    with pytest.raises(RowsOutOfOrder, match=r"print as one key \(k, l\)"):
        check_count(batch(TEXTS, *keys), TEXTS, after, 9, lambda _: 3)


def test_nothing_lies_beyond_the_last_key() -> None:
    check_last(ONE, 0)
    with pytest.raises(RowsOutOfOrder, match="rows lie beyond"):
        check_last(ONE, 1)
