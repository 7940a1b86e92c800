"""Where columns are hidden, nothing passes that is not proven to be what was accepted; a person accepts it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture import config_reload
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import filing, work_loop
from dblog_core.dumps.requests import WHOLE, DumpRequest
from dblog_core.errors import RequestError
from dblog_core.monitoring import held_tables
from dblog_core.monitoring.preflight import findings
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.integration.column_migrations import RULED, Migrations
from tests.integration.test_column_rules import MARK, unpack
from tests.integration.test_stopped_tables import stop_reasons
from tests.integration.test_swapped_tables import capturing, copies
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("newcomers"), pytest.mark.in_turn]


@pytest.fixture
def newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue is looked at all the time."""
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.3)


def ruled_config(database: Database, directory: Path, **source: object) -> Config:
    columns = {f"{database.schema}.{table}": {"mask": ["w"]} for table in RULED}
    return database.config(directory, source={"columns": columns, **source})


def find_marks(directory: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Where a value that is to be hidden was written."""
    found = [
        str(file.relative_to(directory))
        for file in sorted(path for path in directory.rglob("*") if path.is_file())
        if MARK.encode() in file.read_bytes() + unpack(file.read_bytes())
    ]
    return found + [record.getMessage() for record in caplog.records if MARK in record.getMessage()]


def accept(config: Config, *tables: str) -> None:
    """As `dblog rules accept` does it."""
    staging = wiring.open_staging(config)
    with closing(wiring.open_state(config)) as state:
        held_tables.accept(config, wiring.open_source(config.source), staging, state, tables)


@contextmanager
def elsewhere(database: Database) -> Iterator[str]:
    """A schema that nobody captures."""
    name = f"{database.name}_h"
    kind = "SCHEMA" if database.kind == "postgres" else "DATABASE"
    database.execute(f"CREATE {kind} {name}")
    try:
        yield name
    finally:
        database.execute(f"DROP {kind} {name}" + (" CASCADE" if database.kind == "postgres" else ""))


def rename(database: Database, old: str, new: str) -> str:
    return f"ALTER TABLE {old} RENAME TO {new}" if database.kind == "postgres" else f"RENAME TABLE {old} TO {new}"


SHAPE = "(id int PRIMARY KEY, v varchar(40), w varchar(40))"


def begin(database: Database, config: Config) -> None:
    database.execute(*(f"CREATE TABLE {table} {SHAPE}" for table in (*RULED, "u")))
    database.execute(*(f"INSERT INTO {table} VALUES (1, 'open', '{MARK}')" for table in RULED))
    run_capture(config, stop=threading.Event(), until_current=True)


def wait_for_row(config: Config, database: Database, key: int) -> None:
    """The log is read up to a row that comes now."""
    database.execute(f"INSERT INTO u VALUES ({key}, 'goes on', '')")

    def is_staged() -> bool:
        staging = wiring.open_staging(config)
        return any(line["table"] == f"{database.schema}.u" and line["key"] == {"id": key} for line in lines(staging))

    wait_until(is_staged, "the other table goes on")


REPLACED = {
    "postgres": (
        "BEGIN; ALTER TABLE people RENAME COLUMN w TO w_old; ALTER TABLE people ADD COLUMN w text; "
        "UPDATE people SET w = 'encrypted'; ALTER TABLE people DROP COLUMN w_old; COMMIT",
        "ALTER TABLE staff RENAME COLUMN w TO w_old",
        "ALTER TABLE staff ADD COLUMN w text",
        f"UPDATE staff SET w = 'encrypted'; INSERT INTO staff (id, v, w_old) VALUES (2, 'open', '{MARK}')",
        "ALTER TABLE staff DROP COLUMN w",
        "ALTER TABLE staff RENAME COLUMN w_old TO w",
    ),
    "mysql": (
        "ALTER TABLE people RENAME COLUMN w TO w_old, ADD COLUMN w VARCHAR(34) COMMENT 'für die Überweisung'",
        f"INSERT INTO people VALUES (2, 'open', '{MARK}', 'x')",
        "/* ticket 7 */ ALTER TABLE staff RENAME COLUMN w TO w_old",
        "ALTER TABLE staff ADD COLUMN w VARCHAR(34)",
        f"INSERT INTO staff VALUES (2, 'open', '{MARK}', 'x')",
    ),
}
"""Ordinary migrations of a sensitive column."""


@pytest.mark.parametrize("is_running", [True, False])
def test_a_hidden_column_that_is_replaced_stays_hidden_until_somebody_accepts_the_table(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_running: bool
) -> None:
    caplog.set_level(logging.DEBUG, "dblog_core")
    config = ruled_config(database, directory := tmp_path / "written")
    begin(database, config)
    statements = REPLACED["postgres" if database.kind == "postgres" else "mysql"]
    if not is_running:
        database.execute(*statements)
    with capturing(config):
        if is_running:
            database.execute(*statements)
        wait_for_row(config, database, 2)
        reason = wait_until(lambda: stop_reasons(config).get("people"), "the table is held")
        assert "is held, since columns of this source are hidden" in reason and "dblog rules accept" in reason
        with pytest.raises(RequestError, match="is held"):
            filing.submit(config, DumpRequest(tables=(f"{database.schema}.people",)), requested_by="a test")
    assert f"{database.schema}.people" in {f.problem.table for f in findings(config) if f.problem.fatal}
    assert find_marks(directory, caplog) == []
    with pytest.raises(RequestError, match=r"u is not held; held are .*people"):
        accept(config, f"{database.schema}.u")

    hidden = {f"{database.schema}.{table}": {"mask": ["w"], "exclude": ["w_old"]} for table in RULED}
    if database.kind == "postgres":
        accept(config, *held_tables.find_held(wiring.open_staging(config)))
    else:
        config = database.config(directory, source={"columns": hidden})
    with capturing(config):
        wait_until(lambda: stop_reasons(config) == {}, "nothing is held")
        wait_for_row(config, database, 3)
        keys = {int(k) for (k,) in database.query("SELECT id FROM people")}
        wait_until(lambda: copies(config).get("people") == dict.fromkeys(keys, "open"), "the table is as its source")
    assert find_marks(directory, caplog) == []


def test_a_table_that_arrives_by_another_name_is_held_over_any_number_of_steps(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Over two names, and through a schema that nobody captures; and while nobody reads the log, with another table
    under the old name."""
    caplog.set_level(logging.DEBUG, "dblog_core")
    config = ruled_config(database, directory := tmp_path / "written")
    begin(database, config)
    with elsewhere(database) as hidden:
        move = (
            (
                f"ALTER TABLE staff SET SCHEMA {hidden}",
                f"ALTER TABLE {hidden}.staff RENAME TO clients",
                f"ALTER TABLE {hidden}.clients SET SCHEMA public",
            )
            if database.kind == "postgres"
            else (
                f"RENAME TABLE staff TO {hidden}.y",
                f"RENAME TABLE {hidden}.y TO {database.schema}.clients",
            )
        )
        with capturing(config):
            database.execute(rename(database, "people", "tmp1"), rename(database, "tmp1", "archive"), *move)
            database.execute(*(f"UPDATE {t} SET w = '{MARK} again'" for t in ("archive", "clients")))
            wait_for_row(config, database, 2)
            wait_until(lambda: {"archive", "clients"} <= stop_reasons(config).keys(), "both are held")
        database.execute(
            rename(database, "archive", "stage"),
            f"CREATE TABLE archive {SHAPE}",
            rename(database, "stage", "members"),
            f"INSERT INTO members VALUES (7, 'open', '{MARK}')",
        )
        with capturing(config):
            wait_for_row(config, database, 3)
            wait_until(lambda: {"members", "clients"} <= stop_reasons(config).keys(), "both are held")
    assert find_marks(directory, caplog) == []
    database.execute("UPDATE clients SET w = 'nothing secret'")
    accept(config, f"{database.schema}.clients")
    with capturing(config):
        wait_until(lambda: copies(config).get("clients"), "the accepted table is dumped")
        assert "members" in stop_reasons(config)
    assert find_marks(directory, caplog) == []


SWAPS = {
    "columns": "ALTER TABLE people DROP COLUMN v, RENAME COLUMN w TO v, ADD COLUMN w VARCHAR(40)",
    "tables": "RENAME TABLE u TO u_old, people TO u",
}
"""After them the same names, types and order stand for hidden values; or another table has them."""


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
@pytest.mark.parametrize("swap", SWAPS)
def test_mysql_rows_that_were_read_after_a_swap_are_never_written(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, swap: str
) -> None:
    """A worker reads while no capture has read the statement: by the last manifest the table is what was accepted."""
    config = ruled_config(database, directory := tmp_path / "written")
    begin(database, config)
    dump_id = filing.submit(config, WHOLE, requested_by="a test")
    database.execute(SWAPS[swap])
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool, closing(wiring.open_state(config)) as state:
        working = pool.submit(work_loop.work, config, stop=stop, dump_id=dump_id, workers=1)
        try:
            wait_until(lambda: state.children("confirmations"), "the worker has read, and asks")
            assert find_marks(directory, caplog) == []
            with capturing(config):
                wait_until(lambda: stop_reasons(config), "the table is held")
                assert isinstance(working.exception(timeout=60), RequestError | None)
        finally:
            stop.set()
    assert find_marks(directory, caplog) == []


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_postgres_rows_of_an_attached_partition_do_not_pass_under_the_name_of_its_root(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ruled_config(database, directory := tmp_path / "written")
    parted = "(id int PRIMARY KEY, v varchar(40), w varchar(40)) PARTITION BY RANGE (id)"
    database.execute(
        f"CREATE TABLE people {parted}",
        "CREATE TABLE p1 PARTITION OF people FOR VALUES FROM (0) TO (100)",
        f"CREATE TABLE archive {parted}",
        "CREATE TABLE a1 PARTITION OF archive FOR VALUES FROM (100) TO (200)",
        f"CREATE TABLE u {SHAPE}",
        f"CREATE TABLE staff {SHAPE}",
        f"INSERT INTO people VALUES (1, 'open', '{MARK}')",
        "INSERT INTO archive VALUES (101, 'open', 'not hidden')",
    )
    run_capture(config, stop=threading.Event(), until_current=True)
    with capturing(config):
        database.execute(
            "BEGIN; ALTER TABLE people DETACH PARTITION p1; "
            "ALTER TABLE archive ATTACH PARTITION p1 FOR VALUES FROM (0) TO (100); "
            "UPDATE archive SET v = 'moved' WHERE id = 1; COMMIT"
        )
        wait_for_row(config, database, 2)
        wait_until(lambda: "archive" in stop_reasons(config), "it is held")
    assert find_marks(directory, caplog) == []
    # One that is made as a partition is nothing strange.
    database.execute("CREATE TABLE p2 PARTITION OF people FOR VALUES FROM (200) TO (300)")
    database.execute(f"INSERT INTO people VALUES (201, 'open', '{MARK}')")
    with capturing(config):
        wait_until(lambda: copies(config).get("people", {}).get(201) == "open", "rows of the new partition pass")
        assert "people" not in stop_reasons(config)
    assert find_marks(directory, caplog) == []


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("is_made_as_partition", [True, False])
@pytest.mark.parametrize("is_running", [True, False])
def test_postgres_a_table_that_was_a_partition_of_one_with_hidden_columns_is_held(
    database: Database,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    is_made_as_partition: bool,
    is_running: bool,
) -> None:
    """While it is one, its rows are hidden under the root's name."""
    config = ruled_config(database, directory := tmp_path / "written")
    bounds = "FOR VALUES FROM (0) TO (100)"
    database.execute(
        f"CREATE TABLE people {SHAPE} PARTITION BY RANGE (id)",
        *(f"CREATE TABLE {table} {SHAPE}" for table in ("u", "staff")),
        f"CREATE TABLE p1 PARTITION OF people {bounds}" if is_made_as_partition else f"CREATE TABLE p1 {SHAPE}",
    )
    run_capture(config, stop=threading.Event(), until_current=True)
    statements = (
        *([] if is_made_as_partition else [f"ALTER TABLE people ATTACH PARTITION p1 {bounds}"]),
        f"INSERT INTO people VALUES (1, 'open', '{MARK}')",
        "ALTER TABLE people DETACH PARTITION p1",
        "UPDATE p1 SET v = 'moved'",
        "ALTER TABLE u ALTER v TYPE varchar(50), ALTER w TYPE varchar(50)",
    )
    if not is_running:
        database.execute(*statements)
    with capturing(config):
        if is_running:
            database.execute(*statements)
        wait_for_row(config, database, 2)
        wait_until(lambda: "p1" in stop_reasons(config), "it is held")
        assert "u" not in stop_reasons(config), "an ordinary table that was altered is not"
    assert find_marks(directory, caplog) == []


PARTED = f"{SHAPE} PARTITION BY RANGE (id)"
LOW = "FOR VALUES FROM (0) TO (100)"
HIGH = "FOR VALUES FROM (100) TO (200)"
BECOMES_KIN = {
    "its root hides": (
        [f"CREATE TABLE people {SHAPE}"],
        ["DROP TABLE people", f"CREATE TABLE people {PARTED}", f"CREATE TABLE p2 PARTITION OF people {HIGH}"],
        "people",
    ),
    "its root has hidden": (
        [f"CREATE TABLE people {SHAPE}"],
        [
            "DROP TABLE people",
            f"CREATE TABLE people {PARTED}",
            "ALTER TABLE people RENAME TO roots",
            f"CREATE TABLE p2 PARTITION OF roots {HIGH}",
        ],
        "roots",
    ),
    "another one hides": (
        [f"CREATE TABLE roots {PARTED}", f"CREATE TABLE people PARTITION OF roots {LOW}"],
        [
            f"CREATE TABLE middle PARTITION OF roots {HIGH} PARTITION BY RANGE (id)",
            f"CREATE TABLE p2 PARTITION OF middle {HIGH}",
        ],
        "roots",
    ),
    "another one is attached": (
        [
            f"CREATE TABLE people {SHAPE}",
            f"CREATE TABLE roots {PARTED}",
            f"CREATE TABLE p2 PARTITION OF roots {HIGH}",
        ],
        [f"ALTER TABLE roots ATTACH PARTITION people {LOW}"],
        "roots",
    ),
}
"""What is made before the capture and during it, and the table by which the rows come."""


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    ("way", "plugin"), [*((way, "wal2json") for way in BECOMES_KIN), ("another one hides", "pgoutput")]
)
def test_postgres_a_partition_under_its_own_name_is_held_where_its_root_or_another_partition_hides_columns(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, plugin: str, way: str
) -> None:
    before, meanwhile, root = BECOMES_KIN[way]
    tables = [f"{database.schema}.{pattern}" for pattern in ("people", "p?", "u", "events?")]
    columns = {f"{database.schema}.people": {"mask": ["w"]}}
    config = database.config(
        directory := tmp_path / "written", source={"columns": columns, "plugin": plugin, "tables": tables}
    )
    database.execute(
        *before,
        f"CREATE TABLE u {SHAPE}",
        f"CREATE TABLE all_events {PARTED}",
        *(f"CREATE TABLE {other} {SHAPE}" for other in ("p0", "events0")),
        "INSERT INTO people VALUES (1, 'open', 'nothing secret')",
    )
    run_capture(config, stop=threading.Event(), until_current=True)
    with capturing(config):
        database.execute(*meanwhile, f"CREATE TABLE events1 PARTITION OF all_events {LOW}")
        for key in range(2, 5):
            database.execute(f"INSERT INTO {root} VALUES (10{key}, 'open', '{MARK}')")
            database.execute(f"INSERT INTO all_events VALUES ({key}, 'open', 'nothing secret')")
            wait_for_row(config, database, key)
        wait_until(lambda: "p2" in stop_reasons(config) or copies(config).get("p2"), "it is held, or passes")
        assert find_marks(directory, caplog) == []
        assert "another partition" in stop_reasons(config)["p2"]
        wait_until(lambda: copies(config).get("events1"), "a partition among tables without rules passes")
        assert "events1" not in stop_reasons(config)
    if root == "people":
        return  # no partition of a table that is wanted can be captured with wal2json
    database.execute(f"UPDATE {root} SET w = 'looked at' WHERE id >= 100")
    accept(config, f"{database.schema}.p2")
    with capturing(config):
        wait_until(lambda: copies(config).get("p2"), "the accepted partition is dumped")
        assert "p2" not in stop_reasons(config)


@pytest.mark.parametrize("way", ["ruled", "renamed before", "dropped after"])
@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_postgres_rows_that_came_by_a_partition_with_hidden_values_stay_hidden(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """While it is one, its rows are logged under the root's name, and the root shows nothing of it once it has gone."""
    config = ruled_config(database, directory := tmp_path / "written")
    database.execute(
        *(f"CREATE TABLE {table} {SHAPE}" for table in ("people", "staff")),
        f"CREATE TABLE roots {SHAPE} PARTITION BY LIST (id)",
        "CREATE TABLE p1 PARTITION OF roots FOR VALUES IN (1, 2)",
        "INSERT INTO roots VALUES (1, 'open', 'open 1')",
    )
    run_capture(config, stop=threading.Event(), until_current=True)
    name = "staff"
    if way == "renamed before":
        name = "kept"
        database.execute("ALTER TABLE staff RENAME TO kept")
        with capturing(config):
            database.execute("INSERT INTO kept VALUES (3, 'open', 'open')")
            wait_until(lambda: name in stop_reasons(config), "it is held")
        database.execute("DELETE FROM kept")
    database.execute(
        f"ALTER TABLE roots ATTACH PARTITION {name} FOR VALUES IN (5)",
        f"INSERT INTO roots VALUES (5, 'open', '{MARK}')",
        f"ALTER TABLE roots DETACH PARTITION {name}",
        *([f"DROP TABLE {name}"] if way == "dropped after" else []),
    )
    with capturing(config):
        database.execute("INSERT INTO roots VALUES (2, 'open', 'open 2')")
        wait_until(lambda: _values(config, "roots") == {1: "open 1", 2: "open 2"}, "the root passes, and is dumped")
    assert "roots" not in stop_reasons(config)
    assert find_marks(directory, caplog) == []


def _values(config: Config, table: str) -> dict[int, Any]:
    """Of each row of the table what it has in `w`, by the super-changelog."""
    rows = [line for line in lines(wiring.open_staging(config)) if line["op"] in "cur"]
    return {row["key"]["id"]: row["after"]["w"] for row in rows if row["table"].endswith(f".{table}")}


@pytest.mark.timeout(900)
def test_random_migrations_bring_no_hidden_value_into_the_open(
    database: Database, tmp_path: Path, soak_seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dblog_core")
    plugin = {"plugin": ("pgoutput", "wal2json")[soak_seed % 2]} if database.kind == "postgres" else {}
    config = ruled_config(database, directory := tmp_path / "written", **plugin)
    with elsewhere(database) as hidden:
        partitions = database.kind == "postgres" and config.source.plugin == "pgoutput"
        migrations = Migrations(database.kind, database.schema, hidden, soak_seed, partitions=partitions)
        database.execute(f"CREATE TABLE u {SHAPE}", *migrations.begin())
        run_capture(config, stop=threading.Event(), until_current=True)
        number = 1
        for _ in range(3):
            if migrations.chance(0.4):  # nobody reads the log meanwhile
                for _ in range(3):
                    database.execute(*migrations.step())
            with capturing(config):
                for _ in range(4):
                    database.execute(*migrations.step())
                    if migrations.chance(0.5):
                        _request_dump(config)
                    if migrations.chance(0.5):
                        number += 1
                        wait_for_row(config, database, number)
                number += 1
                wait_for_row(config, database, number)
    assert find_marks(directory, caplog) == [], "\n".join([f"seed {soak_seed}", *migrations.done])


def _request_dump(config: Config) -> None:
    try:
        filing.submit(config, WHOLE, requested_by="a test")
    except RequestError as error:
        logging.getLogger("dblog_core").info("no dump: %s", error)
