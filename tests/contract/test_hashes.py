"""Row hashes that a server computes: those of `dblog_core.rows.row_hashes`, of every type, in ranges and by keys."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from pydantic import SecretStr

from dblog_core.config.settings import Config
from dblog_core.config.source import ColumnRules
from dblog_core.errors import RequestError, ValueOutOfRange
from dblog_core.interfaces import ChunkReader, Hashes, RangeHash, Source
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import keys_of
from dblog_core.rows.arrow_hashes import hash_rows
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.row_hashes import HASH, fields
from dblog_core.wiring import open_source
from tests.contract import every_type
from tests.contract.keyed import MYSQL_KINDS, cases, composite, fill, shape
from tests.contract.test_source import run
from tests.fix_servers import Database
from tests.plain_hashes import of_rows, total

WHOLE: dict[str, Any] = {"after": None, "upto": None, "limit": 100_000}
COMPUTED = ("virtual_", "stored_")


def hashes_by_definition(reader: ChunkReader, schema: TableSchema, rules: Rules | None = None, **place: Any) -> Hashes:
    """The hashes by the definition, of the rows that a chunk has."""
    return of_rows(reader.read(schema, **{**WHOLE, **place}), rules or Rules({}))


def agree(reader: ChunkReader, schema: TableSchema, rules: Rules | None = None) -> list[int]:
    """Rows, keys and ranges of a table have the hashes that they have by definition; returns the rows'."""
    expected = hashes_by_definition(reader, schema, rules)
    chunk = reader.hashes(schema, **WHOLE)
    assert chunk.rows.equals(expected.rows)
    assert in_arrow(reader, schema, rules or Rules({})) == expected.rows.column(HASH).to_pylist()
    keys = keys_of(chunk.rows, schema)
    some = expected.rows.take(pa.array(range(0, len(keys), 2)))
    assert reader.hashes_of(schema, keys[::2]).rows.equals(some)
    assert numbers(reader.range_hash(schema, **WHOLE)) == numbers(total(expected))
    return [int(value) for value in chunk.rows.column(HASH).to_pylist()]


def in_arrow(reader: ChunkReader, schema: TableSchema, rules: Rules) -> list[int]:
    """The hashes of the rows as they are staged, column by column."""
    staged = rules.shape_for_hashes(schema)
    rows = rules.rows(schema, reader.read(schema, **WHOLE).rows)
    return [int(value) for value in hash_rows(dict(zip(rows.schema.names, rows.columns, strict=True)), staged)]


def numbers(range_hash: RangeHash) -> tuple[int, int, str]:
    return range_hash.rows, range_hash.hash, repr(range_hash.last)


def test_rows_of_every_type_have_the_hash_that_is_defined(
    database: Database, source: Source, reader: ChunkReader
) -> None:
    every_type.make(database)
    row_count = agree(reader, shape(database, reader))
    assert len(set(row_count)) == len(row_count) >= 4


def test_a_change_of_any_one_column_changes_the_hash(database: Database, source: Source, reader: ChunkReader) -> None:
    every_type.make(database)
    schema = shape(database, reader)
    rows = reader.read(schema, **WHOLE).rows.to_pylist()
    taker = rows[0]
    before = agree(reader, schema)[0]
    changed = [c for c in schema.columns if c.name not in (*schema.key, *COMPUTED)]
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        for column in changed:
            taker_fields = fields(taker[column.name], column)
            giver = next(row for row in rows if fields(row[column.name], column) != taker_fields)
            every_type.copy(database, cursor, column.name, giver=giver["id"], taker=taker["id"])
            (after,) = reader.hashes_of(schema, [(taker["id"],)]).rows.column(HASH).to_pylist()
            assert after != before, column.name
            before = after
    assert agree(reader, schema)[0] == before


@pytest.mark.parametrize("rule", ["exclude", "hash", "mask"])
def test_columns_under_a_rule_are_hashed_as_they_are_staged(
    database: Database, source_config: Config, source: Source, reader: ChunkReader, rule: str
) -> None:
    every_type.make(database)
    schema = shape(database, reader)
    names = tuple(c.name for c in schema.columns if c.name not in schema.key)
    rules = {str(schema.table): ColumnRules.model_validate({rule: names})}
    ruled = open_source(source_config.source.model_copy(update={"columns": rules}))
    with closing(ruled.open_reader()) as its_reader:
        its_own = shape(database, its_reader)  # what is left out may be read in another form
        assert agree(its_reader, its_own, Rules(rules)) != agree(reader, schema)


def test_keyed_hashes_are_only_told_from_null_and_no_server_is_told_the_key(
    database: Database, source_config: Config, source: Source, reader: ChunkReader
) -> None:
    every_type.make(database)
    schema = shape(database, reader)
    key = "0123456789abcdef of hashes"
    names = tuple(c.name for c in schema.columns if c.name not in schema.key)[:5]
    rules = {str(schema.table): ColumnRules(hash=names)}
    update = {"columns": rules, "hash_key": SecretStr(key)}
    ruled = open_source(source_config.source.model_copy(update=update))
    with closing(ruled.open_reader()) as its_reader:
        before = agree(its_reader, schema, Rules(rules, key))
        assert before != agree(reader, schema)
        rows = reader.read(schema, **WHOLE).rows.to_pylist()
        place, name = next((i, n) for n in names for i, row in enumerate(rows) if row[n] is not None)
        with closing(database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"UPDATE {schema.table} SET {name} = NULL WHERE id = {rows[place]['id']}")
        after = agree(its_reader, schema, Rules(rules, key))
        assert [number for number, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]] == [place]


@pytest.mark.parametrize("case", ["mixed", "enum_first", "enum_last", "binary_first"])
def test_ranges_follow_each_other_in_the_order_of_a_composite_key(
    database: Database, source: Source, reader: ChunkReader, case: str
) -> None:
    fill(database, *composite(database, case))
    schema = shape(database, reader)
    agree(reader, schema)
    ranges_cover(reader, schema)


def ranges_cover(reader: ChunkReader, schema: TableSchema) -> None:
    """Ranges of seven rows, each from the last key of the one before it: as the chunks of the same places."""
    last = reader.last_key(schema)
    range_hash = reader.range_hash(schema, after=None, upto=last, limit=7)
    sums = [range_hash.hash]
    place = None
    while range_hash.rows == 7:
        assert numbers(range_hash) == numbers(total(hashes_by_definition(reader, schema, after=place, limit=7)))
        place = range_hash.last
        range_hash = reader.range_hash(schema, after=place, upto=last, limit=7)
        sums.append(range_hash.hash)
    assert sum(sums) == reader.range_hash(schema, **WHOLE).hash
    assert numbers(reader.range_hash(schema, after=None, upto=place, limit=10_000)) == numbers(
        total(hashes_by_definition(reader, schema, upto=place))
    )
    assert numbers(reader.range_hash(schema, after=last, upto=None, limit=7)) == (0, 0, "None")


def test_a_range_ends_in_the_servers_order_whatever_the_keys_type(
    database: Database, source: Source, reader: ChunkReader
) -> None:
    """The types whose order is not that of their texts, or of their numbers as a program may take them."""
    key_cases = cases(database)
    for case in {"unsigned", "enum", "set64", "bit", "text_ci", "float", "uuid", "inet", "array"} & key_cases.keys():
        kind, values = key_cases[case]
        fill(database, [kind], [(value,) for value in values])
        schema = shape(database, reader)
        for limit in (2, len(values)):
            range_hash = reader.range_hash(schema, after=None, upto=None, limit=limit)
            assert numbers(range_hash) == numbers(total(hashes_by_definition(reader, schema, limit=limit)))
        run(database, "DROP TABLE a")


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("key", ["id", "a", "n"])
def test_an_array_whose_elements_have_a_length_is_no_text_and_no_number(
    database: Database, source: Source, reader: ChunkReader, key: str
) -> None:
    """Its type begins as that of its elements: character varying(4)[], numeric(5,2)[]."""
    run(
        database,
        "CREATE DOMAIN lines AS varchar(4)[]",
        f"CREATE TABLE a (id int, a varchar(4)[], n numeric(5,2)[], d lines, PRIMARY KEY ({key}))",
        "INSERT INTO a VALUES (1, '{a,b}', '{1,2.5}', '{}'), (2, '{}', '{}', '{x,NULL}'), (3, '{b}', '{10}', NULL)",
    )
    schema = shape(database, reader)
    assert len(set(agree(reader, schema))) == 3
    ranges_cover(reader, schema)


def test_no_keys_have_no_hashes(database: Database, source: Source, reader: ChunkReader) -> None:
    run(database, "CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    schema = shape(database, reader)
    assert reader.hashes_of(schema, []).rows.num_rows == reader.hashes_of(schema, [(2,)]).rows.num_rows == 0
    assert reader.hashes_of(schema, [(1,)]).rows.schema == reader.hashes(schema, **WHOLE).rows.schema


def test_a_table_of_many_columns_has_hashes(database: Database, source: Source, reader: ChunkReader) -> None:
    columns = ", ".join(f"c{n} {('int', 'varchar(9)', 'double precision')[n % 3]}" for n in range(150))
    run(database, f"CREATE TABLE a (id int PRIMARY KEY, {columns})", "INSERT INTO a (id, c0, c148) VALUES (1, 2, '3')")
    assert len(agree(reader, shape(database, reader))) == 1


@pytest.mark.parametrize("source_kind", MYSQL_KINDS, indirect=True)
def test_dates_that_do_not_exist_are_as_the_null_that_is_staged(
    database: Database, source_config: Config, source: Source
) -> None:
    dates = ("0000-00-00", "2023-02-31", "2024-00-10", "2024-01-00", "0000-01-01", "2024-02-29", "0001-01-01")
    values = ", ".join(f"({n}, '{d}', '{d} 01:02:03.5', '2024-01-01')" for n, d in enumerate(dates))
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute("CREATE TABLE a (id int PRIMARY KEY, d date, t datetime(6), s timestamp(1) NULL)")
        cursor.execute(f"INSERT INTO a VALUES {values}")
        cursor.execute("INSERT INTO a VALUES (9, '2024-01-01', '2024-01-01', '0000-00-00')")
    lenient = open_source(source_config.source.model_copy(update={"zero_dates": "null"}))
    with closing(lenient.open_reader()) as reader:
        schema = shape(database, reader)
        assert reader.read(schema, **WHOLE).rows.column("d").null_count == 5
        agree(reader, schema)


@pytest.mark.parametrize("source_kind", MYSQL_KINDS, indirect=True)
def test_a_row_that_the_server_makes_no_text_of_is_an_error_and_no_sum(
    database: Database, source: Source, reader: ChunkReader
) -> None:
    columns = ", ".join(f"c{n} text" for n in range(40))
    values = ", ".join(["REPEAT('x', 1000)"] * 40)
    run(database, f"CREATE TABLE a (id int PRIMARY KEY, {columns})", f"INSERT INTO a VALUES (1, {values})")
    schema = shape(database, reader)
    agree(reader, schema)
    before = database.query("SELECT @@GLOBAL.max_allowed_packet")[0][0]
    try:
        database.execute("SET GLOBAL max_allowed_packet = 32768")
        with closing(source.open_reader()) as limited:
            for ask in (limited.hashes, limited.range_hash):
                with pytest.raises(ValueOutOfRange, match="max_allowed_packet"):
                    ask(schema, **WHOLE)
    finally:
        database.execute(f"SET GLOBAL max_allowed_packet = {before}")


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_a_column_of_another_type_since_is_refused(database: Database, source: Source, reader: ChunkReader) -> None:
    run(database, "CREATE TABLE a (id int PRIMARY KEY, v int)", "INSERT INTO a VALUES (1, 2)")
    schema = shape(database, reader)
    run(database, "ALTER TABLE a ALTER v TYPE bigint")
    asks: list[Callable[[], Any]] = [
        lambda: reader.hashes(schema, **WHOLE),
        lambda: reader.range_hash(schema, **WHOLE),
        lambda: reader.hashes_of(schema, [(1,)]),
    ]
    for ask in asks:
        with pytest.raises(RequestError, match="another type"):
            ask()
    assert len(agree(reader, shape(database, reader))) == 1


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_hashes_tell_the_snapshot_that_they_were_read_in(
    database: Database, source: Source, reader: ChunkReader
) -> None:
    run(database, "CREATE TABLE a (id int PRIMARY KEY)")
    schema = shape(database, reader)
    snapshots = [reader.hashes(schema, **WHOLE).snapshot, reader.range_hash(schema, **WHOLE).snapshot]
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_snapshot()::text")
        assert snapshots == [cursor.fetchone()[0]] * 2


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_text_is_hashed_as_utf8_whatever_the_databases_encoding(
    database: Database, source_config: Config, encoding: str
) -> None:
    name = f"{database.name}_other"
    admin = database.server.admin
    database.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    try:
        with closing(database.server.connect(name)) as connection, connection.cursor() as cursor:
            connection.set_client_encoding("UTF8")
            cursor.execute("CREATE TABLE a (id int PRIMARY KEY, t text, c char(9), x xml)")
            values = ("né", "ü", "<é/>", "é" * 600)
            cursor.execute("INSERT INTO a VALUES (1, %s, %s, %s), (2, %s, NULL, NULL)", values)
        account = {"database": name, "user": admin.user, "password": SecretStr(admin.password)}
        with closing(open_source(source_config.source.model_copy(update=account)).open_reader()) as reader:
            schema = shape(database, reader)
            assert reader.read(schema, **WHOLE).rows.column("t").to_pylist() == ["né", "é" * 600]
            agree(reader, schema)
    finally:
        database.execute(f"DROP DATABASE {name} WITH (FORCE)")
