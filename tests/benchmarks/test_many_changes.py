"""Merges of as many changes as half of a table, and of one transaction over all of it, in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dblog_core.lake.lake_status import lake_at, table_location
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.test_merge import SHAPE, Filled, add_lines
from tests.benchmarks.test_merge_memory import Watch
from tests.benchmarks.test_new_table import CONFIG, make_rows

_LINES = 250_000


def merge_of_copy(made: Path, path: Path, *, lake: str = "") -> list[str | Path]:
    """The command that merges a copy of what was made; `lake`: more of that section."""
    shutil.copytree(made, path, copy_function=os.link)  # no file is ever changed
    file = path / "shop.toml"
    file.write_text(CONFIG.format(path=path).replace("[lake]", f"[lake]\n{lake}"))
    return [Path(sys.executable).parent / "dblog", "--config", file, "merge", "--once"]


@pytest.mark.timeout(3600)
def test_as_many_changes_as_half_of_the_table(
    spark: SparkSession, tmp_path: Path, scale: Scale, results: Results
) -> None:
    """Eight tenths are updates of rows, one tenth updates of the same rows again, one tenth new rows."""
    made = tmp_path / "made"
    filled = Filled(spark, made, scale.lake_rows)
    count = scale.lake_rows // 2
    dice = np.random.default_rng(5)
    updated = dice.permutation(scale.lake_rows)[: count * 8 // 10]
    new = np.arange(scale.lake_rows, scale.lake_rows + count // 10)
    for op, keys in (("u", np.concatenate([updated, updated[: count // 10]])), ("c", new)):
        for first in range(0, len(keys), _LINES):
            add_lines(filled.lake.build, SHAPE, op, make_rows(keys[first : first + _LINES]))
            filled.lake.build.seal()
    rates = []
    doubled = []
    for number in range(-1, scale.rounds):  # the first one has the files in no cache
        path = tmp_path / str(number)
        command = merge_of_copy(made, path)
        began = time.monotonic()
        subprocess.run(command, check=True, env=os.environ, capture_output=True)
        rates.append(count / (time.monotonic() - began))
        table = spark.read.format("delta").load(str(table_location(lake_at(str(path / "lake")), SHAPE.table)))
        is_changed = F.col("note").startswith("leave it")
        rows, keys, changed = table.agg(F.count("*"), F.countDistinct("id"), F.count_if(is_changed)).first()  # type: ignore[misc]
        assert (keys, changed) == (scale.lake_rows + len(new), len(updated) + len(new))
        doubled.append(rows - keys)
        shutil.rmtree(path)
    title = f"`dblog merge --once` of {count:,} changes into a table of {scale.lake_rows:,} rows, with its start"
    results.add(Figure("many_changes", "Lake", title, "rows/s", {OURS: rates[1:]}))
    results.add(
        Figure("many_changes_doubled", "Lake", f"{title}: doubled rows", "", {OURS: doubled}, (Bar(0, at_most=True),))
    )


_LARGE_ROUNDS = 3


@pytest.mark.timeout(3600)
def test_one_transaction_over_the_whole_table(
    spark: SparkSession, tmp_path: Path, scale: Scale, results: Results
) -> None:
    """Every row is updated, in random order: no merge may end within the transaction."""
    made = tmp_path / "made"
    filled = Filled(spark, made, scale.lake_rows)
    updated = np.random.default_rng(6).permutation(scale.lake_rows)
    for first in range(0, len(updated), _LINES):
        keys = updated[first : first + _LINES]
        add_lines(filled.lake.build, SHAPE, "u", make_rows(keys))
        filled.lake.build.seal(partial=0 if first + _LINES >= len(updated) else len(keys))
    rates = []
    memory = []
    for number in range(_LARGE_ROUNDS):
        path = tmp_path / f"{number}"
        command = merge_of_copy(made, path)
        began = time.monotonic()
        merge = subprocess.Popen(command, env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with Watch(merge.pid) as watch:
            assert merge.wait() == 0
        rates.append(scale.lake_rows / (time.monotonic() - began))
        memory.append(max(watch.anonymous) / 1e9)
        table = spark.read.format("delta").load(str(table_location(lake_at(str(path / "lake")), SHAPE.table)))
        assert table.where(F.col("note").startswith("leave it")).count() == table.count() == scale.lake_rows
        shutil.rmtree(path)
    title = f"`dblog merge --once` of one transaction that updates {scale.lake_rows:,} rows, all of the table"
    results.add(Figure("large_transaction", "Lake", title, "rows/s", {OURS: rates}))
    results.add(Figure("large_transaction_memory", "Lake", f"{title}: memory", "GB", {OURS: memory}))
