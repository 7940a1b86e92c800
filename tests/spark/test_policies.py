"""What becomes of a new shape under `[lake] schema_changes`, and of one that somebody accepts."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dblog_core.lake.lake_status import LakeStatus, State, TableStatus, read_status
from dblog_core.maintenance.retention_needs import of_lake
from dblog_core.model.schema import TableSchema
from tests.spark.asked import ask, ask_well, dies
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table

pytestmark = pytest.mark.one_of(6)

FIRST = table("t", id=pa.int64(), n=pa.int32(), old=pa.string())
SECOND = table("t", id=pa.int64(), n=pa.int64(), more=pa.string())
TEXT = table("t", id=pa.int64(), n=pa.string(), old=pa.string())
KEYED = table("t", key=("id", "n"), id=pa.int64(), n=pa.int32(), old=pa.string())
STEPS = ("requested shop.t", "shaped shop.t", "done")
"""Of which a run takes one, by its seed."""
KEYLESS = table("t", key=(), id=pa.int64(), n=pa.int32(), old=pa.string())
OTHER = table("u", id=pa.int64(), v=pa.string())


def first(key: int, n: int | None = 1, old: str | None = "x") -> Row:
    return {"id": key, "n": n, "old": old}


def second(key: int, n: int | None = 1, more: str | None = "y") -> Row:
    return {"id": key, "n": n, "more": more}


def lake_status(lake: TestLake) -> LakeStatus:
    status = read_status(lake.location)
    assert status is not None
    return status


def status(lake: TestLake, name: str = "shop.t") -> TableStatus:
    return lake_status(lake).tables[name]


def begin_tables(lake: TestLake) -> None:
    for key in (1, 2, 3):
        lake.build.create(FIRST, first(key))
    lake.build.create(OTHER, {"id": 1, "v": "a"})
    lake.build.seal()
    lake.merge_well()


def change_shape(lake: TestLake, schema: TableSchema, *rows: Row) -> None:
    """The shape, then rows of it, and one of the other table."""
    lake.build.schema(schema)
    for row in rows:
        lake.build.update(schema, row) if row["id"] <= 3 else lake.build.create(schema, row)
    lake.build.update(OTHER, {"id": 1, "v": f"after {lake.build.offset}"})
    lake.build.seal()


def merge_dump(lake: TestLake, schema: TableSchema, dump: str, rows: list[Row]) -> None:
    """The full dump, merged."""
    since = lake.build.offset
    lake.build.chunk(schema, rows, dump=dump)
    lake.build.finished(schema, dump, since=since, since_segment=lake.build.segment + 1)
    lake.build.seal()
    lake.merge_well()
    assert (status(lake).state, status(lake).awaits, lake.rows(schema)) == (State.OK, None, rows)


def test_ignore_keeps_the_lakes_columns_and_takes_what_fits_them_exactly(lake: TestLake) -> None:
    lake.changes = "ignore"
    begin_tables(lake)
    change_shape(lake, SECOND, second(2, 7), second(4, None), second(5, 2**31 - 1))
    lake.merge_well()
    right = [first(1), first(2, 7, None), first(3), first(4, None, None), first(5, 2**31 - 1, None)]
    assert lake.rows(FIRST) == right and lake.dumps.asked == []
    assert (status(lake).waits, status(lake).ignored) == (False, ["more"])
    change_shape(lake, SECOND, second(3, 2**31), second(6))
    lake.merge()
    error = str(status(lake).error)
    assert f"column n: the value at offset {lake.build.offset - 2} is bigint, and fits no int" in error
    assert "dblog schema accept shop.t" in error
    assert lake.rows(FIRST) == right and lake.rows(OTHER)[0]["v"] == f"after {lake.build.offset - 1}"
    outcome = ask_well(lake, "accept", {"table": "shop.t"})
    assert (outcome["way"], outcome["dump"], status(lake).state) == ("take", "dump1", State.STOPPED)
    lake.merge_well()
    rows = lake.rows(SECOND)
    assert [row["n"] for row in rows] == [1, 7, 2**31, None, 2**31 - 1, 1]
    assert (status(lake).ignored, status(lake).awaits) == (None, "dump1")


def test_a_table_that_ignored_a_column_has_it_dumped_when_it_follows_again(lake: TestLake) -> None:
    lake.changes = "ignore"
    begin_tables(lake)
    change_shape(lake, SECOND, second(2, 7))
    lake.merge_well()
    lake.changes = "evolve"
    lake.build.update(SECOND, second(3, 2**40))
    lake.build.seal()
    lake.merge_until("requested shop.t")
    lake.merge_well()
    assert [(r["n"], r["more"]) for r in lake.rows(SECOND)] == [(1, None), (7, None), (2**40, "y")]
    assert (status(lake).ignored, status(lake).state) == (None, State.INCOMPLETE)


@pytest.mark.soak
def test_ignore_stops_at_another_key_and_at_a_type_that_has_no_value_in_common(lake: TestLake) -> None:
    lake.changes = "ignore"
    begin_tables(lake)
    flag = table("t", id=pa.int64(), n=pa.bool_(), old=pa.string())
    for schema, row, reason in (
        (flag, {"id": 4, "n": True, "old": None}, "column n is bool"),
        (KEYED, first(5), "the key was (id) and is (id, n)"),
    ):
        change_shape(lake, schema, row)
        lake.merge()
        assert reason in str(status(lake).error)
        assert lake.rows(FIRST) == [first(1), first(2), first(3)]


def test_fail_stops_at_any_change_and_what_the_table_needs_stays_until_it_is_accepted(lake: TestLake) -> None:
    lake.changes = "fail"
    begin_tables(lake)
    segment = lake.build.segment
    change_shape(lake, SECOND, second(2, 2**40))
    lake.merge()
    error = str(status(lake).error)
    for words in ("column more was added (string)", "column old was dropped", "n was int32 and is int64", "accept"):
        assert words in error
    assert lake.rows(OTHER)[0]["v"] != "a" and lake.rows(FIRST) == [first(1), first(2), first(3)]
    assert (segment + 1, f"shop.t is stopped at segment {segment}") in [
        (need.segment, need.why) for need in of_lake(lake_status(lake))
    ]
    dies(lake, "accept", {"table": "shop.t"}, "done")
    lake.merger().run_task()
    assert status(lake).accepted == lake.build.offset
    third = table("t", id=pa.int64(), n=pa.int64(), more=pa.string(), again=pa.string())
    change_shape(lake, third, {**second(3), "again": "z"})
    lake.merge()  # this change is another one
    assert "column again was added" in str(status(lake).error) and lake.rows(FIRST) == [first(1), first(2), first(3)]
    assert ask_well(lake, "accept", {"table": "shop.t"})["way"] == "follow"
    lake.merge_well()
    assert [r["n"] for r in lake.rows(third)] == [1, 2**40, 1]
    assert (status(lake).state, status(lake).awaits, status(lake).accepted) == (State.INCOMPLETE, "dump1", None)
    change_shape(lake, SECOND, second(1))
    lake.merge()  # what was accepted is done with
    assert "column again was dropped" in str(status(lake).error)


def test_an_accepted_type_takes_the_place_of_the_old_one_and_a_dump_brings_its_values(
    lake: TestLake, soak_seed: int
) -> None:
    begin_tables(lake)
    change_shape(lake, TEXT, {"id": 2, "n": "two", "old": "x"})
    lake.build.delete(TEXT, {"id": 3})
    lake.build.seal()
    lake.merge()
    assert "dblog schema accept shop.t" in str(status(lake).error)
    dies(lake, "accept", {"table": "shop.t"}, STEPS[soak_seed % len(STEPS)])
    lake.merger().run_task()
    dump = f"dump{len(lake.dumps.asked)}"
    assert (status(lake).state, status(lake).awaits) == (State.INCOMPLETE, dump)
    assert lake.rows(TEXT) == [first(1, None), first(2, None), first(3, None)]  # to be read meanwhile
    lake.build.create(TEXT, {"id": 4, "n": "four", "old": None})
    lake.build.seal()
    lake.merge_well()
    assert [row["n"] for row in lake.rows(TEXT)] == [None, None, None, "four"]
    rows = [{"id": k, "n": n, "old": o} for k, n, o in ((1, "1", "x"), (2, "two", "x"), (4, "four", None))]
    merge_dump(lake, TEXT, dump, rows)


@pytest.mark.soak
def test_another_key_is_accepted_by_a_dump_in_place_and_nothing_is_accepted_that_no_shape_has_stopped(
    lake: TestLake,
) -> None:
    begin_tables(lake)
    assert "the lake has its newest shape" in str(ask(lake, "accept", {"table": "shop.t"}).error)
    change_shape(lake, KEYED, first(4))
    lake.merge()
    assert "the key was (id) and is (id, n)" in str(status(lake).error)
    assert ask_well(lake, "accept", {"table": "shop.t"})["way"] == "reload"
    assert lake.rows(KEYED) == []
    merge_dump(lake, KEYED, "dump1", [first(1), first(1, 2), first(4)])


def test_a_table_that_loses_its_key_stops_and_misses_nothing_when_it_has_it_again(lake: TestLake) -> None:
    begin_tables(lake)
    change_shape(lake, KEYLESS, first(7))
    lake.merge()
    assert "the table has lost its key" in str(status(lake).error)
    assert lake.rows(FIRST) == [first(1), first(2), first(3)]
    change_shape(lake, FIRST, first(8))
    lake.merge()
    assert "the key was none and is (id)" in str(status(lake).error)
    assert lake.rows(FIRST) == [first(1), first(2), first(3)]
    assert ask_well(lake, "accept", {"table": "shop.t"})["way"] == "reload"
    merge_dump(lake, FIRST, "dump1", [first(1), first(2), first(3), first(7), first(8)])


@pytest.mark.parametrize(
    ("newest", "rows"),
    [
        (TEXT, [{"id": 1, "n": "one", "old": "x"}]),
        (KEYED, [first(1)]),
    ],
)
def test_a_shape_that_stops_a_tables_first_merge_is_accepted(
    lake: TestLake, newest: TableSchema, rows: list[Row]
) -> None:
    """The lake has nothing of the table by then, neither rows nor a shape."""
    lake.build.create(OTHER, {"id": 1, "v": "a"})
    lake.build.create(FIRST, first(1))
    lake.build.create(FIRST, first(2))
    change_shape(lake, newest, *rows)
    lake.merge()
    error = str(status(lake).error)
    assert "dblog schema accept shop.t" in error and status(lake).version is None
    outcome = ask_well(lake, "accept", {"table": "shop.t"})
    assert (outcome["way"], outcome["dump"], status(lake).state) == ("begin", "dump1", State.INCOMPLETE)
    assert outcome["changes"] and lake.rows(newest) == []
    merge_dump(lake, newest, "dump1", rows)


@pytest.mark.parametrize("is_merged_before", [True, False])
def test_a_stopped_table_that_is_dropped_is_emptied_and_stands_still_no_longer(
    lake: TestLake, is_merged_before: bool
) -> None:
    """The source has no such table any more: neither an acceptance nor a reset could have it dumped."""
    if is_merged_before:
        begin_tables(lake)
    else:
        lake.build.create(OTHER, {"id": 1, "v": "a"})
        lake.build.create(FIRST, first(1))
    change_shape(lake, KEYED, first(4))
    lake.merge()
    assert status(lake).state is State.STOPPED
    drop_table(lake)


def test_what_would_stop_a_tables_first_merge_does_not_where_the_table_is_dropped_by_then(lake: TestLake) -> None:
    lake.build.create(OTHER, {"id": 1, "v": "a"})
    lake.build.create(FIRST, first(1))
    change_shape(lake, KEYED, first(4))
    drop_table(lake)


def drop_table(lake: TestLake) -> None:
    """The next merge empties it, and asks for nothing."""
    lake.build.truncate(KEYED)
    lake.build.seal()
    lake.merge_well()
    assert (status(lake).state, lake.rows(FIRST), status(lake).lacks) == (State.OK, [], None)
    assert not status(lake).waits and lake.dumps.asked == []


@pytest.mark.parametrize("had_history", [True, False])
def test_a_column_in_another_case_than_a_kept_one_stops_the_table_until_somebody_accepts_it(
    lake: TestLake, had_history: bool
) -> None:
    lake.history = had_history
    begin_tables(lake)
    without = table("t", id=pa.int64(), n=pa.int32())
    change_shape(lake, without, {"id": 2, "n": 7})
    lake.merge_well()
    twin = table("t", id=pa.int64(), n=pa.int32(), Old=pa.string())
    change_shape(lake, twin, {"id": 4, "n": 4, "Old": "new"})
    lake.merge()
    error = str(status(lake).error)
    assert "column Old differs from old, which the lake keeps" in error and "drop_columns = true" in error
    history = lake.path / "shop/t__history"
    assert ("history has columns of the old" in str(ask(lake, "accept", {"table": "shop.t"}).error)) == had_history
    if had_history:
        history.rename(lake.path / "moved away")
        assert ask_well(lake, "accept", {"table": "shop.t"})["way"] == "replace"
    rows = [{"id": key, "n": key, "Old": f"old {key}"} for key in (1, 2, 3, 4)]
    merge_dump(lake, twin, "dump1", rows)
