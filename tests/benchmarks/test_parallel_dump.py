"""The initial load of a fresh table by workers on a Spark cluster while the log flows: how it grows with the workers.

Once with the database beside the cluster, where processors end the growth; and once behind connections of limited
width, as of a database elsewhere, where it is the connection that a worker waits for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.dumps.status import DumpStatus
from dblog_core.local.servers.spark_cluster import SparkCluster
from tests.benchmarks import data
from tests.benchmarks.data import NewDatabase
from tests.benchmarks.ours import Ours
from tests.benchmarks.results import NAMES, OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.writers import FIRST, Writers
from tests.fix_servers import Database
from tests.nemesis.links import Link
from tests.nemesis.processes import Dblog

CHUNK = 10_000
BUSY = 100  # transactions a second into another table
WIDTH = 6_000_000  # bytes a second of a connection
LINEAR = 0.8  # of so many times the rate of one worker
LOOK = 0.1
OTHERS = data.ORDERS.with_name("orders_meanwhile")


@pytest.fixture(scope="module")
def cluster(server_root: Path) -> Iterator[SparkCluster]:
    running = SparkCluster(server_root / "spark-bench", workers=4)
    running.start()
    yield running
    running.kill()


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_parallel_dump(
    kind: str,
    bench_database: NewDatabase,
    cluster: SparkCluster,
    zookeeper_url: str,
    scale: Scale,
    results: Results,
    tmp_path: Path,
) -> None:
    database = bench_database(kind)
    data.create(database, data.ORDERS, OTHERS)
    data.fill(database, data.ORDERS, scale.parallel)
    with Loads(database, cluster, zookeeper_url, tmp_path) as loads:
        loads.rate(2, narrow=False)  # warms the server's pages
        near: dict[int, list[float]] = {1: [], 2: [], 4: []}
        far: dict[int, list[float]] = {1: [], 2: [], 4: []}
        for _ in range(scale.parallel_rounds):
            for workers in near:
                near[workers].append(loads.rate(workers, narrow=False))
                far[workers].append(loads.rate(workers, narrow=True))
    where = f"{NAMES[kind]}: initial load of {scale.parallel:,} rows by workers on a Spark cluster"
    limit = f"connections of {WIDTH / 1e6:g} MB/s"
    for workers in near:
        with_one_worker = {} if workers == 1 else {"one worker": far[1]}
        bars = () if workers == 1 else (Bar(LINEAR * workers, "one worker"),)
        title = f"{where}, {limit}, {_name_workers(workers)}"
        results.add(
            Figure(
                f"parallel_{kind}_far_{workers}", "Dump", title, "rows/s", {OURS: far[workers], **with_one_worker}, bars
            )
        )
    for workers in near:
        with_one_worker = {} if workers == 1 else {"one worker": near[1]}
        title = f"{where}, all on this machine, {_name_workers(workers)}"
        results.add(
            Figure(f"parallel_{kind}_near_{workers}", "Dump", title, "rows/s", {OURS: near[workers], **with_one_worker})
        )


def _name_workers(workers: int) -> str:
    return "one worker" if workers == 1 else f"{workers} workers"


class Loads:
    """Dumps of one table on the executors of a cluster, while a capture runs and rows are written elsewhere."""

    def __init__(self, database: Database, cluster: SparkCluster, state: str, directory: Path) -> None:
        self._database = database
        self._cluster = cluster
        self._directory = directory
        self._ours = Ours(database, directory / "ours", state={"url": state}, dump={"chunk_size": CHUNK})
        self._link = Link(database.server.port, width=WIDTH)
        self._times = 0

    def __enter__(self) -> Loads:
        self._ours.catch_up()
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    def rate(self, workers: int, *, narrow: bool) -> float:
        """Rows a second, from the first chunks to the last."""
        self._times += 1
        directory = self._directory / f"load-{self._times}"
        directory.mkdir()
        config = self._config(workers, narrow=narrow)
        dblog = Dblog(config, directory)
        known_ids = {dump.id for dump in _dumps(config)}
        try:
            with self._ours.capturing(), Writers(self._database, OTHERS, rate=BUSY, first=self._times * FIRST):
                table = f"{self._database.schema}.{data.ORDERS.name}"
                process = dblog.start("dump", "--table", table, "--workers", str(workers), "--spark", "--wait")
                with _watching(config, known_ids) as seen:
                    assert process.wait(3600) == 0, dblog.output()
        finally:
            dblog.close()
        (began, before), *_, (ended, rows) = seen
        return (rows - before) / (ended - began)

    def _config(self, workers: int, *, narrow: bool) -> Config:
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.cores.max": str(workers),
        }
        config = self._ours.config
        source = config.source.model_copy(update={"port": self._link.port if narrow else config.source.port})
        spark = config.spark.model_copy(update={"master": self._cluster.url(), "conf": conf})
        return config.model_copy(update={"source": source, "spark": spark})


@contextmanager
def _watching(config: Config, known_ids: set[str]) -> Iterator[list[tuple[float, int]]]:
    """When (monotonic seconds) how many rows of a dump that is not known yet were read, whenever they had grown."""
    seen: list[tuple[float, int]] = []
    stop = threading.Event()

    def look() -> None:
        with closing(wiring.open_state(config)) as state:
            while not stop.wait(LOOK):
                rows = sum(dump.rows for dump in dump_store.list_dumps(state) if dump.id not in known_ids)
                if rows > (seen[-1][1] if seen else 0):
                    seen.append((time.monotonic(), rows))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def _dumps(config: Config) -> list[DumpStatus]:
    with closing(wiring.open_state(config)) as state:
        return dump_store.list_dumps(state)
