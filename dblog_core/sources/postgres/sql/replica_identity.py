"""Whether the log can say which row an update or a delete has hit: replica identity against our key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from dblog_core.config.source import SourceConfig
from dblog_core.interfaces import Problem
from dblog_core.rows import column_rule_faults
from dblog_core.sources.postgres.sql import row_key, typed_names
from dblog_core.sources.postgres.sql.catalogue import CatalogueTable, leaves, wanted_tables
from dblog_core.sources.postgres.sql.connection import Connection


def refusals(connection: Connection, table: CatalogueTable, config: SourceConfig) -> list[Problem]:
    """Why the table must not be captured as it is, each with its `table`; empty if it may.

    A table without a usable replica identity is not only unreadable: in a publication, every UPDATE and DELETE of it
    fails, for the application too. So it is never added to one.
    """
    problems = [*_refusals(connection, table, config), *_rule_problems(table, config)]
    return [replace(problem, table=str(table.name)) for problem in problems]


def missing(tables: Iterable[CatalogueTable], config: SourceConfig) -> list[Problem]:
    """Column rules of tables that are none of the wanted ones."""
    return list(column_rule_faults.of_missing({str(table.name) for table in tables}, config.columns))


def usable(connection: Connection, config: SourceConfig) -> list[CatalogueTable]:
    """The wanted tables that may be captured as they are."""
    return [table for table in wanted_tables(connection, config) if not refusals(connection, table, config)]


def _rule_problems(table: CatalogueTable, config: SourceConfig) -> Iterator[Problem]:
    stored = [column.name for column in table.columns if not column.generated]
    return column_rule_faults.of_table(str(table.name), stored, table.key(config), config.columns)


def _refusals(connection: Connection, table: CatalogueTable, config: SourceConfig) -> list[Problem]:
    if table.partitioned and config.plugin == "wal2json":
        what = f"{table.name} is partitioned, and wal2json shows only its partitions, each under its own name"
        return [Problem(what, 'set plugin = "pgoutput", or name the partitions in tables')]
    problems = row_key.find_key_problems(table, config)
    for part in [table, *(leaves(connection, table) if table.partitioned else [])]:
        if not part.logged:
            fix = (
                f"ALTER TABLE {typed_names.table(part.name)} SET LOGGED, or a pattern in tables that does not match it"
            )
            problems.append(Problem(f"{part.name} is unlogged: its changes are in no log", fix))
        # The identity is compared with the key: of a wrong key nothing can be said.
        if not part.full and not problems:
            problems += _identity_problems(part, table, config)
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
    full = f"ALTER TABLE {typed_names.table(part.name)} REPLICA IDENTITY FULL"
    return [Problem(what, default or (full if key else f"{full}, give it a primary key, or leave it out of `tables`"))]
