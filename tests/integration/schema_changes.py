"""Changes of tables' shapes as users make them, each on a table of its own: what `test_schema_matrix` does at every
moment. Tables that take another's name, and partitions that come or go with rows: `test_swapped_tables`.

A table has a key `id` and a number `n` that the workload writes whatever the shape is, and columns that the change is
about. `{t}` is the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from dblog_core.local.servers.server import DatabaseServer
from tests.versions import logs_generated_columns

KEYED = "id int PRIMARY KEY, n int"
PARTED = "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (3), PARTITION p1 VALUES LESS THAN MAXVALUE)"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """`columns`: the table before it, after its key. `values`: what rows have in them, in SQL; `{i}` is the row's key.
    `ddl`: the change, statement by statement over one connection. `fresh`: writes under the new shape. `stops`: what
    the error names where no lake follows. `options`: what stands behind the columns of CREATE TABLE. `last`: the write
    after all, with which the log has told the new shape."""

    name: str
    values: str
    ddl: tuple[str, ...]
    columns: str = "c varchar(20)"
    fresh: str = ""
    stops: str = ""
    options: str = ""
    key: str = KEYED
    last: str = "INSERT INTO {t} (id, n) VALUES (999, 999)"


def _change(name: str, *ddl: str, values: str = "'old {i}'", **more: str) -> SchemaChange:
    return SchemaChange(name, values, tuple(ddl), **more)


ALIKE = (
    _change("add_nullable", "ALTER TABLE {t} ADD COLUMN e int", fresh="UPDATE {t} SET e = 5 WHERE id = 2"),
    _change("add_default", "ALTER TABLE {t} ADD COLUMN e int NOT NULL DEFAULT 7"),
    _change("add_text", "ALTER TABLE {t} ADD COLUMN e varchar(20) DEFAULT 'it''s'"),
    _change("add_moment", "ALTER TABLE {t} ADD COLUMN e timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP"),
    _change("add_expression", "ALTER TABLE {t} ADD COLUMN e int DEFAULT (40 + 2)"),
    _change("add_two", "ALTER TABLE {t} ADD COLUMN e int DEFAULT 3", "ALTER TABLE {t} ADD COLUMN f varchar(5)"),
    _change("add_generated", "ALTER TABLE {t} ADD COLUMN e int GENERATED ALWAYS AS (n * 2) STORED"),
    _change("add_then_default", "ALTER TABLE {t} ADD COLUMN e int", "ALTER TABLE {t} ALTER COLUMN e SET DEFAULT 9"),
    _change("dropped", "ALTER TABLE {t} DROP COLUMN c"),
    _change("drop_and_add", "ALTER TABLE {t} DROP COLUMN c, ADD COLUMN c varchar(20) DEFAULT 'new'"),
    _change("drop_then_add", "ALTER TABLE {t} DROP COLUMN c", "ALTER TABLE {t} ADD COLUMN c varchar(20) DEFAULT 'new'"),
    _change("renamed", "ALTER TABLE {t} RENAME COLUMN c TO e", fresh="UPDATE {t} SET e = 'fresh' WHERE id = 2"),
    _change(
        "names_swapped",
        "ALTER TABLE {t} RENAME COLUMN c TO e",
        "ALTER TABLE {t} RENAME COLUMN d TO c",
        "ALTER TABLE {t} RENAME COLUMN e TO d",
        columns="c varchar(20), d varchar(20)",
        values="'c {i}', 'd {i}'",
    ),
    _change(
        "renamed_twice",
        "ALTER TABLE {t} RENAME COLUMN c TO e",
        "ALTER TABLE {t} RENAME COLUMN e TO f",
        "ALTER TABLE {t} ADD COLUMN c varchar(20) DEFAULT 'other'",
    ),
    _change(
        "made_again",
        "DROP TABLE {t}",
        "CREATE TABLE {t} (id int PRIMARY KEY, n int, x double precision, c varchar(20))",
        "INSERT INTO {t} VALUES (3, 0, 1.5, 'again'), (500, 0, 2.5, NULL)",
    ),
)
"""What is written alike on all three."""

MYSQL = (
    *ALIKE,
    _change(
        "made_again_alike",
        "DROP TABLE {t}",
        "CREATE TABLE {t} (" + KEYED + ", c varchar(20))",
        "INSERT INTO {t} VALUES (3, 0, 'again'), (500, 0, NULL)",
    ),
    _change("add_first", "ALTER TABLE {t} ADD COLUMN e varchar(9) DEFAULT 'x' FIRST"),
    _change(
        "add_not_null",
        "ALTER TABLE {t} ADD COLUMN e int NOT NULL",
        last="INSERT INTO {t} (id, n, e) VALUES (999, 999, 1)",
    ),
    _change("add_copying", "ALTER TABLE {t} ADD COLUMN e int DEFAULT 3 AFTER id, ALGORITHM=COPY"),
    _change("add_computed", "ALTER TABLE {t} ADD COLUMN e varchar(40) DEFAULT (concat('e', n))"),
    _change("drop_copying", "ALTER TABLE {t} DROP COLUMN c, ALGORITHM=COPY"),
    _change("called_otherwise", "ALTER TABLE {t} CHANGE c e varchar(30)"),
    _change(
        "names_swapped_at_once",
        "ALTER TABLE {t} RENAME COLUMN c TO d, RENAME COLUMN d TO c",
        columns="c varchar(20), d varchar(20)",
        values="'c {i}', 'd {i}'",
    ),
    _change("int_wider", "ALTER TABLE {t} MODIFY c bigint", columns="c int", values="{i} * 1000"),
    _change("text_wider", "ALTER TABLE {t} MODIFY c varchar(300)"),
    _change("int_narrower", "ALTER TABLE {t} MODIFY c int", columns="c bigint", values="{i}", stops="column c"),
    _change("text_narrower", "ALTER TABLE {t} MODIFY c varchar(10)"),
    _change("text_cut", "SET sql_mode = ''", "ALTER TABLE {t} MODIFY c varchar(4)"),
    _change(
        "time_rounded",
        "ALTER TABLE {t} MODIFY c datetime",
        columns="c datetime(6)",
        values="'2026-01-02 03:04:05.600000'",
    ),
    _change("bytes_padded", "ALTER TABLE {t} MODIFY c binary(6)", columns="c binary(3)", values="'ab'"),
    _change(
        "float_rounded", "ALTER TABLE {t} MODIFY c double(9,1)", columns="c double", values="{i} + 0.123"
    ),
    _change("text_to_int", "ALTER TABLE {t} MODIFY c int", values="'{i}'", stops="column c"),
    _change("int_to_text", "ALTER TABLE {t} MODIFY c varchar(20)", columns="c int", values="{i}", stops="column c"),
    _change(
        "date_to_time", "ALTER TABLE {t} MODIFY c datetime", columns="c date", values="'2026-01-02'"
    ),
    _change("to_the_front", "ALTER TABLE {t} MODIFY c varchar(20) FIRST"),
    _change("behind_another", "ALTER TABLE {t} MODIFY n int AFTER c"),
    _change(
        "not_null",
        "ALTER TABLE {t} MODIFY c varchar(20) NOT NULL DEFAULT 'd'",
        columns="c varchar(20) DEFAULT 'd'",
    ),
    _change(
        "nulls_filled",
        "SET sql_mode = ''",
        "ALTER TABLE {t} MODIFY c varchar(20) NOT NULL DEFAULT 'd'",
        values="NULL",
    ),
    _change("nullable", "ALTER TABLE {t} MODIFY c varchar(20) NULL", columns="c varchar(20) NOT NULL DEFAULT 'd'"),
    _change("charset", "ALTER TABLE {t} CONVERT TO CHARACTER SET latin1", values="'é {i}'"),
    _change(
        "charset_lossy",
        "SET sql_mode = ''",
        "ALTER TABLE {t} MODIFY c varchar(20) CHARACTER SET ascii",
        values="'é {i}'",
    ),
    _change("labels", "ALTER TABLE {t} MODIFY c enum('b','x','a')", columns="c enum('a','b')", values="'b'"),
    _change("key_changed", "ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)", stops="key"),
    _change("key_dropped", "ALTER TABLE {t} DROP PRIMARY KEY", stops="key"),
    _change("partition_dropped", "ALTER TABLE {t} DROP PARTITION p0", options=PARTED),
    _change("partition_added", "ALTER TABLE {t} ADD PARTITION (PARTITION p1 VALUES LESS THAN MAXVALUE)",
            options="PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (30))"),
)  # fmt: skip

POSTGRES = (
    *ALIKE,
    _change("add_volatile", "ALTER TABLE {t} ADD COLUMN e double precision DEFAULT random()"),
    _change("int_wider", "ALTER TABLE {t} ALTER c TYPE bigint", columns="c int", values="{i} * 1000"),
    _change(
        "decimal_wider", "ALTER TABLE {t} ALTER c TYPE numeric(12,3)", columns="c numeric(8,2)", values="{i} + 0.25"
    ),
    _change("int_narrower", "ALTER TABLE {t} ALTER c TYPE int", columns="c bigint", values="{i}", stops="column c"),
    _change("text_cut", "ALTER TABLE {t} ALTER c TYPE varchar(4) USING left(c, 4)"),
    _change(
        "time_rounded",
        "ALTER TABLE {t} ALTER c TYPE timestamp(0)",
        columns="c timestamp",
        values="'2026-01-02 03:04:05.600000'",
    ),
    _change("text_padded", "ALTER TABLE {t} ALTER c TYPE char(6)", columns="c char(3)", values="'ab'"),
    _change("text_computed", "ALTER TABLE {t} ALTER c TYPE text USING upper(c)"),
    _change("text_to_int", "ALTER TABLE {t} ALTER c TYPE int USING c::int", values="'{i}'", stops="column c"),
    _change("int_to_text", "ALTER TABLE {t} ALTER c TYPE text", columns="c int", values="{i}", stops="column c"),
    _change("not_null", "ALTER TABLE {t} ALTER c SET NOT NULL", columns="c varchar(20) DEFAULT 'd'"),
    _change("key_changed", "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (id, n)", stops="key"),
    _change(
        "key_dropped",
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
        "ALTER TABLE {t} REPLICA IDENTITY FULL",
        stops="key",
    ),
    _change(
        "several_at_once",
        "BEGIN",
        "ALTER TABLE {t} ADD COLUMN e int",
        "UPDATE {t} SET e = id",
        "ALTER TABLE {t} RENAME COLUMN c TO f",
        "INSERT INTO {t} (id, n, f, e) VALUES (501, 1, 'between', 2)",
        "ALTER TABLE {t} ADD COLUMN c int DEFAULT 4",
        "COMMIT",
        stops="column c",
    ),
    _change("undone", "BEGIN", "ALTER TABLE {t} DROP COLUMN c", "UPDATE {t} SET n = -1", "ROLLBACK"),
)


def changes(server: DatabaseServer) -> tuple[SchemaChange, ...]:
    """Those of a server."""
    of_kind = POSTGRES if server.kind == "postgres" else MYSQL
    if logs_generated_columns(server):
        return of_kind
    # Its log leaves generated columns out, so that such a table stops (`test_newest_mariadb`).
    return tuple(change for change in of_kind if change.name != "add_generated")
