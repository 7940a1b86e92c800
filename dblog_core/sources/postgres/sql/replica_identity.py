"""Whether the log can say which row an update or a delete has hit: replica identity against our key; and nothing else.

From version 18 on a publication may show generated columns. No dump reads them: a row of the log would have values that
a row of a dump takes away again. So the capture makes its publication one that shows none. Where it may not, each table
that has such columns is refused alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dblog_core.config.source import SourceConfig
from dblog_core.interfaces import Problem
from dblog_core.model.schema import TableName
from dblog_core.rows import column_rule_faults
from dblog_core.sources.postgres.sql import row_key, typed_names
from dblog_core.sources.postgres.sql.catalogue import CatalogueTable, leaves, wanted_tables
from dblog_core.sources.postgres.sql.connection import Connection, one_snapshot, rows

WITHOUT_GENERATED = "publish_generated_columns = none"
SHOWS_GENERATED = "coalesce(to_jsonb(p) ->> 'pubgencols', 'n') <> 'n'"
"""Of a row `p` of `pg_publication`, which has that column from version 18 on."""
_FIRST_VERSION = 180_000
_SHOWN = f"SELECT {SHOWS_GENERATED}, pg_has_role(pubowner, 'USAGE') FROM pg_publication p WHERE pubname = %s"
_OF_TABLE = "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attgenerated <> '' AND NOT attisdropped"


def refusals(connection: Connection, tables: Sequence[CatalogueTable], config: SourceConfig) -> list[list[Problem]]:
    """Of each table, why it must not be captured as it is, each with its `table`; empty if it may.

    A table without a usable replica identity is not only unreadable: in a publication, every UPDATE and DELETE of it
    fails, for the application too. So it is never added to one.
    """
    parts = leaves(connection, (table for table in tables if table.partitioned))
    return [
        [
            replace(problem, table=str(table.name))
            for problem in (
                *_refusals(connection, table, parts.get(table.oid, []), config),
                *_rule_problems(table, config),
            )
        ]
        for table in tables
    ]


def missing(tables: Iterable[CatalogueTable], config: SourceConfig) -> list[Problem]:
    """Column rules of tables that are none of the wanted ones."""
    return list(column_rule_faults.of_missing({str(table.name) for table in tables}, config.columns))


def usable(connection: Connection, config: SourceConfig) -> list[CatalogueTable]:
    """The wanted tables that may be captured as they are."""
    with one_snapshot(connection):
        tables = wanted_tables(connection, config)
        problems = refusals(connection, tables, config)
    return [table for table, its_problems in zip(tables, problems, strict=True) if not its_problems]


def _rule_problems(table: CatalogueTable, config: SourceConfig) -> Iterator[Problem]:
    stored = [column.name for column in table.columns if not column.generated]
    return column_rule_faults.of_table(str(table.name), stored, table.key(config), config.columns)


def _refusals(
    connection: Connection, table: CatalogueTable, parts: Sequence[CatalogueTable], config: SourceConfig
) -> list[Problem]:
    if table.partitioned and config.plugin == "wal2json":
        what = f"{table.name} is partitioned, and wal2json shows only its partitions, each under its own name"
        return [Problem(what, 'set plugin = "pgoutput", or name the partitions in tables')]
    problems = row_key.find_key_problems(table, config)
    for part in [table, *parts]:
        if not part.logged:
            fix = (
                f"ALTER TABLE {typed_names.table(part.name)} SET LOGGED, or a pattern in tables that does not match it"
            )
            problems.append(Problem(f"{part.name} is unlogged: its changes are in no log", fix))
        # The identity is compared with the key: of a wrong key nothing can be said.
        if not part.full and not problems:
            problems += _identity_problems(part, table, config)
    generated = [column.name for column in table.columns if column.generated]
    if generated and _are_generated_shown_by_others(connection, config):
        problems.append(Problem(explain_generated(table.name, generated), generated_fix(config)))
    return problems


def _identity_problems(part: CatalogueTable, table: CatalogueTable, config: SourceConfig) -> list[Problem]:
    key = table.key(config)
    if key and part.identity == frozenset(key):
        return []
    identity = f"({', '.join(sorted(part.identity))})" if part.identity else "nothing"
    what = f"the log identifies old rows of {part.name} by {identity}, and its key is ({', '.join(key) or 'none'})"
    default = (
        f"ALTER TABLE {typed_names.table(part.name)} REPLICA IDENTITY DEFAULT, or FULL"
        if part.primary_key and key == table.primary_key
        else ""
    )
    if not part.primary_key and part.unique_index and key == part.unique_key:
        index = typed_names.column(part.unique_index)
        default = f"ALTER TABLE {typed_names.table(part.name)} REPLICA IDENTITY USING INDEX {index}, or FULL"
    full = f"ALTER TABLE {typed_names.table(part.name)} REPLICA IDENTITY FULL"
    return [Problem(what, default or (full if key else f"{full}, give it a primary key, or leave it out of `tables`"))]


def find_generated(connection: Connection, oid: int) -> frozenset[str]:
    """The generated columns of a table, on a server whose log may have them."""
    if connection.server_version < _FIRST_VERSION:
        return frozenset()
    return frozenset(name for (name,) in rows(connection, _OF_TABLE, (oid,)))


def _are_generated_shown_by_others(connection: Connection, config: SourceConfig) -> bool:
    """Whether the publication shows them, and the capture may not change that."""
    if config.plugin != "pgoutput" or connection.server_version < _FIRST_VERSION:
        return False
    publications = rows(connection, _SHOWN, (config.publication,))
    return any(is_shown and (config.read_only or not may_change) for is_shown, may_change in publications)


def explain_generated(table: TableName, names: Sequence[str]) -> str:
    """Why a table whose generated columns are in the log cannot be captured."""
    return f"the log shows generated columns of {table} ({', '.join(names)}), which no dump reads"


def generated_fix(config: SourceConfig) -> str:
    """The statement after which the log has none."""
    return f"ALTER PUBLICATION {typed_names.column(config.publication)} SET ({WITHOUT_GENERATED})"
