"""What grows with sources, tables, rate, rows and the lake, and what does not: the figures of docs/scaling.md.

Costs are CPU seconds, bytes and counts where that can be: the machine is shared. Each axis keeps its largest size
out of the model, and says by how much the model misses it.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from kazoo.client import KazooClient
from pyspark.sql import SparkSession

from dblog_core import wiring
from dblog_core.local.servers.zookeeper import ZookeeperServer
from tests.airflow.test_factory import DAGS, write
from tests.benchmarks import data, scaling
from tests.benchmarks.data import NewDatabase
from tests.benchmarks.model import Axis
from tests.benchmarks.ours import Ours
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.test_merge import Filled
from tests.benchmarks.writers import FIRST, Writers

pytestmark = pytest.mark.timeout(3600)
QUIET = {"quick": 5.0, "usual": 15.0, "full": 60.0}  # seconds in which idle captures are watched


@pytest.fixture(scope="module")
def page(scale: Scale) -> Iterator[scaling.Page]:
    """Where the figures go; a quick look leaves the page alone."""
    scaling_page = scaling.Page(scale.name)
    yield scaling_page
    scaling_page.write()


def sizes(scale: Scale, quick: tuple[int, ...], *more: int) -> tuple[int, ...]:
    return quick if scale.name == "quick" else (*quick, *more)


def test_sources(
    bench_database: NewDatabase, zookeeper: ZookeeperServer, scale: Scale, page: scaling.Page, tmp_path: Path
) -> None:
    """Captures of quiet sources, one process each, on one ZooKeeper."""
    url = f"zookeeper://{zookeeper.address()}/scaling{os.getpid()}"
    counts = sizes(scale, (1, 2, 4), 8)
    figures: dict[str, dict[int, list[float]]] = {n: {} for n in ("cpu", "memory", "nodes", "requests")}
    with ExitStack() as running:
        captures: list[psutil.Process] = []
        for count in counts:
            while len(captures) < count:
                database = bench_database("mysql")
                own_directory = tmp_path / f"{len(captures)}"
                data.create(database, data.ORDERS)
                source_dblog = Ours(database, own_directory, source={"name": f"s{len(captures)}"}, state={"url": url})
                captures.append(running.enter_context(source_dblog.capturing()).process)
            time.sleep(2)  # what their starts leave to be done
            cpu = _cpu(captures)
            requests_before = _requests(zookeeper)
            began = time.monotonic()
            time.sleep(QUIET[scale.name])
            seconds = time.monotonic() - began
            figures["cpu"][count] = [1000 * (_cpu(captures) - cpu) / seconds]
            figures["requests"][count] = [(_requests(zookeeper) - requests_before) / seconds]
            figures["memory"][count] = [sum(p.memory_full_info().pss for p in captures) / 1e6]
            figures["nodes"][count] = [float(_nodes(url))]
    page.add(Axis("sources_cpu", "CPU of quiet captures", "ms a second", "sources", figures["cpu"], 50))
    page.add(Axis("sources_memory", "memory of all captures", "MB", "sources", figures["memory"], 50))
    page.add(Axis("sources_nodes", "nodes in ZooKeeper", "nodes", "sources", figures["nodes"], 50))
    page.add(Axis("sources_requests", "requests to ZooKeeper", "a second", "sources", figures["requests"], 50))


def test_dags(scale: Scale, page: scaling.Page, tmp_path: Path) -> None:
    """CPU seconds of Airflow's DAG processor for one parse of all sources."""
    rounds: dict[int, list[float]] = {}
    for count in sizes(scale, (5, 20, 50), 100):
        directory = tmp_path / f"{count}"
        for number in range(count):
            write(directory, f"s{number}.toml", name=f"s{number}")
        rounds[count] = [_parse(directory, tmp_path) for _ in range(1 if scale.name == "quick" else 3)]
    page.add(Axis("sources_dags", "one parse of the DAGs", "CPU s", "sources", rounds, 200))


@pytest.mark.parametrize("kind", ["mysql", "mariadb", "postgres"], ids="scaling_tables_{}".format)
def test_tables(kind: str, bench_database: NewDatabase, scale: Scale, page: scaling.Page, tmp_path: Path) -> None:
    """A whole run of a capture that finds nothing to read: what its start and its catalogue cost."""
    figures: dict[str, dict[int, list[float]]] = {"seconds": {}, "cpu": {}, "memory": {}}
    for count in sizes(scale, (1, 100, 300), 1000, 2000):
        database = bench_database(kind)
        data.create(database, *(data.ORDERS.with_name(f"t{number:04}") for number in range(count)))
        dblog = Ours(database, tmp_path / f"{count}")
        dblog.prepare()
        for _ in range(scale.rounds):
            dblog.fresh()
            began = time.monotonic()
            captured = dblog.capture_once()
            figures["seconds"].setdefault(count, []).append(time.monotonic() - began)
            figures["cpu"].setdefault(count, []).append(captured.cpu)
            figures["memory"].setdefault(count, []).append(captured.peak / 1e6)
    for name, what, unit in (
        ("seconds", "a start, with its imports", "s"),
        ("cpu", "CPU of a start", "CPU s"),
        ("memory", "most memory of a capture", "MB"),
    ):
        title = f"{scaling.NAMES[kind]}: {what}"
        page.add(Axis(f"tables_{name}_{kind}", title, unit, "tables", figures[name], 10_000))


@pytest.mark.parametrize("kind", ["mysql", "postgres"], ids="scaling_rows_{}".format)
def test_rows(kind: str, bench_database: NewDatabase, scale: Scale, page: scaling.Page, tmp_path: Path) -> None:
    """Rows of the log and rows of a dump: CPU of the process, and what is staged."""
    step = max(50_000, scale.rows // 4)
    figures: dict[str, dict[int, list[float]]] = {n: {} for n in ("log", "memory", "staged", "dump", "worker")}
    # a log that is read again must tell of no dump
    logged = bench_database(kind)
    filled = bench_database(kind)
    dblog = Ours(logged, tmp_path / "log")
    dumps = Ours(filled, tmp_path / "dump")
    rows = 0
    for database in (logged, filled):
        data.create(database, data.ORDERS)
    dblog.prepare()
    dumps.catch_up()
    for count in (step, 2 * step, 4 * step):
        for database in (logged, filled):
            data.fill(database, data.ORDERS, count - rows, first=rows + 1)
        rows = count
        captured = [dblog.capture(rows) for _ in range(scale.rounds)]
        figures["log"][rows] = [c.cpu for c in captured]
        figures["memory"][rows] = [c.peak / 1e6 for c in captured]
        figures["staged"][rows] = [_staged_bytes(dblog) / 1e6]
        dumps.catch_up()
        with dumps.capturing():
            dumped = [dumps.dump(data.ORDERS.name) for _ in range(scale.rounds)]
        figures["dump"][rows] = [d.cpu for d in dumped]
        figures["worker"][rows] = [d.peak / 1e6 for d in dumped]
    beyond = 1_000_000_000
    for name, what, unit in (
        ("log", "capture of the log", "CPU s"),
        ("memory", "most memory of the capture", "MB"),
        ("staged", "staged by the log", "MB"),
        ("dump", "workers of a dump", "CPU s"),
        ("worker", "most memory of the workers", "MB"),
    ):
        page.add(Axis(f"rows_{name}_{kind}", f"{scaling.NAMES[kind]}: {what}", unit, "rows", figures[name], beyond))


def test_rate(bench_database: NewDatabase, scale: Scale, page: scaling.Page, tmp_path: Path) -> None:
    """A capture beside transactions of one row each at a steady rate: CPU, memory, segments and bytes a second."""
    names = ("cpu", "memory", "staged", "segments")
    figures: dict[str, dict[int, list[float]]] = {n: {} for n in names}
    database = bench_database("mysql")
    data.create(database, data.ORDERS)
    dblog = Ours(database, tmp_path / "ours")
    for turn, rate in enumerate(sizes(scale, (50, 100, 200), 400)):
        with (
            dblog.capturing() as child,
            Writers(database, data.ORDERS, rate=rate, first=(turn + 1) * FIRST) as writers,
        ):
            time.sleep(2)  # its start, and that of the writers
            for _ in range(scale.rounds):
                before = writers.count
                cpu = _cpu([child.process])
                files = _segments(dblog)
                staged = _staged_bytes(dblog)
                began = time.monotonic()
                time.sleep(QUIET[scale.name])
                seconds = time.monotonic() - began
                written = (writers.count - before) / seconds
                assert written > 0.9 * rate, f"the writers came to {written:.0f} of {rate} transactions a second"
                measured = (
                    1000 * (_cpu([child.process]) - cpu) / seconds,
                    child.process.memory_full_info().pss / 1e6,
                    (_staged_bytes(dblog) - staged) / seconds / 1e3,
                    (_segments(dblog) - files) / seconds,
                )
                for name, value in zip(names, measured, strict=True):
                    figures[name].setdefault(rate, []).append(value)
    size = "transactions a second"
    beyond = 10_000
    page.add(Axis("rate_cpu", "CPU of a capture", "ms a second", size, figures["cpu"], beyond))
    page.add(Axis("rate_memory", "memory of a capture", "MB", size, figures["memory"], beyond))
    page.add(Axis("rate_staged", "staged", "kB a second", size, figures["staged"], beyond))
    page.add(Axis("rate_segments", "segments", "a second", size, figures["segments"], beyond))


def test_lake(spark: SparkSession, scale: Scale, page: scaling.Page, results: Results, tmp_path: Path) -> None:
    """Merges of 1,000 changed rows, spread over the whole table, into tables of growing size, in a warm session."""
    counts = sizes(scale, (10_000, 30_000, 100_000), 1_000_000, 10_000_000)
    counts = (*counts, 100_000_000) if scale.name == "full" else counts
    cpu: dict[int, list[float]] = {}
    room: dict[int, list[float]] = {}
    for count in counts:
        filled = Filled(spark, tmp_path / f"{count}", count)
        _merge_cpu(filled, count)  # makes the index
        cpu[count] = [  # the system counts in steps of 10 ms
            statistics.fmean(1000 * _merge_cpu(filled, count) for _ in range(4)) for _ in range(scale.rounds)
        ]
        room[count] = [sum(f.stat().st_size for f in filled.lake.path.rglob("*.parquet")) / 1e6]
        shutil.rmtree(tmp_path / f"{count}")  # some gigabytes
    page.add(Axis("lake_merge", "CPU of a merge of 1,000 changed rows", "ms", "rows of the table", cpu, 1_000_000_000))
    page.add(Axis("lake_bytes", "files of the table and its merges", "MB", "rows of the table", room, 1_000_000_000))
    large = {count: statistics.median(rounds) for count, rounds in cpu.items() if count >= 1_000_000}
    if large:
        title = f"CPU of a merge of 1,000 changed rows, {min(large):,} to {max(large):,} rows: most against least"
        ratio = [max(large.values()) / min(large.values())]
        results.add(Figure("merge_cpu", "Lake", title, "×", {OURS: ratio}, (Bar(1.5, at_most=True),)))


def _merge_cpu(filled: Filled, rows: int) -> float:
    """CPU seconds of a merge, of Python and Java."""
    filled.stage(filled.make_changes(1_000, rows))
    here = psutil.Process()
    processes = [here, *here.children(recursive=True)]
    before = _cpu(processes)
    filled.merge(1_000)
    return _cpu(processes) - before


def _cpu(processes: list[psutil.Process]) -> float:
    return sum(sum(p.cpu_times()[:2]) for p in processes)


def _requests(server: ZookeeperServer) -> int:
    """What the server has received of its clients so far."""
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        connection.sendall(b"srvr")
        reply = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    return int(next(line.partition(":")[2] for line in reply.splitlines() if line.startswith("Received")))


def _nodes(url: str) -> int:
    servers, _, root = url.removeprefix("zookeeper://").partition("/")
    client = KazooClient(servers)
    client.start()
    try:
        return _below(client, f"/{root}")
    finally:
        client.stop()
        client.close()


def _below(client: KazooClient, path: str) -> int:
    return 1 + sum(_below(client, f"{path}/{name}") for name in client.get_children(path))


def _parse(sources: Path, home: Path) -> float:
    code = (
        "import runpy, time\n"
        f"runpy.run_path({str(DAGS / 'dblog.py')!r})\n"  # what any file of DAGs costs once: Airflow's own imports
        f"began = time.process_time(); runpy.run_path({str(DAGS / 'dblog.py')!r}); print(time.process_time() - began)"
    )
    env = {**os.environ, "AIRFLOW_HOME": str(home), "DBLOG_CONFIG_DIR": str(sources)}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return float(result.stdout.splitlines()[-1])


def _staged_bytes(dblog: Ours) -> int:
    """Bytes."""
    staging = wiring.open_staging(dblog.config)
    return sum(file.bytes for file in staging.storage.files(""))


def _segments(dblog: Ours) -> int:
    return wiring.open_staging(dblog.config).head_number()
