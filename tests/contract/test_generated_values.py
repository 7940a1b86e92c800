"""Values that are made by a seed, of every type: log, chunk, row hash and the server itself agree on each."""

from __future__ import annotations

import datetime as dt
import random
from contextlib import closing
from typing import Any

import pytest

from dblog_core.config.settings import Config
from dblog_core.interfaces import ChunkReader, Source
from dblog_core.model.schema import TableName
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.row_hashes import HASH
from dblog_core.wiring import open_source
from tests.contract import every_type, generated
from tests.contract.keyed import MYSQL_KINDS, every_way, shape
from tests.contract.printed import print_columns, value_and_text
from tests.contract.test_every_type import start
from tests.contract.test_source import create, log, rows, run
from tests.fix_servers import Database
from tests.integration import mysql_types, postgres_types
from tests.plain_hashes import of_rows
from tests.versions import logs_generated_columns

ROWS = 200
WHOLE: dict[str, Any] = {"after": None, "upto": None, "limit": 10_000}


def test_every_column_type_has_values(source_kind: str) -> None:
    listed = postgres_types.COLUMNS if source_kind == "postgres" else mysql_types.columns(source_kind)
    assert set(generated.makers(source_kind)) == set(listed) - {"id", "virtual_", "stored_"}


def fill(database: Database, seed: int) -> None:
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        zone = "SET TimeZone = 'UTC'" if database.kind == "postgres" else "SET time_zone = '+00:00'"
        for statement in (zone, "BEGIN", *generated.inserts(database.kind, seed, ROWS), "COMMIT"):
            try:
                cursor.execute(statement)
            except Exception as error:
                raise AssertionError(f"{error} in {statement[:20_000]}") from error


def same(left: Any, other: Any, place: str) -> None:
    """Fails with what stands around the first difference: documents are long."""
    if (left_text := repr(left)) != (its := repr(other)):
        at = next(
            (n for n, (a, b) in enumerate(zip(left_text, its, strict=False)) if a != b), min(len(left_text), len(its))
        )
        raise AssertionError(
            f"{place}, at {at}: {left_text[max(at - 60, 0) : at + 60]} and {its[max(at - 60, 0) : at + 60]}"
        )


def test_log_chunk_hash_and_server_agree_on_values_of_any_seed(
    database: Database, source: Source, reader: ChunkReader, soak_seed: int
) -> None:
    every_type.create(database)
    if database.kind == "postgres":
        database.execute("ALTER TABLE a REPLICA IDENTITY FULL")
    position = start(database, source)
    fill(database, soak_seed)
    schema = shape(database, reader)
    read = reader.read(schema, **WHOLE)
    read.rows.validate(full=True)
    chunk = {row["id"]: row for row in read.rows.to_pylist()}
    printed_by_id = {int(row["id"] or ""): row for row in print_columns(database, schema)}
    row_hashes = reader.hashes(schema, **WHOLE).rows.column(HASH).to_pylist()
    run(database, "DELETE FROM a")
    logged = rows(list(log(source, position)))
    after = {row["after"]["id"]: row["after"] for row in logged if row["op"] == "c"}
    before = {row["before"]["id"]: row["before"] for row in logged if row["op"] == "d"}
    assert len(chunk) == ROWS and chunk.keys() == printed_by_id.keys() == after.keys() == before.keys()
    # MariaDB 11.8 leaves them out of what it logs of a delete, which the key is enough for.
    unlogged = () if logs_generated_columns(database.server) else mysql_types.GENERATED
    for key, row in chunk.items():
        for column in schema.columns:
            value = row[column.name]
            text = printed_by_id[key][column.name]
            place = f"{column} of row {key}, seed {soak_seed}"
            same(after[key][column.name], value, f"{place}: inserted")
            if column.name not in unlogged:
                same(before[key][column.name], value, f"{place}: deleted")
            assert (value is None) == (text is None), place
            if text is not None and column.name != "dz":  # the server prints the zeros of ZEROFILL
                same(*value_and_text(value, text, column), f"{place}: the server")
    assert row_hashes == of_rows(read, Rules({})).rows.column(HASH).to_pylist()


NO_KEYS = {
    "mysql": {"j", "ge", "po", "vec", "s_empty", "s_odd", "f74", "g103"},
    "postgres": {"j", "x", "pt", "h", "p", "nest", "nests", "egg", "t", "by", "jb", "texts", "bys", "ns"},
}
"""Columns whose type the server takes into no primary key, or we do not, or whose values are too long for one."""


def test_values_of_any_seed_are_keys_that_are_found(
    database: Database, source: Source, reader: ChunkReader, soak_seed: int
) -> None:
    r = random.Random(soak_seed)
    value_makers = generated.makers(database.kind)
    listed = postgres_types.COLUMNS if database.kind == "postgres" else mysql_types.columns(database.kind)
    if database.kind == "postgres":
        database.execute(*postgres_types.TYPES)
    unkeyed = NO_KEYS["postgres" if database.kind == "postgres" else "mysql"]
    names = [name for name in value_makers if name not in unkeyed and listed[name].split("(")[0] not in _LONG]
    for name in r.sample(names, 6):
        kind = listed[name].replace(" NULL", "").replace(" INVISIBLE", "")  # MariaDB hides no key
        position = create(database, source, "a", f"n int, k0 {kind} NOT NULL PRIMARY KEY")
        # A key that is there already is left out.
        skipped = ("", " ON CONFLICT DO NOTHING") if database.kind == "postgres" else (" IGNORE", "")
        values = [f"({number}, {value_makers[name](r)})" for number in range(20)]
        run(database, *(f"INSERT{skipped[0]} INTO a (n, k0) VALUES {value}{skipped[1]}" for value in values))
        schema = shape(database, reader)
        every_way(database, reader, schema)
        chunk = {row["n"]: repr(row["k0"]) for row in reader.read(schema, **WHOLE).rows.to_pylist()}
        logged = {row["after"]["n"]: repr(row["after"]["k0"]) for row in rows(list(log(source, position)))}
        assert logged == chunk, f"{name}, seed {soak_seed}"
        run(database, "DROP TABLE a")


_LONG = ("tinytext", "text", "mediumtext", "longtext", "tinyblob", "blob", "mediumblob", "longblob")
"""Of MySQL, which takes a part of them alone into a key; PostgreSQL's text is among the others, as varchar."""


@pytest.mark.parametrize("source_kind", MYSQL_KINDS, indirect=True)
def test_dates_of_no_calendar_are_null_on_both_ways(
    database: Database, source_config: Config, source: Source, soak_seed: int
) -> None:
    position = create(database, source, "a", "id int PRIMARY KEY, d date, t datetime(6), s datetime")
    generated_rows = generated.no_dates(soak_seed, 200)
    texts = [f"{year:04d}-{month:02d}-{day:02d}" for year, month, day in generated_rows]
    values = ", ".join(f"({n}, '{d}', '{d} 23:59:59.999999', '{d} 00:00:00')" for n, d in enumerate(texts))
    run(database, "SET sql_mode = 'ALLOW_INVALID_DATES'", f"INSERT INTO a VALUES {values}")
    lenient = open_source(source_config.source.model_copy(update={"zero_dates": "null"}))
    with closing(lenient.open_reader()) as reader:
        schema = reader.schema(TableName(database.schema, "a"))
        read = reader.read(schema, **WHOLE)
        row_hashes = reader.hashes(schema, **WHOLE).rows.column(HASH).to_pylist()
    chunk = {row["id"]: row for row in read.rows.to_pylist()}
    logged = {row["after"]["id"]: row["after"] for row in rows(list(log(lenient, position)))}
    assert chunk == logged
    for number, (year, month, day) in enumerate(generated_rows):
        d = dt.date(year, month, day) if generated.is_a_date(year, month, day) else None
        assert chunk[number]["d"] == d, texts[number]
        assert chunk[number]["s"] == (d and dt.datetime.combine(d, dt.time())), texts[number]
        assert (chunk[number]["t"] is None) == (d is None), texts[number]
    assert row_hashes == of_rows(read, Rules({})).rows.column(HASH).to_pylist()
