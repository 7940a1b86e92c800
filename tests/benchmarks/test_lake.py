"""The lake: from a commit to its row in Delta."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import orjson
import psutil
import pytest

from dblog_core.lake.lake_status import table_location
from dblog_core.local.servers import guard
from dblog_core.local.servers.daemon import wait_until
from dblog_core.model.schema import TableName
from dblog_core.storage.location import Location
from dblog_core.wiring import open_lake
from tests.benchmarks import data
from tests.benchmarks.data import NewDatabase
from tests.benchmarks.followers import Follower, latencies, percentile
from tests.benchmarks.ours import Ours
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.writers import Writers

RATE = 500  # transactions a second
TABLES = tuple(data.ORDERS.with_name(f"orders_{n}") for n in range(10))


@dataclass(frozen=True, slots=True)
class Ended:
    """A merge that has ended: when (monotonic seconds) it said so, its number, up to which offset, and the tables that
    lack some of it."""

    at: float
    number: int
    offset: int
    late: frozenset[str]


class Merges:
    """`dblog merge --continuous` while entered: when which offset was in the lake."""

    def __init__(self, file: Path, env: dict[str, str]) -> None:
        """`file`: the configuration, with `env` for its secrets."""
        command = [Path(sys.executable).parent / "dblog", "--config", file, "merge", "--continuous", "--json"]
        self._process = subprocess.Popen(
            command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        guard.watch(self._process.pid, psutil.Process(self._process.pid).create_time())
        self._thread = threading.Thread(target=self._read)
        self.ended: list[Ended] = []

    def __enter__(self) -> Merges:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._thread.join()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        """The process that has started all others of it."""
        return self._process.pid

    def offset(self) -> int:
        """The offset up to which all tables have everything."""
        assert self._process.poll() is None, "the merge has ended"
        return next((ended.offset for ended in reversed(self.ended) if not ended.late), 0)

    def arrival_times(self, keys: dict[str, dict[int, int]], lake: Location) -> dict[int, float]:
        """When any reader of Delta could see the keys of these tables. `keys`: by table each key's offset."""
        times = {}
        for table, offsets in keys.items():
            commits = read_commit_times(Path(str(table_location(lake, TableName.parse(table)))))
            merges = iter([ended for ended in self.ended if table not in ended.late])
            ended = next(merges, None)
            for key, offset in sorted(offsets.items(), key=lambda item: item[1]):
                while ended is not None and ended.offset < offset:
                    ended = next(merges, None)
                if ended is None:
                    break
                # A share that came in late was committed under the number of an earlier merge.
                times[key] = commits.get(ended.number, ended.at)
        return times

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            merged = orjson.loads(line)
            self.ended.append(Ended(time.monotonic(), merged["number"], merged["offset"], frozenset(merged["late"])))


def read_commit_times(table: Path) -> dict[int, float]:
    """By the number of the merge, when (monotonic seconds) its commit became a version of a Delta table."""
    began = time.time() - time.monotonic()
    times = {}
    for path in (table / "_delta_log").glob("*.json"):
        for line in path.read_bytes().splitlines():
            if (transaction := orjson.loads(line).get("txn")) is not None:
                # The time of the file's name: the bytes were written before it.
                times[transaction["version"]] = path.stat().st_ctime - began
    return times


@pytest.mark.timeout(2400)
def test_commit_to_delta(bench_database: NewDatabase, scale: Scale, results: Results, tmp_path: Path) -> None:
    """The first and the last minute of a steady load: vectors, logs and small files grow all the time."""
    database = bench_database("mysql")
    data.create(database, *TABLES)
    dblog = Ours(database, tmp_path / "ours")
    dblog.prepare()
    minute = min(60.0, scale.lake_seconds / 3)
    with dblog.capturing(), Follower(dblog.file, dblog.env) as follower, Merges(dblog.file, dblog.env) as merges:
        with Writers(database, *TABLES, rate=RATE) as load:
            wait_until(lambda: merges.offset() > 0, timeout=180, what="the first merge")
            load.measure(minute)  # warm
            began = time.monotonic()
            load.measure(scale.lake_seconds)
            ended = time.monotonic()
        follower.wait(load.committed)
        last = max(follower.offsets.values())
        wait_until(lambda: merges.offset() >= last, timeout=180, what="the last merge")
    keys: dict[str, dict[int, int]] = {}
    for key, offset in follower.offsets.items():
        keys.setdefault(f"{database.schema}.{load.table_of(key).name}", {})[key] = offset
    arrivals = merges.arrival_times(keys, open_lake(dblog.config))
    title = f"commit to a row in Delta, `merge --continuous`, {RATE} transactions a second, {len(TABLES)} tables"
    spans = {"first minute": (began, began + minute), f"last of {scale.lake_seconds:.0f} s": (ended - minute, ended)}
    for number, (name, (since, until)) in enumerate(spans.items()):
        values = latencies(load.committed, arrivals, since=since, until=until)
        for q, bar in ((50, 1), (99, 3)):
            figure = [percentile(values, q) / 1000]
            full_title = f"{title}, {name}, p{q}"
            bars = (Bar(bar, at_most=True),)
            results.add(Figure(f"delta_latency_{number}_{q}", "Lake", full_title, "s", {OURS: figure}, bars))
