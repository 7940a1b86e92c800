"""A merge whose shares executors carry, beside one that the driver carries: the CPU of all processes."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import pytest

from dblog_core.config.settings import Config
from dblog_core.lake.carrier_choice import WORTH_ROWS
from dblog_core.lake.spark_submit import run_job
from dblog_core.local.servers.spark_cluster import SparkCluster
from dblog_core.wiring import open_staging
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.test_merge import add_lines
from tests.spark.segments import SegmentBuilder, table

ITEMS = table("items", id=pa.int64(), customer=pa.int64(), price=pa.int64(), name=pa.string(), note=pa.string())
_DRIVER = "the driver's way"
_A_SEGMENT = 500_000
_LOOK_SECONDS = 0.1


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkCluster]:
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    running = SparkCluster(tmp_path / "cluster", memory="2g")
    running.start()
    yield running
    running.kill()


@pytest.mark.timeout(7200)
def test_cpu_of_a_share_by_two_executors(cluster: SparkCluster, tmp_path: Path, scale: Scale, results: Results) -> None:
    """Every row of a table changes, in any order. A cluster of more cores than the driver is what the settings say, so
    that the share is spread; two workers with a core each are there."""
    rows = max(scale.lake_rows, WORTH_ROWS)
    series: dict[str, list[float]] = {OURS: [], _DRIVER: []}
    peaks: list[float] = []
    for who, cores in ((_DRIVER, 1), (OURS, 64)):
        config = _config(cluster, tmp_path / str(cores), cores)
        build = SegmentBuilder(open_staging(config))
        dice = np.random.default_rng(rows)
        for number in range(1 + scale.parallel_rounds):
            keys = dice.permutation(rows) if number else np.arange(rows)
            for first in range(0, rows, _A_SEGMENT):
                add_lines(build, ITEMS, "u" if number else "c", _rows(keys[first : first + _A_SEGMENT], number))
                build.seal()
            cpu, peak = _merge(cluster, config)
            if number:
                series[who].append(cpu / rows * 1e6)
                peaks += [peak] if who == OURS else []
    title = f"merge of {rows:,} changed rows by two executors into a table of as many: CPU of all processes"
    results.add(Figure("spread_cpu", "Lake", title, "µs a row", series, (Bar(1.3, _DRIVER, at_most=True),)))
    title = f"merge of {rows:,} changed rows by two executors: the driver's memory"
    results.add(Figure("spread_memory", "Lake", title, "MB", {OURS: peaks}, (Bar(1000, at_most=True),)))


def _rows(keys: npt.NDArray[np.int64], number: int) -> pa.RecordBatch:
    names = pa.array(np.char.add("name ", (keys % 100_000).astype(str)))
    columns = [keys, keys % 1_000_003, keys * 7 + number, names, pa.repeat(f"change {number}", len(keys))]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=ITEMS.arrow)


def _config(cluster: SparkCluster, directory: Path, cores: int) -> Config:
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return Config.model_validate(
        {
            "source": {"name": "shop", "kind": "postgres", "database": "shop", "tables": ["*.*"]},
            "staging": {"path": str(directory / "staging")},
            "state": {"url": f"sqlite:///{directory / 'state.db'}"},
            "lake": {"path": str(directory / "lake")},
            "spark": {
                "master": cluster.url(),
                "conf": {**loopback, "spark.executor.memory": "1g", "spark.cores.max": str(cores)},
            },
        }
    )


def _merge(cluster: SparkCluster, config: Config) -> tuple[float, float]:
    """Seconds of CPU of a merge in the driver, the workers and what they started; and the driver's peak in MB."""
    before, workers_before = resource.getrusage(resource.RUSAGE_CHILDREN), _cpu_of_workers(cluster)
    messages: list[str] = []
    with _peak_of_driver(cluster) as peaks:
        assert run_job("merge", config, stop=threading.Event(), on_line=messages.append) == 0, messages
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    driver = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return driver + _cpu_of_workers(cluster) - workers_before, max(peaks) / 1e6


@contextmanager
def _peak_of_driver(cluster: SparkCluster) -> Iterator[list[int]]:
    """The resident bytes, at each look, of the driver: its JVM and its Python together."""
    peaks = [0]
    ended = threading.Event()
    before = set(psutil.Process().children(recursive=True))
    workers = [psutil.Process(worker.daemon.pid or 0) for worker in cluster.workers]

    def look() -> None:
        while not ended.wait(_LOOK_SECONDS):
            with suppress(psutil.NoSuchProcess):
                executors = {process for worker in workers for process in worker.children(recursive=True)}
                driver = set(psutil.Process().children(recursive=True)) - before - executors
                peaks.append(sum(process.memory_info().rss for process in driver))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def _cpu_of_workers(cluster: SparkCluster) -> float:
    """Of the workers, and of executors that have ended."""
    times = [psutil.Process(worker.daemon.pid or 0).cpu_times() for worker in cluster.workers]
    return sum(t.user + t.system + t.children_user + t.children_system for t in times)
