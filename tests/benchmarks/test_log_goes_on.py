"""The log goes on during a dump: pauses between staged log events under a steady workload, with and without one.

Five rounds of each in turn in one run; the medians of the longest pauses are compared. Written to stdout as the lines
of the table in docs/benchmarks.md.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.staging import Staging
from tests.fix_servers import Database
from tests.nemesis.processes import Dblog, kill

ROUNDS = 5
SECONDS = 8.0
ROWS = 200_000
RATE = 100  # transactions a second


class SteadyWriter:
    """One row every 1/RATE s."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> SteadyWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        connection = self._database.connect()
        number = 0
        with connection.cursor() as cursor:
            while not self._stop.wait(1 / RATE):
                number += 1
                cursor.execute("INSERT INTO ticks VALUES (%s)", (number,))
        connection.close()


def fill(database: Database) -> None:
    database.execute(
        "CREATE TABLE ticks (id bigint PRIMARY KEY)", "CREATE TABLE wide (id bigint PRIMARY KEY, note varchar(200))"
    )
    connection = database.connect()
    with connection.cursor() as cursor:
        for start in range(0, ROWS, 2_000):
            rows = ", ".join(f"({i}, 'a note of some length for row {i}')" for i in range(start, start + 2_000))
            cursor.execute(f"INSERT INTO wide VALUES {rows}")
    connection.close()


def longest_pause(staging: Staging, seconds: float) -> float:
    """The longest time between two segments that hold log rows, seconds, watched for `seconds`."""
    begin = staging.head()
    assert begin is not None
    time.sleep(seconds)  # the span of the measurement
    sealed = [m.sealed_at / 1e6 for m in staging.manifests(after=begin.segment) if m.files]
    assert len(sealed) > 2, "the log stands still"
    return max(b - a for a, b in itertools.pairwise(sealed))


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_longest_pause_is_no_longer_with_a_dump_than_without(database: Database, tmp_path: Path) -> None:
    fill(database)
    config = database.config(tmp_path, dump={"chunk_size": 5_000})
    dblog = Dblog(config, tmp_path)
    table = f"{database.schema}.wide"
    try:
        dblog.run("capture", "--until-current")
        capture = dblog.start("capture")
        staging = wiring.open_staging(config)
        quiet = []
        busy = []
        with SteadyWriter(database):
            longest_pause(staging, SECONDS)  # warm
            for _ in range(ROUNDS):
                quiet.append(longest_pause(staging, SECONDS))
                dump = dblog.start("dump", "--table", table, "--rate", "20000", "--wait")
                busy.append(longest_pause(staging, SECONDS))
                assert dump.wait(120) == 0, dblog.output()
        kill(capture)
    finally:
        dblog.close()
    without = statistics.median(quiet)
    during = statistics.median(busy)
    print(f"\n| {database.kind} | {without:.2f} s | {during:.2f} s | {during / without:.2f} |")
    assert during <= without * 1.5
