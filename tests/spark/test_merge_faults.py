"""Seeded merges under faults: whatever dies, sleeps or is lost in between, each run ends with lake and history = model,
and with every cut right. `make soak` runs 200 of them and more, in which a merger dies at every kind of step in turn;
`make test` a rotating one. Without Spark they are in `tests/unit/lake_engine`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from dblog_core.storage.location import Location
from tests.spark.faults import KINDS
from tests.spark.faulty_runs import in_turn, run
from tests.spark.lakes import TestLake

RUNS, SOAK = 1, 10
"""Runs for each seed: every day, and in the soak, whose 20 seeds make 200."""


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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "number" in metafunc.fixturenames:
        metafunc.parametrize("number", range(RUNS if metafunc.config.option.soak_seeds == 1 else SOAK))


def test_whatever_happens_to_merges_the_lake_ends_right_at_every_cut(
    lake: TestLake, stranger: SparkSession, coverage: Coverage, soak_seed: int, number: int
) -> None:
    lake.history = True
    seed = f"{soak_seed}/{number}"
    plan = in_turn(seed, soak_seed + 20 * number)
    # Without vectors a merge comes by no file of them.
    lake.vectors |= any("vectors" in kind for fault in plan.faults if fault for kind in fault.kinds)

    def keep_house(path: Location) -> None:
        stranger.sql(f"OPTIMIZE delta.`{path}`")
        stranger.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")

    happened = run(lake, seed, plan, keep_house)
    coverage.runs += 1
    coverage.killed.update(
        happening.point for happening in happened if happening.fault == "killed" and happening.point is not None
    )
    print(f"seed {seed}: {', '.join(map(str, happened))}")
