"""Seeded merges under faults: whatever dies, sleeps or is lost in between, each run ends with lake and history = model,
and with every cut right. `make soak` runs 200 of them and more, in which a merger dies at every kind of step in turn,
and finds all mutants; `make test` a rotating few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dblog_core.errors import DblogError
from dblog_core.staging import Staging
from tests.spark.faults import KINDS
from tests.spark.faulty_runs import in_turn, run
from tests.spark.lakes import TestLake
from tests.spark.mutants import MUTANTS, Mutant

RUNS, SOAK = 1, 10
"""Runs for each seed: every day, and in the soak, whose 20 seeds make 200."""

MUTANTS_A_DAY = 1
FOUND = (AssertionError, DblogError, DeltaError, PySparkException)
"""How a run tells that something is wrong."""


class Coverage:
    """Where mergers died."""

    def __init__(self) -> None:
        self.runs, self.killed = 0, Counter[str]()


@pytest.fixture(scope="module")
def coverage() -> Iterator[Coverage]:
    """At the end of a soak a merger has died at every kind of step."""
    whole_coverage = Coverage()
    yield whole_coverage
    if whole_coverage.runs >= 5 * len(KINDS):
        print("mergers died", ", ".join(f"{kind} ({whole_coverage.killed[kind]})" for kind in KINDS))
        assert [kind for kind in KINDS if not whole_coverage.killed[kind]] == []


@pytest.fixture
def stranger(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.commitInfo.userMetadata", "somebody")
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    return session


@pytest.fixture
def lakes(spark: SparkSession, tmp_path: Path) -> Iterator[TestLake]:
    """Empty ones."""
    return (
        TestLake(spark, Staging(str(tmp_path / f"staging{i}"), source="shop"), tmp_path / f"lake{i}") for i in count()
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    first, daily = metafunc.config.option.soak_first, metafunc.config.option.soak_seeds == 1
    if "number" in metafunc.fixturenames:
        metafunc.parametrize("number", range(RUNS if daily else SOAK))
    if "mutant" in metafunc.fixturenames:
        todays = [MUTANTS[(first + i) % len(MUTANTS)] for i in range(MUTANTS_A_DAY)] if daily else MUTANTS
        metafunc.parametrize("mutant", todays, ids=lambda mutant: mutant.name)


def test_whatever_happens_to_merges_the_lake_ends_right_at_every_cut(
    lake: TestLake, stranger: SparkSession, coverage: Coverage, soak_seed: int, number: int
) -> None:
    lake.history = True
    seed = f"{soak_seed}/{number}"
    plan = in_turn(seed, soak_seed + 20 * number)
    # Without vectors a merge comes by no file of them.
    lake.vectors |= any("vectors" in kind for fault in plan.faults if fault for kind in fault.kinds)
    happened = run(lake, seed, stranger, plan)
    coverage.runs += 1
    coverage.killed.update(
        happening.point for happening in happened if happening.fault == "killed" and happening.point is not None
    )
    print(f"seed {seed}: {', '.join(map(str, happened))}")


def test_a_mistake_is_found(lakes: Iterator[TestLake], stranger: SparkSession, mutant: Mutant) -> None:
    right, wrong = next(lakes), next(lakes)
    right.history = wrong.history = "history" in mutant.name
    assert [happening.point for happening in run(right, mutant.seed, stranger, mutant.plan)] == mutant.points
    with mutant.patched():
        try:
            run(wrong, mutant.seed, stranger, mutant.plan)
        except FOUND as error:
            print(f"{mutant.name}: {' '.join(str(error).split())[:200]}")
            return
    pytest.fail(f"nobody has found: {mutant.name}")
