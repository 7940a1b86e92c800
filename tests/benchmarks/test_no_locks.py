"""Writers do not wait for a dump: their commit latency with and without one, alternating in one run.

Writers update rows of the very table that is dumped. Written to stdout as the lines of the table in docs/benchmarks.md.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.fix_servers import Database
from tests.nemesis.processes import Dblog, kill

ROUNDS = 5
SECONDS = 6.0
ROWS = 200_000
RATE = 100  # transactions a second


class Writer:
    """Updates one random row every 1/RATE s, and keeps how long each commit took."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.latencies: list[float] = []

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        connection = self._database.connect()
        draw = random.Random(1)
        with connection.cursor() as cursor:
            while not self._stop.wait(1 / RATE):
                began = time.perf_counter()
                cursor.execute("UPDATE wide SET n = n + 1 WHERE id = %s", (draw.randrange(ROWS),))
                self.latencies.append(time.perf_counter() - began)
        connection.close()

    def measure(self) -> tuple[float, float, float]:
        """Median, 99th percentile and the longest of the next `SECONDS`, in milliseconds."""
        start = len(self.latencies)
        time.sleep(SECONDS)  # the span of the measurement
        latencies_ms = np.array(self.latencies[start:]) * 1000
        assert len(latencies_ms) > RATE, "the writer stands still"
        return float(np.percentile(latencies_ms, 50)), float(np.percentile(latencies_ms, 99)), float(latencies_ms.max())


def fill(database: Database) -> None:
    database.execute("CREATE TABLE wide (id int PRIMARY KEY, n int NOT NULL, note varchar(200))")
    connection = database.connect()
    with connection.cursor() as cursor:
        for start in range(0, ROWS, 2_000):
            rows = ", ".join(f"({i}, 0, 'a note of some length for row {i}')" for i in range(start, start + 2_000))
            cursor.execute(f"INSERT INTO wide VALUES {rows}")
    connection.close()


@pytest.mark.full
@pytest.mark.timeout(600)
def test_commits_take_no_longer_with_a_dump_than_without(database: Database, tmp_path: Path) -> None:
    fill(database)
    dblog = Dblog(database.config(tmp_path, dump={"chunk_size": 5_000}), tmp_path)
    quiet = []
    busy = []
    try:
        dblog.run("capture", "--until-current")
        capture = dblog.start("capture")
        with Writer(database) as writer:
            writer.measure()  # warm
            for _ in range(ROUNDS):
                quiet.append(writer.measure())
                dump = dblog.start("dump", "--table", f"{database.schema}.wide", "--rate", "20000", "--wait")
                busy.append(writer.measure())
                assert dump.wait(120) == 0, dblog.output()
        kill(capture)
    finally:
        dblog.close()
    without, during = ([statistics.median(c) for c in zip(*rounds, strict=True)] for rounds in (quiet, busy))
    longest = max(c for *_, c in busy)
    cells = [f"{a:.1f} / {b:.1f} ms" for a, b in ((without[0], without[1]), (during[0], during[1]))]
    print(f"\n| {database.kind} | {cells[0]} | {cells[1]} | {during[0] / without[0]:.2f} | {longest:.0f} ms |")
    # A dump costs processor time, which two processors share with everybody; a lock would cost whole chunks.
    assert during[0] <= without[0] * 3
    assert longest < 1_000
