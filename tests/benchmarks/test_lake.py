"""The lake: from a commit to its row in Delta."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import orjson
import psutil
import pytest

from dblog_core.local.servers import guard
from dblog_core.local.servers.daemon import wait_until
from tests.benchmarks import data
from tests.benchmarks.data import NewDatabase
from tests.benchmarks.followers import Follower, latencies, percentile
from tests.benchmarks.ours import Ours
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.writers import Writers

RATE = 500  # transactions a second
TABLES = tuple(data.ORDERS.with_name(f"orders_{n}") for n in range(10))


class Merges:
    """`dblog merge --continuous` while entered: when (monotonic seconds) which offset was in the lake."""

    def __init__(self, dblog: Ours) -> None:
        command = [Path(sys.executable).parent / "dblog", "--config", dblog.file, "merge", "--continuous", "--json"]
        self._process = subprocess.Popen(
            command, env={**os.environ, **dblog.env}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
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

    def arrival_times(self, offsets: dict[int, int]) -> dict[int, float]:
        """When the keys of these offsets were in the lake, for those that are."""
        figures = {}
        ended = iter(self.ended)
        at, upto = next(ended)
        for key, offset in sorted(offsets.items(), key=lambda item: item[1]):
            while upto < offset:
                at, upto = next(ended, (0.0, sys.maxsize))
            if not at:
                break
            figures[key] = at
        return figures

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.ended.append((time.monotonic(), orjson.loads(line)["offset"]))


@pytest.mark.timeout(1800)
def test_commit_to_delta(bench_database: NewDatabase, scale: Scale, results: Results, tmp_path: Path) -> None:
    database = bench_database("mysql")
    data.create(database, *TABLES)
    dblog = Ours(database, tmp_path / "ours")
    dblog.prepare()
    seconds = scale.seconds
    medians = []
    with dblog.capturing(), Follower(dblog.file, dblog.env) as follower, Merges(dblog) as merges:
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
    seen = merges.arrival_times(follower.offsets)
    for since, until in spans:
        medians.append(percentile(latencies(load.committed, seen, since=since, until=until), 50) / 1000)
    title = f"commit to a row in Delta, `merge --continuous`, {RATE} transactions a second, {len(TABLES)} tables, p50"
    results.add(Figure("delta_latency", "Lake", title, "s", {OURS: medians}, (Bar(8, at_most=True),)))
