"""Values of MySQL and MariaDB are the same in log and chunk, as the server prints them."""

from __future__ import annotations

import datetime as dt
import decimal
import json

import pytest

from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.source import MysqlSource
from dblog_core.sources.mysql.values import json_text
from tests.fix_servers import Database
from tests.integration import mysql_types
from tests.integration.mysql_source.log_rows import batches, changes, execute, insert_all_types

pytestmark = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)


def test_every_type_is_equal_in_log_and_chunk(database: Database, source: MysqlSource) -> None:
    database.execute(mysql_types.create(database.kind, "types"))
    start = source.current_position()
    insert_all_types(database, "types")
    log_batches = list(batches(source, start))
    logged = {row["after"]["id"]: row["after"] for row in changes(log_batches)}
    reader = source.open_reader()
    schema = reader.schema(TableName(database.schema, "types"))
    read = {row["id"]: row for row in reader.read(schema, after=None, upto=None, limit=100).rows.to_pylist()}
    reader.close()
    assert log_batches[0].changes[0].schema.fingerprint == schema.fingerprint
    assert logged.keys() == read.keys() == {decimal.Decimal(2**64 - 1), *map(decimal.Decimal, (1, 2, 3))}
    for key, row in read.items():
        for name, value in row.items():
            assert repr(logged[key][name]) == repr(value), f"{name} of row {key}"


def test_types_have_the_values_that_were_written(database: Database, source: MysqlSource) -> None:
    database.execute(mysql_types.create(database.kind, "types"))
    start = source.current_position()
    insert_all_types(database, "types")
    first = changes(list(batches(source, start)))[0]["after"]
    assert first["u8"] == decimal.Decimal(2**64 - 1) and first["i8"] == -(2**63) and first["i3"] == -8388608
    assert first["d65"] == "-12345678901234567890123456789012345.123456789012345678901234567890"
    assert first["d38"] == decimal.Decimal("-1234567890123456789012345678.0123456789") and first["dz"] == "123.50000"
    assert first["b"] == b"ab" + bytes(14) and first["b255"] == b"\0\xff" * 100 + bytes(55)
    assert first["v_latin1"] == "é€\u0081\u009d" and first["c"] == "ab" and first["v"] == "日本😀  "
    assert first["dt6"] == dt.datetime.fromisoformat("2024-02-29 12:34:56.123456") and first["da"] == dt.date(1, 1, 1)
    assert first["ts6"] == dt.datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)
    assert (first["ti"], first["ti1"], first["ti6"]) == ("-838:59:59", "-00:00:00.1", "838:59:58.999999")
    assert (first["e"], first["s"], first["y"]) == ("bé", "x,zß", 2155)
    assert first["bit20"] == b"\x0a\xbc\xde" and json.loads(first["j"])["aa"][-1] == 'x"\x01\n\x7fé😀/'


@pytest.mark.parametrize(
    "columns",
    [
        "b BYTES, t text",
        "t text, b BYTES, t2 text, b2 BYTES, t3 text",
        "u varchar(9) CHARACTER SET ucs2, b BYTES, l varchar(9) CHARACTER SET latin1, t text, o blob, b2 BYTES, k text",
        "b BYTES, l varchar(20) CHARACTER SET latin1, g varchar(20) CHARACTER SET latin1, b2 BYTES, t text, j json",
    ],
)
def test_columns_of_bytes_between_texts_move_no_character_set(
    database: Database, source: MysqlSource, columns: str
) -> None:
    """The log lists the collations of texts alone, and which other types count among them differs by server."""
    has_vectors = "vec" in mysql_types.columns(database.kind)
    kind, value = ("vector(3)", "TO_VECTOR('[1,2,3]')") if has_vectors else ("point", "POINT(1, 2)")
    execute(database, f"CREATE TABLE a (id int PRIMARY KEY, {columns.replace('BYTES', kind)}) CHARACTER SET utf8mb4")
    texts = [name for name, *_ in (c.split() for c in columns.split(", ")) if name[0] not in "boj"]
    start = source.current_position()
    sets = ", ".join(f"{name} = 'é'" for name in texts)
    more = ", ".join(f"{c.split()[0]} = {value}" for c in columns.split(", ") if "BYTES" in c)
    execute(database, f"INSERT INTO a SET id = 1, {sets}, {more}")
    log_batches = list(batches(source, start))
    (logged,) = (row["after"] for row in changes(log_batches))
    assert {name: logged[name] for name in texts} == dict.fromkeys(texts, "é")
    reader = source.open_reader()
    schema = reader.schema(TableName(database.schema, "a"))
    reader.close()
    assert log_batches[0].changes[0].schema.fingerprint == schema.fingerprint


def test_single_byte_text_reads_as_the_server_converts_it(database: Database, source: MysqlSource) -> None:
    """Every byte of every single-byte character set that the server has, also those that stand for nothing."""
    sets = [
        name
        for (name,) in database.query(
            "SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS WHERE MAXLEN = 1"
        )
    ]
    names = [name for name in sets if name not in ("binary", "ascii")]
    columns = ", ".join(f"c_{name} varchar(255) CHARACTER SET {name}" for name in names)
    execute(database, f"CREATE TABLE a (id int PRIMARY KEY, {columns})")
    start = source.current_position()
    every = ", ".join(f"CONVERT(x'{bytes(range(1, 256)).hex()}' USING {name})" for name in names)
    execute(database, f"INSERT IGNORE INTO a SELECT 1, {every}")
    (logged,) = (row["after"] for row in changes(list(batches(source, start))))
    reader = source.open_reader()
    (read,) = reader.read(
        reader.schema(TableName(database.schema, "a")), after=None, upto=None, limit=9
    ).rows.to_pylist()
    reader.close()
    assert len(names) > 20 and logged == read


def test_a_set_of_more_labels_than_bits_reads_as_the_server_prints_it(database: Database, source: MysqlSource) -> None:
    """A server that is not strict takes a 65th label if one stands there twice; no value has it."""
    every = ", ".join(f"'{n}'" for n in [*range(1, 65), 1])
    execute(database, f"CREATE TABLE a (id int PRIMARY KEY, s set({every}))")
    start = source.current_position()
    execute(database, "INSERT INTO a VALUES (1, '64'), (2, '1'), (3, 18446744073709551615), (4, '2,63'), (5, '')")
    logged = [row["after"] for row in changes(list(batches(source, start)))]
    reader = source.open_reader()
    schema = reader.schema(TableName(database.schema, "a"))
    assert reader.read(schema, after=None, upto=None, limit=9).rows.to_pylist() == logged
    assert [row["s"] for row in logged[:2]] == ["64", "1"]
    reader.close()


def test_json_doubles_print_as_the_server_prints_them(database: Database, source: MysqlSource) -> None:
    if database.kind == "mariadb":  # its JSON is text
        return
    values = [
        0.1,
        1.0,
        -0.0,
        1e15,
        1e16,
        123456789012345.6,
        1e-5,
        1.5e-7,
        0.000123456789012345678,
        1 / 3,
        -1 / 3,
        5e-324,
    ]
    values += [
        1.7976931348623157e308,
        2.5e-13,
        2.5e-14,
        2.5e-15,
        1e21,
        1e22,
        -1e22,
        123456.789e3,
        4.35,
        0.1 + 0.2,
        1e-14,
    ]
    values += [x * 10.0**e for x in (1.2345678901234567, -9.87654321098765) for e in range(-20, 20)]
    printed_values = database.query("SELECT " + ", ".join(f"CAST({_double(v)} AS JSON)" for v in values))[0]
    assert [json_text.double(value) for value in values] == [str(text) for text in printed_values]


def test_json_values_that_only_functions_make(database: Database, source: MysqlSource) -> None:
    if database.kind == "mariadb":
        return
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, j json)")
    start = source.current_position()
    execute(
        database,
        "INSERT INTO a VALUES (1, JSON_ARRAY(CAST('2024-02-29' AS DATE), CAST('2024-02-29 01:02:03.5' AS DATETIME(6)),"
        " CAST('-12:34:56.7' AS TIME(6)), CAST(-12.340 AS DECIMAL(20,3)), CAST(x'00ff' AS BINARY), b'101',"
        " 18446744073709551615))",
        "INSERT INTO a SELECT 2, JSON_OBJECT('k', REPEAT('é', 70000), 'l', JSON_ARRAY(1, 2), 'm', 70000, 'n', -70000)",
        "INSERT INTO a VALUES (3, CAST('null' AS JSON)), (4, NULL), (5, CAST('{\"\": {\"a\": [[], {}]}}' AS JSON))",
    )
    logged = {row["after"]["id"]: row["after"]["j"] for row in changes(list(batches(source, start)))}
    assert logged == dict(database.query("SELECT id, CAST(j AS CHAR) FROM a"))


def _double(value: float) -> str:
    """A literal without its text being parsed as JSON: version 8.0 does not take the nearest double there."""
    return repr(value) if "e" in repr(value) else f"{value!r}e0"
