"""Values of every type, extremes included: the log, a chunk and the server itself say the same of each."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.errors import RequestError, ValueOutOfRange
from dblog_core.interfaces import ChunkReader, Source
from dblog_core.model.events import Unreadable
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.sources.postgres.session_settings import FORMS
from tests.contract import every_type
from tests.contract.keyed import MYSQL_KINDS
from tests.contract.test_source import create, log, rows, run
from tests.fix_servers import Database


def start(database: Database, source: Source) -> str:
    """The position from which on the log has table `a`."""
    source.prepare()
    return source.start_position() if database.kind != "postgres" else source.current_position()


def read(reader: ChunkReader, schema: TableSchema) -> dict[Any, Any]:
    read_rows = reader.read(schema, after=None, upto=None, limit=100).rows
    read_rows.validate(full=True)
    return {row["id"]: row for row in read_rows.to_pylist()}


def read_logged_rows(source: Source, position: str) -> dict[Any, Any]:
    return {row["after"]["id"]: row["after"] for row in rows(list(log(source, position)))}


def select_texts(database: Database, schema: TableSchema) -> dict[Any, dict[str, Any]]:
    """What the server prints of the columns that are staged as text."""
    names = [c.name for c in schema.columns if pa.types.is_string(c.type)]
    if database.kind == "postgres":
        quoted = ['"' + name.replace('"', '""') + '"' for name in names]
        expressions = [
            f"CASE WHEN {name} IS NOT DISTINCT FROM NULL THEN NULL ELSE format('%s', {name}) END" for name in quoted
        ]
    else:
        expressions = [f"CAST(`{name}` AS CHAR)" for name in names]
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        for setting, value in FORMS.items() if database.kind == "postgres" else ():
            cursor.execute(f"SET {setting} = %s", (value,)) if setting != "search_path" else None
        cursor.execute(f"SELECT id, {', '.join(expressions)} FROM a")
        return {row[0]: dict(zip(names, row[1:], strict=True)) for row in cursor.fetchall()}


def test_log_chunk_and_server_agree_on_every_value(database: Database, source: Source, reader: ChunkReader) -> None:
    every_type.create(database)
    position = start(database, source)
    every_type.fill(database)
    schema = reader.schema(TableName(database.schema, "a"))
    chunk = read(reader, schema)
    logged_rows = read_logged_rows(source, position)
    printed_rows = select_texts(database, schema)
    assert len(chunk) >= 4 and chunk.keys() == logged_rows.keys() == printed_rows.keys()
    for key, row in chunk.items():
        for name, value in row.items():
            assert repr(logged_rows[key][name]) == repr(value), f"{name} of row {key}"
        texts = {
            name: row[name] for name in printed_rows[key] if name != "dz"
        }  # the server prints the zeros of ZEROFILL
        assert texts == {name: printed_rows[key][name] for name in texts}


@pytest.fixture
def elsewhere(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process has one time zone, the server or the database another, and forms of its own for values."""
    monkeypatch.setenv("TZ", "America/St_Johns")
    time.tzset()
    if database.kind == "postgres":
        settings = {"TimeZone": "Asia/Kolkata", "DateStyle": "German", "IntervalStyle": "iso_8601"}
        settings |= {"bytea_output": "escape", "extra_float_digits": "-3", "xmlbinary": "hex"}
        for name, value in settings.items():
            database.execute(f"ALTER DATABASE {database.name} SET {name} = '{value}'")
        yield
    else:
        database.execute("SET GLOBAL time_zone = '+05:30'")
        yield
        database.execute("SET GLOBAL time_zone = 'SYSTEM'")
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
def test_no_time_zone_and_no_style_changes_a_value(database: Database, source: Source) -> None:
    zoned, plain = ("timestamptz", "timestamp") if database.kind == "postgres" else ("timestamp(6)", "datetime(6)")
    own_columns = ", i interval, b bytea, f float8, r tstzrange, s timestamptz[]" if database.kind == "postgres" else ""
    position = create(
        database, source, "a", f"id int PRIMARY KEY, z {zoned} NULL, p {plain}, d date, t time(6){own_columns}"
    )
    values = "1, '2024-03-10 02:30:00.5', '2024-03-10 02:30:00.5', '2024-03-10', '02:30:00.5'"
    if own_columns:
        values += ", '1 day 2 hours', '\\x00ff', 0.1::float8 + 0.2, '[2024-03-10 00:00, 2024-03-11 00:00)',"
        values += " '{2024-03-10 00:00}'"
        run(database, "SET TimeZone = '<-03:30>+03:30'", f"INSERT INTO a VALUES ({values})")
    else:
        run(database, "SET time_zone = '-03:30'", f"INSERT INTO a VALUES ({values})")
    expected: dict[str, Any] = {
        "id": 1,
        "z": dt.datetime(2024, 3, 10, 6, 0, 0, 500_000, tzinfo=dt.UTC),
        "p": dt.datetime.fromisoformat("2024-03-10 02:30:00.5"),
        "d": dt.date(2024, 3, 10),
        "t": "02:30:00.5" if own_columns else "02:30:00.500000",
    }
    if own_columns:
        expected |= {"i": "1 day 02:00:00", "b": b"\0\xff", "f": 0.1 + 0.2}
        expected |= {"r": '["2024-03-10 03:30:00+00","2024-03-11 03:30:00+00")', "s": '{"2024-03-10 03:30:00+00"}'}
    with closing(source.open_reader()) as reader:
        chunk = read(reader, reader.schema(TableName(database.schema, "a")))
    assert chunk == read_logged_rows(source, position) == {1: expected}


@pytest.mark.parametrize("source_kind", MYSQL_KINDS, indirect=True)
def test_what_stands_for_no_character_is_an_error_on_both_ways(
    database: Database, source: Source, reader: ChunkReader
) -> None:
    """Half a pair of surrogates, and a whole one in a character set that has none."""
    for text in ("D800", "D83DDE00"):
        run(database, "DROP TABLE IF EXISTS a")
        position = create(database, source, "a", "id int PRIMARY KEY, v varchar(9) CHARACTER SET ucs2")
        run(database, f"INSERT INTO a VALUES (1, _ucs2 x'{text}')")
        (unreadable,) = [s for batch in log(source, position) for s in batch.signals if isinstance(s, Unreadable)]
        assert "column v" in unreadable.why
        with pytest.raises(ValueOutOfRange, match="column v"):
            read(reader, reader.schema(TableName(database.schema, "a")))


@pytest.mark.parametrize("source_kind", ["mariadb"], indirect=True)
def test_a_byte_that_ascii_does_not_have_is_what_the_server_prints(
    database: Database, source: Source, reader: ChunkReader
) -> None:
    position = create(database, source, "a", "id int PRIMARY KEY, v varchar(9) CHARACTER SET ascii")
    run(database, "INSERT INTO a VALUES (1, _ascii x'41ff80')")
    chunk = read(reader, reader.schema(TableName(database.schema, "a")))
    assert chunk == read_logged_rows(source, position) == {1: {"id": 1, "v": "A??"}}


@pytest.mark.parametrize("source_kind", MYSQL_KINDS, indirect=True)
def test_a_set_whose_values_print_alike_is_no_key(database: Database, source: Source, reader: ChunkReader) -> None:
    position = create(database, source, "a", "s set('','x') PRIMARY KEY")
    run(database, "INSERT INTO a VALUES (0), (1)")
    with pytest.raises(RequestError, match="column s: a SET with an empty label"):
        reader.schema(TableName(database.schema, "a"))
    (unreadable,) = [s for batch in log(source, position) for s in batch.signals if isinstance(s, Unreadable)]
    assert "column s: a SET with an empty label" in unreadable.why and unreadable.table.name == "a"
