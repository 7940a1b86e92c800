"""PostgreSQL when the server is another one: a standby that was promoted with or without what we have read."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.config.source import SourceConfig
from dblog_core.errors import LogPositionLost, SourceUnavailable
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.sources.postgres.position import Point
from dblog_core.sources.postgres.source import PostgresSource
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.reader import lines as log_lines
from tests.fix_servers import Database, new, newest_programs, standby_of
from tests.integration.postgres_source.log_rows import lines, read_to
from tests.integration.test_read_only import capturing
from tests.waiting import PATIENCE_SECONDS, wait_until


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
    while not promoted.has_reached(promoted.current_position(), ahead):
        other.execute("SELECT pg_switch_wal()", "CREATE TABLE IF NOT EXISTS filler AS SELECT 1 AS a")
    other.execute("INSERT INTO t VALUES (3)")
    with pytest.raises(LogPositionLost, match="on timeline 1, and the server is on timeline 2") as raised:
        promoted.open_log(ahead)
    assert "--fresh-start" in raised.value.fix
    chunk = read(promoted, shared, promoted.current_position())
    assert ids(chunk) == [3]
    other.execute("INSERT INTO t VALUES (4)")
    assert ids(read(promoted, chunk[-1].position, promoted.current_position())) == [4]
    second.stop()
    first.start()  # the old primary, from which nobody has kept us
    while not source.has_reached(source.current_position(), chunk[-1].position):
        lab.execute("SELECT pg_switch_wal()", "CREATE TABLE IF NOT EXISTS filler AS SELECT 1 AS a")
    with pytest.raises(LogPositionLost, match="on timeline 2, and the server is on timeline 1"):
        source.open_log(chunk[-1].position)


def test_a_server_that_was_put_back_on_its_own_timeline_is_refused(first: PostgresServer, tmp_path: Path) -> None:
    """A snapshot of its disk was started without a recovery, and has grown past our position since."""
    shop = new(first, "bank")
    shop.execute("CREATE TABLE t (id serial PRIMARY KEY)")
    config = shop.config(tmp_path)
    before = _stage_witness(config, shop, other_than="")
    first.stop()
    subprocess.run(["cp", "-a", first._data, tmp_path / "snapshot"], check=True)
    first.start()
    _stage_witness(config, shop, other_than=before)
    position = _head(config).position
    first.stop()
    subprocess.run(["rm", "-r", first._data], check=True)
    subprocess.run(["cp", "-a", tmp_path / "snapshot", first._data], check=True)
    first.start()
    source = PostgresSource(config.source)
    while not source.has_reached(source.current_position(), position):
        shop.execute("SELECT pg_switch_wal()", "CREATE TABLE IF NOT EXISTS filler AS SELECT 1 AS a")
    shop.execute("INSERT INTO t DEFAULT VALUES")
    with pytest.raises(LogPositionLost, match="put back to an older state") as raised:
        run_capture(config, stop=threading.Event(), until_current=True)
    assert "--fresh-start" in raised.value.fix
    shop.execute(f"SELECT pg_drop_replication_slot('{config.source.slot}')")
    run_capture(config, stop=threading.Event(), until_current=True, fresh_start=True)
    _stage_witness(config, shop, other_than="")


def test_a_watermark_table_without_our_number_counts_where_it_is_the_same_one(
    first: PostgresServer, tmp_path: Path
) -> None:
    shop = new(first, "books")
    shop.execute("CREATE TABLE t (id serial PRIMARY KEY)")
    config = shop.config(tmp_path)
    table = config.source.watermark_table
    witness = ""
    for emptied in (f"TRUNCATE {table}", f"VACUUM FULL {table}", f"DROP TABLE {table}"):
        witness = _stage_witness(config, shop, other_than=witness)
        shop.execute(emptied)
    _stage_witness(config, shop, other_than=witness)
    shop.execute(f"DELETE FROM {table}")
    with pytest.raises(LogPositionLost, match="put back to an older state") as raised:
        run_capture(config, stop=threading.Event(), until_current=True)
    assert raised.value.fix.endswith(f"TRUNCATE {table}")
    shop.execute(f"TRUNCATE {table}")
    run_capture(config, stop=threading.Event(), until_current=True)


def _stage_witness(config: Config, shop: Database, *, other_than: str) -> str:
    """Captures until a manifest names another witness, which it returns."""
    with capturing(config):

        def is_staged() -> bool:
            shop.execute("INSERT INTO t DEFAULT VALUES")
            return _head(config).witness not in ("", other_than)

        wait_until(is_staged, "a witness is staged")
    return _head(config).witness


def _head(config: Config) -> Manifest:
    head = wiring.open_staging(config).head()
    assert head is not None
    return head


@pytest.fixture
def synchronized_pair(server_root: Path) -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary that lets no capture be ahead of its standby, and the standby, which keeps its failover slots."""
    programs = newest_programs()
    primary = PostgresServer(server_root / "failover-primary", programs=programs)
    standby = standby_of(primary, server_root / "failover-standby", programs=programs)
    primary.options = {"synchronized_standby_slots": standby.slot}
    standby.options = {**standby.options, "sync_replication_slots": "on"}
    primary.start()
    try:
        standby.start()
        yield primary, standby
    finally:
        standby.kill()
        primary.kill()


@pytest.mark.one_of(4)
@pytest.mark.in_turn
def test_a_capture_goes_on_from_the_slot_that_the_promoted_standby_has_kept(
    synchronized_pair: tuple[PostgresServer, PostgresServer], tmp_path: Path
) -> None:
    """The primary is killed under writes; nothing that the standby has is lost, and nothing comes twice."""
    primary, standby = synchronized_pair
    shop = new(primary, "shop")
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)")
    config = shop.config(tmp_path)
    slot = config.source.slot
    committed = list[int]()
    with capturing(config):
        stop = threading.Event()
        writer = threading.Thread(target=_write, args=(shop, committed, stop))
        writer.start()
        try:
            wait_until(lambda: len(committed) > 50, "50 transactions")
            slot_query = f"SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = '{slot}'"
            wait_until(lambda: _rows(standby, slot_query) == [(True,)], "the standby keeps the slot")
            with pytest.raises(SourceUnavailable, match="cannot be read before this standby is promoted"):
                at(config.source, standby).prepare()
            committed_count = len(committed)
            wait_until(lambda: len(committed) > committed_count + 50, "50 more transactions")
        finally:
            primary.kill()
            stop.set()
            writer.join(timeout=PATIENCE_SECONDS)
    standby.promote()
    after = replace(shop, server=standby)
    after.execute("INSERT INTO t VALUES (-1)")
    moved = config.model_copy(update={"source": config.source.model_copy(update={"port": standby.port})})
    with capturing(moved):
        wait_until(lambda: -1 in _staged_ids(moved), "the new primary's log is read")
    staged = _staged_ids(moved)
    assert sorted(staged) == sorted(number for (number,) in after.query("SELECT id FROM t")), "each once, all of them"
    assert [n for n in staged if n >= 0] == sorted(n for n in staged if n >= 0), "in their order"
    head = wiring.open_staging(moved).head()
    assert head is not None and Point.parse(head.position).timeline == 2


def _write(database: Database, committed: list[int], stop: threading.Event) -> None:
    """Transactions of one row, until the server is gone."""
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        for number in range(1 << 30):
            if stop.wait(0.01):
                return
            try:
                cursor.execute(f"INSERT INTO t VALUES ({number})")
            except psycopg2.Error:
                return  # killed: what it has committed and sent counts
            committed.append(number)


def _rows(server: PostgresServer, query: str) -> list[Any]:
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def _staged_ids(config: Config) -> list[int]:
    """Ids in the order in which they were staged."""
    return [line["key"]["id"] for line in log_lines(wiring.open_staging(config)) if line["op"] == "c"]
