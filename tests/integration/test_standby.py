"""Hot standbys of PostgreSQL as sources: their log is decoded there, chunks are read there, the primary is written."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store, filing, work_loop
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import LogPositionLost, SourceRefused, SourceUnavailable
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.model.schema import TableName
from dblog_core.sources.postgres.position import Lsn, Point
from dblog_core.sources.postgres.sql import standby as standby_module
from dblog_core.verify import source_reader
from tests.fix_servers import Database, drop, new, newest_programs, standby_of
from tests.integration.standbys import (
    capturing_standby,
    caught_up,
    fill_quiet,
    scans_of,
    source_rows,
    standing_by,
    telling,
    writing,
)
from tests.integration.test_read_only import CHUNK, ROWS, SECONDS, capturing, config_of, rows_of, run_dump
from tests.integration.verify_shop import Plainly
from tests.read_only import forget, reader_of
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.in_turn]


QUIET = "public.quiet"


@pytest.fixture(scope="module")
def newest_standby(newest_postgres: PostgresServer, server_root: Path) -> Iterator[PostgresServer]:
    standby = standby_of(newest_postgres, server_root / "newest-standby", programs=newest_programs())
    yield from standing_by(standby, newest_postgres)


@pytest.fixture
def primary(newest_postgres: PostgresServer) -> Iterator[Database]:
    """A database with a table of ROWS rows."""
    database = new(newest_postgres, f"t_standby_{time.monotonic_ns() % 10**9}")
    fill_quiet(database)
    yield database
    drop(database)


@pytest.fixture
def standby(primary: Database, newest_standby: PostgresServer) -> Iterator[Database]:
    """`primary` as its standby has it, by a user that may read and nothing else."""
    reader_database = reader_of(primary, slot=False)
    caught_up(primary, newest_standby)
    yield replace(reader_database, server=newest_standby)
    for server in (newest_standby, primary.server):
        of_it = f"FROM pg_replication_slots WHERE database = '{primary.name}'"
        server.execute(f"SELECT pg_drop_replication_slot(slot_name) {of_it}")
    forget(reader_database)


@pytest.fixture
def config(standby: Database, tmp_path: Path) -> Config:
    return config_of(standby, tmp_path)


def test_an_idle_standby_is_dumped_in_a_hundred_chunks_without_waiting_for_its_primary(
    primary: Database, config: Config
) -> None:
    assert [p for p in wiring.open_source(config.source).check() if p.fatal] == []
    with capturing_standby(config, primary):
        began = time.monotonic()
        status = run_dump(config, tables=(QUIET,))
        took = time.monotonic() - began
    assert status.chunks >= ROWS / CHUNK and took < SECONDS, (status.chunks, took)
    assert rows_of(config, QUIET) == source_rows(primary)


def test_a_standby_under_the_writes_of_its_primary_is_dumped_and_verified_as_it_is(
    primary: Database, standby: Database, config: Config, verify_plainly: Plainly, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_reader, "WINDOW_ROWS", 100)
    verify, lake = verify_plainly(config)
    with capturing_standby(config, primary):
        with writing(primary):
            assert run_dump(config, tables=(QUIET,), chunk_size=20, workers=2).chunks >= ROWS / 2 / 20
            report = verify(config)
            assert report.equal, report.to_json()
            assert lake.comparisons
        caught_up(primary, standby.server)
        wait_until(lambda: rows_of(config, QUIET) == source_rows(primary), "all is staged")


def test_a_chunk_of_a_standby_has_no_snapshot_since_that_would_see_what_is_half_replayed(
    primary: Database, standby: Database, config: Config
) -> None:
    """What the server says of it is asked too: where it once tells the truth, this may become simpler."""
    with closing(primary.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = False
        cursor.execute("UPDATE quiet SET v = 500 WHERE id = 3")
        cursor.execute("SELECT pg_current_xact_id()::text")
        running = int(cursor.fetchone()[0])
        primary.execute("UPDATE quiet SET v = 600 WHERE id = 4")
        caught_up(primary, standby.server)
        ((rows,),) = standby.query("SELECT pg_current_snapshot()::text")
        first, end, names = str(rows).split(":")
        assert int(first) <= running < int(end) and names == "", "the standby does not name it"
        with closing(wiring.open_source(config.source).open_reader()) as reader:
            schema = reader.schema(TableName.parse(QUIET))
            chunk = reader.read_keys(schema, [(3,), (4,)])
            assert chunk.rows.column("v").to_pylist() == [3, 600] and chunk.snapshot is None
            assert reader.range_hash(schema, after=None, upto=None, limit=10).snapshot is None
        connection.rollback()


def test_the_logs_end_lies_behind_a_commit_that_shows_before_it_is_wholly_replayed(
    primary: Database, standby: Database, config: Config
) -> None:
    """A commit that drops tables shows, and then their files go: the standby counts it as replayed after that."""
    early = 0
    turn = 0
    end = time.monotonic() + PATIENCE_SECONDS
    names = [f"gone_{number}" for number in range(300)]
    create_statements = "; ".join(f"CREATE TABLE {name} (id int)" for name in names)
    drop_statement = f"DROP TABLE {', '.join(names)}"
    with (
        closing(wiring.open_source(config.source).open_reader()) as reader,
        closing(primary.connect()) as writer,
        closing(standby.connect()) as looker,
        writer.cursor() as cursor,
        looker.cursor() as look,
    ):
        reader.schema(TableName.parse(QUIET))
        while turn < 3 or not early:
            assert time.monotonic() < end, "the standby never showed what it had not counted: the test tells nothing"
            turn += 1
            cursor.execute(create_statements)
            cursor.execute(f"BEGIN; UPDATE quiet SET v = {1000 + turn} WHERE id = 3; {drop_statement}; COMMIT")
            cursor.execute("SELECT pg_current_wal_flush_lsn()::text")
            committed = Lsn.parse(cursor.fetchone()[0]).end_of_record()
            visible_count = None
            while visible_count != 1000 + turn:
                look.execute("SELECT v, pg_last_wal_replay_lsn()::text FROM quiet WHERE id = 3")
                visible_count, counted = look.fetchone()
            assert Lsn.parse(reader.log_end()) >= committed
            early += Lsn.parse(counted) < committed


def test_a_slot_on_a_standby_waits_for_its_primary_and_says_so(
    primary: Database,
    standby: Database,
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("dblog_core.sources.postgres.sql.slots._CREATION_LIMIT", "300ms")
    source = wiring.open_source(config.source)
    with closing(primary.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = False
        cursor.execute("UPDATE quiet SET v = 500 WHERE id = 3")  # what runs keeps a slot from being made, too
        # A record of before, which has nothing running, would let the standby make one.
        primary.execute("SELECT pg_logical_emit_message(true, 'dblog', 'flushes what was logged')")
        caught_up(primary, standby.server)
        with caplog.at_level(logging.WARNING), pytest.raises(SourceUnavailable, match="has not yet said") as refused:
            source.prepare()
        connection.rollback()
    assert "pg_log_standby_snapshot" in refused.value.fix and "pg_log_standby_snapshot" in caplog.text


def test_check_says_what_a_standby_lacks_and_who_mends_it(primary: Database, standby: Database, config: Config) -> None:
    def describe_problems(**changed: Any) -> str:
        source = wiring.open_source(config.source.model_copy(update=changed))
        return "\n".join(f"{p.what} -> {p.fix}" for p in source.check())

    assert "read_only = true" in describe_problems(read_only=False)
    with pytest.raises(SourceRefused, match="is a standby"):
        wiring.open_source(config.source.model_copy(update={"read_only": False})).prepare()
    assert "on the primary" in describe_problems(publication="another")
    assert "hot_standby_feedback" not in describe_problems()
    standby.server.options = {}
    standby.server.stop()
    standby.server.start()
    try:
        assert "hot_standby_feedback = on" in describe_problems()
    finally:
        standby.server.options = {"hot_standby_feedback": "on"}
        standby.server.stop()
        standby.server.start()


def test_a_slot_that_recovery_had_to_invalidate_is_lost_with_its_reason(
    primary: Database, standby: Database, config: Config
) -> None:
    source = wiring.open_source(config.source)
    with telling(primary):
        source.prepare()
    position = source.start_position()
    standby.server.options = {}
    standby.server.stop()
    standby.server.start()

    def remove_and_read() -> bool:
        """Again and again: VACUUM removes nothing while any slot of the primary, of any test, needs the rows."""
        primary.execute("CREATE TABLE gone (id int)", "DROP TABLE gone", "VACUUM pg_class", "VACUUM pg_attribute")
        with suppress(SourceUnavailable), closing(source.open_log(position)) as log:
            for _ in range(10):
                log.read(0.1)
        return False

    try:
        with pytest.raises(LogPositionLost, match="rows that it needed were removed: set hot_standby_feedback"):
            wait_until(remove_and_read, "the slot is lost")
    finally:
        standby.server.options = {"hot_standby_feedback": "on"}
        standby.server.stop()
        standby.server.start()


@pytest.fixture(scope="module")
def replica(postgres: PostgresServer, server_root: Path) -> Iterator[PostgresServer]:
    """A hot standby of a version that does not decode there."""
    yield from standing_by(standby_of(postgres, server_root / "older-standby"), postgres)


@pytest.fixture
def older(postgres: PostgresServer, replica: PostgresServer) -> Iterator[Database]:
    """A database that `replica` has too, and its user."""
    database = new(postgres, f"t_replica_{time.monotonic_ns() % 10**9}")
    fill_quiet(database)
    caught_up(database, replica)
    yield database
    drop(database)


@pytest.mark.parametrize("read_only", [False, True])
def test_chunks_come_from_a_standby_and_the_log_from_its_primary(
    older: Database,
    replica: PostgresServer,
    tmp_path: Path,
    verify_plainly: Plainly,
    monkeypatch: pytest.MonkeyPatch,
    read_only: bool,
) -> None:
    monkeypatch.setattr(source_reader, "WINDOW_ROWS", 100)
    place = f"{replica.host}:{replica.port}"
    config = config_of(older, tmp_path, read_only=read_only, read_replica=place)
    verify, lake = verify_plainly(config)
    assert [p for p in wiring.open_source(config.source).check() if p.fatal] == []
    before = scans_of(replica, older)
    with capturing(config):
        with writing(older):
            assert run_dump(config, tables=(QUIET,), chunk_size=20, workers=2).chunks >= ROWS / 2 / 20
            report = verify(config)
            assert report.equal, report.to_json()
            assert lake.comparisons
        wait_until(lambda: rows_of(config, QUIET) == source_rows(older), "all is staged")
    assert scans_of(replica, older) > before, "the standby was read"


@pytest.mark.parametrize("read_only", [False, True])
def test_a_chunk_waits_until_its_standby_has_replayed_what_lies_before_its_window(
    older: Database,
    replica: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    read_only: bool,
) -> None:
    """The standby stands still in the middle of a dump while the log goes on: what a SELECT would see there is old."""
    monkeypatch.setattr(standby_module, "SAID", 0.2)
    config = config_of(older, tmp_path, read_only=read_only, read_replica=f"{replica.host}:{replica.port}")
    with capturing(config):
        dump_id = filing.submit(config, DumpRequest(tables=(QUIET,), delay=0.02, chunk_size=25, workers=1, ranges=1))
        stop = threading.Event()
        worker = threading.Thread(target=work_loop.work, args=(config,), kwargs={"stop": stop, "dump_id": dump_id})
        with closing(wiring.open_state(config)) as state, caplog.at_level(logging.WARNING):
            worker.start()
            try:
                wait_until(lambda: dump_store.read_dump(state, dump_id).chunks >= 5, "5 chunks")
                replica.execute("SELECT pg_wal_replay_pause()")
                older.execute("UPDATE quiet SET v = v + 1000")
                wait_until(lambda: " yet: it stands at " in caplog.text, "it waits, and says so")
                replica.execute("SELECT pg_wal_replay_resume()")
                wait_until(lambda: dump_store.read_dump(state, dump_id).state == "done", "the dump is done")
            finally:
                replica.execute("SELECT pg_wal_replay_resume()")
                stop.set()
                worker.join(timeout=PATIENCE_SECONDS)
        wait_until(lambda: rows_of(config, QUIET) == source_rows(older), "all is staged")


def test_a_server_that_is_no_standby_of_the_primary_is_refused(
    older: Database, replica: PostgresServer, newest_standby: PostgresServer, tmp_path: Path
) -> None:
    def describe_problems(server: PostgresServer, host: Database = older, **more: Any) -> str:
        config = config_of(
            host, tmp_path, **{"read_only": False, "read_replica": f"{server.host}:{server.port}", **more}
        )
        return "\n".join(f"{p.what} -> {p.fix}" for p in wiring.open_source(config.source).check())

    assert describe_problems(replica) == ""
    assert "is no standby -> name a hot standby" in describe_problems(older.server)
    no_standby = {"read_only": False, "read_replica": f"{older.server.host}:{older.server.port}"}
    found_there = wiring.open_source(config_of(older, tmp_path, **no_standby).source).check()
    assert [p.fatal for p in found_there] == [False], "dumps wait for it, the log does not"
    as_its_own = {"user": newest_standby.admin.user, "password": newest_standby.admin.password, "database": "postgres"}
    assert "cannot send its log" in describe_problems(replica, replace(older, server=replica), read_only=True)
    config = config_of(older, tmp_path, **as_its_own).source.model_copy(update={"port": newest_standby.port})
    with closing(newest_standby.connect()) as connection, pytest.raises(SourceRefused, match="of database system"):
        standby_module.follow(connection, config, config_of(older, tmp_path).source)


@pytest.fixture
def pair(server_root: Path) -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary and its standby, both for one test: it promotes."""
    first = PostgresServer(server_root / "promoted-primary", programs=newest_programs())
    second = standby_of(first, server_root / "promoted-standby", programs=newest_programs())
    first.start()
    try:
        second.start()
        yield first, second
    finally:
        second.kill()
        first.kill()


def test_a_standby_that_is_promoted_under_the_capture_goes_on_on_its_new_timeline(
    pair: tuple[PostgresServer, PostgresServer], tmp_path: Path
) -> None:
    """Its slot is its own; a dump goes on over the promotion, and what is written afterwards is of another timeline."""
    first = new(pair[0], "shop")
    fill_quiet(first)
    reader = reader_of(first, slot=False)
    caught_up(first, pair[1])
    second = replace(reader, server=pair[1])
    config = config_of(second, tmp_path)
    with capturing_standby(config, first):
        first.execute("UPDATE quiet SET v = 100 WHERE id = 3")
        dump_id = filing.submit(config, DumpRequest(tables=(QUIET,), delay=0.02))
        stop = threading.Event()
        worker = threading.Thread(target=work_loop.work, args=(config,), kwargs={"stop": stop, "dump_id": dump_id})
        worker.start()
        try:
            with closing(wiring.open_state(config)) as state:
                wait_until(lambda: dump_store.read_dump(state, dump_id).chunks >= 20, "20 chunks")
                pair[0].kill()
                assert isinstance(second.server, PostgresServer)
                second.server.promote()
                second.execute("UPDATE quiet SET v = 200 WHERE id = 4", "DELETE FROM quiet WHERE id = 990")
                wait_until(lambda: dump_store.read_dump(state, dump_id).state == "done", "the dump is done")
                wait_until(lambda: rows_of(config, QUIET) == source_rows(second), "the log goes on")
        finally:
            stop.set()
            worker.join(timeout=PATIENCE_SECONDS)
    head = wiring.open_staging(config).head()
    assert head is not None and Point.parse(head.position).timeline == 2
