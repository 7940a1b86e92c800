"""Lakes for the tests of the merge."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblog_core.staging import Staging
from tests.spark.lakes import MARKS, TestLake

PATIENCE = 900  # seconds for a test of Spark, on a machine that does other things too


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    spark_tests = Path(__file__).parent
    for item in items:
        if spark_tests in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PATIENCE))


@pytest.fixture
def marks(request: pytest.FixtureRequest) -> bool:
    """Whether small works are written without Spark: as `--lake-way` says; else as the product does it, but in a
    quarter of the tests, by the first seed, the other way."""
    options = request.config.option
    if options.lake_way is not None:
        return bool(options.lake_way == "mark")
    is_turn_of_other_way = zlib.crc32(f"{options.soak_first} {request.node.nodeid}".encode()) % 4 == 0
    return not MARKS if is_turn_of_other_way else MARKS


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, marks: bool) -> TestLake:
    """An empty staging and an empty lake."""
    empty = TestLake(spark, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")
    empty.marks = marks
    return empty


@pytest.fixture
def lake_with_history(lake: TestLake) -> TestLake:
    """A lake that keeps the history."""
    lake.history = True
    return lake


@pytest.fixture
def both(spark: SparkSession, tmp_path: Path) -> tuple[TestLake, TestLake]:
    """Two lakes of one staging: one that marks rows, one that has MERGEs alone."""
    staging = Staging(str(tmp_path / "staging"), source="shop")
    marking = TestLake(spark, staging, tmp_path / "marked")
    merging = TestLake(spark, staging, tmp_path / "merged")
    marking.marks = True
    merging.marks = False
    merging.build = marking.build
    return marking, merging
