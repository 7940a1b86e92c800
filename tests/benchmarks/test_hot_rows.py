"""A few rows that are changed all the time, with large values that the log leaves out: how long their merge takes."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dblog_core.staging import Staging
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.spark.lakes import TestLake
from tests.spark.segments import table

HOT = table("hot", id=pa.int64(), n=pa.int64(), big=pa.string(), note=pa.string())
ROWS = 120
EVENTS = 500_000
SEGMENT = 5_000  # events
MOVES = 50  # events for each change of a key


class HotRows:
    """The rows in a lake; each round of events leaves their `big` values out, as PostgreSQL does with TOAST."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.lake = TestLake(spark, Staging(str(path / "staging"), source="shop"), path / "lake")
        self._dice = random.Random(1)
        self._keys = list(range(ROWS))
        self._next_key = 1_000
        for key in self._keys:
            self.lake.build.create(HOT, {"id": key, "n": 0, "big": f"{key} " * 5_000, "note": "new"})
        self.lake.build.seal()
        self.lake.merge_well()

    def change(self, events: int) -> None:
        build = self.lake.build
        for number in range(events):
            place = self._dice.randrange(ROWS)
            old = {"id": self._keys[place]}
            if number % MOVES == 0:
                self._keys[place] = self._next_key
                self._next_key += 1
                row = {"id": self._keys[place], "n": number, "big": None, "note": "moved"}
                build.move(HOT, old, row, unchanged=["big"])
            else:
                build.update(HOT, {**old, "n": number, "big": None, "note": "changed"}, unchanged=["big"])
            if number % SEGMENT == SEGMENT - 1:
                build.seal()
        build.seal()

    def check(self) -> None:
        rows = self.lake.rows(HOT)
        assert sorted(row["id"] for row in rows) == sorted(self._keys)
        assert all(len(row["big"]) >= 10_000 for row in rows), "a value was lost"


@pytest.mark.timeout(1800)
def test_hot_rows(spark: SparkSession, tmp_path: Path, scale: Scale, results: Results) -> None:
    hot_rows = HotRows(spark, tmp_path)
    events = EVENTS // 10 if scale.name == "quick" else EVENTS
    seconds = []
    for _ in range(3):
        hot_rows.change(events)
        began = time.monotonic()
        hot_rows.lake.merge_well()
        seconds.append(time.monotonic() - began)
        hot_rows.check()
    title = f"merge of {events:,} events of {ROWS} rows that leave 10 kB and more out, one in {MOVES} a change of key"
    results.add(Figure("hot_rows", "Lake", title, "s", {OURS: seconds}, (Bar(20, at_most=True),)))
