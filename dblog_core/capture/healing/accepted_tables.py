"""Which tables a term may read where columns are hidden: what the last manifest says, and what has been accepted since.

    the first manifest with such rules   all tables that are there: a person who writes rules looks at them
    a changed entry, a wider pattern     the table as it is now, from this place in the log on
    `dblog rules accept`                 the table as the person has seen it, if it still is so, from there on
    the log was given up                 nothing, where the log alone could tell (MySQL, MariaDB)

From which place on rows pass stands in the acceptance; a dump then brings what came before it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from dblog_core.capture.term_parts import Parts
from dblog_core.errors import TableLocked
from dblog_core.model import table_patterns
from dblog_core.model.schema import TableName
from dblog_core.model.table_identity import Origin
from dblog_core.rows import column_rule_faults
from dblog_core.rows.acceptance import Acceptance, Held, digest_columns
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.table_guard import TableGuard, accepted_as
from dblog_core.staging.manifest import Manifest
from dblog_core.state import accepted_shapes, rule_acceptances, settings_in_force
from dblog_core.state.settings_in_force import LiveSettings

log = logging.getLogger(__name__)

Requests = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Accepted:
    """`guard`: for the log after the head; `taken`: requests that are settled once a manifest has its acceptances."""

    guard: TableGuard
    taken: Requests


def open_guard(parts: Parts, head: Manifest) -> Accepted:
    """The guard of a term that reads the log after `head`. Raises what source and state store raise."""
    source = parts.config.source
    rules = Rules.of(source)
    before = accepted_shapes.read(parts.records)
    is_by_catalogue = parts.source.origins(()) is not None
    witness = parts.source if is_by_catalogue else None
    guard = TableGuard(source.columns, rules.entry_digests(), before, witness=witness)  # type: ignore[arg-type]
    if not guard.is_active:
        accepted_shapes.save(parts.records, None)
        return Accepted(guard, {})
    requests = rule_acceptances.read(parts.state)
    # A catalogue proves what comes after it was asked; a log shows what comes after the place where it was.
    place = parts.source.current_position()
    shapes = _look(parts, guard)
    place = parts.source.current_position() if is_by_catalogue else place
    since = _wait_until(place, parts, head)
    old_settings = settings_in_force.read_in_force(parts.records)
    guarded = list(before or ())
    accepted_by_request = set[str]()
    for table, seen in shapes.items():
        acceptance = guard.find(table)
        if before is None:
            # The log after a first manifest was asked for; after any other one it may be older than the rules.
            waits = guard.hides(table) and head.segment > 1
            guard.accept(table, replace(seen, since=since if waits else ""))
        elif acceptance is None and _is_newly_asked_for(table, old_settings):
            guard.accept(table, replace(seen, since=since))
        elif acceptance is not None and _is_requested(seen, acceptance, requests.get(table)):
            log.info("%s is accepted as somebody has seen it", table)
            seen_at = place if is_by_catalogue else requests[table]["place"]
            guard.accept(
                table, replace(seen, since=_wait_until(seen_at, parts, head), version=_keep_version(seen, acceptance))
            )
            accepted_by_request.add(table)
        elif acceptance is not None and acceptance.entry != seen.entry:
            log.info("%s is accepted as it is now", table)
            guard.accept(table, replace(seen, since=since, version=_keep_version(seen, acceptance)))
    void = {table: request for table, request in requests.items() if table not in accepted_by_request}
    for table in void:
        log.warning("%s is not accepted: it, or its entry, is another one than when somebody accepted it", table)
    rule_acceptances.forget(parts.state, void)
    guard.forget([t for t in guarded if not table_patterns.matches(TableName.parse(t), source.tables)])
    for hold in guard.judge(map(TableName.parse, shapes)):
        if hold.problem is not None:
            log.warning("%s stops alone: %s\n  fix: %s", hold.table, hold.problem.what, hold.problem.fix)
    return Accepted(guard, {table: request for table, request in requests.items() if table not in void})


def forget_taken(parts: Parts, accepted: Accepted) -> None:
    """A manifest with the acceptances is published."""
    rule_acceptances.forget(parts.state, accepted.taken)


def save_changes(parts: Parts, accepted: Accepted) -> None:
    """Before the manifest is published that goes up to the guard's place in the log."""
    if accepted.guard.has_changes:
        accepted_shapes.save(parts.records, accepted.guard.acceptances)


def distrust_log(parts: Parts) -> None:
    """The log after the head is given up: what the log alone could prove is proven no longer."""
    acceptances = accepted_shapes.read(parts.records)
    if acceptances is None or parts.source.origins(()) is not None:
        return
    lost = {t: replace(a, why_held=a.why_held or Held.UNWATCHED).with_next_version() for t, a in acceptances.items()}
    accepted_shapes.save(parts.records, lost)


def _look(parts: Parts, guard: TableGuard) -> dict[str, Acceptance]:
    """The captured tables that exist, and what an acceptance of each would be now."""
    schemas = {str(schema.table): schema for schema in parts.source.tables()}
    names = [*schemas, *_list_refused(parts, schemas)]
    origins = parts.source.origins([TableName.parse(name) for name in names])
    if origins is not None:
        return {str(t): describe(origin, guard, str(t)) for t, origin in origins.items()}
    return {
        name: Acceptance(
            guard.entry(name), digest_columns(schemas[name]) if guard.hides(name) and name in schemas else ""
        )
        for name in names
    }


def describe(origin: Origin, guard: TableGuard, table: str) -> Acceptance:
    """What an acceptance of the table would be now."""
    return accepted_as(origin, guard.entry(table), hides=guard.hides(table))


def _list_refused(parts: Parts, captured: Collection[str]) -> list[str]:
    """The wanted tables that cannot be captured as they are, and exist."""
    try:
        refusals = parts.source.list_refusals()
    except TableLocked:
        return []  # the catalogue tells nothing for a while: the next term looks again
    missing = {problem.what for problem in column_rule_faults.of_missing((), parts.config.source.columns)}
    names = {p.table for p in refusals if p.table is not None and p.what not in missing}
    return sorted(names - set(captured))


def _wait_until(place: str, parts: Parts, head: Manifest) -> str:
    """The `Acceptance.since` of what passes from a place on: empty where the log is read up to there."""
    return "" if parts.source.has_reached(head.position, place) and not head.partial else place


def _is_requested(seen: Acceptance, before: Acceptance, request: Mapping[str, str] | None) -> bool:
    """Whether somebody has accepted the table as it is `seen` now. Where the log tells, the shape proves nothing: two
    columns may have changed their names and places."""
    if request is None or (request["entry"], request["shape"]) != (seen.entry, seen.shape):
        return False
    return seen.is_by_catalogue or ("place" in request and request["version"] == before.version)


def _keep_version(seen: Acceptance, before: Acceptance) -> str:
    """Where the log tells, statements are counted for as long as the table is captured."""
    return seen.version if seen.is_by_catalogue else before.version


def _is_newly_asked_for(table: str, before: LiveSettings | None) -> bool:
    """Whether the configuration asks for the table since the last term."""
    return before is not None and not table_patterns.matches(TableName.parse(table), before.tables)
