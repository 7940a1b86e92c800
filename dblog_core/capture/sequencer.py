"""The sequencer: gives every row, mark and chunk its offset, and gathers them into the segment that is being made.

It is the one place where log and dump meet. Log batches come in; rows go to the segment and, while a window needs
them, to the windows; watermarks open windows and place chunks. It reads chunk files only where a window overlaps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from dblog_core.algorithm.chunk_placement import Chunks, Finished, Placement, Refused
from dblog_core.algorithm.eviction import Survivor
from dblog_core.algorithm.task_progress import TaskProgress, tasks_from_json, tasks_to_json
from dblog_core.algorithm.visibility import LogOrder, Snapshots
from dblog_core.capture import recovery
from dblog_core.capture.row_changes import (
    ChangeTouches,
    OrderedChanges,
    log_batch,
    log_rows,
    repeated,
    runs,
    split_key_changes,
    stretches,
)
from dblog_core.errors import UnknownLogEvent
from dblog_core.model import watermark
from dblog_core.model.events import (
    Altered,
    Created,
    DatabaseDropped,
    LogBatch,
    Rewritten,
    SchemaSeen,
    Signal,
    SignalSeen,
    Transaction,
    Truncated,
    Unreadable,
    WatermarkSeen,
)
from dblog_core.model.schema import TableName, TableSchema, folded
from dblog_core.model.schema_changes import Facts, Layout, Pending, Step, placed
from dblog_core.model.task_id import TaskId
from dblog_core.model.values import Key, key_from_json, rows_with
from dblog_core.model.watermark import High, Low, Probe
from dblog_core.rows.column_rules import Rules
from dblog_core.staging import Staging
from dblog_core.staging.manifest import ChunkRef, LogMark, Manifest, Probed
from dblog_core.staging.segment import SegmentWriter, log_schema

log = logging.getLogger(__name__)

MOST_BORN = 5_000
"""Tables without a shape of which it is remembered that they have no row: each manifest names them. Of the oldest ones
beyond that it is forgotten, and they are incomplete until they are dumped."""


@dataclass(slots=True)
class _Draft:
    """The segment that is being made."""

    number: int
    first_offset: int
    writer: SegmentWriter
    chunks: list[ChunkRef] = field(default_factory=list)
    marks: list[LogMark] = field(default_factory=list)
    probes: list[Probed] = field(default_factory=list)


SIGNALS = 1_000
"""Rows of the signal table that one transaction may bring: who may write there asks for dumps, and stops nothing."""


class _Asks:
    """How many signals the transaction that is read has brought, over all batches that it comes in."""

    def __init__(self) -> None:
        self._transaction, self._count = "", 0
        self.overfull: list[str] = []

    def count(self, transaction: str) -> bool:
        """One more; whether it is taken."""
        if transaction != self._transaction:
            self._transaction, self._count = transaction, 0
        self._count += 1
        if self._count == SIGNALS + 1:
            self.overfull.append(transaction)
        return self._count <= SIGNALS


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
        stopped: Iterable[str] = (),
    ) -> None:
        """`stopped`: tables that are passed over."""
        self._stopped, self._unreadable, self._met = set(stopped), set[str](), dict[str, Unreadable]()
        self._staging, self._source, self._epoch, self._rules = staging, source, epoch, rules
        self._visibility = visibility
        self._strange = 0  # rows of the watermark table that are no watermarks
        self._dumps = Chunks(visibility, tasks_from_json(head.tasks))
        if isinstance(visibility, Snapshots):
            for event in recovery.events(staging, head):
                arrives = event.touches is not None and event.touches.may_arrive
                self._dumps.recall_rows(event.table, event.offsets, event.xid, event.touches, arrives=arrives)
        self._schemas, self._altered, self._layouts = dict(head.schemas), Pending(head.altered), dict(head.layouts)
        self._rewritten: dict[TableName, Transaction] = {}
        self._resumed = set[str]()  # of these, since the log can be read again
        self._reshaped: set[TableName] = set()
        self._born, self._unproven = dict.fromkeys(head.born), dict[TableName, Transaction]()
        self._others: set[str] = set()
        self._asked, self._asks = list[SignalSeen](), _Asks()
        self._next = head.last_offset + 1
        self._position, self._partial = head.position, head.partial
        self._log_position, self._commit_time = head.log_position, head.commit_time
        self._draft = self._begin(head.segment + 1)

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
        """Whether the segment would hold anything but a position."""
        return self._next > self._draft.first_offset or self._dumps.has_changes or self._owes

    @property
    def _owes(self) -> bool:
        """Whether something is to be requested or remembered before the log's place moves past it."""
        owed = (self._rewritten, self._reshaped, self._unproven, self._met, self._asked)
        return any(bool(each) for each in owed)

    @property
    def places_chunks(self) -> bool:
        """Whether a dump worker, or a verification, waits for this segment."""
        return bool(self._draft.chunks) or bool(self._draft.probes) or self._dumps.has_changes

    @property
    def last_offset(self) -> int:
        return self._next - 1

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

    def horizon(self, snapshot: str) -> None:
        """All windows from here on see what `snapshot` sees: the log was read up to where it was taken."""
        self._dumps.advance_horizon(snapshot, self.last_offset)

    def take_progress(self) -> dict[TaskId, TaskProgress]:
        """Progress that the last published segment made true: for the state store."""
        return self._dumps.take_progress()

    def rewritten(self, table: TableName) -> None:
        """Rows of the table are others by now than those that were read, and no event tells of it."""
        self._dumps.void_windows_of(table)
        self._born.pop(str(table), None)
        self._rewritten[table] = Transaction("", self._log_position, self._commit_time or 0)

    def take_rewritten(self) -> dict[TableName, Transaction]:
        """Tables whose rows came or went without row events since the last call: a dump of each is to be requested."""
        taken, self._rewritten = self._rewritten, {}
        self._resumed.clear()
        return {table: since for table, since in taken.items() if not self._passes_over(table)}

    def take_altered(self) -> set[str]:
        """Tables that were altered since the last call, as far as the log tells of it."""
        taken, self._others = self._others, set()
        return taken

    def take_unproven(self) -> dict[TableName, Transaction]:
        """Tables that have shown their first shape since the last call, and of which nobody knows whether they had rows
        before. Those that are to be dumped anyway are left out."""
        taken, self._unproven = self._unproven, {}
        return {t: at for t, at in taken.items() if t not in self._rewritten and not self._passes_over(t)}

    def reshaped(self, table: TableName) -> None:
        """The table may have another shape by now, and no row may come to show it."""
        if str(table) in self._schemas:
            self._reshaped.add(table)

    def take_reshaped(self) -> set[TableName]:
        """Tables whose shape nobody has shown since they were altered, since the last call: a window is to show it.
        Those that are to be dumped anyway are left out."""
        taken, self._reshaped = self._reshaped - self._rewritten.keys(), set()
        return {table for table in taken if not self._passes_over(table)}

    def stop(self, tables: Iterable[str]) -> set[str]:
        """Passes these tables over from here on; returns those that were not before. One that the log has just shown
        to be mended is left out: who stopped it may have looked before, and looks again."""
        new = set(tables) - self._stopped - self._resumed
        for table in new:
            self._dumps.void_windows_of(TableName.parse(table))
            self._born.pop(table, None)
        self._stopped |= new
        return new

    def passes_over(self, table: str) -> bool:
        """Whether rows of the table are left out now."""
        return table in self._stopped or table in self._unreadable

    def take_unreadable(self) -> dict[str, Unreadable]:
        """Tables whose rows are passed over since the last call, and why, as the log has told."""
        taken, self._met = self._met, {}
        return taken

    def take_signals(self) -> list[SignalSeen]:
        """Rows that were put into the signal table since the last call, in log order."""
        taken, self._asked = self._asked, []
        return taken

    @property
    def signals_wait(self) -> int:
        """How many `take_signals` would give: they may be taken at any time before the manifest that goes past them."""
        return len(self._asked)

    def take_overfull(self) -> list[str]:
        """Transactions that had more than SIGNALS rows of the signal table, since the last call; the first count."""
        taken, self._asks.overfull = self._asks.overfull, []
        return taken

    def heal(self, table: TableName, dump: str, since: Transaction) -> None:
        """Tells whoever has a copy of the table that it is not right before the end of this dump, which has not begun:
        an s line that repeats the shape."""
        if (known := self._schemas.get(str(table))) is not None:
            self._mark("s", table, since, schema=known, dump=dump)

    def process(self, batch: LogBatch) -> None:
        """Takes a stretch of the log. Raises UnknownLogEvent, CorruptSegment or StagingUnavailable."""
        changes, signals = self._staged(batch)
        *before, rest = stretches(changes, [2 * signal.sequence for signal in signals])
        for signal, rows in zip(signals, before, strict=True):
            self._rows(rows, batch.transactions)
            self._signal(signal, batch.transactions[signal.transaction])
        self._rows(rest, batch.transactions)
        self._position, self._partial = batch.position, batch.partial
        if batch.transactions:
            self._log_position = batch.transactions[-1].position
            self._commit_time = batch.transactions[-1].commit_time

    def _staged(self, batch: LogBatch) -> tuple[list[OrderedChanges], list[Signal]]:
        """The batch's changes as they are staged, and its signals with those of values that no form holds."""
        changes, signals = [], list(batch.signals)
        for given in batch.changes:
            if self._rules.misfit(given.schema) is not None:
                continue  # passed over from the shape's signal on
            staged, unreadable = self._rules.changes(given, batch.transactions)
            changes.append(split_key_changes(staged))
            if unreadable is not None:
                signals.append(unreadable)
        return changes, sorted(signals, key=lambda signal: signal.sequence)

    def seal(self, now: int) -> Manifest:
        """Writes the segment's files and returns its manifest, to be published. May be called again after a fault."""
        draft = self._draft
        files = draft.writer.write()
        return Manifest(
            source=self._source,
            segment=draft.number,
            epoch=self._epoch,
            first_offset=draft.first_offset,
            last_offset=self.last_offset,
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
            schemas=dict(self._schemas),
            altered=self._altered.to_json(),
            layouts=dict(self._layouts),
            born=tuple(self._born),
        )

    def published(self) -> None:
        """The manifest of `seal` is published: the next segment begins."""
        self._draft = self._begin(self._draft.number + 1)

    def _begin(self, number: int) -> _Draft:
        return _Draft(number, self._next, self._staging.open_segment(number, self._epoch))

    # Rows -----------------------------------------------------------------------------------------------------------

    def _rows(self, found: list[OrderedChanges], transactions: tuple[Transaction, ...]) -> None:
        found = [s for s in found if not self._passes_over(s.schema.table)]
        if not found:
            return
        sequence = np.concatenate([s.sequence for s in found])
        ranks = np.empty(len(sequence), dtype=np.int64)
        ranks[np.argsort(sequence, kind="stable")] = np.arange(len(sequence))
        offsets = self._next + ranks
        self._next += len(sequence)
        start = 0
        for stretch in found:
            own = offsets[start : start + len(stretch)]
            start += len(stretch)
            self._draft.writer.add(stretch.schema, log_rows(stretch, own, transactions))
            if self._dumps.wants(stretch.schema.table) and stretch.schema.key:
                self._remember(stretch, own, transactions)

    def _remember(self, stretch: OrderedChanges, offsets: Any, transactions: tuple[Transaction, ...]) -> None:
        """Row events for the windows, one record a transaction."""
        table, touches = stretch.schema.table, ChangeTouches.of(stretch)
        between, of = offsets.tolist(), stretch.transaction.tolist()
        for start, end in runs(stretch.transaction):
            ends, part = (between[start], between[end - 1]), touches.part(start, end)
            self._dumps.record_rows(table, ends, transactions[of[start]].xid, part, arrives=touches.may_arrive)

    # Signals --------------------------------------------------------------------------------------------------------

    def _passes_over(self, table: TableName) -> bool:
        return self.passes_over(str(table))

    def _signal(self, signal: Signal, transaction: Transaction) -> None:
        if isinstance(signal, SchemaSeen) and (misfit := self._rules.misfit(signal.schema)) is not None:
            table = signal.schema.table
            signal = Unreadable(signal.sequence, signal.transaction, table, misfit.what, misfit.fix, refused=True)
        if isinstance(signal, SchemaSeen) and str(signal.schema.table) in self._unreadable:
            self._go_on(signal.schema.table, transaction)
        match signal:
            case Unreadable() if not self._passes_over(signal.table):  # once: each batch may hold such a value
                self._dumps.void_windows_of(signal.table)
                self._born.pop(str(signal.table), None)
                self._unreadable.add(str(signal.table))
                self._met[str(signal.table)] = signal
            case SchemaSeen() if not self._passes_over(signal.schema.table):
                self._shape(self._rules.schema(signal.schema), transaction, signal.layout)
            case Truncated() | DatabaseDropped() | Altered() | Rewritten():
                self._statement(signal, transaction)
            case Created():
                self._is_empty(signal.table)
            case SignalSeen():
                if self._asks.count(transaction.id):
                    self._asked.append(signal)
            case WatermarkSeen():
                self._watermark(signal.payload, transaction)

    def _statement(self, signal: Truncated | DatabaseDropped | Altered | Rewritten, transaction: Transaction) -> None:
        tables = self._tables_of(signal) if isinstance(signal, DatabaseDropped) else self._meant(signal)
        unsure = len(tables) > 1 and isinstance(signal, Truncated)  # one of them is empty: dumps tell which
        for table in tables:
            if isinstance(signal, Rewritten) or unsure:
                self._rewrite(table, transaction)
            elif isinstance(signal, Altered):
                self._alter(table, signal.step, transaction)
                if signal.shows:
                    self.reshaped(table)
            else:
                self._empty(table, transaction)

    def _known(self) -> list[TableName]:
        """Tables that we have a copy of, or are dumping."""
        return sorted({*map(TableName.parse, self._schemas), *self._dumps.tables})

    def _tables_of(self, dropped: DatabaseDropped) -> list[TableName]:
        if dropped.any_case:
            return [table for table in self._known() if folded(table.schema) == folded(dropped.schema)]
        return [table for table in self._known() if table.schema == dropped.schema]

    def _meant(self, signal: Truncated | Altered | Rewritten) -> list[TableName]:
        """The tables that a statement may be about: more than one only where names differ in case alone, of which the
        server has one by now."""
        if not signal.any_case:
            return [signal.table]
        return [table for table in self._known() if table.folded == signal.table.folded] or [signal.table]

    def _rewrite(self, table: TableName, transaction: Transaction) -> None:
        """Only the table itself can tell which rows it has from here on."""
        if not self._passes_over(table):
            self._dumps.void_windows_of(table)  # chunks that are being read may hold rows that are gone
            self._born.pop(str(table), None)
            self._rewritten[table] = transaction

    def _alter(self, table: TableName, step: Step | None, transaction: Transaction) -> None:
        self._dumps.void_windows_of(table)  # its shape may be the same as before, its columns others
        self._others.add(str(table))
        self._altered.add(table, step, self._schemas)
        if step is not None and self._mixes_up(table, step):
            self._rewritten[table] = transaction

    def _empty(self, table: TableName, transaction: Transaction) -> None:
        """All rows of the table are gone."""
        if self._passes_over(table):
            return
        offset = self._mark("t", table, transaction, transaction=transaction.id)
        self._dumps.record_rows(table, (offset, offset), transaction.xid, None)
        self._is_empty(table)

    def _is_empty(self, table: TableName) -> None:
        """The table has no row here; remembered until its first shape says so to whoever reads it."""
        name = str(table)
        if name in self._schemas or self._passes_over(table):
            return
        self._born.pop(name, None)
        self._born[name] = None
        if len(self._born) > MOST_BORN:
            del self._born[next(iter(self._born))]

    def _go_on(self, table: TableName, transaction: Transaction) -> None:
        """The log can be read again: what was passed over is for a dump to bring."""
        self._unreadable.discard(str(table))
        if str(table) not in self._stopped:
            self._rewritten[table] = transaction
            self._resumed.add(str(table))

    def _shape(self, schema: TableSchema, transaction: Transaction, layout: Layout | None = None) -> None:
        """From here on the table has this shape."""
        self._reshaped.discard(schema.table)
        known = self._schemas.get(str(schema.table))
        found = self._proven(known, schema, layout) if known is not None else None
        if layout is not None:
            self._layouts[str(schema.table)] = layout.token
        elif known != schema.fingerprint:
            self._layouts.pop(str(schema.table), None)
        if known == schema.fingerprint and not (found and found.renamed):
            return
        self._staging.put_schema(schema)
        self._schemas[str(schema.table)] = schema.fingerprint
        facts = {"renamed": found.renamed or None, "filled": found.filled or None} if found else {}
        whole = True if known is None and str(schema.table) in self._born else None
        self._mark("s", schema.table, transaction, schema=schema.fingerprint, whole=whole, **facts)
        if known is not None:
            self._dumps.void_windows_of(schema.table)
            self._others.add(str(schema.table))
            if schema.key and not self._staging.schema(known).key:
                self._rewritten[schema.table] = transaction  # no key led to its rows so far: a dump brings them
            return
        self._born.pop(str(schema.table), None)
        if whole is None and schema.key:
            self._unproven[schema.table] = transaction

    def _mixes_up(self, table: TableName, step: Step) -> bool:
        """Whether a column that copies of the table know is another one under the same name from here on."""
        known = self._schemas.get(str(table))
        return known is not None and any(step.takes(c.name) for c in self._staging.schema(known).columns)

    def _proven(self, known: str, schema: TableSchema, layout: Layout | None) -> Facts | None:
        """What is proven of the way from the table's last shape to this one. Rules go by the names of columns, so that
        nothing is where there are any."""
        before, plain = self._staging.schema(known), not self._rules.concern(schema.table)
        found = self._altered.settle(before, schema, plain=plain)
        return found or (placed(before, schema, self._layouts.get(str(schema.table)), layout) if plain else None)

    def _mark(self, op: str, table: TableName, at: Transaction, **more: Any) -> int:
        offset = self._take(1)
        self._draft.marks.append(
            LogMark(offset=offset, op=op, table=str(table), position=at.position, commit_time=at.commit_time, **more)
        )
        return offset

    def _take(self, count: int) -> int:
        first = self._next
        self._next += count
        return first

    # Watermarks -----------------------------------------------------------------------------------------------------

    def open_window(self, mark: Low | Probe, *, at: int) -> bool:
        """Opens an announced window here, between two transactions, at the time `at`; whether it counts."""
        return self._mark_window(mark, self._here(at), at)

    def close_window(self, mark: High | Probe, *, at: int) -> None:
        """Places the chunk of an announced window here, between two transactions, if it counts."""
        self._mark_window(mark, self._here(at), at)

    def _here(self, at: int) -> Transaction:
        """Our place in the log, where no transaction of ours stands."""
        return Transaction("", self._log_position, at if self._commit_time is None else self._commit_time)

    def _watermark(self, payload: str, transaction: Transaction) -> None:
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

    def _mark_window(self, mark: Low | High | Probe, here: Transaction, at: int) -> bool:
        """A watermark, at the time `at`; False where it changes nothing, or breaks its attempt."""
        if isinstance(mark, Probe):
            self._probe(mark, here, at)
            return True
        if self._passes_over(TableName.parse(mark.mark.table)):  # no chunk is right whose window's rows nobody reads
            return False
        try:
            if isinstance(mark, Low):
                self._dumps.open_window(mark, offset=self.last_offset, segment=self.segment, at=at)
            else:
                self._high(mark, here, at)
        except Refused as reason:
            log.info("%s attempt %d: %s", mark.mark.task, mark.mark.attempt, reason)
            return False
        return True

    def _probe(self, probe: Probe, here: Transaction, at: int) -> None:
        """A verification's watermark; the high one takes an offset, which stands for its place in the log."""
        if not probe.high:
            self._dumps.open_probe(probe, offset=self.last_offset, at=at)
            return
        since = self._dumps.close_probe(probe)
        self._draft.probes.append(Probed(self._take(1), probe.table, probe.window, since, here.position))

    def _high(self, high: High, transaction: Transaction, at: int) -> None:
        if high.rules != self._rules.digest(TableName.parse(high.mark.table)):
            self._dumps.refuse_chunk(high, "its worker goes by other column rules than this capture: by an older file")

        # A chunk that does not count may be of a staging directory that is gone, with its shape.
        def shape() -> TableSchema:
            return self._staging.schema(high.schema)

        placement = self._dumps.place_chunk(
            high,
            at=at,
            is_ours=lambda: self._staging.holds(high.schema, high.file),
            rows=lambda keys: rows_with(self._chunk(high, list(shape().key)), shape(), keys),
            absent=lambda: [key_from_json(k, shape()) for k in high.absent],
        )
        schema = shape()
        # A shape that the log has not shown yet is a newer one: the window was open, so no event of it came in between.
        self._shape(schema, transaction)
        self._place(high, schema, placement, transaction)

    # Chunks ---------------------------------------------------------------------------------------------------------

    def _place(self, high: High, schema: TableSchema, placement: Placement, at: Transaction) -> None:
        """Puts the chunk here."""
        if high.file is not None:
            self._draft.chunks.append(self._reference(high, placement.evicted, at))
        if placement.survivors:
            self._keep(high, schema, placement.survivors, at)
        if placement.deleted:
            self._delete(schema, placement.deleted, at)
        if placement.finished is not None:
            self._finish(schema.table, placement.finished, at)
        if placement.heals_not:
            self._rewritten[schema.table] = at

    def _finish(self, table: TableName, finished: Finished, at: Transaction) -> None:
        self._mark(
            "f",
            table,
            at,
            dump=finished.dump,
            since=finished.since,
            since_segment=finished.segment,
            key_from=finished.heals.key_from,
            key_to=finished.heals.key_to,
        )

    def _chunk(self, high: High, columns: list[str] | None = None) -> pa.RecordBatch:
        assert high.file is not None
        table = self._staging.read_chunk(high.file, checksum=high.checksum, columns=columns).combine_chunks()
        return table.to_batches()[0]

    def _reference(self, high: High, evicted: tuple[int, ...], at: Transaction) -> ChunkRef:
        assert high.file is not None
        return ChunkRef(
            table=high.mark.table,
            schema=high.schema,
            dump=high.mark.task.dump,
            task=str(high.mark.task),
            ordinal=high.mark.ordinal,
            path=high.file,
            rows=high.rows,
            bytes=high.bytes,
            checksum=high.checksum,
            first_offset=self._take(high.rows),
            evicted=evicted,
            position=at.position,
            commit_time=at.commit_time,
        )

    def _keep(self, high: High, schema: TableSchema, kept: Sequence[tuple[int, Survivor]], at: Transaction) -> None:
        """Refreshes of those columns of evicted rows that the log left out."""
        rows = self._chunk(high)
        images, unchanged = [], []
        for number, survivor in kept:
            row = rows.slice(number, 1).to_pylist()[0]
            image = {name: value if name in survivor.columns else None for name, value in row.items()}
            images.append({**image, **dict(zip(schema.key, survivor.key, strict=True))})
            stays = survivor.columns | set(schema.key)
            unchanged.append([c.name for c in schema.columns if c.name not in stays])
        self._dump_rows(schema, "r", at, after=images, unchanged=unchanged)

    def _delete(self, schema: TableSchema, keys: Sequence[Key], at: Transaction) -> None:
        """Requested keys that neither the SELECT nor the log has."""
        self._dump_rows(schema, "d", at, before=[dict(zip(schema.key, key, strict=True)) for key in keys])

    def _dump_rows(
        self,
        schema: TableSchema,
        op: str,
        at: Transaction,
        *,
        before: list[dict[str, Any]] | None = None,
        after: list[dict[str, Any]] | None = None,
        unchanged: list[list[str]] | None = None,
    ) -> None:
        count = len(before or after or ())
        first, target = self._take(count), log_schema(schema)
        columns = {
            "offset": pa.array(range(first, first + count), pa.int64()),
            "op": pa.array([op] * count, pa.string()),
            "origin": repeated("dump", count),
            "transaction": repeated(None, count),
            "position": repeated(at.position, count),
            "commit_time": pa.array([at.commit_time] * count, pa.timestamp("us", tz="UTC")),
            "key_only": pa.array([before is not None] * count, pa.bool_()),
        }
        for name, values in (("unchanged", unchanged), ("before", before), ("after", after)):
            if values is not None:
                columns[name] = pa.array(values, target.field(name).type)
        for absent in (f for f in target if f.name not in columns):
            columns[absent.name] = pa.nulls(count, absent.type)
        self._draft.writer.add(schema, log_batch(schema, columns))
