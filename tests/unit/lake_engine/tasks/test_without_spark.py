"""Replay, rebuild, reset and adoption start no Spark, and give what merging gave."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from dblog_core.delta_writer.changes import Changes
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.upserting.upsert import upsert
from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import State, TableStatus, history_location, read_status
from dblog_core.lake.task_requests import AdoptRequest
from dblog_core.lake.task_results import AdoptResult, RebuildResult
from dblog_core.lake_engine.events import key_buckets, last_rows
from dblog_core.lake_engine.merging.deleted_rows import Ghosts
from dblog_core.lake_engine.tables import log
from dblog_core.lake_engine.tables.column_types import OFFSET
from dblog_core.lake_engine.tasks import rebuild
from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from tests.spark.asked import ask, ask_well, dies, replay
from tests.spark.lakes import Crash, TestLake
from tests.spark.segments import Row, SegmentBuilder, table
from tests.spark.worlds import SHAPE, Key, Oracle, Source
from tests.unit.lake_engine.test_history_without_spark import read_rows

T = table("t", id=pa.int64(), v=pa.string(), big=pa.string())
TEXT = table("t", id=pa.string(), w=pa.float64())
ITEMS = table("items", id=pa.int64(), v=pa.string())
SEEDS = range(4)


@pytest.fixture(params=["vectors", "copies", "small parts"])
def lake(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TestLake:
    """Of the small parts each has a few rows: buckets of events, what is folded at a time, and files."""
    if request.param == "small parts":
        for module, name in (
            (key_buckets, "BUCKET_ROWS"),
            (key_buckets, "GROUP_EVENTS"),
            (key_buckets, "DISTRIBUTED_BYTES"),
            (key_buckets, "PORTION_BYTES"),
            (rebuild, "_FILE_BYTES"),
            (last_rows, "SORTED_ROWS"),
        ):
            monkeypatch.setattr(module, name, 20)
    empty = TestLake(None, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")
    empty.vectors = request.param != "copies"
    return empty


def harm(lake: TestLake, schema: TableSchema, puts: Sequence[Row] = (), deletes: Sequence[Row] = ()) -> None:
    """Another program puts rows, with the offsets that they claim, or deletes some."""
    writer = OpenTable(lake.table(schema), schema.key, order=OFFSET, mark="theirs")
    shape = writer.refresh()
    rows = [{name: row.get(name) for name in shape.names} for row in (*puts, *deletes)]
    changes = pa.table({c.name: pa.array([row[c.name] for row in rows], c.type) for c in shape})
    deleted = np.arange(len(rows)) >= len(puts)
    number = log.version(lake.table(schema)) or 0
    upsert(writer, Changes(changes, deleted, np.zeros(len(rows), np.bool_)), "theirs", number)


def values(lake: TestLake, schema: TableSchema = T) -> list[Row]:
    """The source's columns of the rows, as delta-rs reads them."""
    return [{c.name: row[c.name] for c in schema.columns} for row in lake.rust_rows(schema)]


def status_of(lake: TestLake, name: str = "shop.t") -> TableStatus:
    status = read_status(lake.location)
    assert status is not None
    return status.tables[name]


def _merge_a_past(lake: TestLake) -> int:
    """Five keys with a past, merged; returns the first offset of the second half of it."""
    build = lake.build
    for i in range(1, 6):
        build.create(T, {"id": i, "v": "old", "big": f"b{i}"})
    build.seal()
    half = build.update(T, {"id": 1, "v": "new", "big": None}, unchanged=["big"])
    build.delete(T, {"id": 2})
    build.move(T, {"id": 3}, {"id": 30, "v": "moved", "big": None}, unchanged=["big"])
    build.seal()
    build.update(T, {"id": 1, "v": "newest", "big": None}, unchanged=["big"])
    build.seal()
    lake.merge_well(max_rows=1)
    return half


RIGHT = [
    {"id": 1, "v": "newest", "big": "b1"}, {"id": 30, "v": "moved", "big": "b3"},
    {"id": 4, "v": "old", "big": "b4"}, {"id": 5, "v": "old", "big": "b5"},
]  # fmt: skip


def test_a_replay_mends_rows_of_the_interval_that_have_the_offset_of_the_log(lake: TestLake) -> None:
    half = _merge_a_past(lake)
    assert values(lake) == RIGHT
    rows = {row["id"]: row for row in lake.rust_rows(T)}
    harmed = [{**rows[number], "v": "harmed"} for number in (1, 30, 5)]
    harm(lake, T, [*harmed, {**rows[4], "id": 2}])
    # The lines of the interval end before the last change of key 1: that change comes back all the same.
    assert replay(lake, half, half + 3) == {
        "shop.t": {"keys": 4, "inserted": 0, "updated": 2, "deleted": 1, "withheld": 0}
    }
    assert values(lake) == [*RIGHT[:3], {"id": 5, "v": "harmed", "big": "b5"}]
    again = lake.rust_rows(T)
    assert replay(lake, half, half + 3)["shop.t"]["updated"] == 0
    assert lake.rust_rows(T) == again
    assert status_of(lake).version == log.version(lake.table(T))


def test_a_value_that_the_interval_leaves_out_is_not_taken_from_a_row_of_another_life(lake: TestLake) -> None:
    """Key 3 was another row before; what it got over a change of key stands in the lake alone."""
    build = lake.build
    build.create(T, {"id": 3, "v": "same", "big": "of before"})
    build.create(T, {"id": 1, "v": "same", "big": "now"})
    build.seal()
    lake.merge_well()
    before = next(row for row in lake.rust_rows(T) if row["id"] == 3)
    first = build.delete(T, {"id": 3})
    build.move(T, {"id": 1}, {"id": 3, "v": "same", "big": None}, unchanged=["big"])
    build.seal()
    lake.merge_well()
    assert values(lake) == [{"id": 3, "v": "same", "big": "now"}]
    assert replay(lake, first, build.offset)["shop.t"]["withheld"] == 0
    assert values(lake) == [{"id": 3, "v": "same", "big": "now"}]
    harm(lake, T, [before])
    assert replay(lake, first, build.offset)["shop.t"]["withheld"] == 1
    assert values(lake) == []
    assert lake.withheld is not None and lake.withheld.keys("shop.t", T) == [(3,)]
    assert replay(lake, 1, build.offset)["shop.t"]["inserted"] == 1
    assert values(lake) == [{"id": 3, "v": "same", "big": "now"}]


def test_keys_that_a_truncate_has_ended_go_and_others_are_left(lake: TestLake) -> None:
    _merge_a_past(lake)
    lake.build.truncate(T)
    lake.build.create(T, {"id": 4, "v": "after", "big": "x"})
    lake.build.seal()
    lake.merge_well()
    end = lake.build.offset - 2
    harm(lake, T, [{"id": number, "v": "ghost", "big": "x", OFFSET: end - 2} for number in (1, 5, 77)])
    counts = replay(lake, 1, end)["shop.t"]
    assert (counts["inserted"], counts["updated"], counts["deleted"]) == (0, 0, 2)
    assert [row["id"] for row in values(lake)] == [4, 77], "no line of the interval says anything of 77"


def test_a_ghost_of_a_dump_of_a_range_stays_away_and_keys_beyond_it_stay(lake: TestLake) -> None:
    build = lake.build
    for i in range(1, 8):
        build.create(T, {"id": i, "v": "old", "big": "x"})
    build.seal()
    lake.merge_well()
    since = build.offset
    build.chunk(T, [{"id": 3, "v": "dumped", "big": "x"}], dump="part")
    build.update(T, {"id": 5, "v": "live", "big": "x"})
    build.finished(T, "part", since=since, since_segment=2, key_from=2, key_to=6)
    build.seal()
    with mock.patch.object(Ghosts, "readings", return_value=[]):  # so that they stay
        lake.merge_well()
    staying = [1, 3, 5, 7]
    assert [row["id"] for row in values(lake)] == list(range(1, 8))
    assert replay(lake, 1, 4)["shop.t"]["deleted"] == 2
    assert [row["id"] for row in values(lake)] == [1, 3, 5, 6, 7], "key 6 is not in the interval"
    assert ask_well(lake, "rebuild", {"table": "shop.t"})["rows"] == len(staying)
    assert [row["id"] for row in values(lake)] == staying


def test_a_row_of_a_dump_is_older_than_the_lines_behind_it_in_the_same_segment(lake: TestLake) -> None:
    build = lake.build
    for i in (1, 2):
        build.create(T, {"id": i, "v": "old", "big": f"b{i}"})
    first = build.chunk(T, [{"id": i, "v": "dumped", "big": f"b{i}"} for i in (1, 2)])
    build.update(T, {"id": 1, "v": "live", "big": None}, unchanged=["big"])
    build.seal()
    lake.merge_well()
    right = [{"id": 1, "v": "live", "big": "b1"}, {"id": 2, "v": "dumped", "big": "b2"}]
    assert values(lake) == right
    for task in ("replay", "rebuild"):
        harm(lake, T, [{"id": i, "v": "harmed", "big": "x", OFFSET: first} for i in (1, 2)])
        if task == "replay":
            assert replay(lake, 1, 1)["shop.t"]["updated"] == 1
            assert values(lake) == [right[0], {"id": 2, "v": "harmed", "big": "x"}]
        else:
            ask_well(lake, "rebuild", {"table": "shop.t"})
            assert values(lake) == right


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replay_of_any_interval_leaves_a_lake_that_is_right_as_it_is(lake: TestLake, seed: int) -> None:
    dice = random.Random(f"replay {seed}")
    source = Source(lake.build, dice, 40)
    oracle = Oracle()
    source.add_unseen_rows(0.3)
    for number in range(4):
        for world in range(source.worlds):
            source.change(world)
        if dice.random() < 0.5:
            source.dump_chunk()
        if number == 2:
            source.truncate()
        lake.build.seal()
    for merged in lake.merge_well(max_rows=dice.choice((40, 200))):
        oracle.read(source.lines, merged.offset)
    before = lake.rust_rows(SHAPE)
    for _ in range(3):
        ends = sorted(dice.choices(range(1, lake.build.offset + 1), k=2))
        counts = replay(lake, *ends)["shop.worlds"]
        assert (counts["inserted"], counts["updated"], counts["deleted"]) == (0, 0, 0), (ends, counts)
        assert lake.rust_rows(SHAPE) == before, ends
        assert lake.withheld is not None and oracle.waits(set(lake.withheld.keys("shop.worlds", SHAPE))), ends
    # And one of all of it brings back whatever somebody has done to rows whose values the log has.
    harm(
        lake,
        SHAPE,
        [{**row, "a": 77} for row in before if row["world"] % 3 == 0],
        [row for row in before if row["world"] % 3 == 1],
    )
    replay(lake, 1, lake.build.offset)
    assert by_key(lake) == oracle.rows


def by_key(lake: TestLake) -> dict[Key, dict[str, Any]]:
    return {(row["world"], row["k"]): {name: row[name] for name in ("a", "f", "big")} for row in lake.rust_rows(SHAPE)}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rebuild_from_the_first_segment_gives_what_merging_gave(lake: TestLake, seed: int) -> None:
    dice = random.Random(f"rebuild {seed}")
    source = Source(lake.build, dice, 40)
    oracle = Oracle()
    for number in range(5):
        for world in range(source.worlds):
            source.change(world)
        if dice.random() < 0.5:
            source.dump_chunk()
        if number == 2:
            source.truncate()
        lake.build.seal()
    for merged in lake.merge_well(max_rows=dice.choice((40, 200))):
        oracle.read(source.lines, merged.offset)
    before = lake.rust_rows(SHAPE)
    assert by_key(lake) == oracle.rows
    harm(lake, SHAPE, deletes=[row for row in before if row["world"] % 2])
    assert ask_well(lake, "rebuild", {"table": "shop.worlds"})["rows"] == len(before)
    assert by_key(lake) == oracle.rows
    source.change(0)
    lake.build.seal()
    for merged in lake.merge_well():
        oracle.read(source.lines, merged.offset)
    assert by_key(lake) == oracle.rows


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rest", [False, True], ids=["history alone", "with a rest"])
def test_a_rebuild_from_the_history_gives_what_merging_gave(lake: TestLake, seed: int, rest: bool) -> None:
    dice = random.Random(f"history {seed}")
    lake.history = True
    source = Source(lake.build, dice, 30)
    oracle = Oracle()

    def live(segments: int) -> None:
        for _ in range(segments):
            for world in range(source.worlds):
                source.change(world)
            if lake.build.segment == 1 and seed % 2:
                source.truncate()
            lake.build.seal()
        for merged in lake.merge_well(max_rows=dice.choice((60, 10_000))):
            oracle.read(source.lines, merged.offset)

    live(4)
    forgotten = lake.build.segment
    if rest:
        lake.history = False
        live(2)
    before = lake.rust_rows(SHAPE)
    for number in range(1, forgotten + 1 if rest else forgotten):
        lake.staging.storage.remove(f"manifests/{number:020d}.json")
    harm(lake, SHAPE, [{**row, "a": 7} for row in before if row["world"] % 2], [before[0]])
    begins_with = ask_well(lake, "rebuild", {"table": "shop.worlds"})["from"]
    assert begins_with.startswith("its history") and ("staging after it" in begins_with) == rest
    assert lake.withheld is not None and not lake.withheld.count("shop.worlds")
    assert by_key(lake) == oracle.rows


@pytest.mark.parametrize("step", ["recorded", "read shop.t", "rebuilt shop.t", "done", "cut"])
def test_a_rebuild_that_died_is_finished_by_the_next_merge(lake: TestLake, step: str) -> None:
    _merge_a_past(lake)
    harm(lake, T, deletes=[{"id": 1}])
    version = log.version(lake.table(T)) or 0
    task = dies(lake, "rebuild", {"table": "shop.t"}, step)
    lake.merge_well()
    assert values(lake) == RIGHT and log.version(lake.table(T)) == version + 1
    outcome = lake_tasks.read_outcome(lake.location, task, RebuildResult)
    assert outcome is not None and outcome.result is not None and outcome.result.rows == 4


def test_a_reset_table_takes_its_newest_shape_and_other_versions_stay(lake: TestLake) -> None:
    _merge_a_past(lake)
    version = log.version(lake.table(T))
    lake.build.schema(TEXT)
    lake.build.create(TEXT, {"id": "x", "w": 1.5})
    lake.build.seal()
    lake.merge()
    assert status_of(lake).state is State.STOPPED
    ask_well(lake, "reset", {"table": "shop.t"})
    assert values(lake, TEXT) == [] and status_of(lake).state is State.INCOMPLETE
    old = DeltaTable(str(lake.table(T)), version=version)
    rows = pa.table(QueryBuilder().register("t", old).execute("select id, v, big from t")).to_pylist()
    assert sorted(rows, key=lambda row: str(row["id"])) == RIGHT
    lake.build.create(TEXT, {"id": "y", "w": 2.5})
    lake.build.seal()
    lake.merge_well()
    assert values(lake, TEXT) == [{"id": "y", "w": 2.5}]


@pytest.mark.parametrize("step", ["requested shop.t", "emptied shop.t", "done"])
def test_a_reset_that_died_is_finished_by_the_next_merge(lake: TestLake, step: str) -> None:
    _merge_a_past(lake)
    version = log.version(lake.table(T)) or 0
    dies(lake, "reset", {"table": "shop.t"}, step)
    lake.build.create(T, {"id": 7, "v": "live", "big": "x"})
    lake.build.seal()
    lake.merge_well()
    assert [row["id"] for row in values(lake)] == [7] and log.version(lake.table(T)) == version + 2


def test_a_table_with_withheld_rows_is_reset_where_its_key_has_another_type(lake: TestLake) -> None:
    lake.build.update(T, {"id": 1, "v": "x", "big": None}, unchanged=["big"])
    lake.build.seal()
    lake.merge_well()
    assert status_of(lake).withheld == 1
    lake.build.schema(TEXT)
    lake.build.create(TEXT, {"id": "a", "w": 1.0})
    lake.build.seal()
    assert "column id was bigint and is string" in (lake.merge()[0].tables[0].error or "")
    ask_well(lake, "reset", {"table": "shop.t"})
    assert (status_of(lake).state, status_of(lake).withheld) == (State.INCOMPLETE, 0)


def _adopt(lake: TestLake, tmp_path: Path) -> None:
    """The lake continues with a new staging, whose offsets begin again."""
    shutil.rmtree(tmp_path / "staging")
    lake.staging = Staging(str(tmp_path / "staging"), source="shop")
    lake.staging.create_identity()
    lake.build = SegmentBuilder(lake.staging)
    lake_tasks.file_task(lake.location, AdoptRequest())
    lake.merger()


def test_an_adopted_lake_follows_renames_and_added_columns_of_its_new_staging(lake: TestLake, tmp_path: Path) -> None:
    """They have smaller offsets than those that it has followed before."""
    first, second, third = (table("t", id=pa.int64(), **{name: pa.string()}) for name in ("x", "y", "z"))
    added = table("t", id=pa.int64(), z=pa.string(), c=pa.int32())
    lake.history = lake.drop_columns = True
    lake.staging.create_identity()
    build = lake.build
    build.create(first, {"id": 1, "x": "one"})
    build.next(100)
    build.schema(second, renamed={"y": "x"})
    build.seal()
    lake.merge_well()
    lake.history = False  # which takes no column's value from the log
    build.schema(table("t", id=pa.int64(), y=pa.string(), c=pa.int32()), filled={"c": 5})
    build.seal()
    build.schema(second)
    build.seal()
    lake.merge_well(max_rows=1)
    _adopt(lake, tmp_path)
    lake.build.schema(third, renamed={"z": "y"})
    lake.build.create(third, {"id": 2, "z": "two"})
    lake.build.schema(added, filled={"c": 7})
    lake.build.seal()
    lake.merge_well()
    assert values(lake, added) == [{"id": 1, "z": "one", "c": 7}, {"id": 2, "z": "two", "c": 7}]


def test_the_history_of_an_adopted_lake_follows_renames_of_its_new_staging(lake: TestLake, tmp_path: Path) -> None:
    first, second, third = (table("t", id=pa.int64(), **{name: pa.string()}) for name in ("x", "y", "z"))
    lake.history = True
    lake.staging.create_identity()
    lake.build.create(first, {"id": 1, "x": "one"})
    lake.build.next(100)
    lake.build.schema(second, renamed={"y": "x"})
    lake.build.seal()
    lake.merge_well()
    _adopt(lake, tmp_path)
    lake.build.schema(third, renamed={"z": "y"})
    lake.build.create(third, {"id": 2, "z": "two"})
    lake.build.seal()
    lake.merge_well()
    lines = read_rows(Path(str(history_location(lake.location, T.table).local)))
    assert [(line["id"], line["z"]) for line in lines] == [(1, "one"), (2, "two")]


@pytest.mark.parametrize("step", ["", "recorded", "aged the history of shop.t", "aged shop.t", "done"])
def test_rows_and_lines_of_an_adopted_lake_are_older_than_the_staging(
    lake: TestLake, tmp_path: Path, step: str
) -> None:
    lake.history = True
    lake.staging.create_identity()
    _merge_a_past(lake)
    before = values(lake)
    place = history_location(lake.location, T.table)
    lines = read_rows(Path(str(place.local)))
    shutil.rmtree(tmp_path / "staging")
    lake.staging = Staging(str(tmp_path / "staging"), source="shop")
    lake.staging.create_identity()
    lake.build = SegmentBuilder(lake.staging)
    task = lake_tasks.file_task(lake.location, AdoptRequest()).id

    def die(name: str) -> None:
        if name == step:
            raise Crash(name)

    if step:
        with pytest.raises(Crash, match=step):
            lake.merger(step=die)
    lake.merger()
    outcome = lake_tasks.read_outcome(lake.location, task, AdoptResult)
    assert outcome is not None and outcome.result is not None, outcome
    assert {row[OFFSET] for row in lake.rust_rows(T)} == {0} and values(lake) == before
    aged = read_rows(Path(str(place.local)))
    newest = lines[-1][OFFSET]
    assert aged == [{**line, OFFSET: line[OFFSET] - newest} for line in lines]
    about = DeltaTable(str(place.local)).metadata().configuration
    assert about["delta.appendOnly"] == "true"
    lake.build.update(T, {"id": 1, "v": "of now", "big": "b"})
    lake.build.seal()
    lake.merge_well()
    assert values(lake)[0] == {"id": 1, "v": "of now", "big": "b"}
    assert len(read_rows(Path(str(place.local)))) == len(lines) + 1


def test_a_task_that_is_refused_starts_no_spark_either(lake: TestLake) -> None:
    _merge_a_past(lake)
    for kind in ("reset", "rebuild"):
        assert "no such table" in (ask(lake, kind, {"table": "shop.none"}).error or "")
