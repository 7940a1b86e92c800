"""Merges of a thousand changes, each in a process of its own: with a JVM and without."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dblog_core.lake.lake_status import lake_at, table_location
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.test_many_changes import merge_of_copy
from tests.benchmarks.test_merge import SHAPE, Filled, add_lines
from tests.benchmarks.test_merge_memory import Watch
from tests.benchmarks.test_new_table import make_rows

_ROWS = 1_000_000
_CHANGES = 1_000
BY_SPARK = "by Spark"
_ENGINES = {OURS: 'engine = "local"', BY_SPARK: 'engine = "spark"'}


@pytest.mark.timeout(3600)
def test_a_thousand_changes(spark: SparkSession, tmp_path: Path, scale: Scale, results: Results) -> None:
    """Updates of random rows. The copies are new to the merge, which has no index of their keys yet."""
    made = tmp_path / "made"
    filled = Filled(spark, made, _ROWS)
    updated = np.random.default_rng(9).permutation(_ROWS)[:_CHANGES]
    add_lines(filled.lake.build, SHAPE, "u", make_rows(updated))
    filled.lake.build.seal()
    series: dict[str, list[float]] = {OURS: [], BY_SPARK: []}
    memory: dict[str, list[float]] = {OURS: [], BY_SPARK: []}
    for number in range(-1, max(scale.rounds, 5)):  # the first one has the files in no cache
        for who in series:
            path = tmp_path / str(number)
            command = merge_of_copy(made, path, lake=_ENGINES[who])
            began = time.monotonic()
            merge = subprocess.Popen(command, env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with Watch(merge.pid) as watch:
                assert merge.wait() == 0
            seconds = time.monotonic() - began
            if number >= 0:
                series[who].append(seconds)
                memory[who].append(max(watch.anonymous) / 1e9)
            table = spark.read.format("delta").load(str(table_location(lake_at(str(path / "lake")), SHAPE.table)))
            rows, changed = table.agg(F.count("*"), F.count_if(F.col("note").startswith("leave it"))).first()  # type: ignore[misc]
            assert (rows, changed) == (_ROWS, _CHANGES)
            shutil.rmtree(path)
    title = f"`dblog merge --once` of {_CHANGES:,} changes into a table of {_ROWS:,} rows, with its start, without Java"
    bars = (Bar(2.5, at_most=True), Bar(1 / 3, BY_SPARK, at_most=True))
    results.add(Figure("few_changes", "Lake", title, "s", series, bars))
    results.add(Figure("few_changes_memory", "Lake", f"{title}: memory", "GB", memory))
