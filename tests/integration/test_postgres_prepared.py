"""PostgreSQL's two-phase commit: prepared rows count from COMMIT PREPARED's place in the log, in log and dump alike."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceRefused, SourceUnavailable
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.sources.postgres.source import PostgresSource
from dblog_core.sources.postgres.sql import slots
from tests.fix_servers import Database, new
from tests.integration.postgres_source.log_rows import lines, read_to


@pytest.fixture(scope="module")
def server(server_root: Path) -> Iterator[PostgresServer]:
    """A server of its own: it is restarted, and has a setting that others have not."""
    server = PostgresServer(server_root / "postgres-prepared", options={"max_prepared_transactions": "10"})
    server.start()
    yield server
    server.kill()


@pytest.fixture
def lab(server: PostgresServer) -> Database:
    lab = new(server, f"t_{secrets.token_hex(4)}")
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return lab


@pytest.fixture(params=["pgoutput", "wal2json"])
def config(request: pytest.FixtureRequest, lab: Database, tmp_path: Path) -> SourceConfig:
    return lab.config(tmp_path).source.model_copy(update={"plugin": request.param})


@pytest.fixture
def source(config: SourceConfig) -> PostgresSource:
    return PostgresSource(config)


def prepare(lab: Database, name: str, *statements: str) -> None:
    """Ids are the server's own, over all databases."""
    connection = lab.connect()
    with connection.cursor() as cursor:
        for statement in ("BEGIN", *statements, f"PREPARE TRANSACTION '{lab.name} {name}'"):
            cursor.execute(statement)
    connection.close()


def finish(lab: Database, how: str, name: str) -> None:
    lab.execute(f"{how} PREPARED '{lab.name} {name}'")


def read(source: PostgresSource, position: str) -> list[Any]:
    target = source.current_position()
    log = source.open_log(position)
    try:
        return read_to(source, log, target)
    finally:
        log.close()


def ids(batches: list[Any]) -> list[int]:
    return [line["after"]["id"] for line in lines(batches)]


@pytest.mark.one_of(2)
@pytest.mark.parametrize("memory", ["64kB", "64MB"], ids=["streamed", "kept"])
def test_prepared_rows_stand_where_they_are_committed_whatever_restarts_between(
    lab: Database, source: PostgresSource, memory: str
) -> None:
    lab.execute(f"ALTER ROLE \"{lab.account.user}\" SET logical_decoding_work_mem = '{memory}'")
    source.prepare()
    start = source.start_position()
    prepare(lab, "kept", "INSERT INTO t SELECT i, repeat('x', 50) FROM generate_series(100, 2099) i")
    prepare(lab, "dropped", "INSERT INTO t VALUES (7, 'never')")
    lab.execute("INSERT INTO t VALUES (1, 'before')")
    before = read(source, start)
    assert ids(before) == [1]
    lab.server.stop()
    lab.server.start()
    lab.execute("INSERT INTO t VALUES (2, 'between')")
    finish(lab, "ROLLBACK", "dropped")
    finish(lab, "COMMIT", "kept")
    lab.execute("INSERT INTO t VALUES (3, 'after')")
    expected = [2, *range(100, 2100), 3]
    assert ids(read(source, before[-1].position)) == expected
    assert ids(read(source, start)) == [1, *expected]


@pytest.mark.in_turn("config")
def test_a_chunk_does_not_show_prepared_rows_and_its_snapshot_says_so(lab: Database, source: PostgresSource) -> None:
    """So the rows' events, whose place is COMMIT PREPARED's, count as unseen by it."""
    lab.execute("INSERT INTO t VALUES (1, 'old')")
    source.prepare()
    start = source.start_position()
    prepare(lab, "one", "UPDATE t SET v = 'new'")
    reader = source.open_reader()
    chunk = reader.read(source.tables()[0], after=None, upto=None, limit=5)
    reader.close()
    horizon = source.horizon()
    finish(lab, "COMMIT", "one")
    (line,) = lines(read(source, start))
    assert chunk.rows.to_pylist() == [{"id": 1, "v": "old"}] and line["after"]["v"] == "new"
    for snapshot in (str(chunk.snapshot), horizon):
        _, xmax, running = snapshot.split(":")
        assert line["xid"] >= int(xmax) or str(line["xid"]) in running.split(","), (line["xid"], snapshot)


@pytest.mark.in_turn("config")
def test_a_slot_that_waits_for_a_prepared_transaction_says_how_to_find_it(
    lab: Database, source: PostgresSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(lab, "forgotten", "INSERT INTO t VALUES (1, 'x')")
    with monkeypatch.context() as impatient:
        impatient.setattr(slots, "_CREATION_LIMIT", "1s")
        with pytest.raises(SourceUnavailable, match="older run still") as raised:
            source.prepare()
    assert "pg_prepared_xacts" in raised.value.fix
    finish(lab, "ROLLBACK", "forgotten")
    source.prepare()


@pytest.mark.in_turn("config")
def test_a_slot_that_somebody_made_for_two_phases_is_refused_with_a_way_on(
    lab: Database, source: PostgresSource, config: SourceConfig
) -> None:
    source.prepare()
    lab.execute(f"SELECT pg_drop_replication_slot('{config.slot}')")
    lab.execute(f"SELECT pg_create_logical_replication_slot('{config.slot}', '{config.plugin}', false, true)")
    with pytest.raises(SourceRefused, match="two_phase") as raised:
        source.prepare()
    assert "pg_drop_replication_slot" in raised.value.fix
    assert [problem for problem in source.check() if problem.fatal and "two_phase" in problem.what]
