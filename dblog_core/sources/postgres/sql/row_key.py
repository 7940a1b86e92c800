"""The key that identifies a table's rows, and what is wrong with it: its primary key, or its entry in [source.keys].

A row's key has to name one row in the log, in a chunk and in the lake alike. So no column of it may be NULL or
generated, and a unique index that is immediate, whole and over columns alone must have exactly its columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from dblog_core.config.source import SourceConfig
from dblog_core.interfaces import Problem
from dblog_core.model.table_names import keys_entry, quote_for_toml
from dblog_core.rows import source_key_faults
from dblog_core.sources.postgres.sql import typed_names
from dblog_core.sources.postgres.sql.catalogue import CatalogueTable


def find_key_problems(table: CatalogueTable, config: SourceConfig) -> list[Problem]:
    """What is wrong with the columns that the table's key names, each with its fix; empty if nothing is."""
    if why := table.contradiction(config):
        return [Problem(why, source_key_faults.contradiction_fix(table.name))]
    columns = {c.name: c for c in table.columns}
    problems = []
    key = table.key(config)
    place = keys_entry(table.name)
    for name in key:
        if name not in columns:
            problems.append(Problem(f"{place}: the table has no column {name}", "name existing columns"))
        elif columns[name].generated:
            problems.append(
                Problem(
                    f"{table.name}: key column {name} is generated, and the log does not carry it",
                    f"set {place} to others",
                )
            )
        elif not columns[name].not_null:
            problems.append(
                Problem(
                    f"{place}: column {name} may be null",
                    f"ALTER TABLE {typed_names.table(table.name)} ALTER COLUMN {typed_names.column(name)} SET NOT NULL",
                )
            )
    if table.primary_key and frozenset(key) not in table.unique:
        problems.append(_explain_deferrable(table))
    if not table.primary_key and str(table.name) in config.keys and frozenset(key) not in table.unique:
        problems.append(
            Problem(f"{place}: no unique index says that ({', '.join(key)}) is unique", _describe_usable_keys(table))
        )
    return problems


def _explain_deferrable(table: CatalogueTable) -> Problem:
    """`UPDATE t SET id = id + 1` gives a row the key of the next one before that one leaves it: by their keys, the
    delete of the second seems to be that of the first."""
    columns = ", ".join(typed_names.column(name) for name in table.primary_key)
    constraint = typed_names.column(table.primary_constraint)
    return Problem(
        f"{table.name}: its primary key is deferrable, so that two rows may have the same key within a transaction",
        f"ALTER TABLE {typed_names.table(table.name)} DROP CONSTRAINT {constraint}, "
        f"ADD CONSTRAINT {constraint} PRIMARY KEY ({columns})",
    )


def _find_candidates(table: CatalogueTable) -> list[list[str]]:
    unusable = {c.name for c in table.columns if c.generated or not c.not_null}
    return sorted(sorted(columns) for columns in table.unique if not unusable & columns)


def _write_entries(table: CatalogueTable, candidates: Sequence[Sequence[str]]) -> str:
    listed = (", ".join(map(quote_for_toml, columns)) for columns in candidates)
    return " or ".join(f"{keys_entry(table.name)} = [{columns}]" for columns in listed)


def _describe_usable_keys(table: CatalogueTable) -> str:
    """What could stand in [source.keys], or how to have it. A partial or a deferrable index vouches for no row."""
    if candidates := _find_candidates(table):
        return _write_entries(table, candidates)
    return (
        f"name the columns of a unique index that is neither partial nor deferrable nor over an expression: ALTER "
        f"TABLE {typed_names.table(table.name)} ADD UNIQUE (its key's columns), all of them NOT NULL"
    )
