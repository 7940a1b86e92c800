"""What a term does about tables that the one before did not read: each is dumped, whoever changed the configuration."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dblog_core.capture import healing_dumps
from dblog_core.dumps import control, dump_store
from dblog_core.dumps.requests import WHOLE
from dblog_core.errors import LeaseLost, RequestError, VersionConflict
from dblog_core.interfaces import Lease, StateStore
from dblog_core.model import table_identity, table_names, table_patterns
from dblog_core.model.events import SCHEMA
from dblog_core.model.schema import TableName
from dblog_core.model.task_id import TaskId
from dblog_core.staging.manifest import LogMark, Manifest
from dblog_core.state import owed_dumps, recent_errors, settings_in_force, stopped_tables
from dblog_core.state.settings_in_force import LiveSettings

if TYPE_CHECKING:
    from dblog_core.capture.leader import Parts

log = logging.getLogger(__name__)


def shown(parts: Parts) -> frozenset[str] | None:
    """The tables whose log the source will show for certain once it is prepared: those that are there before. None
    where it shows that of every table from its beginning."""
    return parts.source.identities()


def put_in_force(parts: Parts, lease: Lease, head: Manifest, *, showing: frozenset[str] | None) -> Manifest:
    """Requests dumps of the tables whose log the last term did not read as this one does, and remembers what this one
    reads; returns the manifest to go on after. `showing`: what `shown` said before the source was prepared.

    Raises LeaseLost where another capture does so too, and what source, staging and state store raise.
    """
    before, now = settings_in_force.read_in_force(parts.state), settings_in_force.LiveSettings.of(parts.config.source)
    known = settings_in_force.read_shown(parts.state) if showing is not None else None
    made = table_identity.others(known, showing) if showing is not None and known is not None else set()
    refused, held = stopped_tables.entries_by_source(parts.source.refused()), stopped_tables.read(parts.state)
    same = before == now and (showing is None or known == table_identity.remembered(showing))
    if same and not made and refused == held:
        return head
    if before is not None:
        head, left = _take_in(parts, lease, head, before, made | (held.keys() - refused.keys()))
        _give_up(parts, before, now)
        give_up_stopped(parts.state, {table: entry.why for table, entry in refused.items()})
        refused |= {table: held[table] for table in left & held.keys()}
    stopped_tables.change(parts.state, lambda _: refused)
    try:
        settings_in_force.put_in_force(parts.state, now)
        if showing is not None:
            settings_in_force.put_shown(parts.state, showing)
    except VersionConflict as error:
        raise LeaseLost("another capture leads; this one stands by", where=parts.config.state.url) from error
    return head


def _take_in(
    parts: Parts, lease: Lease, head: Manifest, before: LiveSettings, made: set[str]
) -> tuple[Manifest, set[str]]:
    """The manifest to go on after, and the tables that could not be dumped now."""
    there = parts.source.tables()
    changed = {table.table for table in settings_in_force.find_new_tables(before, parts.config.source, there)}
    tables = [table for table in there if table.table in changed or str(table.table) in made]
    dumps: dict[str, str] = {}
    dumped = tuple(str(table.table) for table in tables if table.key)
    if dumped:
        asked = healing_dumps.request(parts.config, WHOLE, dumped, state=parts.state)
        dumps = asked.dumps
        if dumps:
            log.warning("captured from here on, and dumped: %s", table_names.some(sorted(dumps)))
        if asked.left_out:
            log.warning("captured from here on, and not dumped: %s", asked.told)
        owed_dumps.record_failures(parts.state, "", asked.refused)
    late = [t.table for t in tables if not t.key]
    if late and parts.source.shows_whole_logs():
        late = [table for table in late if table in changed]
    _tell_of_keyless(parts, list(map(str, late)))
    names, now = [str(table.table) for table in tables], parts.source.horizon()
    left, marks = set(dumped) - dumps.keys(), broken(parts, head, names, dumps, place=head.log_position)
    born = tuple(name for name in head.born if name not in names)
    if not tables or (now is None and not marks and born == head.born):
        return head, left
    # What their transactions have logged before this place is nowhere remembered: a chunk must see all of that. And so
    # it sees all that is staged: a dump that begins now heals what was lost while a table was not captured.
    manifest = replace(
        head,
        segment=head.segment + 1,
        epoch=lease.epoch,
        first_offset=head.last_offset + 1,
        last_offset=head.last_offset + len(marks),
        sealed_at=int(parts.clock.time() * 1e6),
        files=(),
        chunks=(),
        marks=marks,
        unseen_after=head.last_offset + len(marks),
        start=now,
        born=born,
    )
    parts.staging.publish(manifest)
    return manifest, left


def broken(
    parts: Parts, head: Manifest, tables: Iterable[str], dumps: Mapping[str, str], *, place: str
) -> tuple[LogMark, ...]:
    """Tells whoever has a copy of a table that it is not right before the end of its dump, or of any later one where
    none could be requested: the shape, once more. Of tables that are captured, and have a key."""
    wanted, time = parts.config.source.tables, head.commit_time or 0
    known = [
        (table, head.schemas[table])
        for table in tables
        if table in head.schemas
        and table_patterns.matches(TableName.parse(table), wanted)
        and parts.staging.schema(head.schemas[table]).key
    ]
    return tuple(
        LogMark(
            head.last_offset + number,
            SCHEMA,
            table,
            place,
            time,
            schema=shape,
            dump=dumps.get(table),
            whole=None if table in dumps else False,
        )
        for number, (table, shape) in enumerate(known, 1)
    )


def _tell_of_keyless(parts: Parts, tables: list[str]) -> None:
    """Rows that tables without a key had before their log was read are nowhere, and no dump can bring them."""
    if not tables:
        return
    error = RequestError(
        f"captured from here on, without the rows that they have by now: {table_names.some(tables)}",
        fix="a table without a key cannot be dumped. Give it a primary key, or name its unique, "
        "never-null columns under [source.keys]: then it is dumped by itself",
    )
    log.warning("%s", error)
    recent_errors.record(parts.state, "capture", error, parts.clock.time())


def _give_up(parts: Parts, before: LiveSettings, now: LiveSettings) -> None:
    """Ends dumps of tables whose log is no longer read: what a chunk of theirs does not see, nobody would tell."""
    for status in dump_store.list_unfinished_dumps(parts.state):
        for task in status.tasks:
            if settings_in_force.is_captured(task.table, before) and not settings_in_force.is_captured(task.table, now):
                dump_store.fail_task(parts.state, TaskId(status.id, task.number), f"{task.table} is no longer captured")


def give_up_stopped(state: StateStore, tables: Mapping[str, str]) -> None:
    """Ends dumps of tables that are stopped, for the same reason. `tables`: with what has stopped them."""
    why = {table: f"{table} is stopped: {reason}" for table, reason in tables.items()}
    for status in dump_store.list_unfinished_dumps(state) if why else ():
        if not any(task.table in why and not task.over for task in status.tasks):
            continue
        try:
            control.give_up_tables(state, status.id, why)
        except RequestError:
            log.info("dump %s is over", status.id)  # since the look at it
