"""A table that changes its shape while it is merged: the lake follows, wherever a merge ends and whatever dies."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.lake.lake_status import State, TableStatus, history_location, read_status
from dblog_core.model.schema import TableSchema
from dblog_core.verify.exchange import Pin
from spark_jobs.delta_tables import log
from spark_jobs.merging.lake_table import LakeTable
from spark_jobs.verifying import expected_rows
from tests.spark.asked import done, replay
from tests.spark.lakes import Crash, TestLake
from tests.spark.segments import Row, table

pytestmark = pytest.mark.one_of(4)

OLD = table("t", id=pa.int64(), v=pa.string(), gone=pa.string())
NEW = table("t", id=pa.int64(), v=pa.string())
NARROW = table("t", id=pa.int32(), n=pa.int16(), d=pa.decimal128(5, 2), day=pa.date32(), f=pa.float32())
WIDE = table("t", id=pa.int64(), n=pa.decimal128(12, 2), d=pa.decimal128(9, 3), day=pa.timestamp("us"), f=pa.float64())


def old(key: int, v: str = "a", gone: str | None = "x") -> Row:
    return {"id": key, "v": v, "gone": gone}


def new(key: int, v: str = "a") -> Row:
    return {"id": key, "v": v}


def status(lake: TestLake) -> TableStatus:
    found = read_status(lake.location)
    assert found is not None
    return found.tables["shop.t"]


def told(lake: TestLake, *names: str) -> list[tuple[Any, ...]]:
    """The history's lines, in order."""
    frame = lake.spark.read.format("delta").load(str(history_location(lake.location, OLD.table)))
    return [tuple(row[n] for n in names) for row in frame.orderBy("_dblog_offset").collect()]


def at_the_end(lake: TestLake, schema: TableSchema, before: tuple[int, int], *, key: str = "id") -> list[Row]:
    """What verify expects of the source: version and offset `before`, and what is staged since."""
    version, offset = before
    found = status(lake)
    pin = Pin(version, offset, found.segment, lake.build.offset)
    staged = expected_rows.read_staged(
        lake.spark, lake.staging, schema, "tmp/expected", after=offset, upto=lake.build.offset
    )
    pinned = expected_rows.lake_rows(lake.spark, lake.table(schema), pin, schema, staged.work.renames)
    rows = expected_rows.rows_at(lake.spark, pinned, staged, schema).select("row.*").collect()
    return sorted((row.asDict() for row in rows), key=lambda row: int(row[key]))


def dropped(lake: TestLake) -> tuple[int, int]:
    """Rows of both shapes: 1 is not written again, 2 is written before the drop, 3 after it, 4 is seen by a dump."""
    build = lake.build
    for key in (1, 2, 3, 4):
        build.create(OLD, old(key))
    build.seal()
    lake.merge_well()
    before = (log.version(lake.table(OLD)) or 0, build.offset)
    build.update(OLD, old(2, "b", "y"))
    build.schema(NEW)
    build.update(NEW, new(3, "b"))
    build.create(NEW, new(5))
    build.seal()
    return before


def test_a_dropped_column_keeps_its_values_but_in_rows_that_are_written(lake: TestLake) -> None:
    lake.history = True
    before = dropped(lake)
    lake.merge_until("history shop.t")  # the shape is changed, the rows are not
    lake.merge_well()
    right = [old(1), old(2, "b", "y"), old(3, "b", None), old(4), old(5, "a", None)]
    assert lake.rows(OLD) == right
    assert told(lake, "id", "v", "gone")[4:] == [(2, "b", "y"), (3, "b", None), (5, "a", None)]
    assert at_the_end(lake, NEW, before) == [new(1), new(2, "b"), new(3, "b"), new(4), new(5)]
    lake.build.chunk(NEW, [new(4), new(1, "c")])  # a dump writes what it changes
    lake.build.seal()
    lake.merge_well()
    right = [old(1, "c", None), *right[1:]]
    assert lake.rows(OLD) == right
    lake.spark.sql(f"UPDATE delta.`{lake.table(OLD)}` SET v = 'harmed' WHERE id = 2")
    replay(lake, 1, lake.build.offset)
    assert lake.rows(OLD) == right
    done(lake, "rebuild", {"table": "shop.t"})
    # A refresh counts as the last line of its row here, and has no such column.
    assert lake.rows(OLD) == [*right[:3], old(4, "a", None), right[4]]
    lake.build.schema(table("t", id=pa.int64(), v=pa.string(), more=pa.bool_()))
    lake.build.seal()
    lake.merge_well()  # the column is known as dropped long ago
    assert lake.rows(OLD)[1] == {**right[1], "more": None}


def test_drop_columns_drops_them_and_they_may_come_back_as_something_else(lake: TestLake) -> None:
    lake.drop_columns = True
    dropped(lake)
    lake.merge_well()
    rows = [new(1), new(2, "b"), new(3, "b"), new(4), new(5)]
    assert lake.rows(NEW) == rows
    done(lake, "rebuild", {"table": "shop.t"})
    assert lake.rows(NEW) == rows
    back = table("t", id=pa.int64(), gone=pa.int32(), v=pa.string())
    lake.build.schema(back)
    lake.build.create(back, {**new(6), "gone": 6})
    lake.build.seal()
    lake.merge_well()
    assert lake.rows(back) == [*({**row, "gone": None} for row in rows), {**new(6), "gone": 6}]
    assert list(lake.rows(back)[0]) == ["id", "gone", "v"]


def test_a_kept_column_that_comes_back_as_something_else_stops_the_table_until_it_may_go(lake: TestLake) -> None:
    dropped(lake)
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


def wide(key: int, n: str = "7") -> Row:
    return {"id": key, "n": Decimal(n), "d": Decimal("1.250"), "day": dt.datetime.fromisoformat("2026-01-31"), "f": 0.5}


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
    moved = told(lake, "id", "n", "_dblog_moved_from")[3:]
    assert [(i, n and str(n), m and m.id) for i, n, m in moved] == [
        (2, "8.00", None), (3, None, None), (4, "7.00", 3), (2, "8.50", None), (2**40, "7.00", None)
    ]  # fmt: skip
    assert at_the_end(lake, WIDE, before) == right
    done(lake, "rebuild", {"table": "shop.t"})
    assert sorted(lake.rows(WIDE), key=lambda row: int(row["id"])) == right


def test_what_added_columns_hold_in_old_rows_comes_by_a_dump_that_is_requested_by_itself(lake: TestLake) -> None:
    build = lake.build
    for key in (1, 2):
        build.create(NEW, new(key))
    build.seal()
    lake.merge_well()
    began = build.offset  # a dump that begins here sees no new column
    build.chunk(NEW, [new(1), new(2)], dump="another")
    build.schema(OLD)
    build.create(OLD, old(3))
    build.seal()
    lake.merge_until("requested shop.t")
    lake.merge_well()
    assert lake.rows(OLD) == [old(1, gone=None), old(2, gone=None), old(3)]
    assert lake.dumps.asked == [("shop.t", [])] * 2  # the crash has forgotten the first one
    build.finished(OLD, "another", since=began, since_segment=2)
    build.create(OLD, old(4))
    build.seal()
    lake.merge_well()
    assert (status(lake).state, status(lake).awaits, status(lake).reset_at) == (State.INCOMPLETE, "dump2", None)
    since = build.offset
    build.chunk(OLD, [old(1, gone="default"), old(2, gone="default"), old(3), old(4)], dump="dump2")
    build.finished(OLD, "dump2", since=since, since_segment=build.segment + 1)
    build.seal()
    lake.merge_well()
    assert lake.rows(OLD) == [old(1, gone="default"), old(2, gone="default"), old(3), old(4)]
    assert (status(lake).state, status(lake).awaits) == (State.OK, None)
    assert len(lake.dumps.asked) == 2


TWO = table("t", id=pa.int64(), a=pa.string(), b=pa.string())
SWAPPED = table("t", key=("no",), no=pa.int64(), b=pa.string(), a=pa.string(), c=pa.string())


def two(key: int, a: str = "a", b: str = "b") -> Row:
    return {"id": key, "a": a, "b": b}


def swapped(key: int, b: str = "a", a: str = "b", c: str | None = None) -> Row:
    return {"no": key, "b": b, "a": a, "c": c}


def renamed(lake: TestLake) -> tuple[int, int]:
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
    build.update(SWAPPED, swapped(2, "x", "new", "c"))
    build.create(SWAPPED, swapped(6))
    build.seal()
    return before


def test_renamed_columns_are_renamed_wherever_a_merge_dies_and_whatever_is_done_after_it(lake: TestLake) -> None:
    lake.history = True
    before = renamed(lake)
    right = [swapped(1), swapped(2, "x", "new", "c"), swapped(3, "a", "z"), swapped(5), swapped(6)]
    lake.merge_until("history shop.t")
    lake.merge_well()
    assert lake.rows(SWAPPED) == right and not lake.dumps.asked
    assert at_the_end(lake, SWAPPED, before, key="no") == right
    lines = told(lake, "no", "b", "a", "c", "_dblog_moved_from")
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
    done(lake, "rebuild", {"table": "shop.t"})
    assert lake.rows(SWAPPED) == right


def test_a_name_that_a_dropped_column_had_is_taken_by_another_one_and_columns_swap_in_one_shape(lake: TestLake) -> None:
    lake.history = True
    dropped(lake)  # in the same merge
    taken = table("t", id=pa.int64(), gone=pa.string())
    lake.build.update(NEW, new(1, "z"))
    lake.build.schema(taken, renamed={"gone": "v"})
    lake.build.create(taken, {"id": 7, "gone": "new"})
    lake.build.seal()
    lake.merge_well()
    rows = [(1, "z"), (2, "b"), (3, "b"), (4, "a"), (5, "a"), (7, "new")]
    assert [tuple(row.values()) for row in lake.rows(taken)] == rows
    (until,) = [
        n for n in lake.spark.read.format("delta").load(str(lake.path / "shop/t__history")).columns if "until" in n
    ]
    assert told(lake, "id", "gone", until)[0] == (1, "a", "x")
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
    assert lake.rows(SWAPPED) == [swapped(1), swapped(3)]


FEW = table("t", id=pa.int64(), v=pa.string())
MORE = table(
    "t",
    id=pa.int64(),
    v=pa.string(),
    n=pa.int32(),
    word=pa.string(),
    d=pa.decimal128(9, 2),
    day=pa.date32(),
    at=pa.timestamp("us"),
    moment=pa.timestamp("us", tz="UTC"),
    flag=pa.bool_(),
    f=pa.float32(),
    nothing=pa.string(),
)
FILLED = {
    "n": -5,
    "word": "it's",
    "d": "1.50",
    "day": "2024-02-29",
    "at": "2024-02-29T01:02:03.500000",
    "moment": "2024-02-29T23:02:03Z",
    "flag": False,
    "f": 0.10000000149011612,
    "nothing": None,
}
HELD = {
    "n": -5,
    "word": "it's",
    "d": Decimal("1.50"),
    "day": dt.date(2024, 2, 29),
    "at": dt.datetime.fromisoformat("2024-02-29T01:02:03.500000"),
    "moment": dt.datetime.fromisoformat("2024-02-29T23:02:03"),
    "flag": False,
    "f": 0.10000000149011612,
    "nothing": None,
}
OTHERS = {**HELD, "n": 7, "word": None, "moment": dt.datetime(2000, 1, 1, tzinfo=dt.UTC)}


def filled(lake: TestLake, *, partial: bool) -> tuple[int, int]:
    """Columns come with constants: 1 is not written again, 2 and 3 are written before, by log and dump, 4 and 5 after
    it, and 6, where it is `partial`, by a change that leaves all but `v` out."""
    build = lake.build
    for key in (1, 2, 3, 4, 6):
        build.create(FEW, new(key))
    build.seal()
    lake.merge_well()
    before = (log.version(lake.table(FEW)) or 0, build.offset)
    build.update(FEW, new(2, "b"))
    build.chunk(FEW, [new(3, "c")])
    build.schema(MORE, filled=FILLED)
    build.update(MORE, {**new(4, "d"), **OTHERS})
    build.create(MORE, {**new(5), **OTHERS})
    if partial:
        build.update(MORE, {**new(6, "e"), **dict.fromkeys(HELD)}, unchanged=list(HELD))
    build.seal()
    return before


@pytest.mark.in_turn("dies")
@pytest.mark.parametrize(("dies", "partial"), [(None, True), ("_fill", False), ("merge", True)])
def test_an_added_column_has_its_constant_in_rows_from_before_by_the_merge_alone(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch, dies: str | None, partial: bool
) -> None:
    def die(*_: object, **__: object) -> None:
        raise Crash

    before = filled(lake, partial=partial)
    others = {**OTHERS, "moment": dt.datetime.fromisoformat("2000-01-01T00:00:00")}
    right = [{**new(key, v), **HELD} for key, v in ((1, "a"), (2, "b"), (3, "c"))]
    right += [{**new(key, v), **others} for key, v in ((4, "d"), (5, "a"))]
    right.append({**new(6, "e" if partial else "a"), **HELD})
    if dies is not None:
        with monkeypatch.context() as patch:
            patch.setattr(LakeTable, dies, die)
            with pytest.raises(Crash):
                lake.merge()
    assert at_the_end(lake, MORE, before) == right
    lake.merge_well()
    assert lake.rows(MORE) == right and not lake.dumps.asked
    assert not status(lake).waits
    version = log.version(lake.table(MORE))
    assert at_the_end(lake, MORE, (version or 0, lake.build.offset)) == right
    if dies is None:
        harm = f"UPDATE delta.`{lake.table(MORE)}` SET n = 0, day = NULL"
        lake.spark.sql(harm)
        replay(lake, 1, lake.build.offset)
        assert lake.rows(MORE) == right
        lake.spark.sql(harm)
        done(lake, "rebuild", {"table": "shop.t"})
        assert lake.rows(MORE) == right


def test_a_constant_is_followed_through_what_becomes_of_its_column(lake: TestLake) -> None:
    """It is widened and renamed within the same merge; one of its name that was dropped before is another column."""
    dropped(lake)
    build = lake.build
    back = table("t", id=pa.int64(), v=pa.string(), gone=pa.int32())
    build.schema(back, filled={"gone": 5})
    build.update(back, {**new(5), "gone": 6})
    wide = table("t", id=pa.int64(), v=pa.string(), came=pa.int64())
    build.schema(wide, renamed={"came": "gone"})
    build.create(wide, {**new(7), "came": 8})
    build.seal()
    lake.merge_well()
    values = [(1, "a", 5), (2, "b", 5), (3, "b", 5), (4, "a", 5), (5, "a", 6), (7, "a", 8)]
    assert [(row["id"], row["v"], row["came"]) for row in lake.rows(wide)] == values
    assert not lake.dumps.asked


def test_a_history_has_the_values_of_an_added_column_by_a_dump(lake: TestLake) -> None:
    """Which tells them as lines; the history's own, from before the column, are not written anew."""
    lake.history = True
    filled(lake, partial=False)
    lake.merge_well()
    assert lake.dumps.asked == [("shop.t", [])]
    assert status(lake).state is State.INCOMPLETE
    assert [row["n"] for row in lake.rows(MORE)] == [None, None, None, 7, 7, None]
