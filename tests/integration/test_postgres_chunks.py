"""PostgreSQL chunks: types whose binary form is not read, and tables that are altered under their reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from dblog_core.errors import RequestError, SourceUnavailable
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.sources.postgres.sql import copy_out, key_order
from dblog_core.sources.postgres.sql.chunks import PostgresChunkReader
from tests.fix_servers import Database

TABLE = TableName("public", "t")


@pytest.fixture
def lab(postgres: PostgresServer, new_database: Callable[..., Database]) -> Database:
    return new_database(postgres)


@pytest.fixture
def reader(lab: Database, tmp_path: Path) -> Iterator[PostgresChunkReader]:
    opened = PostgresChunkReader(lab.config(tmp_path).source)
    yield opened
    opened.close()


def read(reader: PostgresChunkReader, schema: TableSchema | None = None) -> list[dict[str, Any]]:
    rows = reader.read(schema or reader.schema(TABLE), after=None, upto=None, limit=10).rows
    rows.validate(full=True)
    return rows.to_pylist()


def test_other_types_come_as_the_server_prints_them(lab: Database, reader: PostgresChunkReader) -> None:
    """Not as a cast to text gives them: of an address with its mask, of a user's type whatever its maker wanted."""
    lab.execute(
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE FUNCTION shout(pair) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'a pair!' $$",
        "CREATE CAST (pair AS text) WITH FUNCTION shout(pair)",
        "CREATE DOMAIN address AS inet",
        """CREATE TABLE t (id int PRIMARY KEY, p pair, i inet, a address, c "char", b bit(3), v interval, x int[])""",
        "INSERT INTO t VALUES (1, ROW(1, 'x y'), '10.0.0.1', '::1/64', 'x', '101', '-1 days 2 hours', '{1,NULL}'),"
        " (2, ROW(NULL, NULL), NULL, NULL, '', NULL, NULL, '{}'), (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    )
    assert [list(row.values()) for row in read(reader)] == [
        [1, '(1,"x y")', "10.0.0.1", "::1/64", "x", "101", "-1 days +02:00:00", "{1,NULL}"],
        [2, "(,)", None, None, "", None, None, "{}"],
        [3, None, None, None, None, None, None, None],
    ]


def test_a_key_is_ordered_by_its_own_values_and_not_by_their_texts(lab: Database, reader: PostgresChunkReader) -> None:
    lab.execute(
        "CREATE TYPE size AS ENUM ('small', 'large', 'huge')",
        'CREATE TABLE t ("case" size, format inet, t int, PRIMARY KEY ("case", format, t))',
        "INSERT INTO t VALUES ('large', '10.0.0.9', 1), ('huge', '10.0.0.9', 1), ('small', '10.0.0.10', 1),"
        " ('small', '10.0.0.9', 2), ('small', '10.0.0.9', 1)",
    )
    expected = [("small", "10.0.0.9", 1), ("small", "10.0.0.9", 2), ("small", "10.0.0.10", 1)]
    expected += [("large", "10.0.0.9", 1), ("huge", "10.0.0.9", 1)]
    schema = reader.schema(TABLE)
    assert [tuple(row.values()) for row in read(reader, schema)] == expected
    assert reader.last_key(schema) == expected[-1]
    assert list(reader.boundaries(schema, after=expected[0], upto=None, every=2)) == [expected[2], expected[4]]
    rest = reader.read(schema, after=expected[1], upto=expected[3], limit=10).rows
    assert [tuple(row.values()) for row in rest.to_pylist()] == expected[2:4]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("bigint", "double precision USING v"),
        ("bigint", "timestamp USING timestamp '2000-01-01' + v * interval '1 microsecond'"),
        ("integer", "date USING date '2000-01-01' + v"),
        ("numeric(10,2)", "numeric(10,3)"),
        ("integer", "bigint"),
    ],
)
def test_a_column_that_changed_its_type_since_is_no_wrong_value(
    lab: Database, reader: PostgresChunkReader, before: str, after: str
) -> None:
    lab.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {before})", "INSERT INTO t VALUES (1, 7)")
    old = reader.schema(TABLE)
    assert str(read(reader, old)[0]["v"]).rstrip("0.") == "7"
    lab.execute(f"ALTER TABLE t ALTER v TYPE {after}")
    with pytest.raises(RequestError, match="another type"):
        read(reader, old)
    assert len(read(reader)) == 1


def test_a_column_that_has_the_same_staged_type_under_a_new_one_is_read_by_the_new_one(
    lab: Database, reader: PostgresChunkReader
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v jsonb)", """INSERT INTO t VALUES (1, '{"a":1}')""")
    old = reader.schema(TABLE)
    lab.execute("ALTER TABLE t ALTER v TYPE text", "UPDATE t SET v = 'not json'")
    assert read(reader, old) == [{"id": 1, "v": "not json"}]
    lab.execute("ALTER TABLE t ALTER v TYPE int[] USING '{1}'")
    assert read(reader, old) == [{"id": 1, "v": "{1}"}]


def test_a_column_that_is_gone_is_told_as_such(lab: Database, reader: PostgresChunkReader) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
    old = reader.schema(TABLE)
    lab.execute("ALTER TABLE t DROP v, ADD w int")
    with pytest.raises(RequestError, match="gone"):
        read(reader, old)
    assert read(reader) == [{"id": 1, "w": None}]


def test_a_chunk_of_more_bytes_than_an_array_holds_is_refused(
    lab: Database, reader: PostgresChunkReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, repeat('x', 10000))")
    monkeypatch.setattr(copy_out, "LARGEST", 10_000)
    with pytest.raises(RequestError, match="a smaller chunk_size"):
        read(reader)


@pytest.mark.parametrize("kind", ["bigint", "numeric(10,2)", "timestamp(3)", "integer[]", "int4range", "uuid"])
def test_the_order_of_a_simple_key_is_told_as_that_of_any_other(
    lab: Database, reader: PostgresChunkReader, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It is asked for by a shorter query: a dump that began by one of them goes on by the other."""
    lab.execute(f'CREATE TABLE t ("B" {kind}, a int, PRIMARY KEY ("B", a))')
    schema = reader.schema(TABLE)
    simple = reader.key_order(schema)
    monkeypatch.setattr(key_order, "_SIMPLE", f"{key_order._SIMPLE} AND false")
    assert reader.key_order(schema) == simple


def test_values_of_any_size_are_received_whole(lab: Database, reader: PostgresChunkReader) -> None:
    sizes = [0, 3_000_000, 1, 1_048_576, 40_000, 0]
    lab.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        *(f"INSERT INTO t VALUES ({n}, repeat(chr(97 + {n}), {size}))" for n, size in enumerate(sizes)),
    )
    assert [row["v"] for row in read(reader)] == [chr(97 + n) * size for n, size in enumerate(sizes)]


@pytest.mark.parametrize(
    "query",
    [
        "COPY (SELECT nothing FROM pg_class) TO STDOUT",
        "COPY (SELECT 1/0) TO STDOUT",
        "COPY (SELECT 1 / (3 - n) FROM generate_series(1, 5) n) TO STDOUT",  # after the first rows
        "COPY (SELECT 'x'::int) TO STDOUT",
        "COPY nowhere TO STDOUT",
        "NONSENSE",
    ],
)
def test_an_error_of_the_server_is_the_one_that_psycopg2_raises(lab: Database, query: str) -> None:
    own_connection = lab.connect()
    other_connection = lab.connect()
    with pytest.raises(psycopg2.Error) as expected, other_connection.cursor() as cursor:
        cursor.copy_expert(query, copy_to_nothing())
    with pytest.raises(type(expected.value)) as error_info:
        copy_out.receive_copy(own_connection, query, most=10_000)
    assert error_info.value.pgcode == expected.value.pgcode
    assert str(error_info.value) == str(expected.value)
    own_connection.close()
    other_connection.close()


def copy_to_nothing() -> Any:
    class Nothing:
        def write(self, _: bytes) -> None: ...

    return Nothing()


def test_a_statement_that_is_no_copy_is_no_rows(lab: Database) -> None:
    connection = lab.connect()
    with pytest.raises(psycopg2.OperationalError, match="ended the COPY"):
        copy_out.receive_copy(connection, "SELECT 1", most=10_000)
    connection.close()
    with pytest.raises(psycopg2.InterfaceError, match="closed"):
        copy_out.receive_copy(connection, "COPY (SELECT 1) TO STDOUT", most=10_000)


def test_a_session_that_ends_within_its_copy_is_transient_and_the_next_chunk_has_another(
    lab: Database, reader: PostgresChunkReader
) -> None:
    """The table ends its reader's session when its second half is read."""
    lab.execute(
        "CREATE FUNCTION halt() RETURNS text LANGUAGE sql SECURITY DEFINER AS"
        " $$ SELECT pg_terminate_backend(pg_backend_pid())::text || pg_sleep(60)::text $$",
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT n, repeat('x', 5000) FROM generate_series(1, 1000) n",
    )
    connection = lab.connect()
    with pytest.raises(psycopg2.OperationalError):
        copy_out.receive_copy(
            connection, "COPY (SELECT CASE WHEN id > 900 THEN halt() ELSE v END FROM t) TO STDOUT", most=10**8
        )
    connection.close()
    schema = reader.schema(TABLE)
    lab.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'dblog%'")
    with pytest.raises(SourceUnavailable):
        read(reader, schema)
    assert len(read(reader, schema)) == 10
