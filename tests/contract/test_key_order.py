"""A reader tells when the order of a key may have changed, and of nothing else."""

from __future__ import annotations

import pytest

from dblog_core.errors import RequestError
from dblog_core.interfaces import ChunkReader
from dblog_core.model.schema import TableName
from tests.contract.keyed import MYSQL_KINDS, TYPES, cases, shape
from tests.contract.test_source import run
from tests.fix_servers import Database

PREPARE = {
    "postgres": [
        *TYPES,
        "CREATE DOMAIN moody AS mood",
        "CREATE TYPE moods AS RANGE (subtype = mood)",
        "CREATE COLLATION mine (provider = icu, locale = 'en')",
    ]
}
MYSQL = [
    ("varchar(20) COLLATE utf8mb4_bin", "ALTER TABLE a MODIFY k varchar(20) COLLATE utf8mb4_general_ci NOT NULL"),
    ("varchar(20)", "ALTER TABLE a CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
    ("varchar(20) CHARACTER SET latin1", "ALTER TABLE a MODIFY k varchar(20) CHARACTER SET latin1 COLLATE latin1_bin"),
    ("enum('x','y','z')", "ALTER TABLE a MODIFY k enum('z','y','x') NOT NULL"),
    ("enum('x','y')", "ALTER TABLE a MODIFY k enum('x','w','y') NOT NULL"),
    ("set('x','y')", "ALTER TABLE a MODIFY k set('y','x') NOT NULL"),
    ("bigint unsigned", "ALTER TABLE a MODIFY k varchar(20) NOT NULL"),
    ("varchar(20)", "ALTER TABLE a RENAME COLUMN k TO old, RENAME COLUMN v TO k"),
    ("varchar(20)", "ALTER TABLE a RENAME COLUMN k TO gone"),
]
POSTGRES = [
    ('text COLLATE "C"', 'ALTER TABLE a ALTER k TYPE text COLLATE "und-x-icu"'),
    ("varchar(20)", 'ALTER TABLE a ALTER k TYPE varchar(20) COLLATE "C"'),
    ("mood", "ALTER TYPE mood ADD VALUE 'first' BEFORE 'z'"),
    ("moody", "ALTER TYPE mood ADD VALUE 'first' BEFORE 'z'"),
    ("mood[]", "ALTER TYPE mood ADD VALUE 'first' BEFORE 'z'"),
    ("moods", "ALTER TYPE mood ADD VALUE 'first' BEFORE 'z'"),
    ("mood", "ALTER TYPE mood RENAME VALUE 'z' TO 'zz'"),
    ("bigint", "ALTER TABLE a ALTER k TYPE text"),
    ("text", "ALTER TABLE a RENAME k TO gone"),
]


@pytest.fixture
def preparation() -> dict[str, list[str]]:
    return PREPARE


CHANGES = [(kind, *change) for kind in MYSQL_KINDS for change in MYSQL]
CHANGES += [("postgres", *change) for change in POSTGRES]


@pytest.mark.one_of(4)
@pytest.mark.parametrize(("source_kind", "column", "change"), CHANGES, indirect=["source_kind"])
def test_it_differs_after_a_change_of_the_order_and_only_then(
    database: Database, reader: ChunkReader, column: str, change: str
) -> None:
    run(database, f"CREATE TABLE a (n int NOT NULL, k {column} NOT NULL, v varchar(20) NOT NULL, PRIMARY KEY (n, k))")
    schema = shape(database, reader)
    order = reader.key_order(schema)
    assert "k" in order, "people see what has changed"
    run(database, "ALTER TABLE a ADD COLUMN other varchar(20)", "CREATE INDEX i ON a (other)")
    if database.kind == "postgres":
        run(database, "ANALYZE a", 'ALTER TABLE a ALTER v TYPE text COLLATE "C"')
    else:
        run(database, "ANALYZE TABLE a", "ALTER TABLE a MODIFY v varchar(30) COLLATE utf8mb4_bin NOT NULL")
    assert reader.key_order(schema) == reader.key_order(shape(database, reader)) == order
    run(database, change)
    assert reader.key_order(schema) != order


OTHER_VERSIONS = {
    'text COLLATE "mine"': ("pg_collation", "collversion", "collname = 'mine'"),
    "text": ("pg_database", "datcollversion", "datname = current_database()"),
}


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("column", OTHER_VERSIONS)
def test_a_key_is_refused_while_its_index_may_be_of_another_version_of_its_collation(
    database: Database, reader: ChunkReader, column: str
) -> None:
    """Until somebody has built the index again, and said so: what is read by it lacks rows."""
    run(database, f"CREATE TABLE a (n int, k {column}, PRIMARY KEY (n, k))", "CREATE TABLE b (n int PRIMARY KEY)")
    schema = shape(database, reader)
    order = reader.key_order(schema)
    catalogue, version, row = OTHER_VERSIONS[column]
    recorded = database.query(f"SELECT quote_nullable({version}) FROM {catalogue} WHERE {row}")[0][0]
    run(database, f"UPDATE {catalogue} SET {version} = '1.old' WHERE {row}")
    with pytest.raises(
        RequestError, match=r"collation of key column k has version .*, and was recorded with 1\.old"
    ) as no:
        reader.key_order(schema)
    assert "REINDEX TABLE public.a" in no.value.fix and "REFRESH" in no.value.fix
    assert reader.key_order(reader.schema(TableName("public", "b")))
    run(database, f"UPDATE {catalogue} SET {version} = {recorded} WHERE {row}")
    assert reader.key_order(schema) == order


def test_the_order_of_the_columns_in_a_key_is_part_of_it(database: Database, reader: ChunkReader) -> None:
    run(database, "CREATE TABLE a (n int NOT NULL, k int NOT NULL, CONSTRAINT a_key PRIMARY KEY (n, k))")
    order = reader.key_order(shape(database, reader))
    drop = "DROP CONSTRAINT a_key" if database.kind == "postgres" else "DROP PRIMARY KEY"
    run(database, f"ALTER TABLE a {drop}, ADD PRIMARY KEY (k, n)")
    assert reader.key_order(shape(database, reader)) != order


def test_keys_of_every_type_have_one(database: Database, reader: ChunkReader) -> None:
    """All columns of one table, so that one look tells of all."""
    types = [kind for kind, _ in cases(database).values()]
    columns = ", ".join(f"k{i} {kind} NOT NULL" for i, kind in enumerate(types))
    keys = [f"k{i}" for i in range(len(types))]
    seen = set()
    for first in range(0, len(keys), 8):  # of so many columns a server makes a key
        run(database, f"CREATE TABLE a ({columns}, PRIMARY KEY ({', '.join(keys[first : first + 8])}))")
        schema = shape(database, reader)
        order = reader.key_order(schema)
        assert all(f'"{name}"' in order or "…" in order for name in schema.key)
        assert len(order) <= 1_100, "each task of a dump holds it"
        assert reader.key_order(schema) == order
        seen.add(order)
        run(database, "DROP TABLE a")
    assert len(seen) == -(-len(keys) // 8)


def test_orders_that_differ_late_in_a_long_text_differ(database: Database, reader: ChunkReader) -> None:
    labels = [f"'label {i:05}'" for i in range(500)]
    orders = set()
    for last in ("'y'", "'z'"):
        kind = f"enum ({', '.join([*labels, last])})"
        if database.kind == "postgres":
            run(database, "DROP TYPE IF EXISTS long CASCADE", f"CREATE TYPE long AS {kind}")
            kind = "long"
        run(database, f"CREATE TABLE a (k {kind} NOT NULL PRIMARY KEY)")
        orders.add(reader.key_order(shape(database, reader)))
        run(database, "DROP TABLE a")
    assert len(orders) == 2
    assert all(len(order) < 1_000 for order in orders)


def test_a_table_that_is_gone_has_none(database: Database, reader: ChunkReader) -> None:
    run(database, "CREATE TABLE a (n int NOT NULL PRIMARY KEY)")
    schema = shape(database, reader)
    run(database, "DROP TABLE a")
    with pytest.raises(RequestError, match=r"\.a\b"):
        reader.key_order(schema)
