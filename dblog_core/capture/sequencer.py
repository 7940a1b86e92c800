"""The sequencer: gives every row, mark and chunk its offset, and gathers them into the segment that is being made.

It is the one place where log and dump meet. Log batches come in; rows go to the segment and, while a window needs
them, to the windows; watermarks open windows and place chunks. It reads chunk files only where a window overlaps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from dblog_core.algorithm.chunk_placement import Chunks, Refused
from dblog_core.algorithm.task_progress import TaskProgress, tasks_to_json
from dblog_core.algorithm.visibility import LogOrder, Snapshots
from dblog_core.capture import placed_chunks, unseen_events
from dblog_core.capture.draft_segment import DraftSegment
from dblog_core.capture.healing.logged_rows import LoggedRows
from dblog_core.capture.row_changes import (
    ChangeTouches,
    OrderedChanges,
    convert,
    log_rows,
    runs,
    stretches,
)
from dblog_core.capture.signal_rows import SignalRows
from dblog_core.capture.table_events import TableEvents
from dblog_core.errors import CorruptSegment, RequestError, UnknownLogEvent
from dblog_core.model import watermark
from dblog_core.model.events import (
    LogBatch,
    SchemaSeen,
    Signal,
    SignalSeen,
    Transaction,
    WatermarkSeen,
)
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.task_id import TaskId
from dblog_core.model.values import key_from_json, rows_with
from dblog_core.model.watermark import High, Low, Probe
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.table_guard import UNORDERED, Places, TableGuard
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest, Probed

log = logging.getLogger(__name__)


class Sequencer:
    """Continues the super-changelog after `head`. Not thread-safe: the capture's loop owns it."""

    def __init__(
        self,
        staging: Staging,
        *,
        source: str,
        epoch: int,
        head: Manifest,
        visibility: LogOrder | Snapshots,
        rules: Rules,
        guard: TableGuard | None = None,
        places: Places = UNORDERED,
        stopped: Iterable[str] = (),
        was_done: Callable[[TaskId], bool] = lambda task: False,
    ) -> None:
        """`guard`: what may pass (None: all); `places`: the source, which compares positions; `stopped`: tables that
        are passed over; `was_done`: whether a task is done in this staging whose dump has been forgotten."""
        self._staging = staging
        self._source = source
        self._epoch = epoch
        self._rules = rules
        self._guard = guard or TableGuard({}, {})
        self._places = places
        self._visibility = visibility
        self._dumps = Chunks(visibility, head.progress())
        self._was_done = was_done
        # Before the first batch: a chunk that is placed from here on may be older than events before the head.
        if isinstance(visibility, Snapshots):
            for event in unseen_events.read_events(staging, head):
                arrives = event.touches is not None and event.touches.may_arrive
                self._dumps.recall_rows(event.table, event.offsets, event.xid, event.touches, arrives=arrives)
        self._tables = TableEvents(staging, head, self._dumps, rules, self._guard, places, stopped)
        self._signals = SignalRows()
        self._logged_rows = LoggedRows(head.last_offset)
        self._strange = 0  # rows of the watermark table that are no watermarks
        self._position = head.position
        self._partial = head.partial
        self._log_position = head.log_position
        self._commit_time = head.commit_time
        self._draft = self._begin_segment(head.segment + 1, head.last_offset + 1)

    @property
    def segment(self) -> int:
        """The number of the segment that is being made."""
        return self._draft.number

    @property
    def bytes(self) -> int:
        """Bytes in memory that wait for the segment's end."""
        return self._draft.writer.bytes

    @property
    def dirty(self) -> bool:
        """Whether the segment would hold more than a position, or the capture must request something before it ends."""
        holds_lines = self._draft.next_offset > self._draft.first_offset or self._dumps.has_changes
        return holds_lines or self._tables.any_waits or self._guard.has_changes or bool(self._signals.waiting)

    @property
    def places_chunks(self) -> bool:
        """Whether a dump worker, or a verification, waits for this segment."""
        return bool(self._draft.chunks) or bool(self._draft.probes) or self._dumps.has_changes

    @property
    def last_offset(self) -> int:
        return self._draft.last_offset

    @property
    def position(self) -> str:
        return self._position

    @property
    def partial(self) -> int:
        """Row changes of an unfinished transaction that the segment holds at its end."""
        return self._partial

    @property
    def commit_time(self) -> int | None:
        """Of the last transaction seen, microseconds since 1970 UTC."""
        return self._commit_time

    @property
    def dumps(self) -> Chunks:
        """The dumps' side of the super-changelog."""
        return self._dumps

    @property
    def tables(self) -> TableEvents:
        """What the log says of tables beside their rows."""
        return self._tables

    @property
    def signals(self) -> SignalRows:
        """Rows that were put into the signal table."""
        return self._signals

    @property
    def logged_rows(self) -> LoggedRows:
        """What is remembered of the rows of this term for descriptions that were written meanwhile."""
        return self._logged_rows

    def advance_horizon(self, snapshot: str) -> None:
        """All windows from here on see what `snapshot` sees: the log was read up to where it was taken."""
        self._dumps.advance_horizon(snapshot, self.last_offset)

    def take_progress(self) -> dict[TaskId, TaskProgress]:
        """Progress that the last published segment made true: for the state store."""
        return self._dumps.take_progress()

    def record_rewrite(self, table: TableName) -> None:
        """The table has other rows than those that were read, and no event says so."""
        self._tables.record_rewrite(table, Transaction("", self._log_position, self._commit_time or 0))

    def show_table(self, table: TableName, start: str | None) -> None:
        """The log shows the table since a moment ago, when this snapshot of the source was read; a dump brings what it
        has not shown."""
        self._dumps.show_table(table, lambda: start)
        self.record_rewrite(table)

    def heal(self, table: TableName, dump: str | None, since: Transaction) -> None:
        """Tells consumers that their copy of the table is not right before the end of this dump, which has not begun
        (None: of any later one): an s line that repeats the shape."""
        if (fingerprint := self._tables.shapes.fingerprint(table)) is not None:
            whole = False if dump is None else None
            self._draft.add_mark("s", table, since, schema=fingerprint, dump=dump, whole=whole)

    def process(self, batch: LogBatch) -> None:
        """Takes a stretch of the log. Raises UnknownLogEvent, CorruptSegment or StagingUnavailable."""
        batch = self._tables.name_changed(batch)
        self.judge((changes.schema.table for changes in batch.changes), batch.signals)
        changes, signals = convert(batch, self._rules)
        self._tables.store_shapes(signals)
        # Twice: `split_key_changes` numbers the rows so.
        *before, rest = stretches(changes, [2 * signal.sequence for signal in signals])
        for signal, rows in zip(signals, before, strict=True):
            self._add_rows(rows, batch.transactions)
            self._take_signal(signal, batch.transactions[signal.transaction])
        self._add_rows(rest, batch.transactions)
        self._position = batch.position
        self._partial = batch.partial
        if batch.transactions:
            self._log_position = batch.transactions[-1].position
            # Not every server, nor every place in the log, has a time.
            self._commit_time = batch.transactions[-1].commit_time or self._commit_time
        if not self._partial:
            self._release_tables()

    def judge_hidden(self) -> None:
        """As `judge`, of the tables whose columns are hidden, and of those that are dumped: though no row comes."""
        self.judge({*self._guard.hiding(), *self._dumps.tables})

    def _release_tables(self) -> None:
        """The log is read up to where some tables were accepted."""
        released, holds = self._guard.release(lambda place: self._places.has_reached(self._position, place))
        for table in released:
            self._tables.release(table, self._place_at(0))
        for hold in holds:
            self._tables.hold(hold)

    def judge(self, tables: Iterable[TableName], signals: Sequence[Signal] = ()) -> None:
        """Leaves out, from here on, those of the tables that are not proven to be what was accepted. `signals`: those
        that come with their rows. Raises what the source raises."""
        shapes = [signal.schema for signal in signals if isinstance(signal, SchemaSeen)]
        for hold in self._guard.judge(tables, signals):
            self._tables.hold(hold, shapes)

    def seal(self, now: int) -> Manifest:
        """Writes the segment's files and returns its manifest, to be published. May be called again after a fault."""
        draft = self._draft
        # Durable before any manifest names them.
        files = draft.writer.write()
        manifest = Manifest(
            source=self._source,
            segment=draft.number,
            epoch=self._epoch,
            first_offset=draft.first_offset,
            last_offset=draft.last_offset,
            position=self._position,
            partial=self._partial,
            log_position=self._log_position,
            commit_time=self._commit_time,
            sealed_at=now,
            files=files,
            chunks=tuple(draft.chunks),
            marks=tuple(draft.marks),
            probes=tuple(draft.probes),
            tasks=tasks_to_json(self._dumps.progress()),
            unseen_after=self._dumps.earliest_unseen(self.last_offset),
            start=self._visibility.start if isinstance(self._visibility, Snapshots) else None,
            starts=self._visibility.starts if isinstance(self._visibility, Snapshots) else {},
        )
        return self._tables.shapes.add_to(manifest)

    def begin_next_segment(self) -> None:
        """The manifest of `seal` is published."""
        self._guard.note_saved()
        self._draft = self._begin_segment(self._draft.number + 1, self._draft.next_offset)

    def _begin_segment(self, number: int, first_offset: int) -> DraftSegment:
        return DraftSegment(number, first_offset, self._staging.open_segment(number, self._epoch))

    # Rows -----------------------------------------------------------------------------------------------------------

    def _add_rows(self, changes: list[OrderedChanges], transactions: tuple[Transaction, ...]) -> None:
        changes = [stretch for stretch in changes if not self._tables.leaves_out(stretch.schema.table)]
        if not changes:
            return
        sequence = np.concatenate([stretch.sequence for stretch in changes])
        # Offsets follow the log over all tables, though rows come table by table.
        ranks = np.empty(len(sequence), dtype=np.int64)
        ranks[np.argsort(sequence, kind="stable")] = np.arange(len(sequence))
        offsets = self._draft.take_offsets(len(sequence)) + ranks
        start = 0
        for stretch in changes:
            its_offsets = offsets[start : start + len(stretch)]
            start += len(stretch)
            self._draft.add_rows(stretch.schema, log_rows(stretch, its_offsets, transactions))
            of_rows = (transactions[number] for number in set(stretch.transaction.tolist()))
            self._logged_rows.add_rows(
                str(stretch.schema.table), int(its_offsets[-1]), stretch.batch.column("after"), of_rows
            )
            if self._dumps.wants(stretch.schema.table) and stretch.schema.key:
                self._record_for_windows(stretch, its_offsets, transactions)

    def _record_for_windows(self, stretch: OrderedChanges, offsets: Any, transactions: tuple[Transaction, ...]) -> None:
        """Row events for the windows, one record a transaction."""
        table = stretch.schema.table
        touches = ChangeTouches.of(stretch)
        offset_of = offsets.tolist()
        transaction_of = stretch.transaction.tolist()
        for start, end in runs(stretch.transaction):
            ends = (offset_of[start], offset_of[end - 1])
            xid = transactions[transaction_of[start]].xid
            self._dumps.record_rows(table, ends, xid, touches.part(start, end), arrives=touches.may_arrive)

    def _take_signal(self, signal: Signal, transaction: Transaction) -> None:
        match signal:
            case SignalSeen():
                self._signals.add(signal, transaction.id)
            case WatermarkSeen():
                self._take_watermark(signal.payload, transaction)
            case _:
                if isinstance(signal, SchemaSeen):
                    self._logged_rows.add_list(str(signal.schema.table), signal.listed, self.last_offset)
                self._tables.take(signal, transaction, self._draft)

    # Watermarks -----------------------------------------------------------------------------------------------------

    def open_window(self, mark: Low | Probe, *, at: int) -> bool:
        """Opens an announced window here, between two transactions, at the time `at`; whether it counts."""
        return self._mark_window(mark, self._place_at(at), at)

    def close_window(self, mark: High | Probe, *, at: int) -> None:
        """Places the chunk of an announced window here, between two transactions, if it counts."""
        self._mark_window(mark, self._place_at(at), at)

    def _place_at(self, at: int) -> Transaction:
        """Our place in the log, where no captured transaction stands."""
        return Transaction("", self._log_position, at if self._commit_time is None else self._commit_time)

    def _take_watermark(self, payload: str, transaction: Transaction) -> None:
        """A row of the watermark table. Who writes there that should not costs a dump an attempt at most."""
        try:
            mark = watermark.parse_for(self._source, payload)
        except UnknownLogEvent as fault:
            self._strange += 1
            if self._strange.bit_count() == 1:  # the 1st, 2nd, 4th, 8th, …: there may be a million
                log.warning("row %d of its kind at %s is passed over: %s", self._strange, transaction.position, fault)
            return
        if mark is not None:  # otherwise another source's capture reads the same database
            self._mark_window(mark, transaction, transaction.commit_time)

    def _mark_window(self, mark: Low | High | Probe, place: Transaction, at: int) -> bool:
        """A watermark, at the time `at`; False where it changes nothing, or breaks its attempt."""
        if isinstance(mark, Probe):
            self._mark_probe(mark, place, at)
            return True
        try:
            self._refuse_late(mark.mark.task)
            if self._tables.leaves_out(mark.mark.table):  # no chunk is right whose window's rows nobody reads
                self._dumps.refuse_watermark(mark, "rows of its table are left out here")
            elif isinstance(mark, Low):
                self._dumps.open_window(mark, offset=self.last_offset, segment=self.segment, at=at)
            else:
                self._place_chunk(mark, place, at)
        except Refused as reason:
            log.info("%s attempt %d: %s", mark.mark.task, mark.mark.attempt, reason)
            return False
        return True

    def _refuse_late(self, task: TaskId) -> None:
        """Raises Refused for what a worker writes after others have done its task: it was paused, or cut off. Taken for
        a task's first watermark, it would begin a dump again that has ended."""
        if not self._dumps.knows_dump(task) and self._was_done(task):
            raise Refused("its task is done, and its dump has ended")

    def _mark_probe(self, probe: Probe, place: Transaction, at: int) -> None:
        """A verification's watermark; the high one takes an offset, which stands for its place in the log."""
        if not probe.high:
            self._dumps.open_probe(probe, offset=self.last_offset, at=at)
            return
        since = self._dumps.close_probe(probe)
        # An offset of its own, so that nothing else of the log can stand at the same place.
        offset = self._draft.take_offsets(1)
        self._draft.probes.append(Probed(offset, probe.table, probe.window, since, place.position))

    def _place_chunk(self, high: High, transaction: Transaction, at: int) -> None:
        """Puts the chunk of the window here. Raises Refused where it does not count."""
        if high.rules != self._rules.digest(TableName.parse(high.mark.table)):
            self._dumps.refuse_chunk(high, "its worker goes by other column rules than this capture: by an older file")

        # A chunk that does not count may be of a staging directory that is gone, with its shape.
        def shape() -> TableSchema:
            return self._staging.schema(high.schema)

        try:
            placement = self._dumps.place_chunk(
                high,
                at=at,
                is_ours=lambda: self._staging.holds(high.schema, high.file),
                rows=lambda keys: rows_with(
                    placed_chunks.read_chunk_rows(self._staging, high, list(shape().key)), shape(), keys
                ),
                absent=lambda: [key_from_json(k, shape()) for k in high.absent],
            )
        except CorruptSegment:
            self._dumps.give_up_chunk(high, "its file, or the shape of its rows, is damaged or missing")
        except RequestError:
            self._dumps.give_up_chunk(high, "it lists keys in a form that this version does not know")
        schema = shape()
        # A shape that the log has not shown yet is a newer one: the window was open, so no event of it came in between.
        self._tables.set_shape(schema, transaction, self._draft)
        placed_chunks.add_chunk(self._draft, self._staging, high, schema, placement, transaction)
        if high.rows:
            self._logged_rows.add_chunk(str(schema.table), self.last_offset)
        if placement.heals_not:
            self._tables.follow_ups.add_rewritten(schema.table, transaction)
