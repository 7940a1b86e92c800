"""Where staging no longer reaches back to the beginning, a rebuild takes the table's past from its history."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import history_location
from dblog_core.lake.task_results import RebuildResult
from dblog_core.lake_engine.tables import log
from tests.spark.asked import Dumps, ask, ask_well, damage, dies
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table
from tests.spark.worlds import SHAPE, Key, Oracle, Source

pytestmark = pytest.mark.one_of(4)

T = table("t", id=pa.int64(), v=pa.string())
U = table("u", id=pa.int64(), v=pa.string())
STEPS = ("recorded", "read shop.worlds", "rebuilt shop.worlds", "done", "cut")
"""Of which a run takes one, by its seed."""


def _lines(lake: TestLake, path: Any) -> list[Row]:
    rows = [row.asDict(recursive=True) for row in lake.spark.read.format("delta").load(str(path)).collect()]
    return sorted(rows, key=lambda row: row["_dblog_offset"])


def _forget(lake: TestLake, upto: int) -> None:
    """The oldest segments go, as retention removes them."""
    for number in range(lake.staging.first_number(), upto + 1):
        lake.staging.storage.remove(f"manifests/{number:020d}.json")


def _merge(lake: TestLake) -> list[Row]:
    lake.build.seal()
    lake.merge_well(max_rows=1)
    return lake.rows(T, provenance=True)


def _rebuilt(lake: TestLake) -> str:
    """What a rebuild of a harmed table was made of."""
    damage(lake, T).update("true", {"v": F.lit("harmed")})
    return str(ask_well(lake, "rebuild", {"table": "shop.t"})["from"])


def _refusal_of_rebuild(lake: TestLake) -> str:
    version = log.version(lake.table(T))
    outcome = ask(lake, "rebuild", {"table": "shop.t"})
    assert log.version(lake.table(T)) == version and "dblog reset shop.t" in outcome.fix
    return outcome.error or ""


@pytest.mark.one_of(10)
def test_a_random_past_gives_the_table_that_merging_gave(lake_with_history: TestLake, soak_seed: int) -> None:
    dice = random.Random(soak_seed)
    source = Source(lake_with_history.build, dice, 30)
    oracle = Oracle()
    source.add_unseen_rows(0.3)
    for burst in range(3):
        _live(source, dice, burst, dump=burst == 2 or (burst == 0 and dice.random() < 0.5))
        for merged in lake_with_history.merge_well(max_rows=dice.choice((200, 10_000))):
            oracle.read(source.lines, merged.offset)
    have = lake_with_history.rows(SHAPE)
    waiting = _withheld_keys(lake_with_history)
    assert _by_key(have) == oracle.rows
    _forget(lake_with_history, lake_with_history.build.segment - 1)
    damage(lake_with_history, SHAPE).update("world % 2 = 0", {"a": F.lit(7)})
    damage(lake_with_history, SHAPE).delete("world % 5 = 0")
    task = dies(lake_with_history, "rebuild", {"table": "shop.worlds"}, STEPS[soak_seed % len(STEPS)])
    _live(source, dice, 3, dump=False)
    lake_with_history.merger().run_round(retry_stopped=False)  # finishes what died, and nothing else
    outcome = lake_tasks.read_outcome(lake_with_history.location, task, RebuildResult)
    assert outcome is not None and outcome.result is not None and outcome.result.begins_with == "its history"
    assert lake_with_history.rows(SHAPE) == have and _withheld_keys(lake_with_history) == waiting
    last = {
        (line["world"], line["k"]): line
        for line in _lines(lake_with_history, history_location(lake_with_history.location, SHAPE.table))
    }
    for row in _lines(lake_with_history, lake_with_history.table(SHAPE)):
        assert row.items() <= last[row["world"], row["k"]].items()
    for merged in lake_with_history.merge_well():  # and what comes after finds it as it was
        oracle.read(source.lines, merged.offset)
    assert _by_key(lake_with_history.rows(SHAPE)) == oracle.rows


def _live(source: Source, dice: random.Random, burst: int, *, dump: bool) -> None:
    """Two segments of changes."""
    for segment in range(2):
        for world in range(source.worlds):
            source.change(world)
        if dice.random() < 0.5:
            source.dump_chunk()
        if (burst, segment) == (1, 0):
            source.truncate()
        if dump and segment == 0:
            source.full_dump()
        source.build.seal()
    source.end_merge()


def _by_key(rows: list[Row]) -> dict[Key, dict[str, Any]]:
    return {(r["world"], r["k"]): {c: r[c] for c in ("a", "f", "big")} for r in rows}


def _withheld_keys(lake: TestLake) -> set[Any]:
    assert lake.withheld is not None
    return set(lake.withheld.keys("shop.worlds", SHAPE))


def test_what_merges_without_history_changed_comes_from_staging_or_not_at_all(lake_with_history: TestLake) -> None:
    build = lake_with_history.build
    for i in range(4):
        build.create(T, {"id": i, "v": "a"})
    _merge(lake_with_history)
    build.update(T, {"id": 1, "v": "b"})
    ended = build.delete(T, {"id": 2})
    right = _merge(lake_with_history)
    build.create(U, {"id": 1, "v": "a"})
    _merge(lake_with_history)
    _forget(lake_with_history, 2)
    # Every change of this table changed something, so that the provenance is the same as well.
    assert _rebuilt(lake_with_history) == "its history" and lake_with_history.rows(T, provenance=True) == right
    lake_with_history.history = False
    build.update(T, {"id": 3, "v": "without history"})
    build.delete(T, {"id": 0})
    right = _merge(lake_with_history)
    assert _rebuilt(lake_with_history) == f"its history up to offset {ended}, and staging after it"
    assert lake_with_history.rows(T, provenance=True) == right
    build.update(U, {"id": 1, "v": "b"})
    _merge(lake_with_history)
    _forget(lake_with_history, 4)
    assert f"ends at offset {ended}, and staging begins at {build.offset}" in _refusal_of_rebuild(lake_with_history)
    lake_with_history.history = True
    build.update(T, {"id": 3, "v": "with a gap before it"})
    _merge(lake_with_history)
    assert f"begins after offset {build.offset - 1}, when the table had rows" in _refusal_of_rebuild(lake_with_history)


def test_a_history_that_begins_late_tells_all_from_a_reset_on(lake_with_history: TestLake) -> None:
    lake_with_history.history = False
    lake_with_history.build.create(T, {"id": 1, "v": "a"})
    _merge(lake_with_history)
    lake_with_history.history = True
    lake_with_history.build.update(T, {"id": 1, "v": "b"})
    _merge(lake_with_history)
    _forget(lake_with_history, 1)
    assert "when the table had rows" in _refusal_of_rebuild(lake_with_history)
    ask_well(lake_with_history, "reset", {"table": "shop.t"}, dumps=Dumps())
    lake_with_history.build.chunk(T, [{"id": 2, "v": "dumped"}])
    lake_with_history.build.create(T, {"id": 3, "v": "live"})
    right = _merge(lake_with_history)
    assert [row["id"] for row in right] == [2, 3]
    assert _rebuilt(lake_with_history) == "its history" and lake_with_history.rows(T, provenance=True) == right


def test_a_history_tells_what_is_gone_by_the_dump_that_its_table_begins_with(lake_with_history: TestLake) -> None:
    build = lake_with_history.build
    for i in (1, 2, 3):
        build.create(T, {"id": i, "v": "a"})
    since = build.offset
    build.create(T, {"id": 4, "v": "after the dump began"})
    build.update(T, {"id": 3, "v": "live"})
    build.chunk(T, [{"id": 1, "v": "a"}, {"id": 3, "v": "a"}], evicted=[1], dump="first")
    build.finished(T, "first", since=since, since_segment=1)
    assert [row["id"] for row in _merge(lake_with_history)] == [1, 3, 4]
    lines = _lines(lake_with_history, history_location(lake_with_history.location, T.table))
    assert [(line["_dblog_op"], line["id"]) for line in lines] == [
        ("c", 1), ("c", 2), ("c", 3), ("c", 4), ("u", 3), ("d", 2)
    ]  # fmt: skip
    assert lines[-1]["_dblog_offset"] == build.offset and lines[-1]["_dblog_origin"] == "dump"
