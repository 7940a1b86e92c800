"""Tables without an entry in [source.columns] that may hold rows of one whose rules hide columns, as a term finds them
at its start: a table got another name while nobody read the log, or where the log does not tell.

They stop alone before anything of them is requested or read, until the configuration has other rules for them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from dblog_core.capture.healing import owed_dump_requests
from dblog_core.capture.term_parts import Parts
from dblog_core.errors import TableLocked
from dblog_core.interfaces import Problem
from dblog_core.model import table_identity
from dblog_core.model.schema import TableName
from dblog_core.rows import column_rule_faults, inherited_rules
from dblog_core.rows.column_rule_faults import hidden_columns
from dblog_core.staging.manifest import Manifest
from dblog_core.state import settings_in_force, stopped_tables
from dblog_core.state.settings_in_force import LiveSettings
from dblog_core.state.stopped_tables import Entries

log = logging.getLogger(__name__)


def stop_renamed(parts: Parts, head: Manifest, shown_tables: frozenset[str] | None) -> None:
    """Stops the tables that have, or may have, taken over rows of one with rules. `shown_tables`: what
    `new_tables.prepare_source` said. Raises what source and state store raise."""
    if not any(map(hidden_columns, parts.config.source.columns.values())):
        return
    renamed = _find_strangers(parts, head) if shown_tables is None else _find_renamed(parts, shown_tables)
    problems = list(renamed)
    for problem in problems:
        log.warning("%s stops alone: %s\n  fix: %s", problem.table, problem.what, problem.fix)
    stopped_tables.add_unruled(parts.state, problems)


def find_still_stopped(parts: Parts, stopped: Entries, before: LiveSettings | None) -> Entries:
    """The stopped tables that the configuration still has no other rules for, and captures."""
    source = parts.config.source
    unruled = stopped_tables.find_unruled(stopped)
    if not unruled:
        return {}
    existing = {str(schema.table) for schema in parts.source.tables()}

    def is_mended(table: str) -> bool:
        return before is not None and settings_in_force.is_new(TableName.parse(table), before, source)

    return {table: entry for table, entry in unruled.items() if table in existing and not is_mended(table)}


def _find_renamed(parts: Parts, shown_tables: frozenset[str]) -> Iterator[Problem]:
    """Tables that had another name when the last term began, and partitions that were of another table."""
    rules = parts.config.source.columns
    owners_before = table_identity.find_owners(settings_in_force.read_shown(parts.state) or ())
    for oid, name in table_identity.find_owners(shown_tables).items():
        origin = owners_before.get(oid, name)
        if name not in rules and origin in rules and hidden_columns(rules[origin]):
            yield inherited_rules.explain(name, origin, rules[origin])


def _find_strangers(parts: Parts, head: Manifest) -> Iterator[Problem]:
    """Tables that nothing was staged of yet, and that have all columns which the rules of a missing table hide."""
    source = parts.config.source
    missing = {table: hidden for table in _find_missing(parts) if (hidden := hidden_columns(source.columns[table]))}
    if not missing:
        return
    seen = head.schemas.keys() | owed_dump_requests.whole_tables(parts.state)
    for schema in parts.source.tables():
        name = str(schema.table)
        columns = {column.name for column in schema.columns}
        origin = next((table for table, hidden in missing.items() if columns >= set(hidden)), None)
        if origin is not None and name not in source.columns and name not in seen:
            yield inherited_rules.explain(name, origin, source.columns[origin])


def _find_missing(parts: Parts) -> list[str]:
    """The tables with rules that the source does not have, or not among the captured ones."""
    try:
        refusals = {problem.what for problem in parts.source.list_refusals()}
    except TableLocked:
        return []  # the catalogue tells nothing for a while: the next term looks again
    rules = parts.config.source.columns
    return [p.table for p in column_rule_faults.of_missing((), rules) if p.table is not None and p.what in refusals]
