"""The capture's memory does not follow the size of a transaction."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil
import pytest

from dblog_core import wiring
from tests.fix_servers import Database
from tests.nemesis.processes import Dblog, kill

pytestmark = pytest.mark.one_of(4)

ROWS = 300_000
LIMIT = 500 * 1024 * 1024


def large_transaction(database: Database) -> None:
    """One transaction of `ROWS` rows with texts, made by the server itself."""
    if database.kind == "postgres":
        rows = f"SELECT i, 'customer ' || i, repeat('x', 100), i / 7.0 FROM generate_series(1, {ROWS}) i"
    else:
        digit = "(" + " UNION ".join(f"SELECT {d} d" for d in range(10)) + ")"
        number = "a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d + 100000 * g.d + 1"
        numbers = f"SELECT {number} n FROM {', '.join(f'{digit} {name}' for name in 'abcefg')} WHERE g.d < 3"
        rows = f"SELECT n, CONCAT('customer ', n), REPEAT('x', 100), n / 7 FROM ({numbers}) s"
    database.execute(f"INSERT INTO large {rows}")


def test_one_transaction_of_300000_rows_passes_in_bounded_memory(database: Database, tmp_path: Path) -> None:
    text = "text" if database.kind == "postgres" else "varchar(200)"
    database.execute(f"CREATE TABLE large (id bigint PRIMARY KEY, name {text}, filler {text}, amount decimal(14,4))")
    config = database.config(tmp_path)
    dblog = Dblog(config, tmp_path)
    try:
        dblog.run("capture", "--until-current")
        capture = dblog.start("capture")
        large_transaction(database)
        peak = 0
        staged = 0
        staging = wiring.open_staging(config)
        process = psutil.Process(capture.pid)
        pause = threading.Event()
        while staged < ROWS:
            assert capture.poll() is None, dblog.output()
            peak = max(peak, process.memory_info().rss)
            head = staging.head()
            staged = head.last_offset if head is not None else 0
            pause.wait(0.02)
        kill(capture)
    finally:
        dblog.close()
    print(f"peak {peak / 2**20:.0f} MB")
    assert peak < LIMIT
    assert sum(f.rows for m in staging.manifests() for f in m.files) == ROWS
