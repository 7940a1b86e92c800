"""Lakes for the tests of the merge."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblog_core.lake.task_plans import MaintainPlan
from dblog_core.staging import Staging
from spark_jobs.lake_tasks import maintain, registry
from spark_jobs.lake_tasks.registry import Kind
from tests.spark.days import Days, config_of
from tests.spark.lakes import TestLake

PATIENCE = 900  # seconds for a test of Spark, on a machine that does other things too


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    spark_tests = Path(__file__).parent
    for item in items:
        if spark_tests in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PATIENCE))


@pytest.fixture
def lake_way(request: pytest.FixtureRequest) -> str:
    """How small works are written: as `--lake-way` says; else as the product does it (`mark`), but in three of eight
    tests, by the first seed, one of the other ways: `scan` has all works folded and written by Spark's executors."""
    options = request.config.option
    if options.lake_way is not None:
        return str(options.lake_way)
    turn = zlib.crc32(f"{options.soak_first} {request.node.nodeid}".encode()) % 8
    return {0: "merge", 1: "copy", 2: "scan"}.get(turn, "mark")


@pytest.fixture
def marks(lake_way: str) -> bool:
    """Whether small works are written without Spark."""
    return lake_way != "merge"


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, lake_way: str, marks: bool, monkeypatch: pytest.MonkeyPatch) -> TestLake:
    """An empty staging and an empty lake."""
    empty = TestLake(spark, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")
    empty.marks = marks
    empty.vectors = lake_way != "copy"
    if lake_way == "scan":
        empty.let_scan(monkeypatch)
    if lake_way == "spread":
        empty.let_spread(monkeypatch)
    return empty


@pytest.fixture
def lake_with_history(lake: TestLake) -> TestLake:
    """A lake that keeps the history."""
    lake.history = True
    return lake


@pytest.fixture
def days(lake: TestLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Days:
    """The lake at times of its own, also for its maintenance."""
    days = Days(lake, config_of(tmp_path))
    monkeypatch.setattr(registry, "KINDS", {MaintainPlan.kind: Kind(days.carry_out, maintain.plan)})
    return days


@pytest.fixture
def ways(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[TestLake, ...]:
    """Lakes of one staging: one that marks rows, one that copies files, one that scans keys, and one that has MERGEs
    alone."""
    lakes = {
        way: TestLake(spark, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / way)
        for way in ("marked", "copied", "scanned", "merged")
    }
    for way, lake in lakes.items():
        lake.marks = way != "merged"
        lake.vectors = way in ("marked", "scanned")
        lake.build = lakes["marked"].build
    lakes["scanned"].let_scan(monkeypatch)
    return tuple(lakes.values())


@pytest.fixture
def both(ways: tuple[TestLake, ...]) -> tuple[TestLake, TestLake]:
    """Two lakes of one staging: one that marks rows, one that has MERGEs alone."""
    return ways[0], ways[-1]
