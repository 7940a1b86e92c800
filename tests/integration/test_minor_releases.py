"""What stands in for releases of servers that are not at hand: the same server, said to be such a release."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import pymysql
import pytest

from dblog_core import wiring
from dblog_core.errors import ServerNotSafe, SourceUnavailable
from dblog_core.model.schema import TableName
from dblog_core.sources import minor_releases
from dblog_core.sources.mysql.sql import connection as mysql
from dblog_core.sources.mysql.sql import xa_visibility
from dblog_core.sources.postgres.sql import connection as postgres
from dblog_core.sources.postgres.sql import publication
from dblog_core.sources.postgres.sql.replica_identity import usable
from tests.fix_servers import Database
from tests.integration.mysql_xa.conftest import ids
from tests.integration.mysql_xa.transactions import Ids

__all__ = ["ids"]

only_mysql = pytest.mark.parametrize("source_kind", ["mysql"], indirect=True)
only_postgres = pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)


@pytest.fixture
def old_mysql(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pymysql.connections.Connection, "get_server_info", lambda _: "8.0.29")


@only_mysql
@pytest.mark.usefixtures("old_mysql")
def test_a_chunk_of_an_old_mysql_waits_for_a_session_that_commits_xa(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: Ids
) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v int)", "INSERT INTO a VALUES (1, 1)")
    database.server.execute(f"GRANT PROCESS ON *.* TO '{database.account.user}'@'{database.server.host}'")
    monkeypatch.setattr(xa_visibility, "_PATIENCE", 1.0)
    source = wiring.open_source(database.config(tmp_path).source)
    with closing(source.open_reader()) as reader:
        schema = reader.schema(TableName(database.schema, "a"))

        def count() -> int:
            return reader.read(schema, after=None, upto=None, limit=9).rows.num_rows

        assert count() == 1
        ids.prepare("one", "INSERT INTO a VALUES (2, 2)")
        assert count() == 1, "a transaction that is only prepared keeps nobody waiting"
        busy = threading.Thread(target=database.query, args=("SELECT 'XA COMMIT', SLEEP(3)",))
        busy.start()
        try:
            time.sleep(0.3)
            with pytest.raises(SourceUnavailable, match="have been committing XA transactions"):
                count()
        finally:
            busy.join()
        ids.commit("one")
        assert count() == 2


@only_mysql
@pytest.mark.usefixtures("old_mysql")
def test_an_old_mysql_is_not_read_where_xa_transactions_cannot_be_seen(
    database: Database, tmp_path: Path, ids: Ids
) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v int)")
    source = wiring.open_source(database.config(tmp_path).source)
    problems = [problem.what for problem in source.check()]
    assert any("PROCESS is missing" in what for what in problems), "check names the grant"
    ids.prepare("one", "INSERT INTO a VALUES (2, 2)")
    who = f"'{database.account.user}'@'{database.server.host}'"
    try:
        with closing(source.open_reader()) as reader:
            schema = reader.schema(TableName(database.schema, "a"))
            with pytest.raises(ServerNotSafe, match="PROCESS is missing"):
                reader.read(schema, after=None, upto=None, limit=9)
        database.server.execute(f"REVOKE XA_RECOVER_ADMIN ON *.* FROM {who}")
        with closing(source.open_reader()) as reader, pytest.raises(ServerNotSafe, match="XA_RECOVER_ADMIN is missing"):
            reader.read(schema, after=None, upto=None, limit=9)
    finally:
        ids.rollback("one")


@only_mysql
def test_check_reads_the_release_from_the_server(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = wiring.open_source(database.config(tmp_path).source)
    monkeypatch.setattr(minor_releases, "parse", lambda text: (8, 0, 29))
    with closing(mysql.connect(database.config(tmp_path).source)) as session:
        assert xa_visibility.may_commit_late(session, database.config(tmp_path).source)
    told = [(p.what, p.fix, p.fatal) for p in source.check() if p.what.startswith("MySQL 8.0.29: ")]
    assert [(fix, fatal) for _, fix, fatal in told] == [("update the server to 8.0.30 or later", False)] * 2


@only_postgres
def test_an_old_postgres_adds_a_table_only_once_its_writers_have_ended(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE b1 PARTITION OF b FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')",
    )
    config = database.owner_config(tmp_path).source

    def add() -> set[str]:
        with closing(postgres.connect(config)) as session:
            return set(map(str, publication.ensure_publication(session, config, usable(session, config))))

    assert wiring.open_source(config).prepare() == frozenset()
    database.execute("ALTER PUBLICATION own DROP TABLE a, b")
    with closing(database.connect()) as writer, writer.cursor() as cursor:
        cursor.execute("BEGIN; INSERT INTO a VALUES (1); INSERT INTO b1 VALUES (1, '2026-02-02')")
        assert add() == set(), "newer releases take in writers by themselves"
        database.execute("ALTER PUBLICATION own DROP TABLE a, b")
        monkeypatch.setattr(minor_releases, "of_postgres", lambda number: (15, 12))
        assert add() == {"public.a", "public.b"}
        cursor.execute("COMMIT")
    assert add() == set()
    assert {
        name for (name,) in database.query("SELECT tablename FROM pg_publication_tables WHERE pubname = 'own'")
    } >= {
        "a",
        "b",
    }
    # What an administrator gets to run is one transaction too.
    database.execute("ALTER PUBLICATION own DROP TABLE a, b")
    problems = wiring.open_source(config.model_copy(update={"read_only": True})).check()
    statements = [p.fix for p in problems if "publication own is missing or incomplete" in p.what]
    assert len(statements) == 1
    assert statements[0].startswith("BEGIN; LOCK TABLE ") and statements[0].endswith("; COMMIT")
    database.execute(statements[0])
    assert any(p.what.startswith("PostgreSQL 15.12: ") for p in problems)


def test_check_names_the_timeout_that_ends_a_slot(new_database, newest_postgres, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    database: Database = new_database(newest_postgres)
    source = wiring.open_source(database.config(tmp_path).source)

    def find() -> list[tuple[str, bool]]:
        return [(p.what, p.fatal) for p in source.check() if "idle_replication_slot_timeout" in p.what]

    assert find() == []
    database.execute("ALTER SYSTEM SET idle_replication_slot_timeout = '2d'", "SELECT pg_reload_conf()")
    try:
        deadline = time.monotonic() + 20
        while not find() and time.monotonic() < deadline:
            time.sleep(0.1)
        ((what, fatal),) = find()
        assert "2d" in what and not fatal
    finally:
        database.execute("ALTER SYSTEM RESET idle_replication_slot_timeout", "SELECT pg_reload_conf()")
