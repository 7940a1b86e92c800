"""The lake: from a commit to its row in Delta, and merges into a large table beside a plain MERGE."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import psutil
import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dblog_core.config import Config
from dblog_core.local import guard
from dblog_core.local.daemon import wait_until
from tests.benchmarks import data
from tests.benchmarks.data import NewDatabase
from tests.benchmarks.followers import Follower, latencies, percentile
from tests.benchmarks.ours import Ours
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.writers import Writers
from tests.fix_servers import Database

RATE = 500  # transactions a second
TABLES = tuple(data.ORDERS.named(f"orders_{n}") for n in range(10))
PLAIN = "plain MERGE"
SEED = 1_000  # rows that the large table is multiplied from
DEFAULTS = {  # of Spark and Delta, in place of what our merges are run with
    "spark.databricks.delta.snapshotPartitions": "50",
    "spark.databricks.delta.merge.materializeSource": "auto",
    "spark.sql.shuffle.partitions": "200",
}


class Merges:
    """`dblog merge --continuous` while entered: when (monotonic seconds) which offset was in the lake."""

    def __init__(self, ours: Ours) -> None:
        command = [Path(sys.executable).parent / "dblog", "--config", ours.file, "merge", "--continuous", "--json"]
        self._process = subprocess.Popen(
            command, env={**os.environ, **ours.env}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        guard.watch(self._process.pid, psutil.Process(self._process.pid).create_time())
        self._thread = threading.Thread(target=self._read)
        self.ended: list[tuple[float, int]] = []

    def __enter__(self) -> Merges:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._thread.join()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def offset(self) -> int:
        assert self._process.poll() is None, "the merge has ended"
        return self.ended[-1][1] if self.ended else 0

    def seen(self, offsets: dict[int, int]) -> dict[int, float]:
        """When the keys of these offsets were in the lake, for those that are."""
        found, ended = {}, iter(self.ended)
        at, upto = next(ended)
        for key, offset in sorted(offsets.items(), key=lambda item: item[1]):
            while upto < offset:
                at, upto = next(ended, (0.0, sys.maxsize))
            if not at:
                break
            found[key] = at
        return found

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.ended.append((time.monotonic(), orjson.loads(line)["offset"]))


@pytest.mark.timeout(1800)
def test_commit_to_delta(bench_database: NewDatabase, scale: Scale, results: Results, tmp_path: Path) -> None:
    database = bench_database("mysql")
    data.create(database, *TABLES)
    ours = Ours(database, tmp_path / "ours")
    ours.prepare()
    seconds, medians = scale.seconds, []
    with ours.capturing(), Follower(ours.file, ours.env) as follower, Merges(ours) as merges:
        with Writers(database, *TABLES, rate=RATE) as load:
            wait_until(lambda: merges.offset() > 0, timeout=180, what="the first merge")
            load.measure(seconds)  # warm
            spans = []
            for _ in range(scale.rounds):
                began = time.monotonic()
                load.measure(seconds)
                spans.append((began, time.monotonic()))
        follower.wait(load.committed)
        last = max(follower.offsets.values())
        wait_until(lambda: merges.offset() >= last, timeout=180, what="the last merge")
    seen = merges.seen(follower.offsets)
    for since, until in spans:
        medians.append(percentile(latencies(load.committed, seen, since=since, until=until), 50) / 1000)
    title = f"commit to a row in Delta, `merge --continuous`, {RATE} transactions a second, {len(TABLES)} tables, p50"
    results.add(Figure("delta_latency", "Lake", title, "s", {OURS: medians}, (Bar(8, at_most=True),)))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("changed", [1_000, 100_000], ids="merge_{}".format)
def test_merge(
    changed: int,
    bench_database: NewDatabase,
    spark: SparkSession,
    merge_here: Callable[[Config], None],
    scale: Scale,
    results: Results,
    tmp_path: Path,
) -> None:
    """Changed rows spread over a large table: ours, from staged segments, and a plain MERGE of the same rows."""
    database = bench_database("mysql")
    data.create(database, data.ORDERS)
    data.fill(database, data.ORDERS, SEED)
    ours = Ours(database, tmp_path / "ours")
    ours.prepare()
    with ours.capturing():
        ours.dump(data.ORDERS.name)
    merge_here(ours.config)
    lake, plain = Path(ours.config.lake.path) / database.schema / data.ORDERS.name, tmp_path / "plain"
    _multiply(spark, lake, plain, scale.lake_rows)
    _spread(database, changed, scale.lake_rows)
    ours.catch_up()
    merge_here(ours.config)  # warm; and those rows have come
    _plain_merge(spark, plain, _changes(spark, lake, changed))
    series: dict[str, list[float]] = {OURS: [], PLAIN: []}
    for _ in range(scale.rounds):
        database.execute(f"UPDATE {data.ORDERS.name} SET score = score + 1 WHERE id > {SEED}")
        ours.catch_up()
        began = time.monotonic()
        merge_here(ours.config)
        series[OURS].append(time.monotonic() - began)
        batch = _changes(spark, lake, changed)
        began = time.monotonic()
        _plain_merge(spark, plain, batch)
        series[PLAIN].append(time.monotonic() - began)
    title = f"merge of {changed:,} changed rows into {scale.lake_rows:,}"
    results.add(Figure(f"merge_{changed}", "Lake", title, "s", series, (Bar(1 / 3, PLAIN, at_most=True),)))


def _multiply(spark: SparkSession, lake: Path, plain: Path, rows: int) -> None:
    """The lake's few rows under so many keys more, in 16 files over all keys; and the same table once more."""
    few = spark.read.format("delta").load(str(lake)).where(F.col("id") <= SEED)
    copies = spark.range(1, rows // SEED, 1, 16).select(F.col("id").alias("copy"))
    many = copies.crossJoin(F.broadcast(few)).withColumn("id", F.col("id") + F.col("copy") * SEED).drop("copy")
    many.select(few.columns).write.format("delta").mode("append").save(str(lake))
    spark.read.format("delta").load(str(lake)).write.format("delta").save(str(plain))


def _spread(database: Database, changed: int, rows: int) -> None:
    """Rows of the source whose keys are spread over those of the large table."""
    step = rows // changed
    with data.relaxed(database) as connection, connection.cursor() as cursor:
        for first in range(0, changed, data.STATEMENT):
            numbers = f"SELECT {SEED + 1} + (n + {first}) * {step} AS i FROM {data.NUMBERS}.numbers"
            values = data.ORDERS.values(database.kind)
            cursor.execute(f"INSERT INTO {data.ORDERS.name} SELECT {values} FROM ({numbers}) AS rows_to_make")


def _changes(spark: SparkSession, lake: Path, changed: int) -> DataFrame:
    """The rows that our last merge has changed, in memory: a plain MERGE need not read staged segments."""
    newest = spark.read.format("delta").load(str(lake)).where(F.col("_dblog_origin") == "log")
    file = str(lake.with_name(f"changes-{time.monotonic_ns()}"))
    newest.coalesce(2).write.parquet(file)
    found = spark.read.parquet(file).cache()
    assert 0 < found.count() <= changed
    return found


def _plain_merge(spark: SparkSession, table: Path, batch: DataFrame) -> None:
    with _settings(spark, DEFAULTS):
        target = DeltaTable.forPath(spark, str(table)).alias("t")
        merge = target.merge(batch.alias("s"), "t.id = s.id")
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


@contextmanager
def _settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
