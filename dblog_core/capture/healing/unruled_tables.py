"""Tables whose rows would be staged in the open though there are rules, as a term finds them at its start: a table, or
a column under a rule, got another name while nobody read the log, or where the log does not tell.

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
from dblog_core.rows import column_rule_faults, inherited_rules, moved_columns
from dblog_core.rows.column_rule_faults import hidden_columns
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.moved_columns import Numbers
from dblog_core.staging.manifest import Manifest
from dblog_core.state import settings_in_force, stopped_tables
from dblog_core.state.settings_in_force import LiveSettings
from dblog_core.state.stopped_tables import Entries

log = logging.getLogger(__name__)


def stop_unruled(parts: Parts, head: Manifest, shown_tables: frozenset[str] | None) -> None:
    """Stops the tables that have, or may have, taken over rows of one with rules, and those of which a column under a
    rule has another name. `shown_tables`: what `new_tables.prepare_source` said. Raises what source and state store
    raise."""
    if not any(map(hidden_columns, parts.config.source.columns.values())):
        return
    numbers = parts.source.column_numbers()
    renamed = _find_strangers(parts, head) if shown_tables is None else _find_renamed(parts, shown_tables)
    moved = _find_moved_by_steps(parts, head) if numbers is None else _find_moved_by_numbers(parts, numbers)
    problems = [*renamed, *moved]
    for problem in problems:
        log.warning("%s stops alone: %s\n  fix: %s", problem.table, problem.what, problem.fix)
    stopped_tables.add_unruled(parts.state, problems)
    if numbers is not None:  # last: what they show against those of the last term is recorded
        before = settings_in_force.read_numbers(parts.state)
        # A column that is missing may be there under another name, and another column take its own later.
        numbers_by_table = {table: {**before.get(table, {}), **of_columns} for table, of_columns in numbers.items()}
        settings_in_force.put_numbers(parts.state, numbers_by_table)


def open_rules(parts: Parts, head: Manifest, shown_tables: frozenset[str] | None) -> Rules:
    """The rules for a log that is read from `head` on."""
    rules = Rules.of(parts.config.source)
    rules.inherited.note_owners(table_identity.find_owners(shown_tables or ()))
    rules.moved.note_numbers(settings_in_force.read_numbers(parts.state))
    pending = head.pending_statements()
    for table in parts.config.source.columns:
        rules.moved.note_steps(table, pending.steps(table))
    return rules


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


def _find_moved_by_steps(parts: Parts, head: Manifest) -> Iterator[Problem]:
    """Tables of which the statements since their last shape have given a hidden column another name."""
    moved = open_rules(parts, head, None).moved
    if moved.has_any:
        yield from filter(None, map(moved.find_misfit, parts.source.tables()))


def _find_moved_by_numbers(parts: Parts, numbers: Numbers) -> Iterator[Problem]:
    """Tables of which a hidden column has had another name since the last term began, and another column its own."""
    before = settings_in_force.read_numbers(parts.state)
    for table in numbers.keys() & before.keys():
        hidden = hidden_columns(parts.config.source.columns[table])
        for name, now in moved_columns.find_moved(hidden, before[table], numbers[table]):
            if name in numbers[table] and now not in hidden:
                yield moved_columns.explain(table, name, now)
