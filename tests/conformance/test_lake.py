"""The same as `test_statements`, with the lake that Spark merges: what it withholds, stops and accepts is in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from dblog_core.config.settings import Config
from tests.conformance.spark_lake import SparkLake
from tests.conformance.verdict import judge_world
from tests.conformance.world import World

MANY = 400
FEW = 30
"""Statements: a table's first merge takes seconds."""

STEADY = 2
"""The seed of `make test`, so that what it says is about the change that it is run for."""

NewWorld = Callable[[int, int], World]
Merge = Callable[[Config], int]


@pytest.mark.in_turn
def test_every_lake_table_ends_equal_or_says_why_not_and_how_to_mend_it(
    new_world: NewWorld, spark: SparkSession, merged_here: Merge
) -> None:
    all_are_equal_or_told_of(new_world(STEADY, FEW), spark, merged_here)


@pytest.mark.soak
def test_so_does_each_of_many_forms(
    new_world: NewWorld, soak_seed: int, spark: SparkSession, merged_here: Merge
) -> None:
    all_are_equal_or_told_of(new_world(soak_seed, MANY), spark, merged_here)


def all_are_equal_or_told_of(world: World, spark: SparkSession, merge: Merge) -> None:
    lake = SparkLake(world, spark, merge)
    world.run_early()
    world.begin()
    world.run_all({20: world.dump_beside, 50: lake.merge, 70: world.dump_beside, 80: world.again})
    faults = judge_world(world, lake)
    world.end()
    assert not faults, "\n\n".join([f"{len(faults)} faults", *faults])
