"""Tables that are held for column rules, and how a person accepts them as they are now."""

from __future__ import annotations

from collections.abc import Sequence

from dblog_core.config.settings import Config
from dblog_core.errors import RequestError
from dblog_core.interfaces import Source, StateStore
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.rows import column_rule_faults
from dblog_core.rows.acceptance import Acceptances, Held, digest_columns
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.table_guard import accepted_as
from dblog_core.staging import Staging, table_records
from dblog_core.state import accepted_shapes, rule_acceptances


def find_held(staging: Staging) -> list[str]:
    """The tables of which nothing passes until a person accepts them."""
    return sorted(table for table, a in _read(staging).items() if a.why_held not in (None, Held.GONE))


def _read(staging: Staging) -> Acceptances:
    return accepted_shapes.read(table_records.read_newest(staging, *accepted_shapes.NODES)) or {}


def accept(
    config: Config, source: Source, staging: Staging, state: StateStore, tables: Sequence[str]
) -> list[TableSchema]:
    """Files that these tables, or all that are held, are accepted as they are now; returns their shapes.

    Raises RequestError for a table that is not held, or that the source does not have, and what source and stores
    raise.
    """
    held_names = find_held(staging)
    wanted_names = list(tables) or held_names
    if not wanted_names:
        raise RequestError("no table is held", where="rules accept", fix="there is nothing to do")
    is_by_log = source.origins(()) is None
    # In this order: a statement that comes after either of the two, and that nobody has seen, holds the table again.
    versions = {table: acceptance.version for table, acceptance in _read(staging).items()}
    place = source.current_position() if is_by_log else ""
    shapes = {str(schema.table): schema for schema in source.tables()}
    for table in wanted_names:
        if table not in held_names:
            close = f"; held are {', '.join(held_names)}" if held_names else "; no table is"
            raise RequestError(f"{table} is not held{close}", where="rules accept", fix="`dblog status` names them")
        if table not in shapes:
            raise RequestError(
                f"the source has no table {table} that can be captured", where="rules accept", fix="`dblog check`"
            )
    rules = Rules.of(config.source)
    hides = {t for t in wanted_names if column_rule_faults.hidden_columns(config.source.columns.get(t))}
    origins = source.origins([TableName.parse(table) for table in wanted_names])
    filed = {}
    for table in wanted_names:
        name = TableName.parse(table)
        if origins is None:
            shape = digest_columns(shapes[table]) if table in hides else ""
        elif (origin := origins.get(name)) is not None:
            shape = accepted_as(origin, "", hides=table in hides).shape
        else:
            raise RequestError(f"the source has no table {table} any longer", where="rules accept", fix="`dblog check`")
        filed[table] = {"entry": rules.digest(name), "shape": shape}
        if is_by_log:
            filed[table] |= {"version": versions.get(table, ""), "place": place}
    rule_acceptances.add(state, filed)
    return [shapes[table] for table in wanted_names]
