"""Large transactions that PostgreSQL streams before their commit: they come out as if it had kept them until then."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dblog_core.errors import SourceUnavailable, StagingUnavailable
from dblog_core.interfaces import LogStream
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.model.events import LogBatch, SchemaSeen, Truncated, WatermarkSeen
from dblog_core.sources.postgres.logical.batch import MAX_ROWS
from dblog_core.sources.postgres.source import PostgresSource
from tests.fix_servers import Database
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture
def lab(postgres: PostgresServer, new_database: Callable[..., Database]) -> Database:
    return new_database(postgres)


@pytest.fixture
def source(lab: Database, tmp_path: Path) -> PostgresSource:
    return PostgresSource(lab.config(tmp_path).source)


def server_memory(lab: Database, size: str) -> None:
    """How much of transactions the server's decoding keeps in memory, for streams that are opened from now on."""
    lab.execute(f"ALTER ROLE \"{lab.account.user}\" SET logical_decoding_work_mem = '{size}'")


def read(
    source: PostgresSource, position: str, *, skip: int = 0, memory: Callable[[], None] | None = None
) -> list[LogBatch]:
    """All batches from a position up to what is committed by now; nothing is acknowledged."""
    target = source.current_position()
    log = source.open_log(position, skip=skip)
    batches: list[LogBatch] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while not (batches and source.has_reached(batches[-1].position, target) and not batches[-1].partial):
            assert time.monotonic() < deadline, "the log did not come to its end"
            if (batch := log.read(0.5)) is not None:
                batches.append(batch)
            if memory is not None:
                memory()
    finally:
        log.close()
    return batches


def drain(log: LogStream) -> None:
    """Reads until an error, or until the patience ends."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        log.read(0.1)


def log_lines(batches: list[LogBatch]) -> list[tuple[Any, ...]]:
    """Rows and signals in log order, each with its transaction."""
    entries = []
    for number, batch in enumerate(batches):
        for changes in batch.changes:
            for row in changes.batch.to_pylist():
                what = (str(changes.schema.table), row["op"], row["before"], row["after"], row["unchanged"])
                entries.append((number, row["sequence"], what, batch.transactions[row["transaction"]]))
        for signal in batch.signals:
            if isinstance(signal, WatermarkSeen):
                what = ("watermark", signal.payload)
            elif isinstance(signal, Truncated):
                what = ("truncated", str(signal.table))
            elif isinstance(signal, SchemaSeen):
                what = ("schema", str(signal.schema.table), tuple(c.name for c in signal.schema.columns))
            else:
                raise AssertionError(signal)
            entries.append((number, signal.sequence, what, batch.transactions[signal.transaction]))
    return [(what, transaction) for _, _, what, transaction in sorted(entries, key=lambda line: line[:2])]


def changes(batches: list[LogBatch]) -> list[tuple[Any, ...]]:
    """Without the first sight of shapes, which every new stream tells again."""
    return [line for line in log_lines(batches) if line[0][0] != "schema"]


def streams(lab: Database) -> tuple[int, int]:
    """How many transactions, and in how many blocks, the server has streamed for the slot."""
    query = f"SELECT stream_txns, stream_count FROM pg_stat_replication_slots WHERE slot_name = 'dblog_{lab.name}'"
    ((transactions, blocks),) = lab.query(query)
    return transactions, blocks


def settled_streams(lab: Database, before: tuple[int, int]) -> tuple[int, int]:
    """The same, once the server has counted more than `before`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (now := streams(lab)) == before:
        assert time.monotonic() < deadline, "the server has streamed nothing"
    return now


def story(lab: Database, source: PostgresSource) -> None:
    """Interleaved large transactions with everything that may happen inside one."""
    first = lab.connect()
    second = lab.connect()
    third = lab.connect()
    for connection in (first, second, third):
        connection.autocommit = False
    marks = source.open_watermarks("w")
    rows = "SELECT i, repeat('x', i %% 50) FROM generate_series(%s, %s) i"
    with first.cursor() as first_cursor, second.cursor() as two, third.cursor() as three:
        first_cursor.execute("INSERT INTO t " + rows, (1, 3000))
        two.execute("INSERT INTO u " + rows, (1, 3000))
        three.execute("INSERT INTO t " + rows, (50_000, 52_000))
        marks.write("between")
        first_cursor.execute("SAVEPOINT a")
        first_cursor.execute("INSERT INTO t " + rows, (3001, 6000))
        first_cursor.execute("SAVEPOINT b")
        first_cursor.execute("UPDATE t SET v = 'lost' WHERE id <= 2500")
        first_cursor.execute("ROLLBACK TO a")
        two.execute("UPDATE u SET id = -id WHERE id % 3 = 0")
        lab.execute("INSERT INTO t VALUES (100000, 'small')")
        first_cursor.execute("SAVEPOINT kept")
        first_cursor.execute("INSERT INTO t " + rows, (6001, 9000))
        first_cursor.execute("RELEASE kept")
        three.execute("INSERT INTO t " + rows, (52_001, 54_000))
        third.rollback()
        first_cursor.execute("DELETE FROM t WHERE id <= 1000")
        two.execute("ALTER TABLE u ADD w int DEFAULT 5")
        two.execute("INSERT INTO u " + rows.replace(" FROM", ", i FROM"), (10_001, 13_000))
        two.execute("SAVEPOINT wider")
        two.execute("ALTER TABLE u ADD gone text DEFAULT 'g'")
        two.execute("UPDATE u SET w = 7")
        two.execute("ROLLBACK TO wider")
        two.execute("TRUNCATE z")
        two.execute("UPDATE u SET w = 6 WHERE id > 12000")
        two.execute("UPDATE dblog_watermark SET payload = 'inside'")
        second.commit()
        first_cursor.execute("INSERT INTO t " + rows, (9001, 12_000))
        first.commit()
    marks.write("after")
    marks.close()
    for connection in (first, second, third):
        connection.close()


@pytest.fixture
def told_story(lab: Database, source: PostgresSource) -> str:
    """The position before it."""
    lab.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE u (id int PRIMARY KEY, v text)",
        "CREATE TABLE z (id int PRIMARY KEY)",
        "ALTER TABLE u REPLICA IDENTITY FULL",
    )
    source.prepare()
    position = source.start_position()
    story(lab, source)
    return position


def test_streamed_transactions_are_told_as_if_they_had_been_kept(
    lab: Database, source: PostgresSource, told_story: str
) -> None:
    server_memory(lab, "1GB")
    rows_of_story = read(source, told_story)
    before = streams(lab)
    server_memory(lab, "64kB")
    streamed = read(source, told_story)
    assert settled_streams(lab, before)[1] > 20
    assert log_lines(streamed) == log_lines(rows_of_story)
    assert len(log_lines(rows_of_story)) > 18_000 and not any(
        "lost" in str(line) or "gone" in str(line) for line in log_lines(rows_of_story)
    )
    assert [line[0][1] for line in log_lines(rows_of_story) if line[0][0] == "watermark"] == [
        "between",
        "inside",
        "after",
    ]
    assert all(sum(c.batch.num_rows for c in batch.changes) <= MAX_ROWS for batch in streamed)


def test_a_stream_resumes_inside_at_every_batch(lab: Database, source: PostgresSource, told_story: str) -> None:
    server_memory(lab, "64kB")
    streamed = read(source, told_story)
    everything = changes(streamed)
    inside = [number for number, batch in enumerate(streamed) if batch.partial]
    assert inside
    for number in inside:
        rest = read(source, streamed[number].position, skip=streamed[number].partial)
        marks = [line for line in changes(streamed[: number + 1]) if line[0][0] == "watermark"]
        repeated_lines = [line for line in changes(rest) if line not in marks]  # told twice, and void the second time
        assert changes(streamed[: number + 1]) + repeated_lines == everything


def test_values_come_as_text_once_a_table_has_a_type_whose_binary_form_is_not_certain(
    lab: Database, source: PostgresSource
) -> None:
    server_memory(lab, "64kB")
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.prepare()
    position = source.start_position()
    log = source.open_log(position)  # while all types are certain
    lab.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 3000) i", "ALTER TABLE t ADD a int[]")
    lab.execute("INSERT INTO t SELECT i, 'v', ARRAY[i] FROM generate_series(3001, 6000) i", "ALTER TABLE t DROP a")
    with pytest.raises(SourceUnavailable, match="read as text") as caught:
        drain(log)
    log.close()
    assert caught.value.transient
    rows = [line[0] for line in changes(read(source, position))]
    assert [row[3]["id"] for row in rows] == list(range(1, 6001)) and rows[-1][3]["a"] == "{6000}"


def test_a_streamed_transaction_leaves_no_file_and_memory_stays_flat(
    lab: Database, source: PostgresSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    server_memory(lab, "64kB")
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.prepare()
    position = source.start_position()
    lab.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 60000) i")
    sizes: list[int] = []
    batches = read(source, position, memory=lambda: sizes.append(resident()))
    assert sum(c.batch.num_rows for b in batches for c in b.changes) == 60_000
    assert not list(tmp_path.iterdir())
    assert len(batches) >= 10 and max(sizes) - sizes[0] < 400 << 20  # the batches are kept here: 60 MB, twice


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_full_disk_is_a_passing_trouble(
    lab: Database, source: PostgresSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_memory(lab, "64kB")
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.prepare()
    position = source.start_position()
    lab.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 10000) i")

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(StagingUnavailable, match="No space left") as caught:
            read(source, position)
    assert caught.value.transient
    assert len(changes(read(source, position))) == 10_000
