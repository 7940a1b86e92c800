"""Tables with keys of every type, and the ways in which a chunk reader must read each of them whole."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from dblog_core.interfaces import ChunkReader
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.values import Key, key_from_json, key_to_json, keys_of
from tests.contract.test_source import run
from tests.fix_servers import Database

MYSQL_KINDS = ("mysql", "mariadb")

TEXTS = ["", "a", "B", "x ", "C", "é2", "Z", "ß", "日本", "😀", "100%", "it''s", r"back\slash", "a b"]
TEXT_VALUES = [f"'{t}'" for t in TEXTS]
BYTES = ["", "00", "0000", "01ff", "27", "5c27", "80", "ff", "ff00"]
DATES = [f"'{d}'" for d in ("1000-01-01", "1969-12-31", "1970-01-01", "2024-02-29", "9999-12-31")]
MOMENTS = [f"'2024-01-01 00:00:00{f}'" for f in ("", ".000001", ".5", ".999999")] + ["'1999-12-31 23:59:59.5'"]
INTEGERS = [str(i) for i in (-(2**63), -1, 0, 1, 2, 3, 4, 2**63 - 1)]
UNSIGNED = [str(i) for i in (0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)]
DECIMALS = ["-1.5", "0", "0.0000000001", "12345678901234567890.0123456789", "-12345678901234567890"]
LONG = ["0", "-0.5", "1", "12345678901234567890123456789012345.000000000000000000000000000001"]
LONG += ["12345678901234567890123456789012345.000000000000000000000000000002"]
FLOATS = ["-1e30", "-0.1", "0", "0.1", "0.2", "1e-30", "16777216", "3e30"]

Case = tuple[str, list[str]]
"""Type and values, as SQL, of a key column."""


def mysql_cases() -> dict[str, Case]:
    hexed = [f"x'{h}'" for h in BYTES]
    escaped = [v.replace("\\", "\\\\") for v in TEXT_VALUES]
    enum = r"enum('z','it''s','a,b','back\\slash','Ä','',' x')"
    return {
        "integer": ("bigint", INTEGERS),
        "unsigned": ("bigint unsigned", UNSIGNED),
        "decimal": ("decimal(30,10)", DECIMALS),
        "long_decimal": ("decimal(65,30)", LONG),
        "float": ("float", FLOATS),
        "double": ("double", [*FLOATS, "1e300", "0.30000000000000004"]),
        "text_ci": ("varchar(20)", escaped),
        "text_general": ("varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", escaped),
        "text_bin": ("varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", [*escaped, "'A'", "'b'", "'É2'"]),
        "text_latin1": ("varchar(20) CHARACTER SET latin1", ["'a'", "'é2'", "'Z'", "'ß'", "'Ö'", "'x y'"]),
        "text_utf8mb3": ("varchar(20) CHARACTER SET utf8mb3", ["'a'", "'é2'", "'Z'", "'日本'", "'Ö'", "'x y'"]),
        "char": ("char(6)", ["'ab'", "'abc   '", "''", "'B'", "'a b'", "'é'"]),
        "binary": ("binary(4)", [f"x'{h}'" for h in ("00", "01ff", "ff", "ff000001", "2700")]),
        "varbinary": ("varbinary(9)", hexed),
        "uuid": ("binary(16)", [f"x'{i:032x}'" for i in (0, 1, 2**64, 2**127, 2**128 - 1)]),
        "date": ("date", DATES),
        "datetime": ("datetime(6)", [*MOMENTS, "'1000-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'"]),
        "timestamp": ("timestamp(6)", [*MOMENTS, "'1970-01-01 00:00:01'"]),
        "time": ("time(3)", [f"'{t}'" for t in ("-838:59:59", "-00:00:01.5", "00:00:00", "10:00:00.123", "838:59:59")]),
        "year": ("year", ["'0000'", "2000", "1999", "2001", "1901", "2155"]),
        "bit": ("bit(12)", ["b'0'", "b'1'", "b'111111111111'", "b'100000000000'"]),
        "boolean": ("boolean", ["true", "false"]),
        "enum": (enum, ["'z'", "'it''s'", "'a,b'", r"'back\\slash'", "'Ä'", "''", "' x'"]),
        "set64": (f"set({','.join(repr(f'm{i}') for i in range(64))})", ["''", "'m63'", "'m62'", "'m0,m63'", "'m1'"]),
        "set": ("set('z','y','x')", ["''", "'z'", "'y'", "'x,z'", "'x,y,z'", "'x'"]),
    }


def mariadb_cases() -> dict[str, Case]:
    """Of types that MySQL does not have; in the order of their text, of their bytes, and of neither."""
    uuids = [UUID("6ccd780c-baba-1026-9564-5b8c656024db"), UUID("5ccd780c-baba-1126-9564-5b8c656024db")]
    uuids += [UUID(int=number) for number in (0, 1, 2**64, 2**127, 2**128 - 1)]
    return {
        "inet4": ("inet4", ["'9.255.0.1'", "'10.0.0.0'", "'0.0.0.0'", "'255.255.255.255'", "'127.0.0.1'"]),
        "inet6": ("inet6", ["'::'", "'::1'", "'::ffff:10.0.0.1'", "'2001:db8::'", "'fe80::27'", "'::5c:27'"]),
        "native_uuid": ("uuid", [f"'{uuid}'" for uuid in uuids]),
    }


def postgres_cases() -> dict[str, Case]:
    hexed = [rf"'\x{h}'" for h in BYTES]
    texts = [*TEXT_VALUES, "'A'", "'b'", "'É2'"]
    return {
        "integer": ("bigint", INTEGERS),
        "unsigned": ("numeric(20,0)", UNSIGNED),
        "decimal": ("numeric(30,10)", DECIMALS),
        "long_decimal": ("numeric", [*LONG, "'NaN'", "'Infinity'", "'-Infinity'"]),
        "float": ("real", [*FLOATS, "'NaN'", "'Infinity'", "'-Infinity'"]),
        "double": ("double precision", [*FLOATS, "1e300", "0.30000000000000004", "'NaN'"]),
        "text_ci": ('text COLLATE "no_case"', TEXT_VALUES),
        "text_general": ('varchar(20) COLLATE "C"', [*texts, "'x'"]),
        "text_bin": ('text COLLATE "und-x-icu"', [*texts, "'x'"]),
        "char": ("char(6)", ["'ab'", "'abc   '", "''", "'B'", "'a b'", "'é'"]),
        "binary": ("bytea", hexed),
        "uuid": ("uuid", [f"'{i:032x}'" for i in (0, 1, 2**64, 2**127, 2**128 - 1)]),
        "date": ("date", DATES),
        "datetime": ("timestamp(6)", MOMENTS),
        "timestamp": ("timestamptz", [*MOMENTS, "'2024-03-31 02:30:00+01'"]),
        "time": ("time(3)", ["'00:00'", "'23:59:59.999'", "'24:00'", "'10:00:00.123'"]),
        "timetz": ("timetz", ["'10:00+00'", "'10:00+02'", "'12:00+02'"]),
        "interval": ("interval", ["'1 mon'", "'29 days'", "'-1 day'", "'1 year 2 days 00:00:00.000001'"]),
        "bit": ("bit(4)", ["B'0000'", "B'0001'", "B'1000'", "B'1111'"]),
        "varbit": ("bit varying(5)", ["B''", "B'0'", "B'00'", "B'1'", "B'01'"]),
        "boolean": ("boolean", ["true", "false"]),
        "enum": ("mood", ["'z'", "'it''s'", "'a,b'", r"'back\slash'", "'Ä'", "' x'"]),
        "domain": ("positive", ["1", "2", "3", "40"]),
        "array": ("int[]", ["'{}'", "'{1}'", "'{1,2}'", "'{2}'", "'{NULL}'"]),
        "inet": ("inet", ["'10.0.0.1'", "'10.0.0.0/8'", "'::1'"]),
    }


TYPES = (
    r"CREATE TYPE mood AS ENUM ('z', 'it''s', 'a,b', 'back\slash', 'Ä', ' x')",
    "CREATE DOMAIN positive AS int CHECK (value > 0)",
    "CREATE COLLATION no_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
)


def cases(database: Database) -> dict[str, Case]:
    if database.kind == "postgres":
        return postgres_cases()
    return {**mysql_cases(), **(mariadb_cases() if database.kind == "mariadb" else {})}


def composite(database: Database, name: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """Types of the key's columns, and rows; prefixes repeat over more rows than a chunk of the tests has."""
    key_cases = cases(database)
    parts = {
        "mixed": ["integer", "text_ci", "date"],
        "enum_first": ["enum", "text_ci"],
        "enum_last": ["integer", "enum"],
        "binary_first": ["datetime", "unsigned", "boolean"],
    }[name]
    rows: list[tuple[str, ...]] = [()]
    for part in parts:
        rows = [(*row, value) for row in rows for value in key_cases[part][1][:5]]
    return [key_cases[part][0] for part in parts], rows


def fill(database: Database, types: list[str], rows: list[tuple[str, ...]], *, key: str = "PRIMARY KEY") -> None:
    """Table `a` with key columns k0, k1, … and n, the row's number; rows are inserted in a mixed order."""
    names = [f"k{i}" for i in range(len(types))]
    columns = ", ".join(f"{n} {t} NOT NULL" for n, t in zip(names, types, strict=True))
    run(database, f"CREATE TABLE a (n int, {columns}, {key} ({', '.join(names)}))")
    numbered = [(str(n), *row) for n, row in enumerate(rows)]
    mixed = [numbered[i * 7919 % len(numbered)] for i in range(len(numbered))] if len(rows) % 7919 else numbered
    run(database, f"INSERT INTO a VALUES {', '.join(f'({chr(44).join(row)})' for row in mixed)}")


def shape(database: Database, reader: ChunkReader) -> TableSchema:
    return reader.schema(TableName(database.schema, "a"))


def order_of(database: Database, schema: TableSchema) -> list[int]:
    """The rows' numbers in the server's own order of the key."""
    return [int(n) for (n,) in database.query(f"SELECT n FROM a ORDER BY {', '.join(schema.key)}")]


def walk(reader: ChunkReader, schema: TableSchema, *, limit: int, **options: Any) -> tuple[list[int], list[Key]]:
    """Row numbers and keys of the table, chunk by chunk; each bound goes through JSON, as between workers."""
    numbers: list[int] = []
    keys: list[Key] = []
    while True:
        after = key_from_json(json.loads(json.dumps(key_to_json(keys[-1]))), schema) if keys else None
        chunk = reader.read(
            schema, after=after, upto=options.get("upto"), limit=limit, filters=options.get("passing", ())
        )
        if not chunk.rows.num_rows:
            return numbers, keys
        numbers += chunk.rows.column("n").to_pylist()
        keys += keys_of(chunk.rows, schema)
        assert len(numbers) <= 5000, "the chunks do not come to an end"


def every_way(database: Database, reader: ChunkReader, schema: TableSchema) -> None:
    """The table comes whole, once and in the server's order, whatever reads it."""
    expected = order_of(database, schema)
    numbers, keys = walk(reader, schema, limit=3)
    assert numbers == expected
    assert repr(reader.last_key(schema)) == repr(keys[-1])
    middle = len(keys) // 2
    assert walk(reader, schema, limit=3, upto=keys[middle])[0] == expected[: middle + 1]
    assert sorted(reader.read_keys(schema, keys[::2]).rows.column("n").to_pylist()) == sorted(expected[::2])
    for key, number in zip(keys, expected, strict=True):
        assert reader.read_keys(schema, [key]).rows.column("n").to_pylist() == [number]
    for every in (1, 3, len(keys), len(keys) + 1):
        boundaries = reader.boundaries(schema, after=None, upto=None, every=every)
        assert list(map(repr, boundaries)) == list(map(repr, keys[every - 1 :: every]))
    inner = list(reader.boundaries(schema, after=keys[0], upto=keys[middle], every=2))
    assert list(map(repr, inner)) == list(map(repr, keys[2 : middle + 1 : 2]))
