"""A small batch and a whole dump of a table with a history: merged without Spark."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblog_core.staging import Staging
from tests.benchmarks.results import OURS, Figure, Results
from tests.benchmarks.scale import Scale
from tests.spark.history_lines import ITEMS, item
from tests.spark.lakes import TestLake
from tests.spark.segments import SegmentBuilder

ROWS = 100_000
CHANGED = 1_000
DUMPED = 400_000
_CHUNK = 20_000
_DUMPS = 3


class WithHistory:
    """A lake of one table, and its merger, warm."""

    def __init__(self, spark: SparkSession, staging: Staging, path: Path) -> None:
        lake = TestLake(spark, staging, path)
        lake.history = True
        self._merger = lake.merger()

    def merge(self) -> float:
        """Seconds of a merge of all that is new, its history's lines included."""
        began = time.monotonic()
        merged = self._merger.run_round(retry_stopped=False)
        seconds = time.monotonic() - began
        assert merged is not None and merged.tables[0].error is None and merged.tables[0].history
        return seconds


def open_lakes(spark: SparkSession, path: Path) -> tuple[SegmentBuilder, dict[str, WithHistory]]:
    """What is staged, and the lake that it is merged into."""
    staging = Staging(str(path / "staging"), source="shop")
    return SegmentBuilder(staging), {OURS: WithHistory(spark, staging, path / "ours")}


@pytest.mark.timeout(3600)
def test_small_batch_with_history(spark: SparkSession, tmp_path: Path, scale: Scale, results: Results) -> None:
    """Updates of which a third leave a value out, and rows of a dump of which half have changed."""
    build, lakes = open_lakes(spark, tmp_path)
    rows = ROWS if scale.name != "quick" else ROWS // 10
    build.chunk(ITEMS, [item(key) for key in range(rows)])
    build.seal()
    for lake in lakes.values():
        lake.merge()
    dice = random.Random(1)
    series: dict[str, list[float]] = {OURS: []}
    for number in range(-1, scale.rounds):  # round -1 warms it
        changed = dice.sample(range(rows), CHANGED)
        for place, key in enumerate(changed[: CHANGED // 2]):
            build.update(ITEMS, item(key, f"{number}", None), unchanged=["big"] if place % 3 == 0 else None)
        build.chunk(
            ITEMS, [item(key, f"{number}" if key % 2 else "v") for key in changed[CHANGED // 2 :]], dump=f"{number}"
        )
        build.seal()
        for who, lake in lakes.items():
            seconds = lake.merge()
            if number >= 0:
                series[who].append(seconds)
    title = f"{CHANGED:,} changes of a table of {rows:,} rows with a history, merged without Spark"
    results.add(Figure("history_small_batch", "Lake", title, "s", series))


@pytest.mark.timeout(3600)
def test_whole_dump_with_history(spark: SparkSession, tmp_path: Path, scale: Scale, results: Results) -> None:
    """A dump of all rows, of which one in a hundred has changed: the history gets these alone."""
    build, lakes = open_lakes(spark, tmp_path)
    rows = DUMPED if scale.name != "quick" else DUMPED // 10
    series: dict[str, list[float]] = {OURS: []}
    for number in range(-2, _DUMPS):  # round -2 makes the tables, and round -1 warms it
        for first in range(0, rows, _CHUNK):
            keys = range(first, min(first + _CHUNK, rows))
            chunk = [item(key, f"{number}" if key % 100 == number % 100 else "v") for key in keys]
            build.chunk(ITEMS, chunk, dump=f"{number}")
        build.seal()
        for who, lake in lakes.items():
            seconds = lake.merge()
            if number >= 0:
                series[who].append(seconds)
    title = f"a dump of all {rows:,} rows of a table with a history, of which 1 % have changed"
    results.add(Figure("history_whole_dump", "Lake", title, "s", series))
