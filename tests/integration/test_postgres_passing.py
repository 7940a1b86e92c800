"""What PostgreSQL's log holds beside rows of ours: it is passed over, and moves the position."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceRefused
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.sources.postgres.source import PostgresSource
from tests.fix_servers import Database
from tests.integration.postgres_source.log_rows import lines, read_to
from tests.waiting import PATIENCE_SECONDS

PLUGINS = pytest.mark.parametrize("plugin", ["pgoutput", "wal2json"])
SEGMENT = 16 << 20


@pytest.fixture
def lab(postgres: PostgresServer, new_database: Callable[..., Database]) -> Database:
    lab = new_database(postgres)
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return lab


def source_config(lab: Database, tmp_path: Path, **changes: Any) -> SourceConfig:
    return lab.config(tmp_path).source.model_copy(update=changes)


@PLUGINS
@pytest.mark.in_turn("plugin")
def test_logical_messages_are_passed_over_and_move_the_position(lab: Database, tmp_path: Path, plugin: str) -> None:
    source = PostgresSource(source_config(lab, tmp_path, plugin=plugin))
    source.prepare()
    start = source.start_position()
    lab.execute(
        "SELECT pg_logical_emit_message(false, 'other', 'at once')",
        "SELECT pg_logical_emit_message(true, 'other', repeat('x', 100000))",
    )
    target = source.current_position()
    log = source.open_log(start)
    first = read_to(source, log, target)
    assert lines(first) == [] and not any(batch.signals for batch in first)
    assert source.has_reached(first[-1].position, target)
    with lab.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "BEGIN; INSERT INTO t VALUES (1, 'a'); SELECT pg_logical_emit_message(true, 'dblog', '{}');"
            " SELECT pg_logical_emit_message(false, 'dblog', '{}'); INSERT INTO t VALUES (2, 'b'); COMMIT"
        )
    log_batches = read_to(source, log, source.current_position())
    log.close()
    assert [line["after"]["id"] for line in lines(log_batches)] == [1, 2]


@PLUGINS
@pytest.mark.in_turn("plugin")
def test_an_idle_database_beside_a_busy_one_keeps_no_log(
    lab: Database, tmp_path: Path, plugin: str, new_database: Callable[..., Database], postgres: PostgresServer
) -> None:
    source = PostgresSource(source_config(lab, tmp_path, plugin=plugin))
    source.prepare()
    busy = new_database(postgres)
    busy.execute("CREATE TABLE b (v text)")
    log = source.open_log(source.start_position())
    kept_bytes_query = (
        "SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), least(restart_lsn, confirmed_flush_lsn))"
        f" FROM pg_replication_slots WHERE slot_name = 'dblog_{lab.name}'"
    )
    written = source.current_position()
    busy.execute("INSERT INTO b SELECT repeat(md5(i::text), 30) FROM generate_series(1, 40000) i", "CHECKPOINT")
    assert lab.query(kept_bytes_query)[0][0] > 2 * SEGMENT
    deadline = time.monotonic() + PATIENCE_SECONDS
    while lab.query(kept_bytes_query)[0][0] > SEGMENT:
        assert time.monotonic() < deadline, "the slot keeps what nobody will read"
        if (batch := log.read(0.2)) is not None:
            assert not batch.changes
            log.acknowledge(batch.position)
    log.close()
    assert source.has_reached(batch.position if batch else source.start_position(), written)


def made_by_somebody(lab: Database, definition: str) -> None:
    lab.execute(f"DROP PUBLICATION dblog_{lab.name}", f"CREATE PUBLICATION dblog_{lab.name} FOR {definition}")


COMPLETE = [
    "TABLES IN SCHEMA public",
    "TABLE t, dblog_watermark",
    "ALL TABLES",
]


@pytest.mark.parametrize("definition", COMPLETE)
def test_a_publication_that_somebody_made_is_used_as_it_is_where_it_leaves_nothing_out(
    lab: Database, tmp_path: Path, definition: str
) -> None:
    source = PostgresSource(source_config(lab, tmp_path))
    source.prepare()  # the watermark table
    lab.execute(f"SELECT pg_drop_replication_slot('dblog_{lab.name}')")
    made_by_somebody(lab, definition)
    assert source.check() == []
    source.prepare()
    start = source.start_position()
    lab.execute("INSERT INTO t VALUES (1, 'a')", "UPDATE t SET v = 'b'", "DELETE FROM t", "TRUNCATE t")
    log = source.open_log(start)
    log_batches = read_to(source, log, source.current_position())
    log.close()
    assert [line["op"] for line in lines(log_batches)] == ["c", "u", "d", "t"]
    owner = f"SELECT rolname FROM pg_publication JOIN pg_roles r ON r.oid = pubowner WHERE pubname = 'dblog_{lab.name}'"
    assert lab.query(owner) == [("postgres",)]


LEAVING_OUT = {
    "rows": ("TABLE t WHERE (id > 5), dblog_watermark", "leaves out rows or columns of public.t"),
    "columns": ("TABLE t (id), dblog_watermark", "leaves out rows or columns of"),
    "deletes": ("TABLE t, dblog_watermark WITH (publish = 'insert, update')", "missing or incomplete"),
    "a table": ("TABLE dblog_watermark", "missing or incomplete"),
}


@pytest.mark.parametrize("what", LEAVING_OUT)
def test_a_publication_that_leaves_something_out_is_refused_before_a_row_is_lost(
    lab: Database, tmp_path: Path, what: str
) -> None:
    definition, says = LEAVING_OUT[what]
    source = PostgresSource(source_config(lab, tmp_path))
    source.prepare()
    made_by_somebody(lab, definition)
    assert [p for p in source.check() if p.fatal and says in p.what]
    with pytest.raises(SourceRefused, match=says):
        source.prepare()
