"""A rebuild gives from staging alone what merging gave; where staging does not hold enough, it is refused."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from dblog_core.lake_engine.tables import log
from tests.spark.asked import ask, ask_well, damage
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table
from tests.spark.worlds import SHAPE, Key, Oracle, Source

pytestmark = pytest.mark.one_of(6)

T = table("t", id=pa.int64(), v=pa.string())
U = table("u", id=pa.int64(), v=pa.string())


def _merge_tables(lake: TestLake) -> list[Row]:
    for schema in (T, U):
        for i in range(4):
            lake.build.create(schema, {"id": i, "v": "a"})
    lake.build.seal()
    lake.build.update(T, {"id": 1, "v": "b"})
    lake.build.delete(T, {"id": 2})
    lake.build.seal()
    lake.merge_well(max_rows=1)
    return lake.rows(T)


def _drop_segment(lake: TestLake, number: int) -> None:
    lake.staging.storage.remove(f"manifests/{number:020d}.json")


def test_a_rebuilt_table_has_no_trace_of_what_was_done_to_it_and_cuts_stay_readable(lake: TestLake) -> None:
    right = _merge_tables(lake)
    before = log.version(lake.table(T))
    u = log.version(lake.table(U))
    damage(lake, T).update("id > 0", {"v": F.lit("harmed")})
    lake.spark.sql(f"ALTER TABLE delta.`{lake.table(T)}` ADD COLUMNS (extra string)")
    assert ask_well(lake, "rebuild", {"table": "shop.t"}) == {
        "table": "shop.t", "from": "the first segment", "rows": 3, "withheld": 0
    }  # fmt: skip
    assert lake.rows(T) == right
    assert log.version(lake.table(T)) == (before or 0) + 3 and log.version(lake.table(U)) == u
    old = lake.spark.read.format("delta").option("versionAsOf", str(before)).load(str(lake.table(T)))
    assert sorted(row.v for row in old.collect()) == ["a", "a", "b"]
    lake.build.update(T, {"id": 0, "v": "on"})
    lake.build.seal()
    lake.merge_well()
    assert lake.rows(T)[0] == {"id": 0, "v": "on"}


def test_a_table_that_staging_does_not_hold_whole_is_refused_and_left_alone(lake: TestLake) -> None:
    _merge_tables(lake)
    _drop_segment(lake, 1)
    version = log.version(lake.table(T))
    outcome = ask(lake, "rebuild", {"table": "shop.t"})
    assert "begins with segment 2" in (outcome.error or "") and "dblog reset shop.t" in outcome.fix
    assert (outcome.merge, log.version(lake.table(T))) == (0, version)


def test_the_newest_full_dump_is_enough_and_its_ghosts_stay_away(lake: TestLake) -> None:
    _merge_tables(lake)
    since = lake.build.update(T, {"id": 3, "v": "unseen"})
    lake.build.seal()
    lake.build.chunk(T, [{"id": 0, "v": "dumped"}, {"id": 3, "v": "stale"}], evicted=[1], dump="d1")
    lake.build.update(T, {"id": 3, "v": "live"})
    lake.build.finished(T, "d1", since=since, since_segment=4)
    lake.build.seal()
    lake.merge_well()
    right = lake.rows(T)
    assert right == [{"id": 0, "v": "dumped"}, {"id": 3, "v": "live"}]
    for number in (1, 2, 3):
        _drop_segment(lake, number)
    damage(lake, T).delete("id = 0")
    assert ask_well(lake, "rebuild", {"table": "shop.t"})["from"] == "dump d1"
    assert lake.rows(T) == right


def test_a_rebuild_of_a_random_history_is_what_merging_gave(lake: TestLake, soak_seed: int) -> None:
    dice = random.Random(soak_seed)
    source = Source(lake.build, dice, 60)
    oracle = Oracle()
    source.add_unseen_rows(0.2)
    for number in range(6):
        for world in range(source.worlds):
            source.change(world)
        if dice.random() < 0.5:
            source.dump_chunk()
        if number == 1:
            source.truncate()
        if number == 3:
            _dump_all(source, first=number + 1)
        lake.build.seal()
    for merged in lake.merge_well(max_rows=dice.choice((60, 200))):
        oracle.read(source.lines, merged.offset)
    have = _rows(lake)
    assert have == oracle.rows
    damage(lake, SHAPE).delete("world % 2 = 0")
    assert ask_well(lake, "rebuild", {"table": "shop.worlds"})["from"] == "dump full"
    assert lake.withheld is not None
    withheld = set(lake.withheld.keys("shop.worlds", SHAPE))
    rebuilt = _rows(lake)
    # What a change of key left out may stand before the dump alone: such a row waits for a dump, and is not wrong.
    assert rebuilt == {key: row for key, row in have.items() if key not in withheld}
    assert len(withheld) < len(have) / 10


def _dump_all(source: Source, *, first: int) -> None:
    """A full dump of the source as it is, in one chunk; `first`: the segment that is being written."""
    since = source.build.offset
    keys = list(source.rows)
    offset = source.build.chunk(SHAPE, [source._row(key) for key in keys], dump="full")
    for i, key in enumerate(keys):
        source._note(offset + i, "r", key)
    source.build.finished(SHAPE, "full", since=since, since_segment=first)


def _rows(lake: TestLake) -> dict[Key, dict[str, Any]]:
    return {(r["world"], r["k"]): {c: r[c] for c in ("a", "f", "big")} for r in lake.rows(SHAPE)}
