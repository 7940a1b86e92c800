"""`dblog verify --all --repair` of small tables as users run it, under writers at full speed: how long it takes to find
and mend damaged rows, beside a continuous merge and without any."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblog_core.lake.lake_status import table_location
from dblog_core.local.servers.daemon import wait_until
from dblog_core.model.schema import TableName
from dblog_core.wiring import open_lake, open_staging
from tests.benchmarks import data
from tests.benchmarks.data import NewDatabase
from tests.benchmarks.ours import Ours
from tests.benchmarks.results import NAMES, OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.test_lake import Merges
from tests.benchmarks.test_verify_command import verify
from tests.benchmarks.writers import FIRST, Writers

SECTION = "Verify"
TABLES = tuple(data.ORDERS.with_name(f"orders_{n:02d}") for n in range(14))
ROWS = 2_000
CHANGED, REMOVED, ADDED = 1, 2, -3  # keys that are damaged in each table, in these ways
HOT = range(10, ROWS + 1)
ROUNDS = 3
BACKLOG_SECONDS = 20.0
"""Of writes that are staged before the command begins."""
LIMIT_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Repaired:
    """One run of the command: its seconds, the staged rows that its last answers have folded, and the transactions and
    the staged rows of that time."""

    seconds: float
    folded: int
    transactions: int
    staged: int


def repair(dblog: Ours, writers: Writers) -> Repaired:
    """Raises AssertionError where the command finds or leaves anything but the damage."""
    command = [Path(sys.executable).parent / "dblog", "--config", dblog.file, "--json", "verify", "--all", "--repair"]
    transactions = writers.count
    staged = newest_offset(dblog)
    began = time.monotonic()
    ended = subprocess.run(command, env=dblog.env, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)
    seconds = time.monotonic() - began
    said = ended.stdout[-2000:] + ended.stderr[-4000:]
    assert ended.returncode == 0, said
    report = json.loads(ended.stdout)
    assert report["equal"] and len(report["tables"]) == len(TABLES), said
    for table in report["tables"]:
        mended = table["repaired"]
        assert (mended["missing"], mended["extra"]) == ([REMOVED], [ADDED]), mended
        assert [row["key"] for row in mended["different"]] == [CHANGED], mended
    folded = sum(table["staged"] for table in report["tables"])
    return Repaired(seconds, folded, writers.count - transactions, newest_offset(dblog) - staged)


def newest_offset(dblog: Ours) -> int:
    head = open_staging(dblog.config).head()
    assert head is not None
    return head.last_offset


def damage(dblog: Ours, schema: str, spark: SparkSession) -> None:
    """By somebody else's commits, as far as the merge can tell, while nobody merges."""
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.commitInfo.userMetadata", "theirs")
    lake = open_lake(dblog.config)
    for table in TABLES:
        location = table_location(lake, TableName(schema, table.name))
        delta = f"delta.`{location}`"
        session.sql(f"UPDATE {delta} SET city = 'nowhere' WHERE id = {CHANGED}")
        session.sql(f"DELETE FROM {delta} WHERE id = {REMOVED}")
        columns = ", ".join(name for name in session.table(delta).columns if name != "id")
        session.sql(f"INSERT INTO {delta} (id, {columns}) SELECT {ADDED}, {columns} FROM {delta} WHERE id = {-ADDED}")


@contextmanager
def load(dblog: Ours, writers: Writers, *, merging: bool) -> Iterator[None]:
    """Writers at full speed, and a continuous merge where that is wished, once it has ended its first round."""
    with ExitStack() as running:
        merges = running.enter_context(Merges(dblog.file, dblog.env)) if merging else None
        running.enter_context(writers)
        if merges is not None:
            wait_until(lambda: merges.offset() > 0, timeout=180, what="the first merge")
        writers.measure(BACKLOG_SECONDS)
        yield


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("merging", [True, False], ids=["merging", "alone"])
@pytest.mark.parametrize("kind", ["postgres"], ids="verify_repair_{}".format)
def test_repair_small_tables_under_writers_at_full_speed(
    kind: str,
    merging: bool,
    bench_database: NewDatabase,
    spark: SparkSession,
    scale: Scale,
    results: Results,
    tmp_path: Path,
) -> None:
    """Each round damages three rows of every table, the command mends exactly those, and the tables are equal once the
    writers have ended."""
    database = bench_database(kind)
    data.create(database, *TABLES)
    for table in TABLES:
        data.fill(database, table, ROWS)
    dblog = Ours(database, tmp_path / "ours")
    dblog.prepare()
    runs = []
    with dblog.capturing():
        dblog.dump(*(table.name for table in TABLES))
        dblog.merge()
        for number in range(ROUNDS):
            damage(dblog, database.schema, spark)
            writers = Writers(database, *TABLES, rate=None, first=FIRST * (number + 1), hot=HOT)
            with load(dblog, writers, merging=merging):
                runs.append(repair(dblog, writers))
            print(f"\nround {number}: {runs[-1]}")
            dblog.merge()
            verify(dblog)
    beside = "beside `merge --continuous`" if merging else "which merges by itself"
    title = f"{NAMES[kind]}: `dblog verify --all --repair` of {len(TABLES)} tables of {ROWS:,} rows and more"
    title = f"{title}, writers at full speed, {beside}"
    name = f"verify_repair_{kind}{'' if merging else '_alone'}"
    seconds = {OURS: [run.seconds for run in runs]}
    results.add(Figure(name, SECTION, title, "s", seconds, (Bar(120, at_most=True),)))
