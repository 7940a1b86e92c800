"""A table comes, goes and comes back on real servers under a workload, without a restart of the capture."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture import config_reload
from dblog_core.capture.config_reload import ConfigFile
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.staging.reader import lines
from dblog_core.state import settings_in_force
from tests.fix_servers import Database
from tests.records import read_records
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.one_of(4)


class Watched:
    """A running capture whose file lists the tables to capture, one a line."""

    def __init__(self, database: Database, path: Path) -> None:
        self.database, self.base, self.file = database, database.config(path), path / "tables"
        self.write("a")

    def write(self, *names: str) -> None:
        self.file.write_text("\n".join(f"{self.database.schema}.{name}" for name in names))

    def load(self, file: Path) -> Config:
        source = self.base.source.model_copy(update={"tables": tuple(file.read_text().split())})
        return self.base.model_copy(update={"source": source})

    @property
    def config(self) -> Config:
        return self.load(self.file)

    @contextmanager
    def capturing(self) -> Iterator[None]:
        stop, file = threading.Event(), ConfigFile(self.file, self.load)
        thread = threading.Thread(target=run_capture, args=(self.config,), kwargs={"stop": stop, "file": file})
        thread.start()
        try:
            yield
        finally:  # a thread that goes on would keep the whole run from ending
            stop.set()
            thread.join(timeout=PATIENCE_SECONDS)
        assert not thread.is_alive()

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [x for x in lines(wiring.open_staging(self.base)) if x["table"] == f"{self.database.schema}.{name}"]

    def replay(self, name: str) -> list[tuple[int, str]]:
        """What a keyed consumer ends with."""
        rows: dict[int, str] = {}
        seen: dict[int, int] = {}
        for line in self.lines(name):
            if line["op"] in "cudr":
                key = line["key"]["id"]
                seen[key] = line["offset"]
                rows.pop(key, None)
                if line["op"] != "d":
                    rows[key] = line["after"]["v"]
            if line["op"] == "f":
                rows = {k: v for k, v in rows.items() if seen[k] > line["since"]}
        return sorted(rows.items())

    def source_rows(self, name: str) -> list[tuple[int, str]]:
        return sorted((int(k), str(v)) for k, v in self.database.query(f"SELECT id, v FROM {name}"))

    def in_force(self, *names: str) -> bool:
        settings_in_force_now = settings_in_force.read_in_force(read_records(self.base))
        return settings_in_force_now is not None and settings_in_force_now.tables == [
            f"{self.database.schema}.{name}" for name in names
        ]

    def has_dumped(self, count: int) -> bool:
        with contextlib.closing(wiring.open_state(self.base)) as state:
            return [d.state for d in dump_store.list_dumps(state)] == ["done"] * count

    def leader(self) -> Any:
        with contextlib.closing(wiring.open_state(self.base)) as state:
            return state.leader("capture")


@contextmanager
def workload(database: Database) -> Iterator[None]:
    """Inserts, updates and deletes in both tables, some in one transaction, some rolled back."""
    over, chance = threading.Event(), random.Random(7)

    def write() -> None:
        connection = database.connect()
        connection.autocommit(False) if database.kind != "postgres" else setattr(connection, "autocommit", False)
        with contextlib.closing(connection), connection.cursor() as cursor:
            number = 1000
            while not over.wait(0.01):
                for name in chance.choice((["a"], ["b"], ["a", "b"])):
                    number += 1
                    cursor.execute(f"INSERT INTO {name} VALUES (%s, %s)", (number, f"n{number}"))
                    key = chance.randrange(1, 200)
                    cursor.execute(f"UPDATE {name} SET v = %s WHERE id = %s", (f"u{number}", key))
                    cursor.execute(f"DELETE FROM {name} WHERE id = %s", (chance.randrange(1, number),))
                connection.rollback() if chance.random() < 0.1 else connection.commit()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=PATIENCE_SECONDS)
    assert not thread.is_alive()


@pytest.fixture
def tables(database: Database) -> Database:
    for name in ("a", "b"):
        database.execute(
            f"CREATE TABLE {name} (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(50))",
            f"INSERT INTO {name} VALUES " + ", ".join(f"({n}, 'old {n}')" for n in range(1, 200)),
        )
    return database


def test_every_row_is_right_of_a_table_that_comes_goes_and_comes_back(tables: Database, tmp_path: Path) -> None:
    watched = Watched(tables, tmp_path)
    with watched.capturing():
        wait_until(lambda: watched.in_force("a"), "the capture uses the first file")
        with workload(tables):
            wait_until(lambda: len(watched.lines("a")) > 20, "more than 20 lines of a are staged")
            leader = watched.leader()
            watched.write("a", "b*")
            wait_until(
                lambda: watched.has_dumped(1) and any(x["op"] == "u" for x in watched.lines("b")),
                "the dump of b is done, and b is written",
            )
            watched.write("a")
            wait_until(lambda: watched.in_force("a"), "the capture uses the file without b")
            ended, count = len(watched.lines("b")), len(watched.lines("a"))
            wait_until(lambda: len(watched.lines("a")) > count + 20, "20 more lines of a are staged")
            assert len(watched.lines("b")) == ended, "its log goes on"
            watched.write("a", "b")
            wait_until(lambda: watched.has_dumped(2), "the second dump of b is done")
        for name in ("a", "b"):
            tables.execute(f"INSERT INTO {name} VALUES (0, 'last')")
            wait_until(
                lambda name=name: [x for x in watched.lines(name) if x["key"] == {"id": 0}],
                "the last row of the table is staged",
            )  # type: ignore[misc]
        assert watched.leader() == leader, "the lease was given up"
    assert watched.replay("b") == watched.source_rows("b")
    changed = dict(watched.replay("a"))
    rows = dict(watched.source_rows("a"))
    assert {key: rows.get(key) for key in changed} == changed, "the first capture began at the log's end"
    deleted = {x["key"]["id"] for x in watched.lines("a") if x["op"] == "d"}
    created = {x["key"]["id"] for x in watched.lines("a") if x["op"] == "c"}
    assert {key for key in rows if key >= 1000} == {key for key in created - deleted if key >= 1000}


def test_a_publication_that_may_not_be_changed_is_waited_for(
    postgres: PostgresServer,
    new_database: Callable[[PostgresServer], Database],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(config_reload, "AGAIN", 0.5)
    database = new_database(postgres)
    publication = f"dblog_{database.name}"
    database.execute(
        "CREATE TABLE a (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(50))",
        "CREATE TABLE b (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(50))",
        "INSERT INTO b VALUES (1, 'old')",
        "CREATE TABLE IF NOT EXISTS dblog_watermark (worker text PRIMARY KEY, payload text NOT NULL)",
        f"GRANT SELECT, INSERT, UPDATE ON dblog_watermark TO {database.account.user}",
        f"DROP PUBLICATION {publication}",
        f"CREATE PUBLICATION {publication} FOR TABLE a, dblog_watermark",
    )
    watched = Watched(database, tmp_path)
    with watched.capturing():
        wait_until(lambda: watched.in_force("a"), "the capture uses the first file")
        watched.write("a", "b")
        (message,) = wait_until(
            lambda: [r.getMessage() for r in caplog.records if "not in force" in r.getMessage()],
            "the refused file is logged",
        )
        statement = message[message.index("ALTER PUBLICATION") :].splitlines()[0]
        database.execute("INSERT INTO a VALUES (1, 'goes on')")
        wait_until(lambda: watched.lines("a"), "a is captured")
        database.execute(statement)
        wait_until(lambda: watched.has_dumped(1), "the dump of b is done")
        database.execute("INSERT INTO b VALUES (2, 'live')")
        wait_until(lambda: watched.replay("b") == [(1, "old"), (2, "live")], "b is the source")


def test_a_table_that_is_made_under_a_pattern_is_captured_and_its_first_rows_are_dumped(
    postgres: PostgresServer,
    new_database: Callable[[PostgresServer], Database],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PostgreSQL's publication names tables: what is written before a new one is in it is in no log of ours."""
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.5)
    database = new_database(postgres)
    database.execute("CREATE TABLE a (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(50))")
    watched = Watched(database, tmp_path)
    watched.write("*")
    with watched.capturing():
        wait_until(lambda: watched.in_force("*"), "the capture uses the pattern")
        leader = watched.leader()
        database.execute(
            "CREATE TABLE b (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(50))", "INSERT INTO b VALUES (1, 'unseen')"
        )
        wait_until(lambda: watched.has_dumped(1), "the dump of b is done")
        database.execute("INSERT INTO b VALUES (2, 'live')")
        wait_until(lambda: watched.replay("b") == [(1, "unseen"), (2, "live")], "b is the source")
        assert watched.leader() == leader
    database.execute("CREATE TABLE c (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(50))", "INSERT INTO c VALUES (1, 'x')")
    with watched.capturing():
        wait_until(lambda: watched.replay("c") == [(1, "x")], "c is the source")
