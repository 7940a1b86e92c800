"""Tables without a key that are made, renamed and dropped under a capture, or before it reads of them."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.extensions
import pymysql.connections
import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.integration.test_read_only import capturing
from tests.waiting import wait_until

pytestmark = [pytest.mark.in_turn]
TABLES = 25
LOOKS = {True: 10, False: 5}
"""At the catalogue, for each table, by whether the capture runs meanwhile: it is made, renamed and dropped, with rows
under both names."""
OTHER_LOOKS = 60
"""Of a start, and of what a capture looks at from time to time."""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries of the catalogue that captures' users send to the servers."""
    texts: list[str] = []
    query = pymysql.connections.Connection.query
    connect = psycopg2.connect

    def note(user: str, statement: str) -> None:
        if user.startswith("dblog_t_") and ("information_schema" in statement or "pg_class" in statement):
            texts.append(" ".join(statement.split()))

    def noted_query(connection: Any, statement: Any, *arguments: Any, **more: Any) -> Any:
        note(connection.user.decode(), statement if isinstance(statement, str) else statement.decode(errors="replace"))
        return query(connection, statement, *arguments, **more)

    class Noted(psycopg2.extensions.cursor):
        def execute(self, statement: Any, *arguments: Any) -> None:
            note(self.connection.info.user, str(statement))
            super().execute(statement, *arguments)

    monkeypatch.setattr(pymysql.connections.Connection, "query", noted_query)
    monkeypatch.setattr(psycopg2, "connect", lambda *a, **more: connect(*a, **{"cursor_factory": Noted, **more}))
    return texts


def staged_ids(config: Config) -> set[int]:
    table = f"{config.source.tables[0].partition('.')[0]}.u"
    return {
        line["after"]["id"]
        for line in lines(wiring.open_staging(config))
        if line["table"] == table and line["op"] == "c"
    }


@pytest.mark.one_of(2)
def test_a_table_that_gets_a_unique_key_is_dumped(database: Database, tmp_path: Path) -> None:
    """The rows that it had without a key are in no dump."""
    config = database.config(tmp_path)
    full = ["ALTER TABLE u REPLICA IDENTITY FULL"] if database.kind == "postgres" else []
    database.execute("CREATE TABLE u (id int NOT NULL, v varchar(20))", *full, "INSERT INTO u VALUES (1, 'before')")
    table = f"{database.schema}.u"

    def refreshed() -> set[int]:
        every = lines(wiring.open_staging(config))
        return {line["after"]["id"] for line in every if line["table"] == table and line["op"] == "r"}

    with capturing(config):
        database.execute("INSERT INTO u VALUES (2, 'without a key')")
        wait_until(lambda: 2 in staged_ids(config), "the capture reads the log")
        assert refreshed() == set()
        database.execute("ALTER TABLE u ADD UNIQUE (id)", "INSERT INTO u VALUES (3, 'with a key')")
        wait_until(lambda: refreshed() >= {1, 2}, "the table is dumped")


def make_rename_and_drop(database: Database, number: int) -> None:
    """On PostgreSQL every other table shows whole rows, and the rest is refused."""
    shows_rows = database.kind == "postgres" and number % 2
    database.execute(
        f"CREATE TABLE k{number} (v varchar(20))",
        *([f"ALTER TABLE k{number} REPLICA IDENTITY FULL"] if shows_rows else []),
        f"INSERT INTO k{number} VALUES ('old name')",
        f"ALTER TABLE k{number} RENAME TO l{number}",
        f"INSERT INTO l{number} VALUES ('new name')",
        f"DROP TABLE l{number}",
    )


@pytest.mark.one_of(2)
@pytest.mark.parametrize("live", [True, False], ids=["while it runs", "while none runs"])
def test_tables_without_a_key_that_come_and_go_cost_a_capture_few_looks_at_the_catalogue(
    database: Database, tmp_path: Path, looks: list[str], live: bool
) -> None:
    """The log of all other tables waits for each look, so a capture that looks often falls behind."""
    config = database.config(tmp_path)
    database.execute("CREATE TABLE u (id int PRIMARY KEY, v varchar(20))")
    run_capture(config, stop=threading.Event(), until_current=True)
    if not live:
        for number in range(TABLES):
            make_rename_and_drop(database, number)
    looks.clear()
    with capturing(config):
        database.execute("INSERT INTO u VALUES (1, 'first')")
        wait_until(lambda: 1 in staged_ids(config), "the capture reads the log")
        for number in range(TABLES if live else 0):
            make_rename_and_drop(database, number)
        database.execute("INSERT INTO u VALUES (2, 'behind all of them')")
        wait_until(lambda: 2 in staged_ids(config), "the capture has read past the tables")
        asked = list(looks)
    assert 0 < len(asked) <= LOOKS[live] * TABLES + OTHER_LOOKS, (len(asked), Counter(asked).most_common(5))
