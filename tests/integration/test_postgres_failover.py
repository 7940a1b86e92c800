"""PostgreSQL when the server is another one: a standby that was promoted with or without what we have read."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dblog_core.config import SourceConfig
from dblog_core.errors import LogPositionLost
from dblog_core.local.postgres import PostgresServer
from dblog_core.sources.postgres.source import PostgresSource
from tests.fix_servers import Database, new
from tests.integration.test_postgres_source import lines, read_to


@pytest.fixture
def first(server_root: Path) -> Iterator[PostgresServer]:
    server = PostgresServer(server_root / "postgres-first")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def second(server_root: Path) -> Iterator[PostgresServer]:
    """Not started, and without data."""
    server = PostgresServer(server_root / "postgres-second")
    yield server
    server.kill()


def become_standby(copy: PostgresServer, of: PostgresServer) -> None:
    """Gives `copy` the data of a stopped server, its slots too, as a standby that has all of its log."""
    subprocess.run(["cp", "-a", of._dir, copy._dir], check=True)
    for name in ("port", "pid"):
        (copy._dir / name).unlink(missing_ok=True)
    (copy._data / "standby.signal").touch()


def promote(server: PostgresServer) -> None:
    server.start()
    server.execute("SELECT pg_promote()")


def read(source: PostgresSource, position: str, target: str) -> list[Any]:
    log = source.open_log(position)
    try:
        return read_to(source, log, target)
    finally:
        log.close()


def ids(batches: list[Any]) -> list[int]:
    return [line["after"]["id"] for line in lines(batches)]


def at(config: SourceConfig, server: PostgresServer) -> PostgresSource:
    return PostgresSource(config.model_copy(update={"port": server.port}))


@pytest.mark.timeout(120)
def test_a_promoted_standby_goes_on_if_it_has_all_that_we_have_read_and_is_refused_otherwise(
    first: PostgresServer, second: PostgresServer, tmp_path: Path
) -> None:
    """Also once its own log has grown past our position, over a slot that came with it."""
    lab = new(first, "shop")
    lab.execute("CREATE TABLE t (id int PRIMARY KEY)")
    config = lab.config(tmp_path).source
    source = PostgresSource(config)
    source.prepare()
    lab.execute("INSERT INTO t VALUES (1)")
    shared = read(source, source.start_position(), source.current_position())[-1].position
    first.stop()
    become_standby(second, first)
    first.start()
    lab.execute("INSERT INTO t VALUES (2)")
    ahead = read(source, shared, source.current_position())[-1].position
    first.stop()
    promote(second)
    other = Database(second, lab.name, lab.account)
    promoted = at(config, second)
    while not promoted.reached(promoted.current_position(), ahead):
        other.execute("SELECT pg_switch_wal()", "CREATE TABLE IF NOT EXISTS filler AS SELECT 1 AS a")
    other.execute("INSERT INTO t VALUES (3)")
    with pytest.raises(LogPositionLost, match="on timeline 1, and the server is on timeline 2") as raised:
        promoted.open_log(ahead)
    assert "--fresh-start" in raised.value.fix
    found = read(promoted, shared, promoted.current_position())
    assert ids(found) == [3]
    other.execute("INSERT INTO t VALUES (4)")
    assert ids(read(promoted, found[-1].position, promoted.current_position())) == [4]
    second.stop()
    first.start()  # the old primary, from which nobody has kept us
    while not source.reached(source.current_position(), found[-1].position):
        lab.execute("SELECT pg_switch_wal()", "CREATE TABLE IF NOT EXISTS filler AS SELECT 1 AS a")
    with pytest.raises(LogPositionLost, match="on timeline 2, and the server is on timeline 1"):
        source.open_log(found[-1].position)
