"""TPC-H from end to end: tables of PostgreSQL and MySQL, dumped into Delta, then changed, merged and verified."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from dblog_core.interfaces import Json
from tests.benchmarks import data, tpch
from tests.benchmarks.data import NewDatabase
from tests.benchmarks.ours import Ours
from tests.benchmarks.results import NAMES, OURS, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.test_verify_command import cpu_of_children, verify
from tests.fix_servers import Database

SCALES = {"quick": 0.01, "usual": 0.1, "full": 1.0}
SECTION = "TPC-H"


def fill(database: Database, scale: float) -> int:
    """Makes and fills all tables; how many rows they have."""
    for table in tpch.COLUMNS:
        database.execute(tpch.create(table))
    total = 0
    with data.connect_unsynced(database) as connection, connection.cursor() as cursor:
        for table, rows in tpch.generate(scale):
            total += len(rows)
            for statement in tpch.inserts(table, rows):
                cursor.execute(statement)
    return total


@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("kind", ["mysql", "postgres"], ids="tpch_{}".format)
def test_tpch(kind: str, bench_database: NewDatabase, scale: Scale, results: Results, tmp_path: Path) -> None:
    """The dump of all tables and the merge that makes their lake tables; then every order of one priority is changed,
    and its log is captured and merged. Nothing may differ after either."""
    database = bench_database(kind)
    size = SCALES[scale.name]
    rows = fill(database, size)
    dblog = Ours(database, tmp_path / "ours", lake={"engine": "local"})
    dblog.prepare()
    with dblog.capturing():
        cpu = cpu_of_children()
        began = time.monotonic()
        dumped = dblog.dump(*tpch.COLUMNS)
        merge(dblog)
        seconds = time.monotonic() - began
        cpu = cpu_of_children() - cpu
        assert dumped.rows == rows
        verified = verify(dblog)
        assert verified.rows == rows
    database.execute("UPDATE orders SET o_comment = 'changed' WHERE o_orderpriority = '2-HIGH'")
    database.execute("DELETE FROM lineitem WHERE l_linenumber = 7")
    with dblog.capturing():
        catch_up(dblog)
        merge(dblog)
        assert verify(dblog).rows < rows
    title = f"{NAMES[kind]}: TPC-H at scale {size:g}, {rows:,} rows"
    figures: Json = {
        "rate": (f"{title}, from the request of the dump to the last row in Delta", "rows/s", rows / seconds),
        "cpu": (f"{title}, CPU a row of workers and merge, start included", "µs", cpu / rows * 1e6),
        "verify": (f"{title}, verified", "s", verified.seconds),
    }
    for name, (text, unit, value) in figures.items():
        results.add(Figure(f"tpch_{kind}_{name}", SECTION, text, unit, {OURS: [value]}))


def merge(dblog: Ours) -> None:
    """All that is staged comes into the lake. Raises AssertionError where a table does not."""
    command = [Path(sys.executable).parent / "dblog", "--config", dblog.file, "merge", "--once"]
    ended = subprocess.run(command, env=dblog.env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]


def catch_up(dblog: Ours) -> None:
    """Waits until the running capture has staged all that is committed."""
    command = [Path(sys.executable).parent / "dblog", "--config", dblog.file, "capture", "--until-current"]
    subprocess.run(command, env=dblog.env, stdout=subprocess.DEVNULL, check=True)
