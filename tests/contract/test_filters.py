"""Filters: the same rows on every kind of database, or a refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dblog_core.errors import RequestError
from dblog_core.interfaces import ChunkReader, Source
from dblog_core.model import filters
from dblog_core.model.filters import FiledFilter
from tests.contract.keyed import (
    shape,
    walk,
)
from tests.contract.test_source import run
from tests.fix_servers import Database

FILTERED = {
    "mysql": "i int, u bigint unsigned, d decimal(10,2), l decimal(65,30), f float, g double, t varchar(20), "
    "b varbinary(8), da date, m datetime(6), z timestamp(6) NULL, e enum('z','y','it''s'), s set('q','p','o'), "
    "w bit(9), h time(2), y year, o tinyint, la varchar(9) CHARACTER SET latin1",
    "postgres": "i int, u numeric(20,0), d numeric(10,2), l numeric, f real, g double precision, "
    't text COLLATE "no_case", b bytea, da date, m timestamp, z timestamptz, e mood, h time(2), o boolean, j jsonb, '
    "p uuid",
}
_MYSQL_ROWS = [
    "1, -5, 0, -1.50, -0.5, 0.1, 0.1, 'Abc', x'00ff', '2024-02-29', '2024-01-01 00:00:00.000001',"
    " '2024-01-01 00:00:00.000001', 'z', '', b'1', '-01:00:00.5', 1999, 0, 'ä'",
    "2, 0, 18446744073709551615, 0.10, 12345678901234567890123456789012345.000000000000000000000000000001, 16777217,"
    " 0.30000000000000004, 'abd', x'', '1969-12-31', '2024-01-01 00:00:00.000002', '2024-01-01 00:00:00.000002',"
    " 'y', 'p,q', b'111111111', '25:00:00', 2000, 1, 'z'",
    "3, 7, 9223372036854775808, 99999999.99, 12345678901234567890123456789012345.000000000000000000000000000002, -0.1,"
    " -2e300, '日本 ''x', x'ff', '9999-12-31', '9999-12-31 23:59:59', '2030-01-01', 'it''s', 'q,p,o', b'100000000',"
    " '00:00:00', 0, 2, 'b'",
]
_POSTGRES_ROWS = [
    r"1, -5, 0, -1.50, -0.5, 0.1, 0.1, 'Abc', '\x00ff', '2024-02-29', '2024-01-01 00:00:00.000001',"
    " '2024-01-01 00:00:00.000001+00', 'z', '01:00:00.5', false, '{\"a\": 1}', '00000000-0000-0000-0000-000000000001'",
    "2, 0, 18446744073709551615, 0.10, 12345678901234567890123456789012345.000000000000000000000000000001, 16777217,"
    r" 0.30000000000000004, 'abd', '\x', '1969-12-31', '2024-01-01 00:00:00.000002', '2024-01-01 00:00:00.000002+00',"
    " 'it''s', '23:00:00', true, '[]', '00000000-0000-0000-0000-000000000002'",
    r"3, 7, 9223372036854775808, 99999999.99, 'NaN', -0.1, 'Infinity', '日本 ''x', '\xff', '9999-12-31',"
    " '9999-12-31 23:59:59', '2030-01-01', ' x', '00:00:00', true, '2', 'ffffffff-0000-0000-0000-000000000001'",
]
PASSING: list[tuple[str, str, Any, list[int]]] = [
    ("i", "=", 7, [3]), ("i", "<", 0, [1]), ("i", ">=", 0, [2, 3]), ("i", "in", [-5, 7, 8], [1, 3]),
    ("u", "=", 2**64 - 1, [2]), ("u", ">", str(2**63), [2]), ("u", ">=", 2**63, [2, 3]), ("u", ">", -1, [1, 2, 3]),
    ("d", "=", "0.1", [2]), ("d", "<", "0.10", [1]), ("d", "<=", "0.1", [1, 2]),
    ("l", "=", "12345678901234567890123456789012345.000000000000000000000000000001", [2]), ("l", "<", "-0.4", [1]),
    ("f", "=", 0.1, [1]), ("f", "in", [16777216, -0.1], [2, 3]), ("f", "<", 0.1, [3]), ("g", "=", 0.1, [1]),
    ("g", "=", 0.3, []), ("g", "=", 0.30000000000000004, [2]),
    ("t", "=", "ABC", [1]), ("t", ">", "ABC", [2, 3]), ("t", "in", ["日本 'x", "%"], [3]),
    ("t", "=", "a' OR '1'='1", []),
    ("b", "=", "", [2]), ("b", ">", "AP8=", [3]), ("b", "in", ["AP8=", "/w=="], [1, 3]),
    ("da", ">", "1970-01-01", [1, 3]), ("da", "=", "9999-12-31", [3]),
    ("m", "=", "2024-01-01T00:00:00.000001", [1]), ("m", "<=", "2024-01-01 00:00:00.000002", [1, 2]),
    ("z", "=", "2024-01-01T00:00:00.000001Z", [1]), ("z", ">", "2024-01-01T01:00:00.000001+01:00", [2, 3]),
    ("z", ">=", "2024-01-01T00:00:00.000002", [2, 3]), ("e", "in", ["z"], [1]),
    ("h", "=", "00:00:00", [3]), ("h", ">", "22:59:59.99", [2]),
]  # fmt: skip
PASSING_MYSQL: list[tuple[str, str, Any, list[int]]] = [
    ("e", "=", "it's", [3]), ("s", "=", "p,q", [2]), ("s", "=", "q,p", [2]), ("s", "in", ["", "o,p,q"], [1, 3]),
    ("w", "=", "Af8=", [2]), ("w", ">=", "AQA=", [2, 3]), ("h", "<", "00:00:00", [1]), ("h", "=", "-01:00:00.50", [1]),
    ("y", "=", 0, [3]), ("y", ">", 1999, [2]), ("y", "<=", 1999, [1, 3]), ("o", ">", 0, [2, 3]),
    ("la", "=", "Ä", [1]), ("la", ">", "b", [1, 2]),
]  # fmt: skip
PASSING_POSTGRES: list[tuple[str, str, Any, list[int]]] = [
    ("e", "=", "it's", [2]), ("e", ">", "z", [2, 3]), ("o", "=", True, [2, 3]), ("j", "=", '{"a":1}', [1]),
    ("p", ">", "00000000-0000-0000-0000-000000000001", [2, 3]), ("g", ">", "-Infinity", [1, 2, 3]),
    ("g", "=", "Infinity", [3]), ("l", "=", "NaN", [3]),
]  # fmt: skip


def fill_filtered(database: Database) -> None:
    columns = FILTERED["postgres" if database.kind == "postgres" else "mysql"]
    rows = _POSTGRES_ROWS if database.kind == "postgres" else _MYSQL_ROWS
    run(database, f"CREATE TABLE a (n int PRIMARY KEY, {columns})")
    run(database, f"INSERT INTO a VALUES {', '.join(f'({row})' for row in rows)}", "INSERT INTO a (n) VALUES (4)")


def test_filters_compare_as_the_column_does(database: Database, source: Source, reader: ChunkReader) -> None:
    fill_filtered(database)
    schema = shape(database, reader)
    special = PASSING_POSTGRES if database.kind == "postgres" else PASSING_MYSQL
    for column, op, value, expected in PASSING + special:
        parsed_filters = filters.parse([(column, op, value)], schema)
        stored = json.loads(json.dumps([FiledFilter.of(each).to_json() for each in parsed_filters]))
        stored_filters = filters.parse_filed(map(FiledFilter.from_json, stored), schema)
        assert stored_filters == parsed_filters
        rows = reader.read(schema, after=None, upto=None, limit=9, filters=stored_filters).rows.column("n").to_pylist()
        assert rows == expected, (column, op, value)
        listed = (
            reader.read_keys(schema, [(i,) for i in range(1, 5)], filters=stored_filters).rows.column("n").to_pylist()
        )
        assert listed == expected, (column, op, value)


def test_filters_and_bounds_hold_together(database: Database, source: Source, reader: ChunkReader) -> None:
    fill_filtered(database)
    schema = shape(database, reader)
    parsed_filters = filters.parse([("i", ">=", 0), ("d", "<", "100"), ("t", "in", ["abd", "Abc"])], schema)
    assert walk(reader, schema, limit=1, passing=parsed_filters)[0] == [2]
    assert reader.read(schema, after=(2,), upto=None, limit=5, filters=parsed_filters).rows.num_rows == 0
    assert reader.read(schema, after=None, upto=(1,), limit=5, filters=parsed_filters).rows.num_rows == 0


REFUSED_MYSQL = [
    ("e", "<", "z"), ("e", "=", "Z"), ("s", ">", "p"), ("s", "=", "p,zz"), ("h", "=", "ten"), ("y", "=", 99),
    ("g", "=", "Infinity"), ("la", "=", "😀"), ("l", "=", "NaN"), ("l", "<", "abc"),
]  # fmt: skip
REFUSED_POSTGRES = [("e", "=", "nothing"), ("h", "=", "ten"), ("l", "=", "abc"), ("p", "=", "1"), ("t", "=", "a\0")]


def test_a_value_that_a_column_cannot_take_is_refused(database: Database, source: Source, reader: ChunkReader) -> None:
    fill_filtered(database)
    schema = shape(database, reader)
    for refused_filter in REFUSED_POSTGRES if database.kind == "postgres" else REFUSED_MYSQL:
        parsed_filters = filters.parse([refused_filter], schema)
        with pytest.raises(RequestError) as explained:
            reader.explain(schema, filters=parsed_filters)
        with pytest.raises(RequestError):
            reader.read(schema, after=None, upto=None, limit=5, filters=parsed_filters)
        assert explained.value.fix
    assert reader.read(schema, after=None, upto=None, limit=5).rows.num_rows == 4  # the reader goes on


def test_a_column_without_a_comparison_is_refused(database: Database, source: Source, reader: ChunkReader) -> None:
    """MariaDB's JSON is text, and compared as that."""
    run(database, "CREATE TABLE a (n int PRIMARY KEY, j json)", "INSERT INTO a VALUES (1, '{}')")
    schema = shape(database, reader)
    parsed_filters = filters.parse([("j", "=", "{}")], schema)
    if database.kind == "mariadb":
        assert reader.read(schema, after=None, upto=None, limit=5, filters=parsed_filters).rows.num_rows == 1
        return
    with pytest.raises(RequestError):
        reader.explain(schema, filters=parsed_filters)
