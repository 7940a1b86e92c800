"""Spark reads the same as the other readers where a process has died in a commit: every version that a cut names."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.segments import Row
from tests.unit.lake_engine.killed_commits.kinds import BY_NAME
from tests.unit.lake_engine.killed_commits.storage_writes import Fault, Writes
from tests.unit.lake_engine.killed_commits.test_killed_commits import die
from tests.unit.lake_engine.killed_commits.world import World, rows_of


@pytest.mark.in_turn("kind_name")
@pytest.mark.parametrize("kind_name", sorted(BY_NAME))
def test_spark_reads_what_is_behind_a_death(
    spark: SparkSession, tmp_path: Path, kind_name: str, soak_seed: int
) -> None:
    world = World.prepare(tmp_path / "prepared", BY_NAME[kind_name])
    writes = Writes()
    with writes.count_writes():
        world.copy_to(tmp_path / "well").work()
    fault = Fault(random.Random(soak_seed).randrange(len(writes.names)) + 1, "after")
    other = world.copy_to(tmp_path / "died")
    die(other, fault)
    other.work()
    other.judge()
    assert read_spark(spark, other, None) == other.model(), fault
    for cut in other.cuts():
        version = dict(cut["tables"]).get(str(other.told.schema.table))
        if version is not None:
            assert read_spark(spark, other, version) == other.read(version), (fault, cut["cut"])


def read_spark(spark: SparkSession, world: World, version: int | None) -> list[Row]:
    reader = spark.read.format("delta")
    of_version = reader if version is None else reader.option("versionAsOf", version)
    return rows_of(of_version.load(str(world.place)).toArrow())
