"""A merge that dies after any step is finished by the next one, to the same offset and with nothing done twice."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dblog_core.errors import LakeBusy, LakeError, LeaseLost
from dblog_core.lake.lake_status import lake_at, read_status
from dblog_core.lake_engine.merging.lock import lake_lock
from dblog_core.lake_engine.tables import log
from dblog_core.staging import Staging
from dblog_core.state.memory import MemoryState
from tests.spark.lakes import TestLake
from tests.spark.segments import table
from tests.waiting import PATIENCE_SECONDS

ONE = table("one", id=pa.int64(), v=pa.string())
TWO = table("two", id=pa.int64(), v=pa.string())
STEPS = ("recorded", "applied shop.one", "applied shop.two", "cut")


def test_a_crash_after_any_step_is_finished_by_the_next_merge(lake: TestLake) -> None:
    build = lake.build
    for i, step in enumerate(STEPS):
        for schema in (ONE, TWO):
            build.create(schema, {"id": i, "v": step})
            build.update(schema, {"id": 0, "v": step})
        sealed = build.seal()
        lake.merge_until(step)
        # What comes after the crash is left for a merge of its own.
        build.update(ONE, {"id": 0, "v": "later"})
        build.seal()
        finished, after = lake.merge_well()
        assert finished.offset == sealed.last_offset and after.offset == build.offset
        assert [r["v"] for r in lake.rows(TWO)] == [step, *STEPS[1 : i + 1]]
        assert lake.rows(ONE)[0]["v"] == "later"
    cuts = lake.cuts()
    assert [c["cut"] for c in cuts] == list(range(1, 2 * len(STEPS) + 1))
    for schema in (ONE, TWO):
        assert cuts[-1]["tables"][str(schema.table)] == log.version(lake.table(schema))
    # Each table was written by as many commits as merges had rows of it, beside the one that made it.
    assert log.version(lake.table(TWO)) == len(STEPS)
    assert log.version(lake.table(ONE)) == 2 * len(STEPS)


@pytest.mark.one_of(2)
def test_a_lake_whose_records_were_lost_is_not_merged_into_silently(lake: TestLake) -> None:
    lake.build.create(ONE, {"id": 1, "v": "a"})
    lake.build.seal()
    lake.build.create(ONE, {"id": 2, "v": "b"})
    lake.build.seal()
    lake.merge_well(max_rows=1)
    records = lake.path / "_dblog"
    for path in [*records.glob("merges/*"), records / "status.json"]:
        path.unlink()
    with pytest.raises(LakeError, match="left no commit"):
        lake.merge()
    assert read_status(lake.location) is None
    assert lake.rows(ONE) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]


def test_a_lake_that_is_ahead_of_its_staging_is_refused(lake: TestLake, tmp_path: Path) -> None:
    lake.build.create(ONE, {"id": 1, "v": "a"})
    lake.build.seal()
    lake.merge_well()
    other = TestLake(lake.spark, Staging(str(tmp_path / "fresh"), source="shop"), lake.path)
    with pytest.raises(LakeError, match="the staging is empty"):
        other.merge()


def test_the_lake_has_one_merger_at_a_time(tmp_path: Path) -> None:
    path = lake_at(str(tmp_path))
    lock = lake_lock(path, MemoryState(), ttl=10)
    other = lake_lock(path, MemoryState(), ttl=10)
    with lock, pytest.raises(LakeBusy, match="merges into this lake"), other:
        pass
    with lake_lock(path, MemoryState(), ttl=10) as check:
        check()


def test_a_merger_elsewhere_is_kept_out_by_the_lease(tmp_path: Path) -> None:
    state = MemoryState()
    lease = state.acquire("merge", "other:1", ttl=600)
    assert lease is not None
    with pytest.raises(LakeBusy, match="other:1"), lake_lock(lake_at(str(tmp_path)), state, ttl=10):
        pass
    threading.Timer(0.3, lease.release).start()
    with lake_lock(lake_at(str(tmp_path)), state, ttl=10, wait=PATIENCE_SECONDS):
        pass


def test_a_lost_lease_stops_the_merge_before_it_commits(lake: TestLake, spark: SparkSession) -> None:
    lake.build.create(ONE, {"id": 1, "v": "a"})
    lake.build.seal()

    def lose_lease() -> None:
        raise LeaseLost("gone")

    with pytest.raises(LeaseLost):
        lake.merge(check=lose_lease)
    assert log.version(lake.table(ONE)) is None
