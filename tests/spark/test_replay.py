"""A replay brings back what was damaged since, and changes nothing that is right."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import read_status
from dblog_core.lake.task_results import ReplayResult
from dblog_core.lake_engine.tables import log
from tests.spark.asked import ask, damage, dies, replay
from tests.spark.lakes import TestLake
from tests.spark.segments import table

pytestmark = pytest.mark.one_of(8)

T = table("t", id=pa.int64(), v=pa.string(), big=pa.string())
U = table("u", id=pa.int64(), v=pa.string())
NOTHING = {"keys": 0, "inserted": 0, "updated": 0, "deleted": 0, "withheld": 0}
STEPS = ("recorded", "read shop.t", "replayed shop.t", "replayed shop.u", "done", "cut")
"""Of which a run takes one, by its seed."""


def _merge_a_past(lake: TestLake) -> int:
    """Five keys with a past, merged; returns the first offset of the second half of it."""
    build = lake.build
    for i in range(1, 6):
        build.create(T, {"id": i, "v": "old", "big": f"b{i}"})
    build.create(U, {"id": 1, "v": "u"})
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


def test_damage_to_keys_of_the_interval_is_undone_and_nothing_else_is_touched(lake: TestLake) -> None:
    half = _merge_a_past(lake)
    assert lake.rows(T) == RIGHT
    harmed = damage(lake, T)
    harmed.update(F.col("id").isin(1, 30), {"v": F.lit("harmed")})
    harmed.update("id = 5", {"v": F.lit("not of this interval")})
    ghost = (
        lake.spark.read.format("delta").load(str(lake.table(T))).where("id = 4").withColumn("id", F.lit(2).cast("long"))
    )
    ghost.write.format("delta").mode("append").save(str(lake.table(T)))
    # The lines of the interval end before the last change of key 1: that change comes back all the same.
    counts = replay(lake, half, half + 3)
    assert counts == {
        "shop.t": {"keys": 4, "inserted": 0, "updated": 2, "deleted": 1, "withheld": 0},
        "shop.u": NOTHING,
    }
    assert lake.rows(T) == [*RIGHT[:3], {"id": 5, "v": "not of this interval", "big": "b5"}]
    status = read_status(lake.location)
    assert status is not None and status.tables["shop.t"].version == log.version(lake.table(T))
    assert lake.cuts()[-1]["tables"]["shop.t"] == log.version(lake.table(T))
    assert lake.merge_well() == []


def test_a_removed_row_comes_back_or_waits_for_a_dump_where_a_value_of_it_is_nowhere(lake: TestLake) -> None:
    half = _merge_a_past(lake)
    damage(lake, T).delete(F.col("id").isin(1, 4))
    assert replay(lake, half, lake.build.offset, "shop.t")["shop.t"]["withheld"] == 1
    assert [row["id"] for row in lake.rows(T)] == [30, 5]
    assert lake.withheld is not None and lake.withheld.keys("shop.t", T) == [(1,)]
    status = read_status(lake.location)
    assert status is not None and status.tables["shop.t"].state == "incomplete"
    # From the beginning all of it is known, also of the other.
    assert replay(lake, 1, lake.build.offset, "shop.t")["shop.t"]["inserted"] == 2
    assert lake.rows(T) == RIGHT


def test_rows_that_somebody_else_wrote_give_way_whatever_offset_they_claim(lake: TestLake) -> None:
    half = _merge_a_past(lake)
    damage(lake, T).delete("id = 1")
    shape = "id long, v string, big string, _dblog_offset long"
    others = lake.spark.createDataFrame([(1, "theirs", "x", None), (2, "theirs", "x", 10_000)], shape)
    others.write.format("delta").mode("append").option("userMetadata", "theirs").save(str(lake.table(T)))
    replay(lake, 1, half + 3, "shop.t")
    assert lake.rows(T) == RIGHT


def test_a_replay_by_time_takes_commit_times_both_ends_included(lake: TestLake) -> None:
    half = _merge_a_past(lake)
    damage(lake, T).update("id < 6", {"v": F.lit("harmed")})
    # The builder commits offset n in second n.
    ends = {"from": {"time": half * 1_000_000}, "to": {"time": half * 1_000_000}, "tables": ["shop.t"]}
    assert ask(lake, "replay", ends).error is None
    assert {row["id"]: row["v"] for row in lake.rows(T)} == {1: "newest", 30: "moved", 4: "harmed", 5: "harmed"}


def test_what_a_truncate_or_a_full_dump_has_ended_stays_away(lake: TestLake) -> None:
    _merge_a_past(lake)
    since = lake.build.offset
    lake.build.chunk(T, [{"id": 4, "v": "dumped", "big": "b4"}], dump="d9")
    lake.build.finished(T, "d9", since=since, since_segment=4)
    lake.build.truncate(U)
    lake.build.seal()
    lake.merge_well()
    assert [row["id"] for row in lake.rows(T)] == [4] and lake.rows(U) == []
    ghost = lake.spark.createDataFrame([(5, "x", "x", 5)], "id long, v string, big string, _dblog_offset long")
    ghost.write.format("delta").mode("append").save(str(lake.table(T)))
    old = lake.spark.createDataFrame([(1, "x", 6)], "id long, v string, _dblog_offset long")
    old.write.format("delta").mode("append").save(str(lake.table(U)))
    counts = replay(lake, 1, since)
    assert [row["id"] for row in lake.rows(T)] == [4] and lake.rows(U) == []
    assert (counts["shop.t"]["inserted"], counts["shop.t"]["deleted"]) == (0, 1)
    assert counts["shop.u"]["deleted"] == 1


def test_a_replay_that_died_is_finished_by_the_next_merge(lake: TestLake, soak_seed: int) -> None:
    step = STEPS[soak_seed % len(STEPS)]
    half = _merge_a_past(lake)
    for schema in (T, U):
        damage(lake, schema).update("id = 1", {"v": F.lit("harmed")})
    arguments = {"from": {"offset": half - 1}, "to": {"offset": lake.build.offset}, "tables": []}
    task = dies(lake, "replay", arguments, step)
    assert lake_tasks.read_outcome(lake.location, task, ReplayResult) is None
    lake.merge_well()
    assert lake.rows(T) == RIGHT and lake.rows(U) == [{"id": 1, "v": "u"}]
    outcome = lake_tasks.read_outcome(lake.location, task, ReplayResult)
    assert outcome is not None and outcome.error is None
    assert [cut["cut"] for cut in lake.cuts()] == [1, 2, 3, 4]
    # Two commits were made by the damage and its mending, whatever died.
    assert log.version(lake.table(U)) == 3


def test_an_interval_that_retention_has_cut_is_refused_with_the_first_offset_that_is_left(lake: TestLake) -> None:
    half = _merge_a_past(lake)
    lake.staging.storage.remove(f"manifests/{1:020d}.json")
    outcome = ask(lake, "replay", {"from": {"offset": half - 1}, "to": {"offset": 99}, "tables": []})
    assert outcome.merge == 0 and f"begin at offset {half}, or at the time" in outcome.fix
    early = ask(lake, "replay", {"from": {"time": (half - 1) * 1_000_000}, "to": {"offset": 99}, "tables": []})
    assert early.error is not None and early.fix == outcome.fix
    assert replay(lake, half, 99, "shop.t")["shop.t"]["updated"] == 0


def test_tables_that_the_lake_has_not_or_that_stopped_are_refused_by_name(lake: TestLake) -> None:
    _merge_a_past(lake)
    outcome = ask(lake, "replay", {"from": {"offset": 1}, "to": {"offset": 9}, "tables": ["shop.none"]})
    assert (outcome.error, outcome.where) == ("the lake has no such table", "shop.none")
    lake.build.schema(table("t", id=pa.int64(), v=pa.int64()))
    lake.build.create(table("t", id=pa.int64(), v=pa.int64()), {"id": 7, "v": 7})
    lake.build.seal()
    lake.merge()
    outcome = ask(lake, "replay", {"from": {"offset": 1}, "to": {"offset": 9}, "tables": ["shop.t"]})
    assert "is stopped" in (outcome.error or "") and "dblog reset shop.t" in outcome.fix
    assert replay(lake, 1, 9).keys() == {"shop.u"}
