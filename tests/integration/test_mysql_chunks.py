"""Chunks of MySQL and MariaDB on real servers, where the bytes come in another way than in small ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dblog_core.errors import RequestError, SourceUnavailable
from dblog_core.interfaces import ChunkReader
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.source import MysqlSource
from dblog_core.sources.mysql.sql.chunks import MysqlChunks
from dblog_core.sources.mysql.sql.connection import rows
from tests.fix_servers import Database

pytestmark = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)

LARGE_PACKETS = 64 << 20


@pytest.fixture
def reader(database: Database, tmp_path: Path) -> Iterator[ChunkReader]:
    query_rows = database.query("SELECT @@GLOBAL.max_allowed_packet")
    database.execute(f"SET GLOBAL max_allowed_packet = {LARGE_PACKETS}")  # sessions that begin now have it
    source = MysqlSource(database.config(tmp_path).source)
    source.prepare()
    reader = source.open_reader()
    yield reader
    reader.close()
    # A file of its own: MariaDB refuses to begin by GTID behind an event that is larger than this setting.
    database.execute(f"SET GLOBAL max_allowed_packet = {query_rows[0][0]}", "FLUSH BINARY LOGS")


def chunk(database: Database, reader: ChunkReader, **bounds: Any) -> list[dict[str, Any]]:
    schema = reader.schema(TableName(database.name, "a"))
    read = reader.read(schema, **{"after": None, "upto": None, "limit": 1000, **bounds})
    read.rows.validate(full=True)
    return list(read.rows.to_pylist())


def test_the_order_of_a_key_is_known_from_the_look_at_the_shape_and_costs_one_statement(
    database: Database, reader: MysqlChunks
) -> None:
    """A dump asks for both, of each of a thousand small tables; the one statement tells that nobody has altered it."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    schema = reader.schema(TableName(database.name, "a"))

    def statements() -> int:
        return int(rows(reader._connection, "SHOW SESSION STATUS LIKE 'Questions'")[0][1])

    before = statements()
    order = reader.key_order(schema)
    assert statements() - before == 2, "that, and this question"
    database.execute("ALTER TABLE a MODIFY id bigint")
    assert reader.key_order(schema) != order


def test_rows_of_more_than_16_mib_are_whole_and_so_are_those_beside_them(
    database: Database, reader: ChunkReader
) -> None:
    """Their packets have pieces; after them the connection reads on in step."""
    mib = 1 << 20
    database.execute("CREATE TABLE a (id int PRIMARY KEY, x longtext, y longblob, z int)")
    connection = database.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO a VALUES (1, 'before', NULL, 1),"
                f" (2, REPEAT('ab', {6 * mib}), REPEAT('c', {11 * mib}), 2), (3, 'behind', 'd', 3)"
            )
    finally:
        connection.close()
    for _ in range(2):
        before, large, behind = chunk(database, reader)
        assert before == {"id": 1, "x": "before", "y": None, "z": 1}
        assert large == {"id": 2, "x": "ab" * (6 * mib), "y": b"c" * (11 * mib), "z": 2}
        assert behind == {"id": 3, "x": "behind", "y": b"d", "z": 3}


def test_a_chunk_of_many_buffers_has_every_row(database: Database, reader: ChunkReader) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY, x varchar(4000), n decimal(20,4), t datetime(3))")
    count = 3000
    rows = ", ".join(
        f"({n}, REPEAT('{n} ', {n % 700}), {n}.5, '2024-01-01 00:00:00' + INTERVAL {n} SECOND)" for n in range(count)
    )
    database.execute(f"INSERT INTO a VALUES {rows}")
    rows_of_chunk = chunk(database, reader, limit=5000)
    assert [row["id"] for row in rows_of_chunk] == list(range(count))
    assert [row["x"] for row in rows_of_chunk] == [f"{n} " * (n % 700) for n in range(count)]
    assert [str(row["n"]) for row in rows_of_chunk] == [f"{n}.5000" for n in range(count)]
    assert [row["id"] for row in chunk(database, reader, limit=7, after=(100,))] == list(range(101, 108))


def test_a_connection_that_the_server_ends_is_lost_and_may_be_tried_again(
    database: Database, reader: ChunkReader
) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    assert chunk(database, reader) == [{"id": 1}]
    assert isinstance(reader, MysqlChunks)
    database.execute(f"KILL {reader._connection.thread_id()}")
    with pytest.raises(SourceUnavailable):
        chunk(database, reader)


def test_the_shape_is_always_that_of_now(database: Database, reader: ChunkReader) -> None:
    """Also when the table gets a definition back that it had before, or another table takes its name."""
    table = TableName(database.name, "a")
    database.execute("CREATE TABLE a (id int AUTO_INCREMENT PRIMARY KEY, x int)", "INSERT INTO a VALUES (1, 1)")

    def names() -> list[str]:
        return [c.name for c in reader.schema(table).columns]

    assert names() == names() == ["id", "x"]
    for change, expected in (
        ("INSERT INTO a VALUES (7, 1)", ["id", "x"]),
        ("ALTER TABLE a ADD COLUMN y int", ["id", "x", "y"]),
        ("ALTER TABLE a DROP COLUMN y", ["id", "x"]),
        ("ALTER TABLE a RENAME COLUMN x TO z", ["id", "z"]),
        ("RENAME TABLE a TO b", None),
        ("CREATE TABLE a (k varchar(3) PRIMARY KEY)", ["k"]),
        ("DROP TABLE a", None),
        ("RENAME TABLE b TO a", ["id", "z"]),
    ):
        database.execute(change)
        for _ in range(2):
            if expected is None:
                with pytest.raises(RequestError, match="does not exist"):
                    names()
            else:
                assert names() == expected


def test_a_look_at_the_catalogue_leaves_no_transaction_open(database: Database, reader: ChunkReader) -> None:
    """A SELECT in one would not be a new snapshot, and an ALTER would wait for its end."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    schema = reader.schema(TableName(database.name, "a"))
    reader.key_order(schema)
    with pytest.raises(RequestError):
        reader.schema(TableName(database.name, "nothing"))
    assert chunk(database, reader) == []
    database.execute("INSERT INTO a VALUES (1)")
    assert chunk(database, reader) == [{"id": 1}]
    database.execute("SET SESSION lock_wait_timeout = 5", "ALTER TABLE a ADD COLUMN x int")
    assert chunk(database, reader) == [{"id": 1, "x": None}]
