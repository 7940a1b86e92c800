"""Changes of a table of hundreds of millions of rows: with an index that is made, kept and saved."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dblog_core.lake_engine.merge_rounds import Merger
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.staging import Staging
from tests.benchmarks.results import OURS, Figure, Results
from tests.spark.lakes import TestLake
from tests.spark.segments import table

ROWS = 400_000_000
FILES = 40
CHANGED = 1_000
SHAPE = table("large", id=pa.int64(), n=pa.int32())
_STEP = 7_919_999  # has no factor in common with ROWS: rows lie in no order of their keys


def fill(spark: SparkSession, lake: TestLake) -> None:
    """Commits all rows, in files of ten million."""
    large = LakeTable(lake.table(SHAPE), SHAPE, app="made")
    large.prepare()
    number = F.col("id")
    rows = spark.range(0, ROWS, 1, FILES).select(
        (number * _STEP % ROWS).alias("id"),
        (number % 1_000).cast("int").alias("n"),
        F.lit(0).cast("long").alias("_dblog_offset"),
        F.lit(None).cast("string").alias("_dblog_position"),
        F.lit(None).cast("timestamp").alias("_dblog_commit_time"),
        F.lit("dump").alias("_dblog_origin"),
    )
    rows.write.format("delta").mode("append").save(str(large.path))


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_changes_of_a_large_table(spark: SparkSession, tmp_path: Path, results: Results) -> None:
    lake = TestLake(spark, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")
    fill(spark, lake)
    dice = random.Random(1)
    process = psutil.Process()

    def merge(merger: Merger) -> float:
        for key in dice.sample(range(ROWS), CHANGED):
            lake.build.update(SHAPE, {"id": key, "n": -1})
        lake.build.seal()
        began = time.monotonic()
        merged = merger.run_round(retry_stopped=True)
        seconds = time.monotonic() - began
        assert merged is not None and merged.tables[0].updated == CHANGED
        return seconds

    before = process.memory_info().rss
    merger = lake.merger()
    first = merge(merger)
    grown = process.memory_info().rss - before
    warm = [merge(merger) for _ in range(5)]
    tables = merger._lake.open_tables
    tables.close()
    again = merge(lake.merger())
    assert spark.read.format("delta").load(str(lake.table(SHAPE))).where("n = -1").count() <= 7 * CHANGED
    title = f"{CHANGED:,} changes of a table of {ROWS:,} rows"
    results.add(Figure("large_table", "Lake", title, "s", {OURS: warm}))
    for name, what, value, unit in (
        ("first", "the first merge, which makes the index", first, "s"),
        ("again", "the first merge of a process that has the saved index", again, "s"),
        ("memory", "memory that the index added, pages of its files included", grown / 1e6, "MB"),
    ):
        results.add(Figure(f"large_table_{name}", "Lake", f"{title}: {what}", unit, {OURS: [value]}))
    shutil.rmtree(tmp_path)
