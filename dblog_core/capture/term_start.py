"""Where a term begins: after the newest manifest, or at the place of a first one, which is recorded at once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from dblog_core.algorithm.task_progress import TaskProgress, tasks_to_json
from dblog_core.algorithm.visibility import LogOrder, Snapshots
from dblog_core.capture.healing import accepted_tables, dump_requests, new_tables
from dblog_core.capture.term_parts import Parts
from dblog_core.dumps import dump_records, dump_store, filing, task_store
from dblog_core.dumps.requests import WHOLE
from dblog_core.dumps.status import DumpStatus
from dblog_core.errors import CorruptSegment, LeaseLost, RequestError, StateError
from dblog_core.interfaces import Lease, Source, StateStore
from dblog_core.model import position_spec, table_identity
from dblog_core.model.task_id import TaskId
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.table_records import TableRecords
from dblog_core.state import accepted_shapes, owed_dumps, recent_errors, settings_in_force, state_age
from dblog_core.state.lease_holder import CAPTURE

log = logging.getLogger(__name__)


def find_first_position(parts: Parts) -> str | None:
    """Where a first capture begins that is configured to begin elsewhere than at the present end. Asked before anything
    is made at the source: what is made now has no past.
    """
    source = parts.config.source
    if parts.staging.head() is not None or source.start in (position_spec.LATEST, position_spec.INITIAL):
        return None
    return parts.source.begin(source.start_place)


def publish_first_manifest(
    parts: Parts, lease: Lease, first_position: str | None, shown_tables: frozenset[str] | None
) -> Manifest:
    """Records where a first capture begins, at once; the super-changelog's offsets begin with 1. `shown_tables`: as
    `new_tables.prepare_source` says."""
    position = first_position or parts.source.start_position()
    state_age.advance(parts.state, lease.epoch)
    manifest = Manifest(
        source=parts.config.source.name,
        segment=1,
        epoch=lease.epoch,
        first_offset=1,
        last_offset=0,
        position=position,
        partial=0,
        log_position=parts.source.show(position),
        commit_time=None,
        sealed_at=parts.now_us(),
        tasks=tasks_to_json(break_attempts(parts.state, {})),
        unseen_after=0,
        start=parts.source.horizon(),
    )
    if parts.config.source.start == position_spec.INITIAL:
        _dump_all(parts, shown_tables)  # before the manifest: a crash between the two must not lose it
    settings_in_force.put_in_force(parts.records, settings_in_force.LiveSettings.of(parts.config.source))
    if shown_tables is not None:
        settings_in_force.put_shown(parts.records, shown_tables)
    return parts.publish(manifest)


def start_afresh(parts: Parts, lease: Lease, head: Manifest, shown_tables: frozenset[str] | None) -> Manifest:
    """Continues at the source's present end: a manifest without rows, and a dump that repairs what is missing."""
    # The position comes first: attempts that began before it may have watermarks in log that nobody reads.
    position = parts.source.start_position()
    tasks = break_attempts(parts.state, head.progress())
    start = parts.source.horizon()
    # Before the manifest: a crash between the two must not lose the dump; two of them would do no harm.
    dumps = _dump_all(parts, shown_tables)
    place = parts.source.show(position)
    marks = new_tables.make_broken_marks(parts, head, head.schemas, dumps, place=place, keyless=True)
    accepted_tables.distrust_log(parts)
    afresh = replace(
        head,
        position=position,
        partial=0,
        log_position=place,
        tasks=tasks_to_json(tasks),
        start=start,
        altered=dict.fromkeys(head.altered),  # more of them may stand in the log that is given up
        born=(),  # rows as well
    )
    manifest = new_tables.publish_marks(parts, lease, afresh, marks)
    log.warning("the log between %s and %s is given up", head.log_position, manifest.log_position)
    new_tables.tell_of_lost_log(parts, head, marks, place)
    return manifest


def load_records(parts: Parts, head: Manifest, *, starts_afresh: bool) -> TableRecords:
    """What is known of tables behind `head`. Where the log is given up, all tables are dumped, and what cannot be read
    counts as unknown. Raises CorruptSegment."""
    try:
        records = TableRecords.load(parts.staging, head)
    except CorruptSegment as error:
        if not starts_afresh:
            raise
        log.warning("%s", error)
        records = TableRecords()
        accepted_shapes.save(records, {})  # where columns are hidden, nothing is taken for accepted before
        return records
    return records if head.records else TableRecords.of_former_version(parts.state)


def check_epoch(parts: Parts, lease: Lease, head: Manifest, *, first: bool) -> None:
    """Raises LeaseLost or StateError where somebody has published under a higher epoch than our lease has.

    `first`: whether nobody has published under this lease yet.
    """
    if lease.epoch >= head.epoch + first or head.segment <= 1:
        return
    where = parts.config.state.url
    if not lease.valid():
        raise LeaseLost("another capture has led since; this one stands by", where=where)
    # A state store that was replaced counts from 1 again, and manifests of a lower epoch would look like a zombie's.
    parts.state.raise_epoch(CAPTURE, head.epoch)
    raise StateError(
        f"the state store gave epoch {lease.epoch} and staging holds epoch {head.epoch}: it was replaced",
        where=where,
        fix="make sure that no other capture of this source runs. Then start the capture again: it continues "
        "with a higher epoch. Dump requests of the old state store are gone: request them again",
    )


def distrust_state(parts: Parts, lease: Lease, head: Manifest, shown_tables: frozenset[str] | None) -> Manifest:
    """The manifest to continue after. A state store that was lost, or is older than `head`, has forgotten which dumps
    were requested, so all tables are dumped. The log continues. So it is where nothing at all is known of tables."""
    if not state_age.has_gone_back(parts.state, head.state_age) and _knows_tables(parts):
        return head
    start = parts.source.horizon()
    # Before the manifest: a crash between the two must not lose the dump; two of them would do no harm.
    dumps = _dump_all(parts, shown_tables)
    marks = new_tables.make_broken_marks(parts, head, head.schemas, dumps, place=head.log_position)
    error = StateError(
        "the state store was lost, or is older than staging: which dumps were requested of which tables is unknown",
        where=parts.config.state.url,
        fix="nothing: all tables are dumped. Dump requests of the old state store are gone: request them again",
    )
    log.warning("%s", error)
    recent_errors.record(parts.state, "capture", error, parts.clock.time())
    return new_tables.publish_marks(parts, lease, replace(head, start=start), marks)


def _knows_tables(parts: Parts) -> bool:
    return settings_in_force.read_in_force(parts.records) is not None


def find_visibility(source: Source, head: Manifest) -> LogOrder | Snapshots:
    """In which order commits become visible to a SELECT, from the manifest on."""
    horizon = source.horizon()
    if horizon is None:
        return LogOrder()
    return Snapshots(horizon if head.unseen_after is None else head.start, head.starts)


def was_done(parts: Parts, task: TaskId) -> bool:
    """Whether this staging has all chunks of the task, by the manifest that the state store names as its last one.

    A staging directory that was put back from a copy lacks that manifest, or has one of a later epoch in its place:
    there the log's watermarks of the task count."""
    end = task_store.find_end(parts.state, task)
    if end is None:
        return False
    epoch, segment = end
    if not parts.staging.first_number() <= segment <= parts.staging.head_number():
        return False
    return parts.staging.manifest(segment).epoch == epoch


BEGAN_AFTER = "the capture began after it in the log"
OTHER_WATERMARKS = "the log does not show all watermarks: their table was made again, or was not in the publication"


def break_attempts(
    state: StateStore, tasks: Mapping[TaskId, TaskProgress], reason: str = BEGAN_AFTER
) -> dict[TaskId, TaskProgress]:
    """The progress of tasks, with every attempt broken: what its worker has written into the log before the place
    where we begin is never read, and it would wait for its chunks forever. Called once that place is known."""
    broken = dict(tasks)
    for status in _dumps_to_place(state, tasks):
        for task in status.tasks:
            task_id = TaskId(status.id, task.number)
            progress = tasks.get(task_id) or TaskProgress(task.table)
            if task.record.attempt > progress.broken and not progress.done:
                attempt = max(task.record.attempt, progress.attempt)
                broken[task_id] = replace(progress, attempt=attempt, broken=attempt, reason=reason)
    return broken


def _dumps_to_place(state: StateStore, tasks: Mapping[TaskId, TaskProgress]) -> list[DumpStatus]:
    """Dumps that have not ended, by the state store or by our manifest: one that has ended in a staging directory which
    is gone continues (`dump_store.reopen_dump`), and a worker of before may still wait for its last chunk."""
    unfinished = dump_store.list_unfinished_dumps(state)
    lacking = {task.dump for task, progress in tasks.items() if not progress.done} - {dump.id for dump in unfinished}
    ended = [dump_store.find_dump(state, dump_id) for dump_id in sorted(lacking)]
    return [*unfinished, *(dump for dump in ended if dump is not None)]


def _dump_all(parts: Parts, shown_tables: frozenset[str] | None) -> dict[str, str]:
    """Requests a dump of every table; its id, by table. A table that cannot be dumped is reported, its dump stays owed,
    and no other table's log waits for it. One whose log is not shown yet is dumped once it is.
    """
    if (requested := _dump_shown(parts, shown_tables)) is not None:
        return requested
    try:
        dump = filing.submit(
            parts.config,
            WHOLE,
            requested_by=dump_records.SYSTEM,
            state=parts.state,
            lock_seconds=dump_requests.LOCK_SECONDS,
        )
    except RequestError as error:
        log.warning("no table is dumped: %s", error)
        return {}
    status = dump_store.read_dump(parts.state, dump)
    for refusal in status.refused:
        log.warning("%s is not dumped: %s\n  fix: %s", refusal.table, refusal.reason, refusal.fix)
    owed_dumps.record_failures(parts.records, dump, {refusal.table: refusal.reason for refusal in status.refused})
    return dict.fromkeys(status.tables, dump)


def _dump_shown(parts: Parts, shown_tables: frozenset[str] | None) -> dict[str, str] | None:
    """Requests dumps of the tables whose log is shown, where it is not that of all; None: it is."""
    if shown_tables is None:
        return None
    tables = [str(schema.table) for schema in parts.source.tables() if schema.key]
    shown_names = table_identity.find_names(shown_tables)
    if shown_names.issuperset(tables):
        return None
    shown = [table for table in tables if table in shown_names]
    requested = dump_requests.request_dumps(parts.config, WHOLE, shown, state=parts.state)
    if requested.left_out:
        log.warning("not dumped: %s", requested.reasons)
    owed_dumps.record_failures(parts.records, "", requested.refused)
    return requested.dumps
