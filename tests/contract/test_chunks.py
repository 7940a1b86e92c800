"""Chunk readers: keys of every kind, in the server's own order, and what a server does about them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from dblog_core.config.settings import Config
from dblog_core.errors import RequestError, SourceRefused, ValueOutOfRange
from dblog_core.interfaces import VALUE_BYTES, ChunkReader, ChunkTooLarge, Source
from dblog_core.model.filters import parse
from dblog_core.wiring import open_source
from tests.contract.keyed import (
    MYSQL_KINDS,
    cases,
    composite,
    every_way,
    fill,
    mariadb_cases,
    mysql_cases,
    order_of,
    postgres_cases,
    shape,
)
from tests.contract.test_source import run
from tests.fix_servers import Database

CASES = [(kind, case) for kind in MYSQL_KINDS for case in mysql_cases()]
CASES += [("mariadb", case) for case in mariadb_cases()]
CASES += [("postgres", case) for case in postgres_cases()]
COMPOSITES = ["mixed", "enum_first", "enum_last", "binary_first"]


@pytest.mark.one_of(4)
@pytest.mark.parametrize(("source_kind", "case"), CASES, indirect=["source_kind"])
def test_a_key_of_any_type_is_read_in_the_servers_order(
    database: Database, source: Source, reader: ChunkReader, case: str
) -> None:
    kind, values = cases(database)[case]
    fill(database, [kind], [(value,) for value in values])
    schema = shape(database, reader)
    every_way(database, reader, schema)
    # No index serves a range of a SET: a plan must say so.
    assert (reader.explain(schema).index is None) == case.startswith("set")


CITEXTS = ["a", "B", "c", "D", "_", "Z", "é", "É2", "x y", "b2", "[", "0"]
HSTORES = ["a=>1", "b=>1", "a=>2", "a=>1, b=>2", "c=>NULL"]
LTREES = ["a", "B", "a.b", "a_1", "A.b.c", "b", "Z9"]


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    ("types", "rows"),
    [
        (["citext"], [(f"'{text}'",) for text in CITEXTS]),
        (["ltree"], [(f"'{path}'",) for path in LTREES]),
        # The operators of its order have names of their own.
        (["hstore"], [(f"'{pairs}'",) for pairs in HSTORES]),
        (
            ["int", "citext", "ltree"],
            [(str(n), f"'{t}'", f"'{p}'") for n in (1, 2) for t in CITEXTS[:4] for p in LTREES[:3]],
        ),
    ],
    ids=["citext", "ltree", "hstore", "composite"],
)
def test_a_key_of_a_type_of_an_extension_is_read_by_the_types_own_operators(
    database: Database, source: Source, reader: ChunkReader, types: list[str], rows: list[tuple[str, ...]]
) -> None:
    """In the order of citext's index, not of text's, in which the bounds of chunks would leave rows out."""
    run(database, "CREATE SCHEMA apart", "CREATE EXTENSION citext SCHEMA apart", "CREATE EXTENSION ltree")
    run(database, "CREATE EXTENSION hstore")
    fill(database, [kind.replace("citext", "apart.citext") for kind in types], rows)
    schema = shape(database, reader)
    every_way(database, reader, schema)
    assert reader.explain(schema).index
    number = next(iter(reader.read(schema, after=None, upto=None, limit=1).rows.column("n").to_pylist()))
    if types == ["citext"]:
        (parsed_filter,) = parse([("k0", "=", "b")], schema)
        assert reader.read(schema, after=None, upto=None, limit=9, filters=(parsed_filter,)).rows.column(
            "k0"
        ).to_pylist() == ["B"]
    assert number == order_of(database, schema)[0]


@pytest.mark.parametrize("case", COMPOSITES)
def test_a_composite_key_is_read_in_the_servers_order(
    database: Database, source: Source, reader: ChunkReader, case: str
) -> None:
    fill(database, *composite(database, case))
    schema = shape(database, reader)
    every_way(database, reader, schema)
    assert reader.explain(schema).index


@pytest.mark.parametrize("source_kind", MYSQL_KINDS, indirect=True)
def test_a_zero_date_in_a_key_is_an_error_and_not_the_end_of_the_table(
    database: Database, source_config: Config, source: Source
) -> None:
    run(database, "SET sql_mode = ''", "CREATE TABLE a (n int, k date, PRIMARY KEY (k, n))")
    run(database, "SET sql_mode = ''", "INSERT INTO a VALUES (1, '0000-00-00'), (2, '2024-01-01')")
    lenient = open_source(source_config.source.model_copy(update={"zero_dates": "null"}))
    with closing(lenient.open_reader()) as reader:
        schema = shape(database, reader)
        with pytest.raises(ValueOutOfRange, match="does not exist"):
            reader.read(schema, after=None, upto=None, limit=1)
        with pytest.raises(RequestError):
            reader.read(schema, after=(None, 1), upto=None, limit=1)


@pytest.mark.parametrize("source_kind", ["mysql"], indirect=True)
def test_no_chunk_is_read_while_commits_may_become_visible_in_any_order(
    database: Database, source: Source, reader: ChunkReader
) -> None:
    run(database, "CREATE TABLE a (n int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    schema = shape(database, reader)
    try:
        run(database, "SET GLOBAL binlog_order_commits = OFF")
        reads: list[Callable[[], Any]] = [
            lambda: reader.read(schema, after=None, upto=None, limit=1),
            lambda: reader.read_keys(schema, [(1,)]),
            source.open_reader,
        ]
        for read in reads:
            with pytest.raises(SourceRefused, match="binlog_order_commits") as refused:
                read()
            assert "SET PERSIST binlog_order_commits = ON" in refused.value.fix
    finally:
        run(database, "SET GLOBAL binlog_order_commits = ON")
    assert reader.read(schema, after=None, upto=None, limit=1).rows.num_rows == 1


@pytest.mark.parametrize("source_kind", MYSQL_KINDS, indirect=True)
def test_an_invalid_enum_value_is_read_in_its_place(database: Database, source: Source, reader: ChunkReader) -> None:
    run(database, "CREATE TABLE a (n int, e enum('b','a') NOT NULL, PRIMARY KEY (e, n))")
    run(database, "SET sql_mode = ''", "INSERT INTO a VALUES (1,'b'),(2,'a'),(3,'none'),(4,'none'),(5,'b'),(6,'a')")
    every_way(database, reader, shape(database, reader))


def test_a_partitioned_table_is_read_in_the_order_of_its_whole_key(
    database: Database, source: Source, reader: ChunkReader
) -> None:
    """Rows of one partition lie between those of another."""
    if database.kind == "postgres":
        run(
            database,
            "CREATE TABLE a (n int, k text, PRIMARY KEY (k, n)) PARTITION BY LIST (n)",
            "CREATE TABLE a_one PARTITION OF a FOR VALUES IN (1, 3, 5, 7)",
            "CREATE TABLE a_rest PARTITION OF a DEFAULT",
        )
    else:
        run(
            database,
            "CREATE TABLE a (n int, k varchar(9), PRIMARY KEY (k, n)) PARTITION BY LIST (n)"
            " (PARTITION a_one VALUES IN (1, 3, 5, 7), PARTITION a_rest VALUES IN (2, 4, 6, 8))",
        )
    run(database, f"INSERT INTO a VALUES {', '.join(f'({n}, {chr(39)}k{n // 4}{chr(39)})' for n in range(1, 9))}")
    schema = shape(database, reader)
    every_way(database, reader, schema)
    assert reader.explain(schema).index


def test_a_chunk_of_more_bytes_than_it_may_have_is_given_up_while_it_is_received(
    database: Database, source: Source
) -> None:
    run(database, "CREATE TABLE a (n int PRIMARY KEY, t text)")
    for n in range(60):
        run(database, f"INSERT INTO a VALUES ({n}, repeat('x', 50000))")
    with closing(source.open_reader()) as reader:
        schema = shape(database, reader)
        whole = reader.read(schema, after=None, upto=None, limit=60, most=5_000_000)
        assert whole.rows.num_rows == 60 and 3_000_000 < whole.counted_bytes < 3_100_000
        listed = reader.read_keys(schema, [(3,), (4,)], most=200_000)
        assert listed.rows.num_rows == 2 and 100_000 < listed.counted_bytes < 110_000
        with pytest.raises(ChunkTooLarge) as large:
            reader.read(schema, after=None, upto=None, limit=60, most=1_520_000)
        assert 28 <= large.value.rows <= 45, "about as many as fit"
    with closing(source.open_reader()) as reader, pytest.raises(ChunkTooLarge):
        reader.read_keys(schema, [(n,) for n in range(60)], most=1_520_000)
    with closing(source.open_reader()) as reader:
        assert reader.read(schema, after=None, upto=None, limit=10, most=520_000).rows.num_rows == 10


def test_values_that_are_not_there_count_for_bytes_too(database: Database, source: Source) -> None:
    """A NULL is hardly sent, and takes its place in memory."""
    columns = ", ".join(f"c{number} int" for number in range(200))
    keys = ", ".join(f"({number})" for number in range(400))
    run(database, f"CREATE TABLE a (n int PRIMARY KEY, {columns})", f"INSERT INTO a (n) VALUES {keys}")
    with closing(source.open_reader()) as reader:
        schema = shape(database, reader)
        whole = reader.read(schema, after=None, upto=None, limit=400, most=5_000_000)
        row_bytes = whole.counted_bytes / 400
        assert 201 * (1 + VALUE_BYTES) < row_bytes < 201 * (5 + VALUE_BYTES)
        with pytest.raises(ChunkTooLarge) as large:
            reader.read(schema, after=None, upto=None, limit=400, most=int(100 * row_bytes))
        assert 90 <= large.value.rows <= 100, "about as many as fit"
