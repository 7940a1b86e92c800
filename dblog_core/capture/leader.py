"""The leader's term: the log becomes published segments, from taking the lease to losing it, a fault, or the end."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from enum import Enum
from typing import Protocol

from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.algorithm.visibility import LogOrder, Snapshots
from dblog_core.capture import healing_dumps, new_tables, owed_dump_requests
from dblog_core.capture.announced_windows import Openings
from dblog_core.capture.background_threads import HOUSEKEEPING as HOUSEKEEPING
from dblog_core.capture.background_threads import Beside
from dblog_core.capture.background_threads import Parts as Parts
from dblog_core.capture.sequencer import SIGNALS, Sequencer
from dblog_core.capture.unlogged_rewrites import Stamps
from dblog_core.dumps import dump_records, dump_store, filing
from dblog_core.dumps.requests import SHAPES, WHOLE
from dblog_core.errors import (
    LeaseLost,
    LogPositionLost,
    RequestError,
    SegmentTaken,
    StateError,
    VersionConflict,
)
from dblog_core.interfaces import Json, Lease, LogStream
from dblog_core.model import position_spec
from dblog_core.model.events import Transaction
from dblog_core.model.schema import TableName
from dblog_core.model.task_id import TaskId
from dblog_core.rows.column_rules import Rules
from dblog_core.signals.table import put_refusal_of_rest, put_row
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.seal_policy import Sealing
from dblog_core.state import capture_status, former_leaders, owed_dumps, stopped_tables
from dblog_core.state.capture_status import CaptureStatus, LeaderReport, ReportedWindow
from dblog_core.state.leases import CAPTURE

log = logging.getLogger(__name__)

CHUNK_AGE = 0.2  # seconds: a placed chunk is published this soon, since its worker waits for it
IDLE_PUBLISH = 10.0  # seconds: a position that moved without rows is published this often: the source can drop log
READ_TIMEOUT = 0.1  # seconds: how long a quiet log keeps the loop from looking at its clock
SHORTEST_READ = 0.001  # seconds: no stream is asked to wait for less
LINGER = {"normal": 0.02, "low": 0.002}  # seconds for which small transactions gather into one batch, by latency
SHARE = {"normal": 0.25, "low": 0.5}  # of the time that sealing may take before segments get longer
STAMPS = 5.0  # seconds between two looks for rows that were changed and no log says so
SIGNALS_TOGETHER = 100  # rows of the signal table that are not kept for the segment's end
HAND_OVER = 0.2  # seconds that a change of configuration waits for each thread of the term that ends
WINDOW_TIMEOUT = 900.0  # seconds after which a window without a high watermark is given up


class CaptureOutcome(Enum):
    """Why `run_capture` returned."""

    STOPPED = "stopped"
    SLICE_OVER = "slice over"
    CURRENT = "current"
    REACHED = "reached"


class Reign(Protocol):
    """What a term asks of the capture around it."""

    fresh_start: bool

    def has_gone_on(self, head: Manifest) -> bool:
        """Whether something was published since this capture has looked first."""

    def outcome(self, position: str | None = None, commit_time: int | None = None) -> CaptureOutcome | None:
        """Why to end now; `position`: up to where all is published, with the time of the last transaction before it."""

    def changed(self) -> bool:
        """Whether another configuration is to come into force: the term ends at the next transaction boundary."""

    def healthy(self) -> None:
        """A segment is published: the next fault is a first one."""

    def tell(self, status: CaptureStatus) -> None: ...


class Leader:
    """One term of one leader."""

    def __init__(self, capture: Reign, parts: Parts, lease: Lease, *, first: bool = True) -> None:
        """`first`: whether nobody has published under this lease yet."""
        self._capture, self._parts, self._lease, self._first = capture, parts, lease, first
        self._config, self._source, self._staging = parts.config, parts.source, parts.staging
        self._state, self._clock, self._spawn = parts.state, parts.clock, parts.spawn
        self._rows, self._rate, self._measured = 0, 0.0, self._clock.monotonic()
        self._caught_up = False
        self._dirty_since: float | None = None
        self._published_at = self._looked_at = self._clock.monotonic()
        staging = parts.config.staging
        self._sealing = Sealing(staging.min_age, staging.max_age, SHARE[staging.latency])
        self._linger = LINGER[staging.latency]
        self._horizon: tuple[str, str] | None = None
        self._quit = threading.Event()
        self._healed: list[str] = []
        self._signal_at = 0
        self._unmirrored: dict[TaskId, TaskProgress] = {}
        self._again = owed_dump_requests.Again(self._config, self._state, self._clock)
        self._openings = Openings(self._state, self._source, self._clock) if parts.config.source.read_only else None

    def run(self) -> None:
        """Until the capture is to end, or to go on with another configuration.

        Raises LeaseLost, SegmentTaken, and what the log, source or storage raise.
        """
        showing = new_tables.shown(self._parts)
        begin = self._elsewhere() if self._staging.head() is None else None
        self._source.prepare()
        head = self._staging.head() or self._first_manifest(begin)
        self._check_epoch(head)
        if self._capture.fresh_start and not self._capture.has_gone_on(head):
            head = self._start_afresh(head)
        self._capture.fresh_start = False  # it is there: by us, whether or not we were told, or by another capture
        head = new_tables.put_in_force(self._parts, self._lease, head, showing=showing)
        self._published = head
        visibility = self._visibility(head)
        self._remembers = isinstance(visibility, Snapshots)
        self._sequencer = Sequencer(
            self._staging,
            source=self._config.source.name,
            epoch=self._lease.epoch,
            head=head,
            visibility=visibility,
            rules=Rules.of(self._config.source),
            stopped=stopped_tables.read(self._state),
        )
        self._mirror()
        self._stamps, self._stamped_at = Stamps(self._state), float("-inf")
        self._look_at_stamps()
        self._advance_horizon()  # at once: a dump heals only what lies before all that its windows may not see
        try:
            self._read_on(head)
        except LogPositionLost as error:
            # The last leader may have published, and acknowledged, once more after we have read `head`.
            newest = self._staging.head()
            if newest is None or newest.segment <= self._published.segment:
                raise
            raise SegmentTaken(f"segment {newest.segment} has been published by another capture") from error

    def _read_on(self, head: Manifest) -> None:
        # Before the thread is started: where this fails nothing is left behind.
        self._source.succeed(*former_leaders.enter(self._state, self._lease.epoch))
        stream = self._source.open_log(head.position, skip=head.partial)
        beside = Beside(self._parts, self._quit).start()
        try:
            self._loop(stream)
        finally:
            self._quit.set()
            stream.close()
            # Where the next term follows at once, the log must not wait for a worker's long SELECT.
            patience = HAND_OVER if self._capture.changed() else self._config.state.ttl
            for running in beside:
                running.join(timeout=patience)

    def _visibility(self, head: Manifest) -> LogOrder | Snapshots:
        now = self._source.horizon()
        if now is None:
            return LogOrder()
        return Snapshots(now if head.unseen_after is None else head.start)

    def _elsewhere(self) -> str | None:
        """Where a first capture begins that is told to begin elsewhere than at the present end. Asked before anything
        is made at the source: what is made now has no past."""
        source = self._config.source
        if source.start in (position_spec.LATEST, position_spec.INITIAL):
            return None
        return self._source.begin(source.start_place)

    def _first_manifest(self, begin: str | None) -> Manifest:
        """Records where a first capture begins, at once; the super-changelog's offsets begin with 1."""
        position = begin or self._source.start_position()
        manifest = Manifest(
            source=self._config.source.name,
            segment=1,
            epoch=self._lease.epoch,
            first_offset=1,
            last_offset=0,
            position=position,
            partial=0,
            log_position=self._source.show(position),
            commit_time=None,
            sealed_at=self._now(),
            tasks=self._without_attempts({}),
            unseen_after=0,
            start=self._source.horizon(),
        )
        if (
            self._config.source.start == position_spec.INITIAL
        ):  # before the manifest: a crash between the two must not lose it
            self._dump_all()
        self._staging.publish(manifest)
        return manifest

    def _start_afresh(self, head: Manifest) -> Manifest:
        """Goes on at the source's present end: a manifest without rows, and a dump that mends what is missing."""
        position = self._source.start_position()
        tasks, start = self._without_attempts(head.tasks), self._source.horizon()
        # Before the manifest: a crash between the two must not lose the dump; two of them would do no harm.
        dumps = self._dump_all()
        marks = new_tables.broken(self._parts, head, head.schemas, dumps, place=self._source.show(position))
        manifest = replace(
            head,
            segment=head.segment + 1,
            epoch=self._lease.epoch,
            first_offset=head.last_offset + 1,
            last_offset=head.last_offset + len(marks),
            position=position,
            partial=0,
            log_position=self._source.show(position),
            sealed_at=self._now(),
            files=(),
            chunks=(),
            marks=marks,
            probes=(),
            tasks=tasks,
            unseen_after=head.last_offset + len(marks),
            start=start,
            altered=dict.fromkeys(head.altered),  # more of them may stand in the log that is given up
            born=(),  # rows as well
        )
        self._staging.publish(manifest)
        log.warning("the log between %s and %s is given up", head.log_position, manifest.log_position)
        return manifest

    def _dump_all(self) -> dict[str, str]:
        """Requests a dump of every table; its id, by table. What cannot be dumped is told and owed, and keeps no other
        table's log waiting."""
        try:
            dump = filing.submit(self._config, WHOLE, requested_by=dump_records.SYSTEM, state=self._state)
        except RequestError as error:
            log.warning("no table is dumped: %s", error)
            return {}
        found = dump_store.read_dump(self._state, dump)
        for refusal in found.refused:
            log.warning("%s is not dumped: %s\n  fix: %s", refusal.table, refusal.reason, refusal.fix)
        owed_dumps.record_failures(self._state, dump, {refusal.table: refusal.reason for refusal in found.refused})
        return dict.fromkeys(found.tables, dump)

    def _without_attempts(self, tasks: Json) -> Json:
        """The progress of tasks, with every attempt broken: what its worker has written into the log before the place
        where we begin is never read, and it would wait for its chunks for ever. Called once that place is known."""
        broken = dict(tasks)
        for status in dump_store.list_unfinished_dumps(self._state):
            for task in status.tasks:
                name = str(TaskId(status.id, task.number))
                known = TaskProgress.from_json(tasks[name]) if name in tasks else TaskProgress(task.table)
                if task.record.attempt > known.broken and not known.done:
                    attempt, reason = max(task.record.attempt, known.attempt), "the capture began after it in the log"
                    broken[name] = replace(known, attempt=attempt, broken=attempt, reason=reason).to_json()
        return broken

    def _check_epoch(self, head: Manifest) -> None:
        if self._lease.epoch < head.epoch + self._first and head.segment > 1:
            if not self._lease.valid():
                raise LeaseLost("another capture has led since; this one stands by", where=self._config.state.url)
            self._state.raise_epoch(CAPTURE, head.epoch)
            raise StateError(
                f"the state store gave epoch {self._lease.epoch} and staging holds epoch {head.epoch}: it was replaced",
                where=self._config.state.url,
                fix="make sure that no other capture of this source runs, then start the capture again: it goes on "
                "with a higher epoch; dump requests of the old state store are gone, request them again",
            )

    def _loop(self, stream: LogStream) -> None:
        while True:
            if not self._lease.valid():
                raise LeaseLost("the lease is gone or in doubt; a standby takes over", where=self._config.state.url)
            batch = stream.read(self._patience(), linger=self._linger)
            self._caught_up = batch is None or not batch.transactions
            if batch is not None:
                self._sequencer.process(batch)
            if self._sequencer.signals_wait >= SIGNALS_TOGETHER:
                self._take_in_signals()
            if self._openings is not None:
                self._openings.look(self._sequencer)
            now = self._clock.monotonic()
            if self._sequencer.dirty and self._dirty_since is None:
                self._dirty_since = now
            if self._due(now):
                self._publish(stream)
            if now - self._looked_at >= HOUSEKEEPING:
                self._look(now)
            if self._is_over():
                return self._finish(stream)
            if self._capture.changed() and not self._sequencer.partial:
                return self._hand_over(stream)

    def _is_over(self) -> bool:
        published = self._published
        where = (None, None) if published.partial else (published.position, published.commit_time)
        return self._capture.outcome(*where) is not None

    def _patience(self) -> float:
        """Seconds to wait for the log: a segment that is due by age must not wait for a quiet log."""
        quiet = READ_TIMEOUT if self._openings is None else min(READ_TIMEOUT, self._openings.pause)
        if self._dirty_since is None or self._sequencer.partial:
            return quiet
        left = self._dirty_since + self._age() - self._clock.monotonic()
        return max(min(left, quiet), SHORTEST_READ)

    def _age(self) -> float:
        return min(CHUNK_AGE, self._sealing.age) if self._sequencer.places_chunks else self._sealing.age

    def _due(self, now: float) -> bool:
        """Whether the segment ends here: by size anywhere, by age only between transactions."""
        if self._sequencer.bytes >= self._config.staging.max_bytes:
            return True
        if self._sequencer.partial:
            return False
        if self._unmirrored:
            return True
        if self._dirty_since is not None:
            return now - self._dirty_since >= self._age()
        moved = self._sequencer.position != self._published.position
        return moved and (now - self._published_at >= IDLE_PUBLISH or self._awaited())

    def _awaited(self) -> bool:
        """Whether somebody waits for just this position (`--until-current`, `--until`)."""
        outcome = self._capture.outcome(self._sequencer.position, self._sequencer.commit_time)
        return outcome in (CaptureOutcome.CURRENT, CaptureOutcome.REACHED)

    def _publish(self, stream: LogStream) -> None:
        began = self._clock.monotonic()
        self._heal()
        self._take_in_signals()
        manifest = self._sequencer.seal(self._now())
        if not self._lease.valid():
            raise LeaseLost("the lease was lost while a segment was written", where=self._config.state.url)
        self._staging.publish(manifest)
        self._sequencer.published()
        self._rows += manifest.last_offset - manifest.first_offset + 1
        self._published, self._published_at, self._dirty_since = manifest, self._clock.monotonic(), None
        self._forget_stopped()
        self._again.finished(manifest.marks)
        self._sealing = self._sealing.after(self._published_at - began)
        stream.acknowledge(manifest.position)
        self._capture.healthy()
        self._mirror()
        if self._openings is not None:
            self._openings.published()
        self._save_stamps()
        self._tell()

    def _heal(self) -> None:
        """Requests dumps of tables whose rows came or went without row events. Before the manifest that goes past the
        place: a crash between the two must not lose them, and two of them would do no harm."""
        for name, met in self._sequencer.take_unreadable().items():
            log.warning("%s stops alone, its rows are passed over: %s\n  fix: %s", name, met.why, met.fix)
            stopped_tables.add_by_log(self._state, name, met.why, met.fix, refused=met.refused)
            new_tables.give_up_stopped(self._state, {name: met.why})
        self._again.altered(self._sequencer.take_altered())
        unproven = self._sequencer.take_unproven()
        reshaped = sorted(map(str, self._sequencer.take_reshaped()))
        healing_dumps.request(self._config, SHAPES, reshaped, state=self._state)
        rewritten = self._sequencer.take_rewritten()
        asked = healing_dumps.request(self._config, WHOLE, list(map(str, rewritten)), state=self._state)
        if asked.left_out:
            log.warning("rows came or went without row events, and no dump can bring them: %s", asked.told)
            stopped_tables.owe(self._state, asked.left_out)
        for table, since in rewritten.items():
            if (dump := asked.dumps.get(str(table))) is not None:
                self._healed.append(str(table))
                self._sequencer.heal(table, dump, since)
        owed_dumps.record_failures(self._state, "", asked.refused)
        self._dump_unproven(unproven)

    def _dump_unproven(self, tables: dict[TableName, Transaction]) -> None:
        """Requests dumps of tables that have come since all were dumped at the start, where they may have had rows
        before their log begins here."""
        if not tables or self._config.source.start != position_spec.INITIAL:
            return
        known = owed_dump_requests.whole_tables(self._state) | owed_dumps.read(self._state).keys()
        wanted = {str(table): at for table, at in tables.items() if str(table) not in known}
        asked = healing_dumps.request(self._config, WHOLE, list(wanted), state=self._state)
        owed_dumps.record_failures(self._state, "", asked.refused)
        for table, dump in asked.dumps.items():
            log.info("%s may have had rows before its first change: it is dumped", table)
            self._sequencer.heal(TableName.parse(table), dump, wanted[table])

    def _take_in_signals(self) -> None:
        """Puts signals of the log into the inbox. At the latest before the manifest that goes past them: a crash in
        between has them read again, and their ids are known then."""
        for seen in self._sequencer.take_signals():
            self._signal_at = max(self._signal_at + 1, self._now())
            put_row(self._state, seen, at_us=self._signal_at)
        for transaction in self._sequencer.take_overfull():
            self._signal_at = max(self._signal_at + 1, self._now())
            put_refusal_of_rest(self._state, transaction, SIGNALS, at_us=self._signal_at)

    def _forget_stopped(self) -> None:
        """After the manifest with their dumps: a crash in between has them dumped again."""
        if self._healed:
            stopped_tables.forget(self._state, self._healed)
            self._healed = []

    def _look_at_stopped(self) -> None:
        """Passes over what the source's catalogue has refused meanwhile; ends dumps of what is passed over, also those
        that were requested before anybody could know."""
        known = stopped_tables.read(self._state)
        entries = {name: e for name, e in known.items() if e.by == stopped_tables.RepairSeenBy.SOURCE}
        for name in self._sequencer.stop(entries):
            log.warning("%s stops alone, its rows are passed over: %s", name, entries[name].why)
        passed_over = {name: e.why for name, e in known.items() if self._sequencer.passes_over(name)}
        new_tables.give_up_stopped(self._state, passed_over)

    def _look_at_stamps(self) -> None:
        """Has tables dumped whose rows are others by now than the log says."""
        now = self._clock.monotonic()
        if now - self._stamped_at < STAMPS or (found := self._source.stamps()) is None:
            return
        self._stamped_at = now
        for name in (changed := self._stamps.look(found)):
            log.warning("%s was altered in a way that no log tells of: it is dumped", name)
            self._sequencer.rewritten(TableName.parse(name))
        self._again.altered([*changed, *self._stamps.reshaped])
        for name in self._stamps.reshaped:
            self._sequencer.reshaped(TableName.parse(name))
        if not changed and not self._sequencer.dirty:
            self._save_stamps()

    def _save_stamps(self) -> None:
        """After the dumps that they ask for: a crash in between has them found again."""
        try:
            self._stamps.save()
        except VersionConflict as error:
            raise LeaseLost("another capture leads; this one stands by", where=self._config.state.url) from error

    def _finish(self, stream: LogStream) -> None:
        """A clean handover: what is whole is published; the rest is read again by the next leader."""
        if self._sequencer.dirty and not self._sequencer.partial and self._lease.valid():
            self._publish(stream)

    def _hand_over(self, stream: LogStream) -> None:
        """Ends the term between two transactions: how far one was staged depends on the tables that are read."""
        if self._published.partial and not self._sequencer.dirty:
            self._publish(stream)
        self._finish(stream)

    def _mirror(self) -> None:
        """Progress of dump tasks, as manifests have it, to the state store.

        The newest manifest may be an earlier one than the mirror's: this term's first publication shows which counts.
        """
        head = self._published
        place = (head.epoch, head.segment)
        progress = {**self._unmirrored, **self._sequencer.take_progress()}
        self._unmirrored = {
            task: value
            for task, value in progress.items()
            if not dump_store.put_progress(self._state, task, value, of=place)
        }
        if self._unmirrored and head.epoch == self._lease.epoch:
            raise LeaseLost(
                f"the state store has progress of a segment after {head.segment}, the newest of this capture: another "
                "capture leads, or staging was restored from a copy; the next term continues",
                where=self._config.state.url,
            )

    def _look(self, now: float) -> None:
        """What does not belong to single batches: horizon, abandoned windows, dumps that are over, status."""
        self._looked_at = now
        self._look_at_stopped()
        self._look_at_stamps()
        self._again.look(self._sequencer.passes_over, offset=self._sequencer.last_offset)
        self._advance_horizon()
        self._sequencer.dumps.expire_windows(now, WINDOW_TIMEOUT)
        self._sequencer.dumps.forget_dumps(lambda dump_id: dump_store.is_dump_over(self._state, dump_id))
        self._rate, self._rows = self._rows / max(now - self._measured, 1e-3), 0
        self._measured = now
        capture_status.put_status(self._state, self._report())
        self._tell()

    def _advance_horizon(self) -> None:
        """PostgreSQL: lets the windows forget. The snapshot is read before the position: later windows see as much."""
        if not self._remembers:
            return
        if self._horizon is not None and self._source.reached(self._sequencer.position, self._horizon[1]):
            self._sequencer.horizon(self._horizon[0])
            self._horizon = None
        if self._horizon is None and (snapshot := self._source.horizon()) is not None:
            self._horizon = (snapshot, self._source.current_position())

    def _lag(self) -> float | None:
        if self._caught_up and not self._sequencer.dirty:
            return 0.0
        commit_time = self._sequencer.commit_time
        return None if commit_time is None else max(0.0, self._clock.time() - commit_time / 1e6)

    def _tell(self) -> None:
        head = self._published
        self._capture.tell(
            CaptureStatus(
                leading=True,
                epoch=self._lease.epoch,
                segment=head.segment,
                offset=head.last_offset,
                position=head.log_position,
                lag_seconds=self._lag(),
                rows_per_second=self._rate,
                windows=len(self._sequencer.dumps.open_windows()),
                leader=self._lease.holder,
            )
        )

    def _report(self) -> LeaderReport:
        windows = (ReportedWindow(w.table, w.dump, w.opened) for w in self._sequencer.dumps.open_windows())
        return LeaderReport(
            at_us=self._now(),
            lag_seconds=self._lag(),
            rows_per_second=self._rate,
            windows=tuple(windows),
            epoch=self._lease.epoch,
            answers=self._openings is not None,
        )

    def _now(self) -> int:
        return int(self._clock.time() * 1e6)
