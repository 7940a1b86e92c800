"""The merger's memory: large tables beside each other, and round after round."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from dblog_core.local.servers.daemon import wait_until
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.staging import Staging
from spark_jobs.merging.lake_table import LakeTable
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.test_lake import Merges
from tests.benchmarks.test_merge import SHAPE, add_lines, make_changes, spark_rows
from tests.benchmarks.test_new_table import CONFIG
from tests.spark.lakes import TestLake

TABLES = 10
ROUNDS = 100
CHANGED = 1_000
"""Rows of each table in each round."""
_SECONDS = 0.5
_ANONYMOUS = "RssAnon:"
_RESIDENT = "VmRSS:"


class Watch:
    """The memory of a process and all its children while entered, by its largest values, in bytes."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.resident: list[int] = []
        self.anonymous: list[int] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_SECONDS):
            processes = [self._process, *self._process.children(recursive=True)]
            self.resident.append(sum(_kilobytes(process.pid, _RESIDENT) for process in processes) * 1024)
            self.anonymous.append(sum(_kilobytes(process.pid, _ANONYMOUS) for process in processes) * 1024)


def _kilobytes(pid: int, name: str) -> int:
    """0 for a process that has ended meanwhile."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def _shape(number: int) -> TableSchema:
    return TableSchema(TableName("shop", f"orders_{number}"), SHAPE.columns, SHAPE.key)


@contextmanager
def _large_tables(spark: SparkSession, path: Path, rows: int) -> Iterator[TestLake]:
    lake = TestLake(spark, Staging(str(path / "staging"), source="shop"), path / "lake")
    try:
        for number in range(TABLES):
            table = LakeTable(spark, lake.table(_shape(number)), _shape(number), app="made")
            table.prepare()
            spark_rows(spark, rows).write.format("delta").mode("append").save(str(table.path))
        yield lake
    finally:
        shutil.rmtree(path)  # some gigabytes


@pytest.mark.timeout(3600)
def test_memory_of_a_merger_of_large_tables(
    spark: SparkSession, tmp_path: Path, scale: Scale, results: Results
) -> None:
    """Resident memory holds the pages of the index's files too, which the system takes back when it wants them."""
    dice = random.Random(7)
    with _large_tables(spark, tmp_path / "made", scale.lake_rows) as lake:
        file = tmp_path / "shop.toml"
        file.write_text(CONFIG.format(path=lake.path.parent))

        def stage() -> int:
            for number in range(TABLES):
                add_lines(lake.build, _shape(number), "u", make_changes(dice, CHANGED, scale.lake_rows))
            lake.build.seal()
            return lake.build.offset

        first = stage()
        with Merges(file, {}) as merges, Watch(merges.pid) as watch:
            wait_until(lambda: merges.offset() >= first, timeout=1200, what="the first round")
            for _ in range(ROUNDS):
                offset = stage()
                wait_until(lambda offset=offset: merges.offset() >= offset, timeout=600, what="a round")  # type: ignore[misc]
    tenth = len(watch.resident) // 10
    title = f"`merge --continuous`, {ROUNDS} rounds of {CHANGED:,} updates in each of {TABLES} tables"
    of_rows = f"of {scale.lake_rows:,} rows"
    resident = max(watch.resident) / 1e6
    results.add(
        Figure(
            "merge_memory",
            "Memory",
            f"{title} {of_rows}: most resident memory of Python and Java, MB",
            "MB",
            {OURS: [resident]},
            (Bar(1_500, at_most=True),),
        )
    )
    growth = max(watch.anonymous[-tenth:]) / max(watch.anonymous[2 * tenth : 3 * tenth])
    results.add(
        Figure(
            "merge_memory_growth",
            "Memory",
            f"{title} {of_rows}: anonymous memory in the last tenth against the third",
            "×",
            {OURS: [growth]},
            (Bar(1.1, at_most=True),),
        )
    )
