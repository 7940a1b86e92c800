"""Framing and unpacking on what real servers send: events in any pieces, compressed transactions part by part."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dblog_core.sources.mysql.binlog import stream
from dblog_core.sources.mysql.binlog.stream import StreamEnded
from dblog_core.sources.mysql.position import Position
from dblog_core.sources.mysql.row_events import change_batch
from dblog_core.sources.mysql.source import MysqlSource
from tests.fix_servers import Database
from tests.integration import mysql_types
from tests.integration.mysql_source.log_rows import END, batches, changes, execute, insert_all_types
from tests.unit import mysql_binlog as binlog
from tests.unit.sources.mysql.binlog.test_framing import cut, feed_pieces, take_events

pytestmark = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Any:
    return database.config(tmp_path).source


@pytest.fixture
def source(config: Any) -> MysqlSource:
    source = MysqlSource(config)
    source.prepare()
    return source


class _Heard:
    """A socket that keeps what it receives."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self.bytes = bytearray()

    def recv_into(self, room: memoryview) -> int:
        count: int = self._socket.recv_into(room)
        self.bytes += room[:count]
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


def read_sent_bytes(config: Any, position: str, *, mariadb: bool) -> bytes:
    """All that the server sends from the position to the present end."""
    start = Position.decode(position, mariadb=mariadb)
    log = stream.connect(config, start, lambda: start, mariadb=mariadb, identity=77_001, blocking=False)
    listening_socket = log._socket = _Heard(log._socket)
    deadline = time.monotonic() + END
    try:
        while time.monotonic() < deadline:
            if log.next() is None:
                log.receive(1.0)
    except StreamEnded:
        return bytes(listening_socket.bytes)
    finally:
        log.close()
    raise AssertionError("the log did not reach its end in time")


def whole_packets(data: bytes) -> bytes:
    """Without the packet that ends the stream."""
    at = 0
    while data[at + 4] == 0:
        at += 4 + int.from_bytes(data[at : at + 3], "little")
    return data[:at]


def test_events_of_a_server_are_those_of_plain_python(database: Database, source: MysqlSource, config: Any) -> None:
    database.execute(mysql_types.create(database.kind, "types"), "CREATE TABLE a (id int PRIMARY KEY, v longblob)")
    start = source.current_position()
    insert_all_types(database, "types")
    execute(
        database,
        "SET max_statement_time = 0" if database.kind == "mariadb" else "SET max_execution_time = 0",
        *(f"INSERT INTO a VALUES ({i}, REPEAT('x', {i * 700}))" for i in range(40)),
        "UPDATE a SET id = id + 1000",
        "BEGIN", "DELETE FROM a WHERE id > 1020", "DELETE FROM types", "COMMIT",
        "TRUNCATE TABLE a",
    )  # fmt: skip
    data = whole_packets(read_sent_bytes(config, start, mariadb=database.kind == "mariadb"))
    expected_events = list(binlog.split(data, checksums=True))
    assert len(expected_events) > 150
    for seed in range(30):
        assert take_events(feed_pieces(cut(data, random.Random(seed)), checksums=True)) == expected_events


@pytest.mark.parametrize("size", [17_000_000, 0xFFFFFF - 40])
def test_rows_larger_than_a_packet_arrive(database: Database, source: MysqlSource, size: int) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, v longblob)")
    start = source.current_position()
    allowed = database.query("SELECT @@GLOBAL.max_allowed_packet")[0][0]
    try:
        database.execute("SET GLOBAL max_allowed_packet = 67108864")
        execute(database, f"INSERT INTO a VALUES (1, REPEAT('x', {size}))", "INSERT INTO a VALUES (2, 'y')")
        row_changes = changes(list(batches(source, start)))
    finally:
        # A file of its own: MariaDB finds no GTID behind such an event once older files were purged (seen on 10.11).
        database.execute(f"SET GLOBAL max_allowed_packet = {allowed}", "FLUSH BINARY LOGS")
    assert [(row["after"]["id"], len(row["after"]["v"])) for row in row_changes] == [(1, size), (2, 1)]


@pytest.mark.parametrize("first", ["NONE", "CRC32"])
def test_files_with_and_without_checksums_follow_each_other(
    database: Database, source: MysqlSource, first: str
) -> None:
    """Another setting begins a file of its own; the position may be in either, or come to the other while reading."""
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, v text)")
    usual = database.query("SELECT @@GLOBAL.binlog_checksum")[0][0]
    settings = [first, {"NONE": "CRC32", "CRC32": "NONE"}[first], first]
    try:
        database.execute(f"SET GLOBAL binlog_checksum = {first}")
        starts = list[str]()
        expected_rows = list[list[tuple[str, int]]]()
        for number, setting in enumerate(settings):
            starts.append(source.current_position())
            database.execute(f"SET GLOBAL binlog_checksum = {setting}")
            execute(database, f"INSERT INTO a VALUES ({number}, REPEAT('x', 1000))", f"UPDATE a SET v = '{number}'")
            expected_rows.append([("c", number), *(("u", id_) for id_ in range(number + 1))])
        for number, start in enumerate(starts):
            row_changes = changes(list(batches(source, start)))
            assert [(row["op"], row["after"]["id"]) for row in row_changes] == [
                row for of in expected_rows[number:] for row in of
            ]
    finally:
        database.execute(f"SET GLOBAL binlog_checksum = {usual}")


def execute_compressed(database: Database, *statements: str) -> None:
    on, off = (
        ("SET SESSION binlog_transaction_compression = ON", "SET SESSION binlog_transaction_compression = OFF")
        if database.kind == "mysql"
        else ("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress = OFF")
    )
    try:
        execute(database, on, *statements)
    finally:
        execute(database, off)


def test_a_large_compressed_transaction_comes_in_parts_that_can_be_resumed(
    database: Database, source: MysqlSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_batch, "EVENTS", 40)
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, v varchar(200))")
    start = source.current_position()
    every = list(_statements(200, 100))
    execute_compressed(database, "BEGIN", *every, "COMMIT", "INSERT INTO a VALUES (-1, 'last')")
    target = source.current_position()
    whole = list(batches(source, start, upto=target))
    ids = [row["after"]["id"] for row in changes(whole)]
    assert ids == [*range(20_000), -1]
    parts = [batch for batch in whole if batch.partial]
    assert len(parts) > 3
    for part in (parts[0], parts[len(parts) // 2], parts[-1]):
        rest = changes(list(batches(source, part.position, skip=part.partial, upto=target)))
        assert [row["after"]["id"] for row in rest] == ids[part.partial :]


def _statements(count: int, rows: int) -> Iterator[str]:
    for first in range(0, count * rows, rows):
        values = ", ".join(f"({i}, 'a text of row {i}')" for i in range(first, first + rows))
        yield f"INSERT INTO a VALUES {values}"
