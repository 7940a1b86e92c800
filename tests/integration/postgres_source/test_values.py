"""Values of PostgreSQL are the same in log and chunk, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from dblog_core.config.source import SourceConfig
from dblog_core.errors import (
    SourceUnavailable,
    ValueOutOfRange,
)
from dblog_core.model.events import LogBatch, SchemaSeen, Unreadable
from dblog_core.model.schema import TableName
from dblog_core.sources.postgres.source import PostgresSource
from tests.fix_servers import Database
from tests.integration.postgres_source.all_types import ALL_TYPES, make_types
from tests.integration.postgres_source.log_rows import begin, lines, read_to
from tests.waiting import wait_until


def test_every_type_has_one_value_in_log_and_chunk(
    lab: Database, source: PostgresSource, read_log: Callable[..., list[LogBatch]]
) -> None:
    make_types(lab)
    position = begin(source)
    for number in range(3):
        lab.execute(f"INSERT INTO types VALUES ({', '.join(values[number] for _, values in ALL_TYPES.values())})")
    batches = read_log(source, position)
    reader = source.open_reader()
    schema = reader.schema(TableName("public", "types"))
    chunk = reader.read(schema, after=None, upto=None, limit=10)
    reader.close()
    (seen,) = [s.schema for batch in batches for s in batch.signals if isinstance(s, SchemaSeen)]
    assert seen.fingerprint == schema.fingerprint == source.tables()[0].fingerprint
    assert [line["after"] for line in lines(batches)] == chunk.rows.to_pylist()
    assert not {"f4", "n38", "bin", "tz", "nested"} & {c.name for c in schema.columns if str(c.type) == "string"}


def test_not_a_number_and_infinities_are_kept(
    lab: Database, exact: PostgresSource, read_log: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE odd (id int PRIMARY KEY, f real, g double precision, n numeric)")
    position = begin(exact)
    lab.execute("INSERT INTO odd VALUES (1, 'NaN', '-Infinity', 'NaN'), (2, 'Infinity', 'NaN', '-Infinity')")
    (_, first), (_, second) = [(str(line["after"]["f"]), line["after"]) for line in lines(read_log(exact, position))]
    assert (str(first["f"]), first["g"], first["n"]) == ("nan", float("-inf"), "NaN")
    assert (second["f"], str(second["g"]), second["n"]) == (float("inf"), "nan", "-Infinity")
    chunk = exact.open_reader().read(exact.tables()[0], after=None, upto=None, limit=5)
    assert [str(row) for row in chunk.rows.to_pylist()] == [str(first), str(second)]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("n numeric(5,2)", "'NaN'"),
        ("d date", "'infinity'"),
        ("t timestamp", "'-infinity'"),
        ("t timestamptz", "'0044-03-15 BC'"),
        ("t timestamp", "'10000-01-01'"),
    ],
)
def test_a_value_without_an_exact_form_is_refused_by_name(
    lab: Database, exact: PostgresSource, read_log: Callable[..., list[LogBatch]], column: str, value: str
) -> None:
    lab.execute(f"CREATE TABLE odd (id int PRIMARY KEY, {column})")
    position = begin(exact)
    lab.execute(f"INSERT INTO odd VALUES (1, {value})")
    name = f"public.odd.{column.split()[0]}"
    (unreadable,) = [s for batch in read_log(exact, position) for s in batch.signals if isinstance(s, Unreadable)]
    assert unreadable.why.startswith(f"{name} at LSN") and "staged_as" in unreadable.fix
    with pytest.raises(ValueOutOfRange, match=name):
        exact.open_reader().read(exact.tables()[0], after=None, upto=None, limit=5)


def test_wal2json_passes_over_a_null_that_cannot_be_one_and_its_table(
    lab: Database, configure: Callable[..., SourceConfig], read_log: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE odd (id int PRIMARY KEY, f real NOT NULL)")
    source = PostgresSource(configure(plugin="wal2json"))
    position = begin(source)
    lab.execute("INSERT INTO odd VALUES (1, 1.5), (2, 'NaN'), (3, 2)")
    batches = read_log(source, position)
    (unreadable,) = [s for batch in batches for s in batch.signals if isinstance(s, Unreadable)]
    assert "NaN" in unreadable.why and "LSN" in unreadable.why and "pgoutput" in unreadable.fix
    rows = [row for batch in batches for changes in batch.changes for row in changes.batch.to_pylist()]
    assert [row["after"]["id"] for row in rows] == [1]


def test_rows_of_a_type_that_was_dropped_since_are_text(lab: Database, source: PostgresSource) -> None:
    lab.execute(
        "CREATE TYPE mood AS ENUM ('fine', 'odd')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN few AS int CHECK (VALUE < 9)",
        "CREATE TABLE t (id int PRIMARY KEY, m mood, p pair, l mood[], n few)",
    )
    position = begin(source)
    lab.execute(
        "INSERT INTO t VALUES (1, 'odd', (7, 'x'), ARRAY['fine', 'odd']::mood[], 5)",
        "ALTER TABLE t ALTER m TYPE text, ALTER p TYPE text, ALTER l TYPE text, ALTER n TYPE text",
        "DROP TYPE mood", "DROP TYPE pair", "DROP DOMAIN few",
        "INSERT INTO t VALUES (2, 'later', NULL, NULL, '6')",
    )  # fmt: skip
    row_lines: list[dict[str, Any]] = []

    def read() -> bool:
        try:
            with closing(source.open_log(position)) as log:
                row_lines[:] = [line["after"] for line in lines(read_to(source, log, source.current_position()))]
        except SourceUnavailable:  # pgoutput is asked for text from now on, once the server has let the slot go
            return False
        return True

    wait_until(read, "the log is read as text")
    row_lines[0]["n"] = str(row_lines[0]["n"])
    assert row_lines == [  # a domain is its base type in wal2json
        {"id": 1, "m": "odd", "p": "(7,x)", "l": "{fine,odd}", "n": "5"},
        {"id": 2, "m": "later", "p": None, "l": None, "n": "6"},
    ]


def test_generated_columns_are_left_out_of_log_and_chunk(
    lab: Database, source: PostgresSource, read_log: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED, v text)")
    position = begin(source)
    lab.execute(
        "INSERT INTO t (id, v) VALUES (1, 'a')",
        "UPDATE t SET v = 'b'",
        "DELETE FROM t",
        "INSERT INTO t (id, v) VALUES (2, 'c')",
    )
    batches = read_log(source, position)
    assert [line["after"] for line in lines(batches)] == [
        {"id": 1, "v": "a"},
        {"id": 1, "v": "b"},
        None,
        {"id": 2, "v": "c"},
    ]
    chunk = source.open_reader().read(source.tables()[0], after=None, upto=None, limit=5)
    assert chunk.rows.to_pylist() == [{"id": 2, "v": "c"}]
    assert [p.fatal for p in source.check() if "generated" in p.what] == [False]
