"""From a commit to its line in `dblog log --follow`, at 500 transactions a second; and the files that this leaves."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dblog_core.local.servers.daemon import wait_until
from tests.benchmarks import data
from tests.benchmarks.data import NewDatabase
from tests.benchmarks.followers import Follower, latencies, percentile
from tests.benchmarks.ours import Ours
from tests.benchmarks.results import NAMES, OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.writers import Writers

RATE = 500  # transactions a second
BARS = {"normal": (150, 400), "low": (30, 100)}  # ms: median, 99th percentile
# seconds
HOUR = 3_600
DAY = 86_400
FILES_A_DAY = 20_000


@pytest.mark.timeout(9000)
@pytest.mark.parametrize(
    ("latency", "kind"), [(setting, kind) for setting in ("normal", "low") for kind in ("mysql", "mariadb", "postgres")]
)
def test_latency(
    latency: str, kind: str, bench_database: NewDatabase, scale: Scale, results: Results, tmp_path: Path
) -> None:
    database = bench_database(kind)
    data.create(database, data.ORDERS)
    dblog = Ours(database, tmp_path / "ours", staging={"latency": latency})
    dblog.prepare()
    medians = []
    worst = []
    seconds = scale.seconds / scale.rounds
    with dblog.capturing(), Follower(dblog.file, dblog.env) as follower:
        with Writers(database, data.ORDERS, rate=RATE) as load:
            wait_until(lambda: bool(follower.seen), timeout=60, what="the first line")
            load.measure(seconds)  # warm
            spans = []
            for _ in range(scale.rounds):
                began = time.monotonic()
                assert load.measure(seconds) > RATE * 0.9, "the source cannot keep up: nothing is measured"
                spans.append((began, time.monotonic()))
        follower.wait(load.committed)
    for since, until in spans:
        latencies_seen = latencies(load.committed, follower.seen, since=since, until=until)
        medians.append(percentile(latencies_seen, 50))
        worst.append(percentile(latencies_seen, 99))
    name = f"{NAMES[kind]}: commit to a line of `log --follow`, {RATE} transactions a second"
    setting = "default settings" if latency == "normal" else 'latency = "low"'
    for which, rounds, bar in zip(("p50", "p99"), (medians, worst), BARS[latency], strict=True):
        bars = (Bar(bar, at_most=True),)
        title = f"{name}, {setting}, {which}"
        results.add(Figure(f"latency_{latency}_{which}_{kind}", "Latency", title, "ms", {OURS: rounds}, bars))


@pytest.mark.full
@pytest.mark.timeout(9000)
def test_files_of_a_day(bench_database: NewDatabase, results: Results, tmp_path: Path) -> None:
    """An hour of that load: files that its second half has added, times what makes a day.

    The first half fills what stands at any time: joined files are kept for some minutes, and steps are open.
    """
    database = bench_database("mysql")
    data.create(database, data.ORDERS)
    dblog = Ours(database, tmp_path / "ours")
    dblog.prepare()
    staging = Path(dblog.config.staging.path)
    half = HOUR / 2
    with dblog.capturing() as capture, Writers(database, data.ORDERS, rate=RATE) as load:
        load.measure(half)
        before = _files(staging)
        load.measure(half)
        added = _files(staging) - before
        memory = capture.process.memory_info().rss / 1e6
    title = f"files left by a day of {RATE} transactions a second (computed from {half:.0f} s)"
    bar = Bar(FILES_A_DAY, at_most=True)
    results.add(Figure("files_a_day", "Latency", title, "files", {OURS: [added * DAY / half]}, (bar,)))
    title = f"memory of the capture after an hour of {RATE} transactions a second"
    results.add(Figure("memory_steady", "Memory", title, "MB", {OURS: [memory]}, (Bar(400, at_most=True),)))


def _files(staging: Path) -> int:
    return sum(1 for path in staging.rglob("*") if path.is_file())
