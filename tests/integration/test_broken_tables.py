"""Tables that the server cannot open, or that have nothing to stage: each stops alone, and says why."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pymysql
import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.staging.reader import lines
from dblog_core.state import owed_dumps
from tests.fix_servers import Database
from tests.integration.test_stopped_tables import newcomers, stop_reasons
from tests.integration.test_swapped_tables import capturing, copies, source_rows
from tests.records import read_records
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("newcomers")]
__all__ = ["newcomers"]
both = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
on_postgres = pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
KEYS = {
    "a primary key": "(id int PRIMARY KEY, v varchar(20))",
    "unique keys": "(id int NOT NULL, b int NOT NULL AUTO_INCREMENT, v varchar(20), UNIQUE x (id), UNIQUE y (b))",
}


def stage(config: Config, **more: Any) -> None:
    run_capture(config, stop=threading.Event(), until_current=True, **more)


def keys_of(config: Config, table: str) -> set[int]:
    """The keys of a table's rows, of those that have one."""
    staged = (line for line in lines(wiring.open_staging(config)) if line["table"] == f"public.{table}")
    return {line["key"]["id"] for line in staged if line["op"] in "cur" and line["key"]}


@both
@pytest.mark.parametrize("key", KEYS)
def test_a_table_without_its_tablespace_stops_alone(database: Database, tmp_path: Path, key: str) -> None:
    config = database.config(tmp_path)
    database.execute(f"CREATE TABLE t {KEYS[key]}", "CREATE TABLE u (id int PRIMARY KEY, v varchar(20))")
    stage(config)
    database.execute("INSERT INTO t (id, v) VALUES (1, 'a')", "INSERT INTO u VALUES (1, 'a')")
    stage(config)
    with capturing(config) as wait:
        database.execute("ALTER TABLE t DISCARD TABLESPACE", "INSERT INTO u VALUES (2, 'goes on')")
        wait_until(lambda: 2 in copies(config)["u"], "the other table goes on")
        owed = owed_dumps.read(read_records(config))
        assert "1814" in owed[f"{database.name}.t"].why
    stage(config)  # a start with the table as it is
    with capturing(config) as wait:
        database.execute("DROP TABLE t", f"CREATE TABLE t {KEYS[key]}", "INSERT INTO t (id, v) VALUES (5, 'new')")
        database.execute("INSERT INTO u VALUES (3, 'goes on')")
        wait(source_rows(database, "t", "u"))


@both
def test_a_table_whose_files_are_damaged_stops_alone(database: Database, tmp_path: Path) -> None:
    config = database.config(tmp_path)
    for name in ("t", "u"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(20)) ENGINE = MyISAM")
    stage(config)
    for name in ("t", "u"):
        database.execute(f"INSERT INTO {name} VALUES (1, 'a')")
    stage(config)
    database.execute("FLUSH TABLES")
    folder = Path(database.query("SELECT @@datadir")[0][0])
    (index,) = (folder / database.name).glob("t.MYI")
    index.write_bytes(b"\0" * 100)
    database.execute("FLUSH TABLES")
    with pytest.raises(pymysql.err.MySQLError):
        database.query("SELECT * FROM t WHERE id > 0")
    stage(config)
    database.execute("INSERT INTO u VALUES (2, 'dumped')")
    stage(config, fresh_start=True)
    with capturing(config):
        database.execute("INSERT INTO u VALUES (3, 'goes on')")
        wait_until(lambda: copies(config)["u"] == source_rows(database, "u")["u"], "the other table goes on")
    assert f"{database.name}.t" in owed_dumps.read(read_records(config))


@on_postgres
@pytest.mark.parametrize("plugin", ["pgoutput", "wal2json"])
@pytest.mark.parametrize(
    "begins", ["before the capture", "while it runs", "between two captures", "by its last column"]
)
def test_a_table_without_columns_stops_alone(database: Database, tmp_path: Path, plugin: str, begins: str) -> None:
    config = database.config(tmp_path, source={"tables": ["public.*"], "plugin": plugin})
    if plugin == "wal2json":
        database.execute(f"DROP PUBLICATION dblog_{database.name}")
    empty = ["CREATE TABLE koan ()", "ALTER TABLE koan REPLICA IDENTITY FULL"]
    if begins == "by its last column":
        empty = ["ALTER TABLE koan DROP COLUMN single"]
        database.execute("CREATE TABLE koan (single int)", "ALTER TABLE koan REPLICA IDENTITY FULL")
    rows = ["INSERT INTO koan DEFAULT VALUES", "DELETE FROM koan", "INSERT INTO koan DEFAULT VALUES"]
    database.execute("CREATE TABLE u (id int PRIMARY KEY, v varchar(20))")
    if begins == "before the capture":
        database.execute(*empty, *rows)
    stage(config)
    database.execute("INSERT INTO u VALUES (1, 'a')")
    if begins == "between two captures":
        database.execute(*empty, *rows)
    elif begins == "by its last column":
        database.execute("INSERT INTO koan VALUES (1)")
        stage(config)
        database.execute(*empty, *rows)
    with capturing(config):
        if begins == "while it runs":
            database.execute(*empty, *rows)
        database.execute("INSERT INTO u VALUES (2, 'goes on')")
        wait_until(lambda: keys_of(config, "u") == {1, 2}, "the other table goes on")
        wait_until(lambda: "no column to stage" in stop_reasons(config).get("koan", ""), "the table says why it stops")
    stage(config)
    database.execute("UPDATE u SET v = 'dumped'")
    stage(config, fresh_start=True)
    assert "no column to stage" in stop_reasons(config)["koan"]
    with capturing(config):
        database.execute("ALTER TABLE koan ADD id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, ADD v varchar(20)")
        database.execute("UPDATE koan SET v = 'has columns'", "INSERT INTO u VALUES (3, 'goes on')")
        wait_until(
            lambda: keys_of(config, "koan") == {1} and keys_of(config, "u") == {1, 2, 3} and not stop_reasons(config),
            "the table is captured",
            describe=lambda: (keys_of(config, "koan"), stop_reasons(config)),
        )
