"""Lakes for the tests of the merge."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblog_core.lake.task_plans import MaintainPlan
from dblog_core.lake_engine.tasks import maintain, registry
from dblog_core.lake_engine.tasks.registry import Kind
from dblog_core.staging import Staging
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
    """How rows go: as `--lake-way` says; else by deletion vectors (`mark`), and in one of eight tests, by the first
    seed, by copies of files (`copy`)."""
    options = request.config.option
    if options.lake_way is not None:
        return str(options.lake_way)
    turn = zlib.crc32(f"{options.soak_first} {request.node.nodeid}".encode()) % 8
    return "copy" if turn == 1 else "mark"


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, lake_way: str, monkeypatch: pytest.MonkeyPatch) -> TestLake:
    """An empty staging and an empty lake."""
    empty = TestLake(spark, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")
    empty.vectors = lake_way != "copy"
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
def ways(spark: SparkSession, tmp_path: Path) -> tuple[TestLake, TestLake]:
    """Lakes of one staging: one that marks rows, and one that copies files."""
    marking, copying = (
        TestLake(spark, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / way)
        for way in ("marked", "copied")
    )
    copying.vectors = False
    copying.build = marking.build
    return marking, copying
