"""A table that changes its shape while it is merged: the lake follows, wherever a merge ends and whatever dies."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from dblog_core.lake_engine.tables import log
from tests.spark.asked import ask_well, replay
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table
from tests.spark.shapes import NEW, OLD, WIDE, at_the_end, drop_column, history_rows, new, old, status, wide

pytestmark = pytest.mark.one_of(8)


NARROW = table("t", id=pa.int32(), n=pa.int16(), d=pa.decimal128(5, 2), day=pa.date32(), f=pa.float32())


def test_a_dropped_column_keeps_its_values_but_in_rows_that_are_written(lake: TestLake) -> None:
    lake.history = True
    before = drop_column(lake)
    lake.merge_until("history shop.t")  # the shape is changed, the rows are not
    lake.merge_well()
    right = [old(1), old(2, "b", "y"), old(3, "b", None), old(4), old(5, "a", None)]
    assert lake.rows(OLD) == right
    assert history_rows(lake, "id", "v", "gone")[4:] == [(2, "b", "y"), (3, "b", None), (5, "a", None)]
    assert at_the_end(lake, NEW, before) == [new(1), new(2, "b"), new(3, "b"), new(4), new(5)]
    lake.build.chunk(NEW, [new(4), new(1, "c")])  # a dump writes what it changes
    lake.build.seal()
    lake.merge_well()
    right = [old(1, "c", None), *right[1:]]
    assert lake.rows(OLD) == right
    lake.spark.sql(f"UPDATE delta.`{lake.table(OLD)}` SET v = 'harmed' WHERE id = 2")
    replay(lake, 1, lake.build.offset)
    assert lake.rows(OLD) == right
    ask_well(lake, "rebuild", {"table": "shop.t"})
    # A refresh counts as the last line of its row here, and has no such column.
    assert lake.rows(OLD) == [*right[:3], old(4, "a", None), right[4]]
    lake.build.schema(table("t", id=pa.int64(), v=pa.string(), more=pa.bool_()))
    lake.build.seal()
    lake.merge_well()  # the column is known as dropped long ago
    assert lake.rows(OLD)[1] == {**right[1], "more": None}


def test_drop_columns_drops_them_and_they_may_come_back_as_something_else(lake: TestLake) -> None:
    lake.drop_columns = True
    drop_column(lake)
    lake.merge_well()
    rows = [new(1), new(2, "b"), new(3, "b"), new(4), new(5)]
    assert lake.rows(NEW) == rows
    ask_well(lake, "rebuild", {"table": "shop.t"})
    assert lake.rows(NEW) == rows
    back = table("t", id=pa.int64(), gone=pa.int32(), v=pa.string())
    lake.build.schema(back)
    lake.build.create(back, {**new(6), "gone": 6})
    lake.build.seal()
    lake.merge_well()
    assert lake.rows(back) == [*({**row, "gone": None} for row in rows), {**new(6), "gone": 6}]
    assert list(lake.rows(back)[0]) == ["id", "gone", "v"]


def test_a_kept_column_that_comes_back_as_something_else_stops_the_table_until_it_may_go(lake: TestLake) -> None:
    drop_column(lake)
    lake.merge_well()
    back = table("t", id=pa.int64(), v=pa.string(), gone=pa.int32())
    lake.build.schema(back)
    lake.build.create(back, {**new(6), "gone": 6})
    lake.build.seal()
    lake.merge()
    error = str(status(lake).error)
    assert "column gone, dropped as string, came back as int32" in error and "drop_columns = true" in error
    lake.drop_columns = True
    lake.merge_well()
    assert [row["gone"] for row in lake.rows(back)] == [None, None, None, None, None, 6]


def narrow(key: int, n: int = 7) -> Row:
    return {"id": key, "n": n, "d": Decimal("1.25"), "day": dt.date(2026, 1, 31), "f": 0.5}


def test_types_are_widened_in_place_with_keys_and_history_and_rows_of_both_types_are_one_table(lake: TestLake) -> None:
    lake.history = True
    build = lake.build
    for key in (1, 2, 3):
        build.create(NARROW, narrow(key))
    build.seal()
    lake.merge_well()
    version = log.version(lake.table(NARROW)) or 0
    before = (version, build.offset)
    build.update(NARROW, narrow(2, 8))
    build.move(NARROW, {"id": 3}, narrow(4))
    build.schema(WIDE)
    build.update(WIDE, wide(2, "8.5"))
    build.create(WIDE, wide(2**40))
    build.seal()
    lake.merge_until("history shop.t")
    lake.merge_well()
    right = [wide(1), wide(2, "8.5"), wide(4), wide(2**40)]
    rows = sorted(lake.rows(WIDE), key=lambda row: int(row["id"]))
    assert rows == right
    assert lake.spark.read.format("delta").option("versionAsOf", version).load(str(lake.table(WIDE))).count() == 3
    moved = history_rows(lake, "id", "n", "_dblog_moved_from")[3:]
    assert [(i, n and str(n), m and m.id) for i, n, m in moved] == [
        (2, "8.00", None), (3, None, None), (4, "7.00", 3), (2, "8.50", None), (2**40, "7.00", None)
    ]  # fmt: skip
    assert at_the_end(lake, WIDE, before) == right
    ask_well(lake, "rebuild", {"table": "shop.t"})
    assert sorted(lake.rows(WIDE), key=lambda row: int(row["id"])) == right


TWO = table("t", id=pa.int64(), a=pa.string(), b=pa.string())


SWAPPED = table("t", key=("no",), no=pa.int64(), b=pa.string(), a=pa.string(), c=pa.string())


def two(key: int, a: str = "a", b: str = "b") -> Row:
    return {"id": key, "a": a, "b": b}


def swapped_row(key: int, b: str = "a", a: str = "b", c: str | None = None) -> Row:
    return {"no": key, "b": b, "a": a, "c": c}


def rename_columns(lake: TestLake) -> tuple[int, int]:
    """Two columns swap names, the key has another one, and a column comes: rows of both shapes in one merge."""
    build = lake.build
    for key in (1, 2, 3, 4):
        build.create(TWO, two(key))
    build.seal()
    lake.merge_well()
    before = (log.version(lake.table(TWO)) or 0, build.offset)
    build.update(TWO, two(2, "x", "y"))
    build.update(TWO, two(3, "", "z"), unchanged=["a"])
    build.move(TWO, {"id": 4}, two(5))
    build.schema(SWAPPED, renamed={"no": "id", "b": "a", "a": "b"}, filled={"c": None})
    build.update(SWAPPED, swapped_row(2, "x", "new", "c"))
    build.create(SWAPPED, swapped_row(6))
    build.seal()
    return before


def test_renamed_columns_are_renamed_wherever_a_merge_dies_and_whatever_is_done_after_it(lake: TestLake) -> None:
    lake.history = True
    before = rename_columns(lake)
    right = [swapped_row(1), swapped_row(2, "x", "new", "c"), swapped_row(3, "a", "z"), swapped_row(5), swapped_row(6)]
    lake.merge_until("history shop.t")
    lake.merge_well()
    assert lake.rows(SWAPPED) == right and not lake.dumps.asked
    assert at_the_end(lake, SWAPPED, before, key="no") == right
    lines = history_rows(lake, "no", "b", "a", "c", "_dblog_moved_from")
    assert [(no, b, a, c, m and m.no) for no, b, a, c, m in lines[4:]] == [
        (2, "x", "y", None, None), (3, "a", "z", None, None), (4, None, None, None, None), (5, "a", "b", None, 4),
        (2, "x", "new", "c", None), (6, "a", "b", None, None),
    ]  # fmt: skip
    assert lines[0][:3] == (1, "a", "b")
    harm = f"UPDATE delta.`{lake.table(TWO)}` SET a = 'harmed', b = 'harmed' WHERE no < 4"
    lake.spark.sql(harm)
    replay(lake, 1, lake.build.offset)
    assert lake.rows(SWAPPED) == right
    lake.spark.sql(harm)
    ask_well(lake, "rebuild", {"table": "shop.t"})
    assert lake.rows(SWAPPED) == right


def test_a_name_that_a_dropped_column_had_is_taken_by_another_one_and_columns_swap_in_one_shape(lake: TestLake) -> None:
    lake.history = True
    drop_column(lake)  # in the same merge
    shape_with_name_taken = table("t", id=pa.int64(), gone=pa.string())
    lake.build.update(NEW, new(1, "z"))
    lake.build.schema(shape_with_name_taken, renamed={"gone": "v"})
    lake.build.create(shape_with_name_taken, {"id": 7, "gone": "new"})
    lake.build.seal()
    lake.merge_well()
    rows = [(1, "z"), (2, "b"), (3, "b"), (4, "a"), (5, "a"), (7, "new")]
    assert [tuple(row.values()) for row in lake.rows(shape_with_name_taken)] == rows
    (until,) = [
        n for n in lake.spark.read.format("delta").load(str(lake.path / "shop/t__history")).columns if "until" in n
    ]
    assert history_rows(lake, "id", "gone", until)[0] == (1, "a", "x")
    two_of_it = table("t", id=pa.int64(), gone=pa.string(), v=pa.string())
    lake.build.schema(two_of_it, filled={"v": None})
    lake.build.schema(two_of_it, renamed={"gone": "v", "v": "gone"})
    lake.build.seal()
    lake.merge_well()
    assert lake.rows(two_of_it)[:2] == [{"id": 1, "gone": None, "v": "z"}, {"id": 2, "gone": None, "v": "b"}]
    assert not lake.dumps.asked


def test_a_dump_that_began_before_its_keys_column_was_renamed_shows_what_is_gone(lake: TestLake) -> None:
    build = lake.build
    for key in (1, 2, 3):
        build.create(TWO, two(key))
    build.seal()
    lake.merge_well()
    since = build.offset
    build.chunk(TWO, [two(1), two(3)], dump="d2")
    build.schema(SWAPPED, renamed={"no": "id", "b": "a", "a": "b"}, filled={"c": None})
    build.finished(SWAPPED, "d2", since=since, since_segment=build.segment + 1)
    build.seal()
    lake.merge_well()
    assert lake.rows(SWAPPED) == [swapped_row(1), swapped_row(3)]
