"""What a term does about tables that the previous term did not read: each is dumped, whichever process changed the
configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace

from dblog_core.capture.healing import dump_requests
from dblog_core.capture.term_parts import Parts
from dblog_core.dumps import control, dump_store, task_store
from dblog_core.dumps.dump_records import Refusal
from dblog_core.dumps.requests import WHOLE
from dblog_core.errors import PublicationIncomplete, RequestError, TableLocked
from dblog_core.interfaces import Lease, StateStore
from dblog_core.model import table_identity, table_names, table_patterns
from dblog_core.model.events import SCHEMA
from dblog_core.model.schema import TableName
from dblog_core.model.task_id import TaskId
from dblog_core.rows.source_key_faults import UNIQUE_KEY
from dblog_core.rows.table_guard import TableGuard
from dblog_core.staging.manifest import LogMark, Manifest
from dblog_core.state import owed_dumps, recent_errors, settings_in_force, stopped_tables
from dblog_core.state.settings_in_force import LiveSettings
from dblog_core.state.stopped_tables import RepairSeenBy, StoppedTable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _TakenIn:
    """`left`: tables that could not be dumped now; `head`: the manifest after which the marks come (None: no table was
    taken in)."""

    left: set[str]
    head: Manifest | None = None
    marks: tuple[LogMark, ...] = ()


def find_shown_tables(parts: Parts) -> frozenset[str] | None:
    """The tables whose log the source will show for certain once it is prepared: those that are there before. None
    where it shows that of every table from its beginning."""
    return parts.source.identities()


def prepare_source(parts: Parts, shown_tables: frozenset[str] | None) -> frozenset[str] | None:
    """Prepares the source; what of `find_shown_tables` its log shows from then on. A table that somebody keeps locked
    is captured, and dumped, once it is free."""
    try:
        locked = parts.source.prepare()
    except PublicationIncomplete as error:
        if parts.staging.head() is None:
            raise
        log.warning("captured once the publication has them: %s\n  fix: %s", error.message, error.fix)
        recent_errors.record(parts.state, "capture", error, parts.clock.time())
        return None if shown_tables is None else table_identity.leave_out(shown_tables, error.tables)
    if locked:
        log.warning("captured once they are free, since somebody has locked them: %s", table_names.some(sorted(locked)))
    return None if shown_tables is None else table_identity.leave_out(shown_tables, locked)


def put_in_force(
    parts: Parts, lease: Lease, head: Manifest, guard: TableGuard, *, shown_tables: frozenset[str] | None
) -> Manifest:
    """Requests dumps of the tables whose log the last term did not read as this one does, and remembers what this one
    reads; returns the manifest to continue after. `guard`: a table that waits is dumped later; `shown_tables`: what
    `prepare_source` said.

    Raises what source, staging and state store raise.
    """
    before = settings_in_force.read_in_force(parts.records)
    now = settings_in_force.LiveSettings.of(parts.config.source)
    shown_before = settings_in_force.read_shown(parts.records) if shown_tables is not None else None
    new = set[str]()
    if shown_tables is not None and shown_before is not None:
        new = table_identity.find_other_tables(shown_before, shown_tables)
    stopped = stopped_tables.read(parts.records)
    refused = _find_refused(parts, stopped) | stopped_tables.held_entries(guard.held())
    same = before == now and (shown_tables is None or shown_before == table_identity.entries_to_remember(shown_tables))
    if same and not new and refused == stopped:
        return head
    taken_in: _TakenIn | None = None
    if before is not None:
        mended = stopped.keys() - refused.keys()
        leave_out = refused.keys() | guard.waiting()
        taken_in = _take_in(parts, head, before, new, mended, shown_tables, leave_out=leave_out)
        _give_up(parts, before, now)
        give_up_stopped(parts.state, refused)
        # A table that was stopped and could not be dumped stays stopped: its copy lacks what was passed over.
        refused |= {table: _await_source(stopped[table]) for table in taken_in.left & stopped.keys()}
    stopped_tables.change(parts.records, lambda _: refused)
    settings_in_force.put_in_force(parts.records, now)
    if shown_tables is not None:
        settings_in_force.put_shown(parts.records, shown_tables)
    if taken_in is not None and taken_in.head is not None:
        return publish_marks(parts, lease, taken_in.head, taken_in.marks)
    return publish_records(parts, lease, head)


def _await_source(entry: StoppedTable) -> StoppedTable:
    """The entry of a table that has its rules now, and is dumped once the source allows it."""
    return replace(entry, by=RepairSeenBy.SOURCE) if entry.by == RepairSeenBy.RULES else entry


def _find_refused(parts: Parts, stopped: stopped_tables.Entries) -> stopped_tables.Entries:
    """The tables that the source refuses now; those that were `stopped`, where it does not say so for a while."""
    try:
        return stopped_tables.entries_by_source(parts.source.list_refusals())
    except TableLocked as error:
        log.warning("the tables that are stopped stay so until the catalogue shows them again: %s", error.message)
        return stopped


def _take_in(
    parts: Parts,
    head: Manifest,
    before: LiveSettings,
    new: Set[str],
    mended: Set[str],
    shown_tables: frozenset[str] | None,
    *,
    leave_out: Set[str],
) -> _TakenIn:
    """Requests dumps of tables whose log is read in another way from now on. `mended`: those that were stopped;
    `leave_out`: those that stay so."""
    schemas = [table for table in parts.source.tables() if str(table.table) not in leave_out]
    if shown_tables is not None:  # what the log does not show yet is taken in by the term from which on it does
        shown_names = table_identity.find_names(shown_tables)
        schemas = [table for table in schemas if str(table.table) in shown_names]
    changed = {table.table for table in settings_in_force.find_new_tables(before, parts.config.source, schemas)}
    tables = [table for table in schemas if table.table in changed or str(table.table) in new | mended]
    dumps: dict[str, str] = {}
    dumped = tuple(str(table.table) for table in tables if table.key)
    if dumped:
        requested = dump_requests.request_dumps(parts.config, WHOLE, dumped, state=parts.state)
        dumps = requested.dumps
        if dumps:
            log.warning("captured from here on, and dumped: %s", table_names.some(sorted(dumps)))
        if requested.left_out:
            log.warning("captured from here on, and not dumped: %s", requested.reasons)
        # One that was stopped stays so, and needs no second record: a manifest must say first that it is accepted.
        new_refusals = {table: why for table, why in requested.refused.items() if table not in mended}
        owed_dumps.record_failures(parts.records, "", new_refusals)
    late = [t.table for t in tables if not t.key]
    if late and parts.source.shows_whole_logs():
        late = [table for table in late if table in changed or str(table) in mended]  # whose rows were passed over
    tell_of_keyless(parts, list(map(str, late)))
    names = [str(table.table) for table in tables]
    now = parts.source.horizon()
    left = set(dumped) - dumps.keys()
    marks = make_broken_marks(parts, head, names, dumps, place=head.log_position)
    born = tuple(name for name in head.born if name not in names)
    if not tables or (now is None and not marks and born == head.born):
        return _TakenIn(left)
    # What their transactions have logged before this place is nowhere remembered: a chunk must see all of that. And so
    # it sees all that is staged: a dump that begins now heals what was lost while a table was not captured.
    return _TakenIn(left, replace(head, start=now, born=born), marks)


def publish_records(parts: Parts, lease: Lease, head: Manifest) -> Manifest:
    """Publishes what is known of tables, in a segment that is otherwise as `head` says, without rows; its manifest."""
    return parts.publish(_without_rows(parts, lease, head))


def _without_rows(parts: Parts, lease: Lease, head: Manifest) -> Manifest:
    return replace(
        head,
        segment=head.segment + 1,
        epoch=lease.epoch,
        first_offset=head.last_offset + 1,
        sealed_at=parts.now_us(),
        files=(),
        chunks=(),
        marks=(),
        probes=(),  # those of `head` stand at its own offsets
    )


def publish_marks(parts: Parts, lease: Lease, head: Manifest, marks: tuple[LogMark, ...]) -> Manifest:
    """Publishes a segment that has only these marks, and is otherwise as `head` says; returns its manifest.

    A SELECT from here on must see all that `start` of `head` shows, and the marks.
    """
    last_offset = head.last_offset + len(marks)
    empty = _without_rows(parts, lease, head)
    return parts.publish(replace(empty, last_offset=last_offset, marks=marks, unseen_after=last_offset))


def make_broken_marks(
    parts: Parts,
    head: Manifest,
    tables: Iterable[str],
    dumps: Mapping[str, str],
    *,
    place: str,
    keyless: bool = False,
) -> tuple[LogMark, ...]:
    """Tells consumers that their copy of a table is not right before the end of its dump, or of any later one where
    none could be requested: the shape, once more. Of tables that are captured, and have a key; with `keyless`, also of
    those without one, whose rows no dump brings."""
    captured = parts.config.source.tables
    time = head.commit_time or 0
    shapes = [
        (table, head.schemas[table])
        for table in tables
        if table in head.schemas
        and table_patterns.matches(TableName.parse(table), captured)
        and (keyless or parts.staging.schema(head.schemas[table]).key)
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
        for number, (table, shape) in enumerate(shapes, 1)
    )


def tell_of_keyless(parts: Parts, tables: list[str]) -> None:
    """Rows that tables without a key had before their log was read are nowhere, and no dump can bring them."""
    if not tables:
        return
    # Its next shape may be the first that the log shows: that one does not say that rows were there before.
    owed_dumps.record_failures(parts.records, "", dict.fromkeys(tables, owed_dumps.KEYLESS))
    error = RequestError(
        f"captured from here on, without the rows that they have now: {table_names.some(tables)}",
        fix=f"a table without a key cannot be dumped. Give it a primary key, or {UNIQUE_KEY}: then it is dumped "
        "automatically",
    )
    log.warning("%s", error)
    recent_errors.record(parts.state, "capture", error, parts.clock.time())


def tell_of_lost_log(parts: Parts, head: Manifest, marks: Iterable[LogMark], until: str) -> None:
    """The log after `head` is given up: of these marks' tables without a key, what it had is missing for good."""
    tables = [mark.table for mark in marks if mark.schema and not parts.staging.schema(mark.schema).key]
    if not tables:
        return
    error = RequestError(
        f"the log between {head.log_position} and {until} is given up, and with it changes of tables without a key:"
        f" {table_names.some(tables)}",
        fix=f"a table without a key cannot be dumped, so their history and outputs lack what changed then. Give each a "
        f"primary key, or {UNIQUE_KEY}: then it is dumped automatically",
    )
    log.warning("%s", error)
    recent_errors.record(parts.state, "capture", error, parts.clock.time())


def _give_up(parts: Parts, before: LiveSettings, now: LiveSettings) -> None:
    """Ends dumps of tables whose log is no longer read: nothing would report what their chunks do not see."""
    for status in dump_store.list_unfinished_dumps(parts.state):
        for task in status.tasks:
            if settings_in_force.is_captured(task.table, before) and not settings_in_force.is_captured(task.table, now):
                task_store.fail_task(parts.state, TaskId(status.id, task.number), f"{task.table} is no longer captured")


def give_up_stopped(state: StateStore, tables: Mapping[str, StoppedTable]) -> None:
    """Ends dumps of tables that are stopped, for the same reason and with the same fix."""
    why = {table: f"{table} is stopped: {entry.why}; fix: {entry.fix}" for table, entry in tables.items()}
    for status in dump_store.list_unfinished_dumps(state) if why else ():
        if status.deferred is not None:
            for table in why.keys() & set(status.tables):
                refusal = Refusal(table, tables[table].why, tables[table].fix)
                dump_store.fail_unplanned(state, status, refusal)
            continue
        if not any(task.table in why and not task.over for task in status.tasks):
            continue
        try:
            control.give_up_tables(state, status.id, why)
        except RequestError:
            log.info("dump %s is over", status.id)  # since the look at it
