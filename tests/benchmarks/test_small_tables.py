"""A dump of a thousand tables of ten rows: what each table costs beside its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.data import NewDatabase
from tests.benchmarks.ours import Ours
from tests.benchmarks.results import NAMES, OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale

TABLES = 1_000
ROWS = 10
SECONDS = 60  # in which all of them are to be dumped


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("store", ["sqlite", "zookeeper"])
@pytest.mark.parametrize("kind", ["mysql", "mariadb", "postgres"], ids="small_tables_{}".format)
def test_many_small_tables(
    kind: str,
    store: str,
    bench_database: NewDatabase,
    scale: Scale,
    results: Results,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    database = bench_database(kind)
    count = TABLES if scale.name != "quick" else TABLES // 5
    rows = ", ".join(f"({n}, 'row {n}', {n})" for n in range(ROWS))
    for number in range(count):
        database.execute(
            f"CREATE TABLE small_{number} (id int PRIMARY KEY, v varchar(40), w int)",
            f"INSERT INTO small_{number} VALUES {rows}",
        )
    # The file is copied with the rest before each run; on ZooKeeper the dumps of earlier runs are over, and stay.
    state = {"state": {"url": request.getfixturevalue("zookeeper_url")}} if store == "zookeeper" else {}
    dblog = Ours(database, tmp_path / "ours", **state)
    dblog.prepare()
    rates = []
    for _ in range(min(scale.rounds, 3)):
        with dblog.capturing():
            dumped = dblog.dump(*(f"small_{number}" for number in range(count)))
        assert dumped.rows == count * ROWS
        rates.append(count / dumped.seconds)
    bar = Bar(TABLES / SECONDS)
    beside = "" if store == "sqlite" else ", state on ZooKeeper"
    title = f"{NAMES[kind]}: dump of {count:,} tables of {ROWS} rows{beside}"
    name = f"small_tables_{kind}" if store == "sqlite" else f"small_tables_{kind}_{store}"
    results.add(Figure(name, "Dump", title, "tables/s", {OURS: rates}, (bar,)))
