"""A slot that a leader before us still holds is ours at once; anybody else's is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dblog_core.errors import SourceUnavailable
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.local.servers.server import DatabaseServer
from dblog_core.sources.postgres.logical.log import PostgresLog
from dblog_core.sources.postgres.source import PostgresSource
from tests.fix_servers import Database

HOLDERS = "SELECT a.application_name FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid"


@pytest.fixture
def lab(postgres: PostgresServer, new_database: Callable[[DatabaseServer], Database]) -> Database:
    return new_database(postgres)


@pytest.fixture(params=["pgoutput", "wal2json"])
def captures(request: pytest.FixtureRequest, lab: Database, tmp_path: Path) -> list[PostgresSource]:
    """Three captures of one source, which is prepared."""
    lab.execute("CREATE TABLE a (id int PRIMARY KEY)")
    config = lab.config(tmp_path, source={"plugin": request.param}).source
    sources = [PostgresSource(config) for _ in range(3)]
    sources[0].prepare()
    return sources


@pytest.fixture
def held_log(captures: list[PostgresSource]) -> Iterator[PostgresLog]:
    """The log as a leader named `one` reads it: hung, since nobody reads on."""
    captures[0].succeed("one", frozenset())
    log = captures[0].open_log(captures[0].start_position())
    yield log
    log.close()


def test_a_leader_takes_the_slot_of_the_one_before_it(
    captures: list[PostgresSource], held_log: PostgresLog, lab: Database
) -> None:
    second = captures[1]
    second.succeed("two", frozenset({"zero", "one"}))
    log = second.open_log(second.start_position())
    try:
        assert [row[0].split()[1] for row in lab.query(HOLDERS)] == ["two"]
        with pytest.raises(SourceUnavailable):
            read_on(held_log)
    finally:
        log.close()


def read_on(log: PostgresLog) -> None:
    for _ in range(50):
        log.read(0.1)


@pytest.mark.parametrize(
    "before",
    [frozenset(), frozenset({"three"}), frozenset({"on", "dblog!"})],
    ids=["none", "another's", "parts of a name"],
)
def test_nobody_elses_connection_is_ended(
    captures: list[PostgresSource], held_log: PostgresLog, lab: Database, before: frozenset[str]
) -> None:
    other = captures[2]
    other.succeed("two", before)
    with pytest.raises(SourceUnavailable, match="is in use by the server's process") as refused:
        other.open_log(other.start_position())
    assert "another state store" in refused.value.fix
    assert [row[0].split()[1] for row in lab.query(HOLDERS)] == ["one"]
    held_log.read(0.1)
