"""Part of `make test`: rows must stay cheaper than the drivers' own rows, by CPU time, with room for noise.

A driver makes a Python object of every value. So do we as soon as something of the row path falls back to Python, which
then costs several times as much: no noise of a busy machine is as large. CPU time does not tell how fast, but it does
not depend on who else runs either.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pymysql.cursors import SSCursor

from tests.benchmarks import data
from tests.benchmarks.ours import Ours, stop_capture
from tests.fix_servers import Database

ROWS = 100_000
SHARE = {"mysql": 0.5, "mariadb": 0.5, "postgres": 1.0}
"""Of a driver's CPU time a row: PyMySQL is Python, psycopg2 is C. What we need is a third of this or less."""


@pytest.mark.one_of(4)
@pytest.mark.guard
@pytest.mark.in_turn
@pytest.mark.timeout(300)
def test_rows_of_log_and_dump_cost_less_than_those_of_a_driver(
    database: Database, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    data.create(database, data.ORDERS)
    # Small segments: there must be a first and a last one to measure between.
    dblog = Ours(database, tmp_path, staging={"max_bytes": 4 << 20}, dump={"workers": 1})
    dblog.prepare()
    data.fill(database, data.ORDERS, ROWS)
    log = dblog.capture(ROWS).timeline.cpu_per_row()
    with dblog.capturing() as capture:
        dump = dblog.dump(data.ORDERS.name).cpu_per_row
        stop_capture(capture)
    driver = _of_a_driver(database)
    record_property("microseconds a row", {"log": log, "dump": dump, "driver": driver})
    limit = driver * SHARE[database.kind]
    assert log < limit, f"a row of the log costs {log:.1f} µs of CPU, {driver:.1f} through the driver"
    assert dump < limit, f"a row of a dump costs {dump:.1f} µs of CPU, {driver:.1f} through the driver"


def _of_a_driver(database: Database) -> float:
    """Microseconds of CPU time a row, of the same rows as Python objects."""
    connection = database.connect()
    rows = 0
    with connection.cursor() if database.kind == "postgres" else connection.cursor(SSCursor) as cursor:
        began = time.process_time()
        cursor.execute(f"SELECT * FROM {data.ORDERS.name}")
        while some := cursor.fetchmany(10_000):
            rows += len(some)
        spent = time.process_time() - began
    connection.close()
    assert rows == ROWS
    return spent / rows * 1e6
