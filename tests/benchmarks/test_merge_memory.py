"""The merger's memory: large tables beside each other, and round after round."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import psutil
import pytest
from pyspark.sql import SparkSession

from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.local.servers.daemon import wait_until
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.staging import Staging
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.test_lake import Merges
from tests.benchmarks.test_merge import SHAPE, add_lines, make_changes, spark_rows
from tests.benchmarks.test_new_table import CONFIG
from tests.spark.lakes import TestLake

TABLES = 10
ROUNDS = 240
"""The upkeep of a table begins after 100 commits."""
CHANGED = 1_000
"""Rows of each table in each round."""
_SECONDS = 0.5
_YOUNG_SECONDS = 2.0
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
            processes = [self._process, *filter(_has_own_memory, self._process.children(recursive=True))]
            self.resident.append(sum(_kilobytes(process.pid, _RESIDENT) for process in processes) * 1024)
            self.anonymous.append(sum(_kilobytes(process.pid, _ANONYMOUS) for process in processes) * 1024)


def _has_own_memory(process: psutil.Process) -> bool:
    """Not that of its parent, as between the fork of a process and its own program: all of Java would count twice."""
    try:
        parent = process.parent()
        is_young = time.time() - process.create_time() < _YOUNG_SECONDS
        return not is_young or parent is None or process.cmdline() != parent.cmdline()
    except psutil.NoSuchProcess:
        return False


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
        first = LakeTable(lake.table(_shape(0)), _shape(0), app="made")
        first.prepare()
        spark_rows(spark, rows).write.format("delta").mode("append").save(str(first.path))
        for number in range(1, TABLES):
            _copy(Path(str(first.path)), Path(str(lake.table(_shape(number)))), _shape(number).table)
        yield lake
    finally:
        shutil.rmtree(path)  # some gigabytes


def _copy(made: Path, copy: Path, name: TableName) -> None:
    """Another table with the same rows, in the same files: Spark would take some ten minutes to write them."""
    shutil.copytree(made, copy, copy_function=os.link, ignore=shutil.ignore_patterns("_delta_log", ".*.crc"))
    (copy / "_delta_log").mkdir()
    identity = str(uuid.uuid4())
    for commit in (made / "_delta_log").glob("*.json"):
        actions = [orjson.loads(line) for line in commit.read_bytes().splitlines()]
        for metadata in (action["metaData"] for action in actions if "metaData" in action):
            metadata["id"] = identity
            metadata["configuration"]["dblog.table"] = str(name)
        (copy / "_delta_log" / commit.name).write_bytes(b"\n".join(map(orjson.dumps, actions)))


@pytest.mark.timeout(3600)
def test_memory_of_a_merger_of_large_tables(
    spark: SparkSession, tmp_path: Path, scale: Scale, results: Results
) -> None:
    """Its own memory counts: resident are pages of the index's files too, which the system takes back."""
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
            ends = [len(watch.anonymous)]
            for _ in range(ROUNDS):
                offset = stage()
                wait_until(lambda offset=offset: merges.offset() >= offset, timeout=600, what="a round")  # type: ignore[misc]
                ends.append(len(watch.anonymous))
    title = f"`merge --continuous`, {ROUNDS} rounds of {CHANGED:,} updates in each of {TABLES} tables"
    of_rows = f"of {scale.lake_rows:,} rows"
    middle, last, end = ends[ROUNDS // 3], ends[-(ROUNDS // 3)], ends[-1]
    figures = {
        "merge_memory": ("most memory of Python and Java, MB", max(watch.anonymous) / 1e6, 1_500),
        "merge_memory_resident": ("the same with pages of the index's files, MB", max(watch.resident) / 1e6, None),
        "merge_memory_growth": (
            "most memory in the last third of the rounds against the middle one, ×",
            max(watch.anonymous[last:end]) / max(watch.anonymous[middle:last]),
            1.1,
        ),
    }
    for name, (what, value, most) in figures.items():
        bars = () if most is None else (Bar(most, at_most=True),)
        unit = "×" if what.endswith("×") else "MB"
        results.add(Figure(name, "Memory", f"{title} {of_rows}: {what}", unit, {OURS: [value]}, bars))
