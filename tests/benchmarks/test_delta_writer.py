"""Random changes of a large table: marked in vectors and appended, beside a plain MERGE of the same rows."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dblog_core.delta_writer.changes import Changes
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.join_files import join_files
from dblog_core.delta_writer.rewriting.purge_files import purge_file
from dblog_core.delta_writer.upserting.upsert import upsert
from dblog_core.lake_engine.tasks.mark_times import PURGE
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.test_merge import PLAIN, SHAPE, Filled
from tests.spark.segments import EPOCH

FRESH = "fresh table"
MERGES = 1_000


class Marked:
    """The lake table of `Filled`, written by `OpenTable`."""

    def __init__(self, filled: Filled) -> None:
        self.filled = filled
        self._dice = random.Random(1)
        self._merges = 0
        self.writer = self._new()

    def _new(self) -> OpenTable:
        return OpenTable(self.filled.lake.table(SHAPE), ["id"], order="_dblog_offset", mark="dblog")

    def apply(self, changed: pa.RecordBatch) -> float:
        """Seconds of one commit: a fifth of the rows go, the others are written."""
        self._merges += 1
        count = len(changed)
        rows = pa.Table.from_batches([changed])
        for name, values in (
            ("_dblog_offset", pa.array(range(count), pa.int64())),
            ("_dblog_position", pa.repeat("p", count)),
            ("_dblog_commit_time", pa.repeat(pa.scalar(EPOCH, pa.timestamp("us", tz="UTC")), count)),
            ("_dblog_origin", pa.repeat("log", count)),
        ):
            rows = rows.append_column(name, values)
        changes = Changes(rows, np.arange(count) % 5 == 4, np.zeros(count, np.bool_))
        began = time.monotonic()
        done = upsert(self.writer, changes, "bench", self._merges)
        seconds = time.monotonic() - began
        assert not done.already and done.inserted + done.updated == count - count // 5
        return seconds

    def put_in_order(self, *, few: float) -> None:
        """Joins small files, and writes files again of which more than `few` of the rows are dead."""
        while join_files(self.writer):
            pass
        while purge_file(self.writer, share=few):
            pass

    def begin_anew(self) -> float:
        """Seconds of a look at the log and of making the index, as a new process does it."""
        self.writer = self._new()
        began = time.monotonic()
        self.writer._cover_files(self.writer.refresh(), None)
        return time.monotonic() - began


@pytest.fixture(scope="module")
def marked_table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, scale: Scale) -> Marked:
    return Marked(Filled(spark, tmp_path_factory.mktemp("marked"), scale.lake_rows))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("count", "times"), [(1_000, 100), (100_000, 20)])
def test_random_changes(marked_table: Marked, count: int, times: int, scale: Scale, results: Results) -> None:
    rows = marked_table.filled.rows
    changes = min(count, rows // 10)
    series: dict[str, list[float]] = {OURS: [], PLAIN: []}
    for number in range(-1, scale.rounds):  # round -1 warms both
        changed = marked_table.filled.make_changes(changes, rows)
        seconds = {OURS: marked_table.apply(changed), PLAIN: marked_table.filled.plain(changed)}
        if number >= 0:
            for who, rounds in series.items():
                rounds.append(seconds[who])
    title = f"{changes:,} random changes of a table of {rows:,} rows, marked and appended"
    bars = (Bar(1 / times, PLAIN, at_most=True), Bar(0.15 if count == 1_000 else 2, at_most=True))
    results.add(Figure(f"marked_{count}", "Lake", title, "s", series, bars))


@pytest.mark.timeout(3600)
def test_changes_without_deletion_vectors(spark: SparkSession, tmp_path: Path, scale: Scale, results: Results) -> None:
    """The plain MERGE has none either. Changes all over the table touch every file, those of the newest rows few."""
    copied = Marked(Filled(spark, tmp_path, scale.lake_rows, vectors=False))
    rows = scale.lake_rows
    count = min(1_000, rows // 100)
    spread = {"random": (0, rows), "newest": (rows - rows // 100, rows)}
    series: dict[str, dict[str, list[float]]] = {name: {OURS: [], PLAIN: []} for name in spread}
    for number in range(-1, scale.rounds):  # round -1 warms both
        for name, (first, below) in spread.items():
            changed = copied.filled.make_changes(count, below - first)
            keys = pa.array(np.asarray(changed["id"]) + first)
            changed = changed.set_column(0, changed.schema.field(0), keys)
            seconds = {OURS: copied.apply(changed), PLAIN: copied.filled.plain(changed)}
            if number >= 0:
                for who, rounds in series[name].items():
                    rounds.append(seconds[who])
    for name, rounds_by_who in series.items():
        title = f"{count:,} {name} changes of a table of {rows:,} rows without deletion vectors"
        results.add(Figure(f"copied_{name}", "Lake", title, "s", rounds_by_who, (Bar(1, PLAIN, at_most=True),)))


@pytest.mark.timeout(3600)
def test_scan_after_merges_and_a_maintenance(
    spark: SparkSession, tmp_path: Path, scale: Scale, results: Results
) -> None:
    """All rows are read, beside the same rows in a table that was just written."""
    marked = Marked(Filled(spark, tmp_path, scale.lake_rows))
    count = min(1_000, scale.lake_rows // 1_000)
    for number in range(MERGES):
        marked.apply(marked.filled.make_changes(count, scale.lake_rows))
        if number % 100 == 99:  # as `compact_after` has it
            marked.put_in_order(few=0.2)
    marked.put_in_order(few=PURGE)
    lake = str(marked.filled.lake.table(SHAPE))
    fresh = str(tmp_path / "fresh")
    spark.read.format("delta").load(lake).write.format("delta").save(fresh)
    series: dict[str, list[float]] = {OURS: [], FRESH: []}
    for number in range(-1, 3 * scale.rounds):  # round -1 warms both
        seconds = {OURS: _scan(spark, lake), FRESH: _scan(spark, fresh)}
        if number >= 0:
            for who, rounds in series.items():
                rounds.append(seconds[who])
    title = f"full scan after {MERGES:,} merges of {count:,} rows into {scale.lake_rows:,}, and a maintenance"
    results.add(Figure("scan_after_merges", "Lake", title, "s", series, (Bar(1.2, FRESH, at_most=True),)))


def _scan(spark: SparkSession, path: str) -> float:
    """Seconds in which every value of a table is read."""
    rows = spark.read.format("delta").load(path)
    began = time.monotonic()
    rows.agg(F.sum(F.xxhash64(*rows.columns).cast("decimal(38,0)"))).collect()
    return time.monotonic() - began


@pytest.mark.timeout(3600)
def test_index_made_anew(marked_table: Marked, scale: Scale, results: Results) -> None:
    series = {OURS: [marked_table.begin_anew() for _ in range(scale.rounds)]}
    title = f"index of {marked_table.filled.rows:,} integer keys made from the data files"
    results.add(Figure("marked_index", "Lake", title, "s", series, ()))
