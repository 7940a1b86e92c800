"""Chunks of PostgreSQL: order of keys, bounds, snapshots, and the plan."""

from __future__ import annotations

from typing import Any

import pytest

from dblog_core.errors import (
    RequestError,
)
from dblog_core.model.schema import TableName
from dblog_core.sources.postgres.source import PostgresSource
from tests.fix_servers import Database

KEYS = {
    "text": ('k text COLLATE "C"', ["'a'", "'B'", "'it''s'", "'x''); DROP TABLE t; --'", "E'back\\\\slash'", "''"]),
    "uuid": ("k uuid", ["'00000000-0000-0000-0000-000000000001'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"]),
    "bytea": ("k bytea", [r"'\x00'", r"'\x'", r"'\xff27'", r"'\x5c'"]),
    "numeric": ("k numeric", ["1e20", "-1.50", "0.000000000000000000000000001", "'NaN'"]),
    "decimal": ("k numeric(20,3)", ["1", "-1.5", "99999999999999999.999"]),
    "varchar": ("k varchar(3)", ["'abc'", "'ab'", "'b'"]),
    "char": ("k char(4)", ["'a'", "'b  c'", "''"]),
    "timestamptz": ("k timestamptz", ["'2024-01-01 00:00:00.000001+05'", "'0001-06-01 00:00Z'"]),
    "date": ("k date", ["'2024-01-01'", "'0001-01-01'"]),
    "float": ("k double precision", ["0.1", "1e300", "'NaN'", "'-Infinity'"]),
    "real": ("k real", ["0.1", "16777216", "3.4e38"]),
    "enum": ("k mood", ["'so, so'", "'fine'"]),
    "boolean": ("k boolean", ["true", "false"]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_chunks_walk_any_key_in_the_order_of_the_database(lab: Database, exact: PostgresSource, kind: str) -> None:
    column, values = KEYS[kind]
    lab.execute("CREATE TYPE mood AS ENUM ('so, so', 'fine')", f"CREATE TABLE t ({column}, b int, PRIMARY KEY (k, b))")
    lab.execute("INSERT INTO t VALUES " + ", ".join(f"({value}, {b})" for value in values for b in (1, 2)))
    reader = exact.open_reader()
    schema = reader.schema(TableName("public", "t"))
    last = reader.last_key(schema)
    whole = reader.read(schema, after=None, upto=None, limit=100).rows.to_pylist()
    walked: list[dict[str, Any]] = []
    after = None
    while rows := reader.read(schema, after=after, upto=last, limit=1).rows.to_pylist():
        walked += rows
        after = tuple(rows[0].values())
    assert str(walked) == str(whole) and len(whole) == 2 * len(values)
    ordered = lab.query("SELECT k::text, b FROM t ORDER BY k, b")
    assert [b for _, b in ordered] == [row["b"] for row in whole]
    keys = [tuple(row.values()) for row in whole[::3]]
    assert str(reader.read_keys(schema, keys).rows.to_pylist()) == str(whole[::3])
    assert reader.read_keys(schema, []).rows.num_rows == 0
    reader.close()


def test_a_bound_is_never_cut_to_the_length_of_its_column(lab: Database, exact: PostgresSource) -> None:
    lab.execute("CREATE TABLE t (k varchar(3) PRIMARY KEY)", "INSERT INTO t VALUES ('abc')")
    reader = exact.open_reader()
    schema = reader.schema(TableName("public", "t"))
    assert reader.read_keys(schema, [("abcd",)]).rows.num_rows == 0
    assert reader.read(schema, after=("abb; DELETE FROM t",), upto=None, limit=5).rows.num_rows == 1
    reader.close()


def test_a_key_that_is_no_value_of_its_type_is_refused_and_the_reader_lives_on(
    lab: Database, exact: PostgresSource
) -> None:
    lab.execute("CREATE TABLE t (k uuid PRIMARY KEY)")
    reader = exact.open_reader()
    schema = reader.schema(TableName("public", "t"))
    for key in ("1' OR '1'='1", "a\0b"):
        with pytest.raises(RequestError):
            reader.read_keys(schema, [(key,)])
    assert reader.read(schema, after=None, upto=None, limit=5).rows.num_rows == 0
    assert reader.last_key(schema) is None
    with pytest.raises(RequestError, match="no table"):
        reader.schema(TableName("public", "t; DROP TABLE t"))
    reader.close()


def test_a_chunk_reads_the_snapshot_that_it_names(lab: Database, exact: PostgresSource) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    reader = exact.open_reader()
    schema = reader.schema(TableName("public", "t"))
    connection = lab.connect()
    connection.autocommit = False
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (2)")
        cursor.execute("SELECT pg_current_xact_id()::text")
        (running,) = cursor.fetchone()
        chunk = reader.read(schema, after=None, upto=None, limit=5)
        horizon = exact.horizon()
        connection.commit()
    connection.close()
    assert chunk.rows.to_pylist() == [{"id": 1}]
    for snapshot in (chunk.snapshot, horizon):
        assert lab.query(f"SELECT pg_visible_in_snapshot('{running}'::xid8, '{snapshot}'::pg_snapshot)") == [(False,)]
    later = reader.read(schema, after=None, upto=None, limit=5)
    assert lab.query(f"SELECT pg_visible_in_snapshot('{running}'::xid8, '{later.snapshot}'::pg_snapshot)") == [(True,)]
    assert later.rows.num_rows == 2
    reader.close()


def test_a_range_of_a_composite_key_is_an_index_scan(lab: Database) -> None:
    lab.execute(
        "CREATE TABLE t (a text, b int, v text, PRIMARY KEY (a, b))",
        "INSERT INTO t SELECT 'k' || i % 100, i, 'v' FROM generate_series(1, 20000) i",
    )
    plan = lab.query(
        "EXPLAIN SELECT * FROM t WHERE (a, b) > ('k5'::text, '5'::integer) AND (a, b) <= ('k7'::text, '7'::integer) "
        "ORDER BY a, b LIMIT 100"
    )
    assert "Index Cond: ((ROW(a, b) > ROW('k5'::text, 5))" in str(plan)
