"""The leader's term: the log becomes published segments, from taking the lease to losing it, a fault, or the end."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Protocol

from dblog_core.algorithm.visibility import Snapshots
from dblog_core.capture import term_start
from dblog_core.capture.announced_windows import Openings
from dblog_core.capture.background_threads import BackgroundThreads
from dblog_core.capture.healing import accepted_tables, new_tables
from dblog_core.capture.healing.accepted_tables import Accepted
from dblog_core.capture.healing.broken_tables import BrokenTables
from dblog_core.capture.healing.confirmed_reads import ConfirmedReads
from dblog_core.capture.healing.shown_tables import NewTables, ShownTables
from dblog_core.capture.healing.watermark_table import WatermarkTableKeeper
from dblog_core.capture.healing.witness import Witness
from dblog_core.capture.sequencer import Sequencer
from dblog_core.capture.signal_rows import SignalDelivery
from dblog_core.capture.term_parts import HOUSEKEEPING_SECONDS, Parts
from dblog_core.capture.term_report import ProgressMirror, TermReport
from dblog_core.dumps import dump_store
from dblog_core.errors import LeaseLost, LogPositionLost, SegmentTaken
from dblog_core.interfaces import Lease, LogStream
from dblog_core.model.schema import TableName
from dblog_core.rows.column_rules import Rules
from dblog_core.staging import table_records
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.seal_policy import Sealing
from dblog_core.staging.table_records import TableRecords
from dblog_core.state import capture_status, former_leaders, state_age, stopped_tables
from dblog_core.state.capture_status import CaptureStatus

CHUNK_AGE = 0.2  # seconds: a placed chunk is published this soon, since its worker waits for it
IDLE_PUBLISH = 10.0  # seconds: a position that moved without rows is published this often: the source can drop log
READ_TIMEOUT = 0.1  # seconds: how long a quiet log keeps the loop from looking at its clock
SHORTEST_READ = 0.001  # seconds: no stream is asked to wait for less
LINGER = {"normal": 0.02, "low": 0.002}  # seconds for which small transactions gather into one batch, by latency
SHARE = {"normal": 0.25, "low": 0.5}  # of the time that sealing may take before segments get longer
SIGNALS_TOGETHER = 100  # rows of the signal table that are not kept for the segment's end
HAND_OVER = 0.2  # seconds that a change of configuration waits for each thread of the term that ends
JUDGE_SECONDS = 3.0  # between two looks at tables with hidden columns of which no row comes
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
    records: TableRecords | None
    """What is known of tables, while a term follows the log."""

    def has_gone_on(self, head: Manifest) -> bool:
        """Whether something was published since this capture has looked first."""

    def look_first_at(self, head: Manifest) -> None:
        """From here on, only what is published after `head` counts as having gone on."""

    def outcome(self, position: str | None = None, commit_time: int | None = None) -> CaptureOutcome | None:
        """Why to end now; `position`: up to where all is published, with the time of the last transaction before it;
        None: that is inside a transaction, so no goal is reached."""

    def has_new_configuration(self) -> bool:
        """Whether another configuration should come into force: the term ends at the next transaction boundary."""

    def take_new_tables(self) -> NewTables | None:
        """Tables that the log shows since the last call."""

    def healthy(self) -> None:
        """A segment is published: the next fault is a first one."""

    def tell(self, status: CaptureStatus) -> None: ...


def run_term(capture: Reign, parts: Parts, lease: Lease, *, first: bool = True) -> None:
    """One term of one leader: until the capture must end, or another configuration comes into force.

    `first`: whether nobody has published under this lease yet. Raises LeaseLost, SegmentTaken, and what the log, source
    or storage raise.
    """
    began = parts.clock.monotonic()
    parts = replace(parts, records=TableRecords())  # what the term before has left unpublished counts for nothing
    parts.staging.create_identity()  # one of an earlier version has none
    shown_tables = new_tables.find_shown_tables(parts)
    first_position = term_start.find_first_position(parts)
    shown_tables = new_tables.prepare_source(parts, shown_tables)
    head = parts.staging.head() or term_start.publish_first_manifest(parts, lease, first_position, shown_tables)
    term_start.check_epoch(parts, lease, head, first=first)
    is_of_former_version = not head.records
    starts_afresh = capture.fresh_start and not capture.has_gone_on(head)
    parts = replace(
        parts,
        records=term_start.load_records(parts, head, starts_afresh=starts_afresh),
        witness=Witness(parts.source, parts.clock, "" if starts_afresh else head.witness),
    )
    if starts_afresh:
        head = term_start.start_afresh(parts, lease, head, shown_tables)
        capture.fresh_start = False
    else:
        head = term_start.distrust_state(parts, lease, head, shown_tables)
    state_age.advance(parts.state, lease.epoch)
    accepted = accepted_tables.open_guard(parts, head)
    head = new_tables.put_in_force(parts, lease, head, accepted.guard, shown_tables=shown_tables)
    if is_of_former_version:
        table_records.forget_former_version(parts.state)
    capture.records = parts.records
    visibility = term_start.find_visibility(parts.source, head)
    sequencer = Sequencer(
        parts.staging,
        source=parts.config.source.name,
        epoch=lease.epoch,
        head=head,
        visibility=visibility,
        rules=Rules.of(parts.config.source),
        guard=accepted.guard,
        places=parts.source,
        stopped=stopped_tables.read(parts.records),
        was_done=partial(term_start.was_done, parts),
    )
    remembers = isinstance(visibility, Snapshots)
    try:
        Term(capture, parts, lease, head, sequencer, accepted, remembers=remembers, began=began).run()
    finally:
        capture.records = None


class Term:
    """Reads the log from the manifest `head` on, whose segments `sequencer` makes."""

    def __init__(
        self,
        capture: Reign,
        parts: Parts,
        lease: Lease,
        head: Manifest,
        sequencer: Sequencer,
        accepted: Accepted,
        *,
        remembers: bool,
        began: float,
    ) -> None:
        """`remembers`: whether windows need to know what a snapshot of the source sees. `began`: when the term did, by
        the monotonic clock. What is due a while after that does not wait for a slow start."""
        staging = parts.config.staging
        self._capture = capture
        self._parts = parts
        self._lease = lease
        self._config = parts.config
        self._source = parts.source
        self._staging = parts.staging
        self._state = parts.state
        self._clock = parts.clock
        self._sequencer = sequencer
        self._accepted = accepted
        self._remembers = remembers
        self._horizon: tuple[str, str] | None = None  # a snapshot, and a position after all that it sees
        self._published = head
        self._published_at = began
        self._looked_at = began
        self._judged_at = began
        self._dirty_since: float | None = None
        self._sealing = Sealing(staging.min_age, staging.max_age, SHARE[staging.latency])
        self._linger = LINGER[staging.latency]
        self._quit = threading.Event()
        self._openings = Openings(parts.state, parts.source, parts.clock) if parts.config.source.read_only else None
        self._confirmed_reads = (
            ConfirmedReads(parts.state, parts.source, parts.clock, accepted.guard) if accepted.guard.asks_log else None
        )
        self._broken_tables = BrokenTables(parts, sequencer, head)
        self._shown_tables = ShownTables(parts, sequencer)
        self._keeper = None if parts.config.source.read_only else WatermarkTableKeeper(parts)
        self._watermarks_of: str | None = None  # the identity of their table, by which older attempts are broken
        self._signal_delivery = SignalDelivery(parts.state, parts.clock)
        self._mirror = ProgressMirror(parts.state, lease, where=parts.config.state.url)
        self._report = TermReport(parts.clock, lease, sequencer, began=began, answers=self._openings is not None)

    def run(self) -> None:
        """Until the capture should end, or continue with another configuration. Raises as `run_term`."""
        self._mirror.put(self._sequencer.take_progress(), self._published)
        self._broken_tables.look_at_stamps()
        self._advance_horizon()  # at once: a dump heals only what lies before all that its windows may not see
        try:
            self._read_on()
        except LogPositionLost as error:
            # The last leader may have published, and acknowledged, once more after we have read the head.
            newest = self._staging.head()
            if newest is not None and newest.segment > self._published.segment:
                raise SegmentTaken(f"segment {newest.segment} has been published by another capture") from error
            if not self._capture.fresh_start:
                raise
            # What has gone on was a dead capture: its last segment has reached the storage late.
            self._capture.look_first_at(self._published)
            raise SegmentTaken(f"segment {self._published.segment} came late, and the log after it is lost") from error

    def _read_on(self) -> None:
        # Before the thread is started: where this fails nothing is left behind.
        self._source.succeed(*former_leaders.enter(self._state, self._lease.epoch))
        if self._published.witness:
            self._source.require_witness(self._published.witness)
        stream = self._source.open_log(self._published.position, skip=self._published.partial, keys=self._staged_key)
        threads = BackgroundThreads(self._parts, self._quit, self._keeper).start()
        try:
            self._loop(stream)
        finally:
            self._quit.set()
            stream.close()
            # Where the next term follows at once, the log must not wait for a worker's long SELECT.
            patience = HAND_OVER if self._capture.has_new_configuration() else self._config.state.ttl
            for thread in threads:
                thread.join(timeout=patience)

    def _staged_key(self, table: TableName) -> tuple[str, ...]:
        """The key of the table's newest shape as this term began; none where it had no shape."""
        fingerprint = self._published.schemas.get(str(table))
        return () if fingerprint is None else self._staging.schema(fingerprint).key

    def _loop(self, stream: LogStream) -> None:
        while True:
            if not self._lease.valid():
                raise LeaseLost("the lease is gone or in doubt; a standby takes over", where=self._config.state.url)
            batch = stream.read(self._patience(), linger=self._linger)
            self._capture.fresh_start = False  # the log goes on, whoever has seen to that
            self._report.caught_up = batch is None or not batch.transactions
            if batch is not None:
                self._sequencer.process(batch)
                self._broken_tables.settle_doubts()
            if self._sequencer.signals.waiting >= SIGNALS_TOGETHER:
                self._signal_delivery.deliver(self._sequencer.signals)
            if self._openings is not None:
                self._openings.look(self._sequencer)
            if self._confirmed_reads is not None:
                self._confirmed_reads.look(self._sequencer.position, is_inside=self._sequencer.partial > 0)
            now = self._clock.monotonic()
            if self._sequencer.dirty and self._dirty_since is None:
                self._dirty_since = now
            if self._is_due(now):
                self._publish(stream)
            if now - self._looked_at >= HOUSEKEEPING_SECONDS:
                self._look(now)
            if self._is_over():
                return self._finish(stream)
            if self._capture.has_new_configuration() and not self._sequencer.partial:
                return self._hand_over(stream)

    def _is_over(self) -> bool:
        published = self._published
        where = (None, None) if published.partial else (published.position, published.commit_time)
        return self._capture.outcome(*where) is not None

    def _patience(self) -> float:
        """Seconds to wait for the log: a segment that is due by age must not wait for a quiet log."""
        watched = (self._openings, self._confirmed_reads)
        quiet = min([READ_TIMEOUT, *(each.pause for each in watched if each is not None)])
        if self._dirty_since is None or self._sequencer.partial:
            return quiet
        left = self._dirty_since + self._age() - self._clock.monotonic()
        return max(min(left, quiet), SHORTEST_READ)

    def _age(self) -> float:
        return min(CHUNK_AGE, self._sealing.age) if self._sequencer.places_chunks else self._sealing.age

    def _is_due(self, now: float) -> bool:
        """Whether the segment ends here: by size anywhere, by age only between transactions."""
        # A transaction may be larger than the memory: it is staged in parts, and a manifest says how much of it.
        if self._sequencer.bytes >= self._config.staging.max_bytes:
            return True
        if self._sequencer.partial:
            return False
        if self._mirror.is_ahead or self._parts.records.has_news:
            return True
        if self._dirty_since is not None:
            return now - self._dirty_since >= self._age() or self._is_position_awaited()
        moved = self._sequencer.position != self._published.position
        return moved and (now - self._published_at >= IDLE_PUBLISH or self._is_position_awaited())

    def _is_position_awaited(self) -> bool:
        """Whether somebody waits for just this position (`--until-current`, `--until`)."""
        outcome = self._capture.outcome(self._sequencer.position, self._sequencer.commit_time)
        return outcome in (CaptureOutcome.CURRENT, CaptureOutcome.REACHED)

    def _publish(self, stream: LogStream) -> None:
        began = self._clock.monotonic()
        # Before the manifest goes past the place that calls for them: a crash in between requests them twice, and never
        # not at all.
        self._broken_tables.request_dumps()
        self._signal_delivery.deliver(self._sequencer.signals)
        sealed = self._sequencer.seal(self._parts.now_us())
        self._broken_tables.take_sealed(sealed)
        accepted_tables.save_changes(self._parts, self._accepted)
        manifest = self._parts.with_records(sealed)
        if not self._lease.valid():
            # The write may have outlived the lease. If it ends after this look, the number of the manifest decides.
            raise LeaseLost("the lease was lost while a segment was written", where=self._config.state.url)
        self._staging.publish(manifest)
        self._sequencer.begin_next_segment()
        self._report.count_rows(manifest.last_offset - manifest.first_offset + 1)
        self._published = manifest
        self._published_at = self._clock.monotonic()
        self._dirty_since = None
        self._broken_tables.take_published(manifest)
        if self._accepted.taken:
            accepted_tables.forget_taken(self._parts, self._accepted)
            self._accepted = replace(self._accepted, taken={})
        self._sealing = self._sealing.after(self._published_at - began)
        # Not before: what is acknowledged, the source may throw away.
        stream.acknowledge(manifest.position)
        self._capture.healthy()
        self._mirror.put(self._sequencer.take_progress(), manifest)
        if self._openings is not None:
            self._openings.forget_judged()
        if self._keeper is not None and self._watermarks_of is not None:
            self._keeper.settle(self._watermarks_of)
            self._watermarks_of = None
        self._capture.tell(self._report.to_status(manifest))

    def _finish(self, stream: LogStream) -> None:
        """A clean handover: what is whole is published; the rest is read again by the next leader."""
        has_news = self._sequencer.dirty or not self._parts.records.is_carried
        if has_news and not self._sequencer.partial and self._lease.valid():
            self._publish(stream)

    def _hand_over(self, stream: LogStream) -> None:
        """Ends the term between two transactions: how far one was staged depends on the tables that are read."""
        if self._published.partial and not self._sequencer.dirty:
            self._publish(stream)
        self._finish(stream)

    def _look(self, now: float) -> None:
        """What does not belong to single batches: horizon, abandoned windows, dumps that are over, status."""
        self._looked_at = now
        self._break_unshown_attempts()
        if (found := self._capture.take_new_tables()) is not None:
            self._shown_tables.take_in(found)
        self._broken_tables.look()
        if now - self._judged_at >= JUDGE_SECONDS:
            self._judged_at = now
            self._sequencer.judge_hidden()
        self._advance_horizon()
        # A worker that died never closes its window, which would remember events without end.
        self._sequencer.dumps.expire_windows(now, WINDOW_TIMEOUT)
        self._sequencer.dumps.forget_dumps(self._is_dump_over)
        self._report.measure_rate(now)
        capture_status.put_status(self._state, self._report.to_leader_report())
        self._capture.tell(self._report.to_status(self._published))

    def _break_unshown_attempts(self) -> None:
        """Of workers that may have written watermarks which the log does not show."""
        identity = None if self._keeper is None else self._keeper.find_other()
        if self._keeper is None or identity is None or identity == self._watermarks_of:
            return
        dumps = self._sequencer.dumps
        dumps.break_attempts(
            term_start.break_attempts(self._state, dumps.progress(), reason=term_start.OTHER_WATERMARKS)
        )
        self._watermarks_of = identity
        if not dumps.has_changes:
            self._keeper.settle(identity)
            self._watermarks_of = None

    def _is_dump_over(self, dump_id: str, unfinished: Collection[int]) -> bool:
        """Whether a dump has ended; one that has ended in a directory which is gone has not (`reopen_dump`)."""
        is_over = dump_store.is_dump_over(self._state, dump_id)
        return is_over and not (unfinished and dump_store.reopen_dump(self._state, dump_id, unfinished))

    def _advance_horizon(self) -> None:
        """PostgreSQL: lets the windows forget. The snapshot is read before the position: later windows see as much."""
        if not self._remembers:
            return
        if self._horizon is not None and self._source.has_reached(self._sequencer.position, self._horizon[1]):
            self._sequencer.advance_horizon(self._horizon[0])
            self._horizon = None
        if self._horizon is None and (snapshot := self._source.horizon()) is not None:
            # In this order: a transaction that the snapshot sees lies before the position, and the log has to be read
            # up to there before the windows forget it.
            self._horizon = (snapshot, self._source.current_position())
