"""Chunk readers: what a chunk costs the server, and the plans that tell of it."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from dblog_core.config.settings import Config
from dblog_core.interfaces import ChunkReader, Source
from dblog_core.local.packages import trees
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.model import filters
from dblog_core.model.schema import TableName
from dblog_core.model.values import keys_of
from dblog_core.wiring import open_source
from tests.contract.keyed import (
    MYSQL_KINDS,
    order_of,
    shape,
    walk,
)
from tests.contract.test_source import numbers_of, run
from tests.fix_servers import Database
from tests.waiting import PATIENCE_SECONDS

DAY = dt.date(2024, 1, 1)
END = PATIENCE_SECONDS
"""Seconds within which a server must show what a test waits for."""


def big(database: Database, columns: str, values: str) -> None:
    """Table `a` of 2,000 rows, with statistics; `values` is a SELECT list over the number n."""
    run(database, f"CREATE TABLE a (n int NOT NULL, {columns})")
    run(database, f"INSERT INTO a SELECT n, {values} FROM ({numbers_of(database, 2000)}) s")
    run(database, "ANALYZE a" if database.kind == "postgres" else "ANALYZE TABLE a")


def count_visits(database: Database, source: Source, read: Callable[[ChunkReader], Any]) -> int:
    """Index entries and rows that the server visits for what `read` asks of a new reader. PostgreSQL: of table `a`."""
    with closing(source.open_reader()) as reader:
        schema = shape(database, reader)
        if database.kind != "postgres":
            reader.last_key(schema)  # it has looked for the key's index then
            before = _session_visits(reader)
            visits_after = _session_visits(reader)
            read(reader)
            return _session_visits(reader) - visits_after - (visits_after - before)  # looking counts as well
        before = _postgres_visits(database)
        read(reader)
    deadline = time.monotonic() + END
    while (after := _postgres_visits(database)) == before:  # it tells its counts when a session ends
        assert time.monotonic() < deadline, "the server has counted nothing"
    return after - before


def _session_visits(reader: Any) -> int:
    with reader._connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(count) for _, count in cursor.fetchall())


def _postgres_visits(database: Database) -> int:
    entries = "SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes WHERE relname = 'a'"
    rows = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'a'"
    return int(database.query(f"SELECT ({entries}) + ({rows})")[0][0])


BIG = {
    "single": ("PRIMARY KEY (n)", ""),
    "text": ("t varchar(30), PRIMARY KEY (t)", ", concat('Key ', n)"),
    "mixed": (
        "a bigint, t varchar(30), d date, PRIMARY KEY (a, t, d, n)",
        ", n % 3, concat('Key ', n % 100), date '2024-01-01'",
    ),
    "enum": ("e {enum}, PRIMARY KEY (e, n)", ", {label}"),
    "unique": ("t varchar(30) NOT NULL, UNIQUE (t, n)", ", concat('Key ', n % 7)"),
}
ENUM = {
    "postgres": ("mood", "(ARRAY['z', 'it''s', 'a,b'])[n % 3 + 1]::mood"),
    **dict.fromkeys(MYSQL_KINDS, ("enum('z','it''s','a,b')", "n % 3 + 1")),
}


@pytest.mark.parametrize("case", BIG)
def test_a_chunk_visits_its_rows_and_no_others(
    database: Database, source: Source, source_config: Config, case: str
) -> None:
    """Also where another index would serve a filter: sorting what it finds would cost every chunk the same again."""
    columns, values = BIG[case]
    enum, label = ENUM[database.kind]
    big(database, f"v int, {columns.format(enum=enum)}", f"n % 7 {values.format(label=label)}")
    run(database, "CREATE INDEX by_v ON a (v)")
    if case == "unique":
        table = f"{database.schema}.a"
        source = open_source(source_config.source.model_copy(update={"keys": {table: ["t", "n"]}}))
    with closing(source.open_reader()) as reader:
        schema = shape(database, reader)
        numbers, keys = walk(reader, schema, limit=300)
        passing = filters.parse([("v", "=", 3)], schema)
        plan = reader.explain(schema)
        filtered = reader.explain(schema, filters=passing)
        assert plan.index == filtered.index == _key_index(database)
        assert 1500 < plan.rows < 2500 and 150 < filtered.rows < 450
    assert numbers == order_of(database, schema)
    middle = keys[1000]
    end = keys[1500]

    def visits(read: Callable[[ChunkReader], Any]) -> int:
        return count_visits(database, source, read)

    assert visits(lambda r: r.read(schema, after=middle, upto=end, limit=10)) < 60
    # Where it is not a number, the server counts the rows as well.
    assert visits(lambda r: r.read(schema, after=middle, upto=end, limit=10, filters=passing)) < 500
    assert visits(lambda r: r.read_keys(schema, keys[500:540])) < 200
    # The filter's own index finds 286 rows; PostgreSQL 18 reads those rather than look 40 keys up.
    most = 300 if database.kind == "postgres" and PostgresServer.package is trees.POSTGRES_18 else 200
    assert visits(lambda r: r.read_keys(schema, keys[500:540], filters=passing)) < most
    assert visits(lambda r: list(r.boundaries(schema, after=middle, upto=keys[1100], every=50))) < 300
    assert visits(lambda r: r.last_key(schema)) < 30


def _key_index(database: Database) -> str:
    if database.kind == "postgres":
        index_query = "SELECT indexname FROM pg_indexes WHERE tablename = 'a' AND indexname <> 'by_v'"
        return str(database.query(index_query)[0][0])
    return next(str(row[2]) for row in database.query("SHOW INDEX FROM a") if row[2] != "by_v")


@pytest.mark.parametrize(
    ("columns", "values", "rest"),
    [
        ("PRIMARY KEY (n)", "", ()),
        ("t varchar(30), d date, PRIMARY KEY (n, t, d)", ", concat('Key ', n), date '2024-01-01'", ("absent", DAY)),
    ],
)
def test_a_thousand_listed_keys_are_looked_up(
    database: Database, source: Source, columns: str, values: str, rest: tuple[Any, ...]
) -> None:
    big(database, f"v int, {columns}", f"n % 7 {values}")
    with closing(source.open_reader()) as reader:
        schema = shape(database, reader)
        _, keys = walk(reader, schema, limit=5000)
    keys_to_read = [*keys[:1000:2], *((-n, *rest) for n in range(1000))]
    rows_read: list[Any] = []
    assert count_visits(
        database, source, lambda r: rows_read.append(r.read_keys(schema, keys_to_read).rows)
    ) <= 2 * len(keys_to_read)
    assert keys_of(rows_read[0], schema) == keys[:1000:2]


def test_without_an_index_in_key_order_a_plan_names_none(
    database: Database, source: Source, source_config: Config
) -> None:
    """An index of other order says that the key is unique; every chunk sorts, and is right."""
    big(database, "b int NOT NULL, c int NOT NULL, UNIQUE (c), UNIQUE (b, n)", "n % 5, n")
    table = f"{database.schema}.a"
    with closing(open_source(source_config.source.model_copy(update={"keys": {table: ["n", "b"]}})).open_reader()) as r:
        schema = shape(database, r)
        assert r.explain(schema).index is None
        assert walk(r, schema, limit=700)[0] == list(range(1, 2001))


def test_an_empty_table_has_a_plan_and_no_boundaries(database: Database, source: Source, reader: ChunkReader) -> None:
    run(database, "CREATE TABLE a (n int PRIMARY KEY, v int)")
    schema = shape(database, reader)
    assert reader.explain(schema).index == _key_index(database)
    assert list(reader.boundaries(schema, after=None, upto=None, every=1)) == []


def test_a_table_that_was_filled_just_now_is_not_estimated_at_nothing(
    database: Database, source: Source, reader: ChunkReader
) -> None:
    """A restored table has no statistics yet; its dump must not pass `approve_rows` for that."""
    columns = "n int PRIMARY KEY, v varchar(40)"
    filled = f"SELECT n, concat('the text of row ', n) FROM ({numbers_of(database, 20_000)}) s"
    run(database, f"CREATE TABLE a ({columns})", f"INSERT INTO a {filled}")
    tables = ["a"]
    if database.kind == "postgres":
        run(database, f"CREATE TABLE b ({columns}) PARTITION BY HASH (n)")
        for part in (0, 1):
            run(database, f"CREATE TABLE b{part} PARTITION OF b FOR VALUES WITH (MODULUS 2, REMAINDER {part})")
        run(database, f"INSERT INTO b {filled}")
        tables.append("b")
    for table in tables:
        assert 10_000 < reader.estimated_rows(TableName(database.schema, table)) < 40_000


def test_the_estimate_follows_a_table_that_has_grown_since_it_was_analysed(
    database: Database, source: Source, reader: ChunkReader
) -> None:
    columns = "n int PRIMARY KEY, v varchar(40)"
    filled = f"SELECT n, 'text' FROM ({numbers_of(database, 20_000)}) s WHERE n"
    run(database, f"CREATE TABLE a ({columns})", f"INSERT INTO a {filled} <= 2000")
    run(database, "ANALYZE a" if database.kind == "postgres" else "ANALYZE TABLE a")
    run(database, f"INSERT INTO a {filled} > 2000")
    assert 10_000 < reader.estimated_rows(TableName(database.schema, "a")) < 40_000
