"""Foreign keys that change rows of another table: who cannot know of it says so, for exactly the tables concerned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import work_loop
from dblog_core.dumps.filing import submit
from dblog_core.dumps.requests import DumpRequest
from dblog_core.local.packages import trees
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.staging.reader import lines
from tests.fix_servers import Database

NewDatabase = Callable[[MysqlServer], Database]


def children(database: Database) -> None:
    parent = "FOREIGN KEY (parent) REFERENCES parents"
    database.execute(
        "CREATE TABLE parents (id int PRIMARY KEY, code int UNIQUE)",
        f"CREATE TABLE gone (id int PRIMARY KEY, parent int, CONSTRAINT `a ``key` {parent} (id) ON DELETE CASCADE)",
        f"CREATE TABLE nulled (id int PRIMARY KEY, parent int, {parent} (code) ON DELETE SET NULL ON UPDATE CASCADE)",
        f"CREATE TABLE kept (id int PRIMARY KEY, parent int, {parent} (id) ON DELETE RESTRICT ON UPDATE NO ACTION,"
        " note varchar(80) DEFAULT 'CONSTRAINT `x` FOREIGN KEY ON DELETE CASCADE')",
        "INSERT INTO parents VALUES (1, 10), (2, 20), (3, 30)",
        "INSERT INTO gone VALUES (1, 1), (2, 2)",
        "INSERT INTO nulled VALUES (1, 10), (2, 20)",
        "INSERT INTO kept (id, parent) VALUES (3, 3)",
    )


@pytest.fixture
def native(server_root: Path) -> Iterator[MysqlServer]:
    # Older versions have no other way, and no such option.
    options = {"innodb_native_foreign_keys": "ON"} if MysqlServer.package is trees.MYSQL else {}
    server = MysqlServer(server_root / "native-keys", options=options)
    server.start()
    yield server
    server.kill()


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_who_does_not_log_them_is_warned_of(database: Database, tmp_path: Path) -> None:
    logged = database.kind == "mysql" and MysqlServer.package is trees.MYSQL
    warned_exactly_where_the_log_has_less(database, tmp_path, logged=logged)


def test_mysql_that_leaves_them_to_its_engine_is_warned_of(
    native: MysqlServer, new_database: NewDatabase, tmp_path: Path
) -> None:
    warned_exactly_where_the_log_has_less(new_database(native), tmp_path, logged=False)


def warned_exactly_where_the_log_has_less(database: Database, root: Path, *, logged: bool) -> None:
    config = database.config(root)
    children(database)
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute("DELETE FROM parents WHERE id = 1", "UPDATE parents SET code = 21 WHERE id = 2")
    run_capture(config, stop=threading.Event(), until_current=True)
    changed = {(line["table"].partition(".")[2], line["op"]) for line in lines(wiring.open_staging(config))}
    expected = {("gone", "d"), ("nulled", "u")} if logged else set()
    assert changed & {("gone", "d"), ("nulled", "u")} == expected
    warnings = [p for p in wiring.open_source(config.source).check() if "foreign key" in p.what]
    problems_by_table = {
        "gone": "ON DELETE CASCADE of the foreign key a `key",
        "nulled": "ON DELETE SET NULL and ON UPDATE CASCADE of the foreign key nulled_ibfk_1",
    }
    assert [p.what.partition(" changes is not")[0] for p in warnings] == (
        [] if logged else [f"{database.name}.{table}: what {actions}" for table, actions in problems_by_table.items()]
    )
    assert not any(p.fatal for p in warnings)
    if not logged:
        assert _dump_values(config, database) == {1: None, 2: 21}, "a dump brings what the log lacks"


def _dump_values(config: Config, database: Database) -> dict[int, object]:
    stop = threading.Event()
    capture = threading.Thread(target=run_capture, args=(config,), kwargs={"stop": stop})
    capture.start()
    try:
        dump_id = submit(config, DumpRequest(tables=(f"{database.name}.nulled",)))
        work_loop.work(config, stop=threading.Event(), once=True, dump_id=dump_id)
        assert work_loop.wait(config, dump_id, stop=threading.Event()).state == "done"
    finally:
        stop.set()
        capture.join()
    return {
        line["after"]["id"]: line["after"]["parent"]
        for line in lines(wiring.open_staging(config))
        if line["table"] == f"{database.name}.nulled" and line["op"] == "r"
    }
