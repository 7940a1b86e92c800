"""`dblog verify` as users run it, from the start of its process to its answer: a large table, and five under writes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.benchmarks import data
from tests.benchmarks.data import NewDatabase
from tests.benchmarks.ours import Ours
from tests.benchmarks.results import NAMES, OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.writers import Writers

SECTION = "Verify"
TABLES = tuple(data.ORDERS.with_name(f"orders_{n}") for n in range(5))
RATE = 200  # transactions a second while the five tables are compared


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the command: its rows, its seconds, and the CPU seconds of it and of all that it started."""

    rows: int
    seconds: float
    cpu: float


def verify(dblog: Ours) -> Run:
    """Compares all tables. Raises AssertionError where any differs."""
    command = [Path(sys.executable).parent / "dblog", "--config", dblog.file, "--json", "verify", "--all"]
    before = cpu_of_children()
    began = time.monotonic()
    ended = subprocess.run(command, env=dblog.env, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    report = json.loads(ended.stdout)
    assert report["equal"]
    return Run(sum(table["rows"] for table in report["tables"]), seconds, cpu_of_children() - before)


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_verify_large_table(
    kind: str, bench_database: NewDatabase, scale: Scale, results: Results, tmp_path: Path
) -> None:
    database = bench_database(kind)
    data.create(database, data.ORDERS)
    data.fill(database, data.ORDERS, scale.rows)
    dblog = Ours(database, tmp_path / "ours", dump={"chunk_size": 10_000})
    dblog.prepare()
    with dblog.capturing():
        dblog.dump(data.ORDERS.name)
        dblog.merge()
        runs = [verify(dblog) for _ in range(scale.rounds)]
    assert {run.rows for run in runs} == {scale.rows}
    title = f"{NAMES[kind]}: `dblog verify` of {scale.rows:,} equal rows"
    seconds = {OURS: [run.seconds for run in runs]}
    cpu = {OURS: [run.cpu / run.rows * 1e6 for run in runs]}
    bars = (Bar(20, at_most=True),) if scale.rows == 1_000_000 else ()
    results.add(Figure(f"verify_command_{kind}", SECTION, f"{title}, start included", "s", seconds, bars))
    results.add(Figure(f"verify_cpu_{kind}", SECTION, f"{title}, CPU a row, start included", "µs", cpu))


@pytest.mark.timeout(3600)
def test_verify_five_tables_under_writes(
    bench_database: NewDatabase, scale: Scale, results: Results, tmp_path: Path
) -> None:
    """What is written meanwhile is staged, and merged by nobody."""
    rows = 235_000 if scale.name != "quick" else 25_000
    database = bench_database("mysql")
    data.create(database, *TABLES)
    for table in TABLES:
        data.fill(database, table, rows // len(TABLES))
    dblog = Ours(database, tmp_path / "ours", dump={"chunk_size": 10_000})
    dblog.prepare()
    with dblog.capturing():
        dblog.dump(*(table.name for table in TABLES))
        dblog.merge()
        with Writers(database, *TABLES, rate=RATE):
            runs = [verify(dblog) for _ in range(scale.rounds)]
    assert min(run.rows for run in runs) >= rows
    title = f"MySQL: `dblog verify` of {rows:,} rows in five tables, {RATE} transactions a second"
    seconds = {OURS: [run.seconds for run in runs]}
    bars = (Bar(25, at_most=True),) if rows == 235_000 else ()
    results.add(Figure("verify_five_tables", SECTION, f"{title}, start included", "s", seconds, bars))
