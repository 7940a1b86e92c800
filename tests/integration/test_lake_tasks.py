"""Replay, rebuild and reset as a person runs them: beside a merge that goes on, and alone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import lake_at
from dblog_core.staging import Staging
from tests.integration.cli_world import Commands
from tests.spark.segments import SegmentBuilder, table

T = table("t", id=pa.int64(), v=pa.string(), n=pa.int32())
WIDE = table("t", id=pa.int64(), v=pa.string(), n=pa.int64())


@pytest.fixture
def dblog(tmp_path: Path) -> Iterator[Commands]:
    """Commands on a source that nothing listens at: only a reset wants to reach it."""
    file = tmp_path / "shop.toml"
    file.write_text(
        f"""
        [source]
        name = "shop"
        kind = "mysql"
        port = 9
        password = "hunter2secret"
        database = "shop"
        tables = ["shop.*"]
        [staging]
        path = "{tmp_path}/staging"
        [state]
        url = "sqlite://{tmp_path}/state.db"
        [lake]
        path = "{tmp_path}/lake"
        schema_changes = "fail"
        [spark]
        driver_memory = "512m"
        """
    )
    commands = Commands(file, "hunter2secret", patience=300)
    yield commands
    commands.kill()


@pytest.mark.timeout(1200)
@pytest.mark.one_of(8)
def test_lake_tasks_are_carried_out_by_the_merge_that_runs_or_by_one_of_their_own(
    dblog: Commands, spark: SparkSession, tmp_path: Path
) -> None:
    build = SegmentBuilder(Staging(str(tmp_path / "staging"), source="shop"))
    for i in range(4):
        build.create(T, {"id": i, "v": "right", "n": 1})
    build.seal()
    merging = dblog.start("merge", "--continuous")
    dblog.until(lambda status: status["merge"]["offset"] == 4)
    place = str(tmp_path / "lake" / "shop" / "t")

    def rows() -> list[tuple[int, str]]:
        read_rows = spark.read.format("delta").load(place).select("id", "v").orderBy("id").collect()
        return [(row.id, row.v) for row in read_rows]

    right = rows()
    harmed = DeltaTable.forPath(spark, place)
    harmed.update("id = 1", {"v": F.lit("harmed")})
    replayed = dblog("replay", "--from", "1", "--json")
    assert replayed.returncode == 0 and "to carry it out" in replayed.stderr
    assert rows() == right
    harmed.delete("id = 2")
    rebuilt = dblog("rebuild", "shop.t")
    assert rebuilt.returncode == 0 and "shop.t: 4 rows" in rebuilt.stdout
    assert rows() == right
    refused = dblog("reset", "shop.t")
    assert refused.returncode == 1 and "fix:" in refused.stderr
    assert rows() == right
    # The merge has gone on all the time, and goes on.
    build.create(T, {"id": 9, "v": "later", "n": 1})
    build.seal()
    dblog.until(lambda status: status["merge"]["offset"] == 5)
    _accepts(dblog, build)
    assert [key for key, _ in rows()] == [0, 1, 2, 3, 5, 9]
    merging.send_signal(signal.SIGTERM)
    assert dblog.end(merging).returncode == 0
    harmed.update("id = 1", {"v": F.lit("harmed")})
    alone = dblog("replay", "--from", "1")
    assert alone.returncode == 0 and "starting Spark" in alone.stderr
    assert rows() == [*right, (5, "wide"), (9, "later")]
    assert lake_tasks.waiting_tasks(lake_at(str(tmp_path / "lake"))) == []


def _accepts(dblog: Commands, build: SegmentBuilder) -> None:
    """A change of shape stops the table until somebody accepts it; the merge goes on with it by itself then."""
    build.schema(WIDE)
    build.create(WIDE, {"id": 5, "v": "wide", "n": 2**40})
    build.seal()
    (stopped,) = dblog.until(lambda status: [t for t in status["tables"] if t["state"] == "stopped"])["tables"]
    assert "column n was int32 and is int64" in stopped["error"] and "dblog schema accept shop.t" in stopped["error"]
    result = dblog("schema", "accept", "shop.t")
    assert result.returncode == 2 and "the next merge follows the change" in result.stderr
    accepted = dblog("schema", "accept", "shop.t", "--yes", "--json")
    assert accepted.returncode == 0 and '"way":"follow"' in accepted.stdout
    dblog.until(lambda status: [t for t in status["tables"] if t["state"] != "stopped"])
