"""Chunk readers: keys of every kind, filters, range boundaries and plans, the same on every kind of database."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from dblog_core import filters
from dblog_core.config import Config
from dblog_core.interfaces import ChunkReader, Source
from dblog_core.schema import TableName, TableSchema
from dblog_core.values import Key, key_from_json, key_to_json, keys_of
from dblog_core.wiring import open_source
from tests.contract.test_source import numbers_of, run
from tests.fix_servers import Database

MYSQL_KINDS = ("mysql", "mariadb")
END = 30.0
"""Seconds within which a server must show what a test waits for."""

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
CASES = [(kind, case) for kind in MYSQL_KINDS for case in mysql_cases()]
CASES += [("postgres", case) for case in postgres_cases()]
COMPOSITES = ["mixed", "enum_first", "enum_last", "binary_first"]


def cases(database: Database) -> dict[str, Case]:
    return mysql_cases() if database.kind in MYSQL_KINDS else postgres_cases()


def composite(database: Database, name: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """Types of the key's columns, and rows; prefixes repeat over more rows than a chunk of the tests has."""
    known = cases(database)
    parts = {
        "mixed": ["integer", "text_ci", "date"],
        "enum_first": ["enum", "text_ci"],
        "enum_last": ["integer", "enum"],
        "binary_first": ["datetime", "unsigned", "boolean"],
    }[name]
    rows: list[tuple[str, ...]] = [()]
    for part in parts:
        rows = [(*row, value) for row in rows for value in known[part][1][:5]]
    return [known[part][0] for part in parts], rows


@pytest.fixture
def source(database: Database, source_config: Config) -> Source:
    if database.kind == "postgres":
        database.execute(*TYPES)
    source = open_source(source_config.source)
    source.prepare()
    return source


@pytest.fixture
def reader(source: Source) -> Iterator[ChunkReader]:
    reader = source.open_reader()
    yield reader
    reader.close()


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


def walk(reader: ChunkReader, schema: TableSchema, *, limit: int, **asked: Any) -> tuple[list[int], list[Key]]:
    """Row numbers and keys of the table, chunk by chunk; each bound goes through JSON, as between workers."""
    numbers: list[int] = []
    keys: list[Key] = []
    while True:
        after = key_from_json(json.loads(json.dumps(key_to_json(keys[-1]))), schema) if keys else None
        chunk = reader.read(schema, after=after, upto=asked.get("upto"), limit=limit, filters=asked.get("passing", ()))
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
        found = reader.boundaries(schema, after=None, upto=None, every=every)
        assert list(map(repr, found)) == list(map(repr, keys[every - 1 :: every]))
    inner = list(reader.boundaries(schema, after=keys[0], upto=keys[middle], every=2))
    assert list(map(repr, inner)) == list(map(repr, keys[2 : middle + 1 : 2]))


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


@pytest.mark.parametrize("case", COMPOSITES)
def test_a_composite_key_is_read_in_the_servers_order(
    database: Database, source: Source, reader: ChunkReader, case: str
) -> None:
    fill(database, *composite(database, case))
    schema = shape(database, reader)
    every_way(database, reader, schema)
    assert reader.explain(schema).index


def big(database: Database, columns: str, values: str) -> None:
    """Table `a` of 2,000 rows, with statistics; `values` is a SELECT list over the number n."""
    run(database, f"CREATE TABLE a (n int NOT NULL, {columns})")
    run(database, f"INSERT INTO a SELECT n, {values} FROM ({numbers_of(database, 2000)}) s")
    run(database, "ANALYZE a" if database.kind == "postgres" else "ANALYZE TABLE a")


def touched(database: Database, source: Source, read: Callable[[ChunkReader], Any]) -> int:
    """Index entries and rows that the server visits for what `read` asks of a new reader. PostgreSQL: of table `a`."""
    with closing(source.open_reader()) as reader:
        schema = shape(database, reader)
        if database.kind != "postgres":
            reader.last_key(schema)  # it has looked for the key's index then
            before, again = _session_visits(reader), _session_visits(reader)
            read(reader)
            return _session_visits(reader) - again - (again - before)  # looking counts as well
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
        plan, filtered = reader.explain(schema), reader.explain(schema, filters=passing)
        assert plan.index == filtered.index == _key_index(database)
        assert 1500 < plan.rows < 2500 and 150 < filtered.rows < 450
    assert numbers == order_of(database, schema)
    middle, end = keys[1000], keys[1500]

    def visits(read: Callable[[ChunkReader], Any]) -> int:
        return touched(database, source, read)

    assert visits(lambda r: r.read(schema, after=middle, upto=end, limit=10)) < 60
    assert visits(lambda r: r.read(schema, after=middle, upto=end, limit=10, filters=passing)) < 300
    assert visits(lambda r: r.read_keys(schema, keys[500:540])) < 200
    assert visits(lambda r: r.read_keys(schema, keys[500:540], filters=passing)) < 200
    assert visits(lambda r: list(r.boundaries(schema, after=middle, upto=keys[1100], every=50))) < 300
    assert visits(lambda r: r.last_key(schema)) < 30


def _key_index(database: Database) -> str:
    if database.kind == "postgres":
        found = "SELECT indexname FROM pg_indexes WHERE tablename = 'a' AND indexname <> 'by_v'"
        return str(database.query(found)[0][0])
    return next(str(row[2]) for row in database.query("SHOW INDEX FROM a") if row[2] != "by_v")


def test_a_thousand_listed_keys_are_looked_up(database: Database, source: Source) -> None:
    columns, values = "t varchar(30), d date, PRIMARY KEY (n, t, d)", "concat('Key ', n), date '2024-01-01'"
    big(database, columns, values)
    with closing(source.open_reader()) as reader:
        schema = shape(database, reader)
        _, keys = walk(reader, schema, limit=5000)
    asked = [*keys[::2], *((-n, "absent", key[2]) for n, key in enumerate(keys[:500]))]
    assert len(asked) == 1500
    found: list[Any] = []
    assert touched(database, source, lambda r: found.append(r.read_keys(schema, asked).rows)) < 5000
    assert keys_of(found[0], schema) == keys[::2]


def test_without_an_index_in_key_order_a_plan_names_none(
    database: Database, source: Source, source_config: Config
) -> None:
    """An index of other order says that the key is unique; every chunk sorts, and is right."""
    big(database, "b int NOT NULL, UNIQUE (b, n)", "n % 5")
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
