"""docs/types.md held against real servers: every type and every example of it, through the log and in a chunk."""

from __future__ import annotations

from contextlib import closing

import pytest

from dblog_core.config.settings import Config
from dblog_core.interfaces import Source
from dblog_core.model.schema import TableName
from dblog_core.wiring import open_source
from tests import types_page
from tests.contract.test_source import create, log, rows, run
from tests.fix_servers import Database
from tests.integration import mysql_types
from tests.types_page import POSTGRES, Row, catalogue_entry, print_value, staged_type


@pytest.fixture
def source(source_config: Config) -> Source:
    source = open_source(source_config.source)
    source.prepare()
    return source


def of(database: Database) -> list[Row]:
    listed = types_page.POSTGRES_ROWS if database.kind == POSTGRES else types_page.MYSQL_ROWS
    if database.kind == POSTGRES:
        return listed
    has_vectors = "vec" in mysql_types.columns(database.kind)
    return [row for row in listed if database.kind in row.on and (has_vectors or row.declared != ("vector(2)",))]


def test_types_and_examples_are_those_of_the_server(database: Database, source: Source) -> None:
    listed = of(database)
    declared = [text for row in listed for text in row.declared]
    columns = ", ".join(f"c{number} {text}" for number, text in enumerate(declared))
    start = create(database, source, "a", f"id int PRIMARY KEY, {columns}")
    for number in range(max(len(row.examples) for row in listed)):
        examples_by_column = {
            f"c{declared.index(r.declared[0])}": r.examples[number][0] for r in listed if number < len(r.examples)
        }
        names = ", ".join(["id", *examples_by_column])
        values = ", ".join([str(number), *examples_by_column.values()])
        run(database, f"INSERT INTO a ({names}) VALUES ({values})")
    with closing(source.open_reader()) as reader:
        schema = reader.schema(TableName(database.schema, "a"))
        read = reader.read(schema, after=None, upto=None, limit=9).rows.to_pylist()
    logged = [row["after"] for row in rows(list(log(source, start)))]
    assert {c.name: c.type for c in schema.columns[1:]} == {
        f"c{number}": staged_type(database.kind, text) for number, text in enumerate(declared)
    }
    for row in listed:
        name = f"c{declared.index(row.declared[0])}"
        kind = staged_type(database.kind, row.declared[0])
        for number, (_, value) in enumerate(row.examples):
            for staged_value in (read[number][name], logged[number][name]):
                assert print_value(staged_value, kind) == print_value(value, kind), row.declared[0]


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_the_catalogue_prints_types_as_the_page_does(database: Database) -> None:
    declared = [text for row in of(database) for text in row.declared]
    run(database, f"CREATE TABLE a ({', '.join(f'c{n} {text}' for n, text in enumerate(declared))}) CHARSET utf8mb4")
    query_rows = database.query(
        "SELECT data_type, column_type, numeric_precision, numeric_scale, character_set_name"
        " FROM information_schema.columns WHERE table_schema = DATABASE() ORDER BY ordinal_position"
    )
    for text, (name, whole, precision, scale, charset) in zip(declared, query_rows, strict=True):
        numbers = (precision, scale) if name == "decimal" else (None, None)
        type_parts = (name, "unsigned" in whole, *numbers, charset)
        expected = catalogue_entry(text)
        assert type_parts == (expected[0], "unsigned" in text, *expected[2:]), text


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_every_base_type_of_the_server_is_on_the_page(database: Database) -> None:
    query_rows = database.query(
        "SELECT format_type(oid, NULL) FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace"
        " AND typtype IN ('b', 'r', 'm') AND (typelem = 0 OR typcategory <> 'A')"
    )
    listed = {text.split("(")[0] for row in types_page.POSTGRES_ROWS for text in row.declared}
    listed |= {text.replace("(3)", "") for row in types_page.POSTGRES_ROWS for text in row.declared}
    assert {name for (name,) in query_rows} - listed == set()
