"""A server that crashes while its settings let tables and log come apart: the tables are what counts, by a dump.

InnoDB may write a transaction later than the log has it (`innodb_flush_log_at_trx_commit`), and the log may be written
later than the tables (`sync_binlog`). A machine that loses power shows it; here the server is killed, and the files
that would be older are put back, or cut.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.local.servers.mysql import MysqlServer
from tests.fix_servers import Database, new
from tests.integration.test_lost_log import mend, replay

pytestmark = [pytest.mark.in_turn("form"), pytest.mark.one_of(6)]

LATE_TABLES: dict[str, str | None] = {"innodb_flush_log_at_trx_commit": "2"}
LATE_LOG: dict[str, str | None] = {"sync_binlog": "0"}
SMALL: dict[str, str | None] = {"innodb_redo_log_capacity": "8M"}
NO_GTIDS: dict[str, str | None] = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
FORMS: dict[str, tuple[type[MysqlServer], dict[str, str | None]]] = {
    "mysql": (MysqlServer, SMALL),
    "mysql-files": (MysqlServer, {**SMALL, **NO_GTIDS}),
    "mariadb": (MariadbServer, {"innodb_log_file_size": "4M"}),
}


@pytest.fixture
def options() -> dict[str, str | None]:
    return LATE_TABLES


@pytest.fixture
def shop(form: str, options: dict[str, str | None], server_root: Path) -> Iterator[Database]:
    """A database with an empty table, on a server of its own."""
    server_class, more = FORMS[form]
    server = server_class(server_root / "-".join(["crashing", form, *options]), options={**options, **more})
    server.start()
    try:
        database = new(server, "shop")
        database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(20))")
        yield database
    finally:
        server.kill()


def capture(config: Config) -> None:
    run_capture(config, stop=threading.Event(), until_current=True)


@contextmanager
def tables_losing_what_happens(database: Database) -> Iterator[None]:
    """The server shuts down and runs again before, and crashes after; then only the log has what was done."""
    directory = Path(database.query("SELECT @@datadir")[0][0])
    before = directory.with_name("before")
    database.server.stop()
    shutil.copytree(directory, before, ignore=shutil.ignore_patterns("binlog*"))
    database.server.start()
    yield
    database.server.kill()
    for entry in directory.iterdir():
        if not entry.name.startswith("binlog"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.copytree(before, directory, dirs_exist_ok=True)
    shutil.rmtree(before)
    database.server.start()


def rows_of(database: Database) -> dict[int, str]:
    return dict(database.query("SELECT id, v FROM t"))


def dumps_of(config: Config) -> set[str]:
    state: Any = wiring.open_state(config)
    return {dump.id for dump in dump_store.list_dumps(state)}


@pytest.mark.parametrize("form", FORMS)
def test_what_a_crash_took_from_the_tables_goes_with_a_dump_whether_it_was_read_or_not(
    shop: Database, tmp_path: Path
) -> None:
    config = shop.config(tmp_path)
    undurable = [p for p in wiring.open_source(config.source).check() if "after a crash" in p.what]
    assert [problem.fatal for problem in undurable] == [False] and "= 1" in undurable[0].fix
    capture(config)
    shop.execute("INSERT INTO t VALUES (1, 'kept'), (2, 'kept')")
    mend(config, fresh_start=False, rows={1: "kept", 2: "kept"})
    before = dumps_of(config)
    with tables_losing_what_happens(shop):
        capture(config)
        shop.execute("INSERT INTO t VALUES (3, 'lost')", "DELETE FROM t WHERE id = 1")
        shop.execute("UPDATE t SET v = 'lost' WHERE id = 2")
        capture(config)
        assert replay(config) == {2: "lost", 3: "lost"}
        assert dumps_of(config) == before, "a server that shuts down in order loses nothing"
    assert rows_of(shop) == {1: "kept", 2: "kept"}
    mend(config, fresh_start=False, rows={1: "kept", 2: "kept"})
    after_first = dumps_of(config)
    assert len(after_first - before) == 1
    mend(config, fresh_start=False, rows={1: "kept", 2: "kept"})
    assert dumps_of(config) == after_first, "one crash, one dump"
    with tables_losing_what_happens(shop):
        shop.execute("INSERT INTO t VALUES (4, 'lost')")
    shop.execute("INSERT INTO t VALUES (5, 'kept')")
    mend(config, fresh_start=False, rows={1: "kept", 2: "kept", 5: "kept"})
    assert len(dumps_of(config) - after_first) == 1


@pytest.mark.parametrize("options", [LATE_LOG], ids=["sync_binlog"])
@pytest.mark.parametrize("form", ["mysql-files", "mariadb"])  # by GTIDs MySQL says what its log lacks
def test_what_a_crash_took_from_the_log_comes_with_a_dump(shop: Database, tmp_path: Path) -> None:
    config = shop.config(tmp_path)
    capture(config)
    shop.execute("INSERT INTO t VALUES (1, 'logged')")
    capture(config)
    before = dumps_of(config)
    [*_, (file, size, *_)] = shop.query("SHOW BINARY LOGS")
    shop.execute("INSERT INTO t VALUES (2, 'not logged')", "FLUSH NO_WRITE_TO_BINLOG ENGINE LOGS")
    [data] = shop.query("SELECT @@datadir")[0]
    shop.server.kill()
    os.truncate(Path(data) / file, size)
    shop.server.start()
    assert rows_of(shop) == {1: "logged", 2: "not logged"}
    mend(config, fresh_start=False, rows={1: "logged", 2: "not logged"})
    assert len(dumps_of(config) - before) == 1


@pytest.mark.parametrize("options", [{}], ids=["durable"])
@pytest.mark.parametrize("form", FORMS)
def test_a_crash_of_a_server_that_writes_at_each_commit_costs_no_dump(shop: Database, tmp_path: Path) -> None:
    config = shop.config(tmp_path)
    assert not [p for p in wiring.open_source(config.source).check() if "after a crash" in p.what]
    capture(config)
    shop.execute("INSERT INTO t VALUES (1, 'kept')")
    capture(config)
    before = dumps_of(config)
    shop.server.kill()
    shop.server.start()
    shop.execute("INSERT INTO t VALUES (2, 'kept')")
    capture(config)
    assert replay(config) == rows_of(shop) == {1: "kept", 2: "kept"}
    assert dumps_of(config) == before
