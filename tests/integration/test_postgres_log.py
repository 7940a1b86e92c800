"""What the reader of PostgreSQL's log gets from a real server: forms of values, messages of any size, and the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceUnavailable
from dblog_core.interfaces import LogStream
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.sources.postgres.logical.message_buffer import ROOM
from dblog_core.sources.postgres.logical.relations import Forms
from dblog_core.sources.postgres.source import PostgresSource
from dblog_core.sources.postgres.values.binary_values import is_supported
from tests.fix_servers import Database
from tests.integration.postgres_source.all_types import ALL_TYPES, make_types
from tests.waiting import PATIENCE_SECONDS

DEADLINE = PATIENCE_SECONDS


@pytest.fixture
def lab(postgres: PostgresServer, new_database: Callable[..., Database]) -> Database:
    return new_database(postgres)


@pytest.fixture
def source(lab: Database, tmp_path: Path) -> PostgresSource:
    return PostgresSource(lab.config(tmp_path).source)


def rows(log: LogStream, count: int) -> list[dict[str, Any]]:
    """The next `count` row changes of one table; where batches are cut is left out."""
    row_lines: list[dict[str, Any]] = []
    deadline = time.monotonic() + DEADLINE
    while len(row_lines) < count:
        assert time.monotonic() < deadline, "the log did not come to its end"
        if (batch := log.read(0.5)) is not None:
            lines = [changes.batch.drop_columns(["sequence", "transaction"]) for changes in batch.changes]
            row_lines += [row for line in lines for row in line.to_pylist()]
    return row_lines


def test_values_are_the_same_in_binary_and_in_text_form(
    lab: Database, source: PostgresSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_types(lab)
    with_form = [c.name for c in source.tables()[0].columns if is_supported(c.source_type)]
    assert len(with_form) > 20
    others = ", ".join(f'DROP COLUMN "{name}"' for name in ALL_TYPES if name not in with_form)
    lab.execute(f"ALTER TABLE types {others}", "ALTER TABLE types REPLICA IDENTITY FULL")
    source.prepare()
    position = source.start_position()
    for number in range(3):
        lab.execute(f"INSERT INTO types VALUES ({', '.join(ALL_TYPES[name][1][number] for name in with_form)})")
    lab.execute("UPDATE types SET id = id + 10, b = NULL", "DELETE FROM types")
    rows_by_form = []
    for binary in (True, False):
        monkeypatch.setattr(source, "_forms", Forms(binary=binary))
        log = source.open_log(position)
        rows_by_form.append(rows(log, 9))
        log.close()
    assert rows_by_form[0] == rows_by_form[1]
    assert [row["op"] for row in rows_by_form[0]] == ["c"] * 3 + ["u"] * 3 + ["d"] * 3


def test_a_message_larger_than_the_buffer_and_its_neighbours_are_whole(lab: Database, source: PostgresSource) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.prepare()
    log = source.open_log(source.start_position())
    size = ROOM + 12_345
    sizes = [1, size, 2, 2 * size, 3]
    for number, length in enumerate(sizes):
        lab.execute(f"INSERT INTO t VALUES ({number}, repeat('{number}', {length}))")
    read_rows = rows(log, len(sizes))
    assert [len(row["after"]["v"]) for row in read_rows] == sizes
    assert [set(row["after"]["v"]) for row in read_rows] == [{str(number)} for number in range(len(sizes))]
    log.close()


def test_rows_of_other_tables_do_not_leave_the_server(lab: Database, tmp_path: Path) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    config = lab.owner_config(tmp_path, tables=("public.t",)).source
    source = PostgresSource(config)
    source.prepare()
    published = lab.query(f"SELECT tablename FROM pg_publication_tables WHERE pubname = '{config.publication}'")
    assert sorted(name for (name,) in published) == ["dblog_watermark", "t"]
    log = source.open_log(source.start_position())  # which acknowledges nothing
    lab.execute("INSERT INTO other SELECT generate_series(1, 1000)", "INSERT INTO t VALUES (1)")
    assert len(rows(log, 1)) == 1
    log.close()
    ((rows_sent,),) = lab.query(
        f"SELECT count(*) FROM {sent_messages_sql(config)} WHERE get_byte(data, 0) = ascii('I')"
    )
    assert rows_sent == 1


def sent_messages_sql(config: SourceConfig) -> str:
    """What the plugin makes of the log for us, as a table."""
    options = f"'proto_version', '2', 'publication_names', '{config.publication}'"
    return f"pg_logical_slot_peek_binary_changes('{config.slot}', NULL, NULL, {options})"


@pytest.mark.parametrize("end", ["SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active", ""])
def test_a_log_that_ends_is_a_passing_trouble_and_is_read_on(lab: Database, source: PostgresSource, end: str) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.prepare()
    position = source.start_position()
    log = source.open_log(position)
    lab.execute("INSERT INTO t VALUES (1)")
    assert len(rows(log, 1)) == 1
    if end:
        lab.execute(f"{end} AND database = '{lab.name}'")
    else:
        lab.server.kill()
    with pytest.raises(SourceUnavailable) as caught:
        rows(log, 1)
    assert caught.value.transient and lab.account.password not in str(caught.value)
    log.close()
    lab.server.start()
    log = source.open_log(position)
    assert len(rows(log, 1)) == 1
    log.close()
