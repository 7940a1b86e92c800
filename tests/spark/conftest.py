"""Lakes for the tests of the merge."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblog_core.staging import Staging
from tests.spark.lakes import TestLake


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> TestLake:
    """An empty staging and an empty lake."""
    return TestLake(spark, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")
