"""The checker's capture: it turns log entries into lines around the real `Chunks`, as the sequencer does with files."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dblog_core.algorithm.chunk_placement import Chunks, Placement, Refused
from dblog_core.algorithm.task_progress import TaskProgress, Tasks
from dblog_core.algorithm.visibility import LogOrder, RecordedEvents, Snapshots
from dblog_core.algorithm.window import ROW_EVENTS, Windows
from dblog_core.model.schema import TableName
from dblog_core.model.task_id import TaskId
from dblog_core.model.watermark import High, Low
from tests.protocol.changelog import UNKNOWN, ChunkLine, LakeTable, Line, Replay, Values
from tests.protocol.source import FULL, Event, Row

TABLE = TableName("shop", "orders")
DUMP = "d"


class Violation(AssertionError):
    """An invariant that does not hold; its text says which."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the checker's own parts do; mutants do it wrongly. All else that is checked is the real code."""

    select_before_low: bool = False
    reuse_rows: bool = False
    place_late: bool = False
    acknowledge_early: bool = False
    no_fencing: bool = False
    ignore_alter: bool = False
    forget_at_restart: bool = False
    log_order_always: bool = False
    select_unopened: bool = False
    open_answered: bool = False
    visible_unawaited: bool = False
    standbys_snapshot: bool = False
    end_unawaited: bool = False
    end_early: bool = False
    close_at_end: bool = False
    wait_for_event: bool = False
    forget_unpublished: bool = False
    end_before_select: bool = False
    resume_where_read: bool = False
    forget_passed_over: bool = False
    lake: type[LakeTable] = LakeTable


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a SELECT found: rows by key, the requested keys that it did not find, its snapshot, the table's shape; and
    the keys that it is of, if rows have arrived there; `whole`: it is of the whole table for their sake; `last`: of a
    range, the key of its last row; `is_short`: it has fewer rows than were asked for; `final`: its task's last chunk.
    """

    rows: tuple[tuple[int, Row], ...]
    absent: tuple[int, ...]
    snapshot: str | None
    shape: int
    arrived: tuple[str, ...] = ()
    whole: bool = False
    last: int | None = None
    is_short: bool = False
    final: bool = False


@dataclass(frozen=True, slots=True)
class Recorded:
    """Row events of one transaction in the staged log."""

    first: int
    last: int
    xid: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Staged:
    """The super-changelog up to `place` in the log, and what a restart goes on from: lines, and the manifest's rest."""

    number: int = 0
    place: int = 0
    offset: int = 0
    shape: int = 0
    lines: tuple[Line, ...] = ()
    chunks: tuple[ChunkLine, ...] = ()
    recorded: tuple[Recorded, ...] = ()
    tasks: tuple[tuple[TaskId, TaskProgress], ...] = ()
    unseen_after: int = 0
    start: str | None = None
    starts: tuple[tuple[str, str], ...] = ()
    passes_over: bool = False
    was_released: bool = False


class Capture:
    """A leader. `base`: what it began from or published last; `now`: with the segment that it makes; `met`: whether a
    chunk of keys that rows have arrived at has been placed with a row."""

    __slots__ = ("base", "dumps", "late", "met", "now", "replay", "rules", "visibility")

    def __init__(self, base: Staged, *, snapshots: bool, rules: Rules, memory: int = ROW_EVENTS) -> None:
        self.base = self.now = base
        self.rules = rules
        self.late: tuple[Chunk, Placement] | None = None
        self.met = False
        use_snapshots = snapshots and not rules.log_order_always
        self.visibility = Snapshots(base.start, dict(base.starts)) if use_snapshots else LogOrder()
        self.dumps = Chunks(self.visibility, dict(base.tasks))
        self.dumps._windows = Windows(self.visibility, limit=memory)
        if use_snapshots and not rules.forget_at_restart:
            for recorded in base.recorded:
                if recorded.last > base.unseen_after:
                    self._remember(recorded, self.dumps.recall_rows)
        self.replay = Replay()
        for line in base.lines:
            self.replay.read(line)

    def copy(self) -> Capture:
        new = object.__new__(Capture)
        new.base = self.base
        new.now = self.now
        new.rules = self.rules
        new.late = self.late
        new.met = self.met
        new.replay = self.replay.copy()
        new.dumps, new.visibility = _copy_chunks(self.dumps)
        return new

    def freeze(self) -> tuple[object, ...]:
        windows = self.dumps._windows
        memory = [
            (e.first, e.offset, e.xid, e.last_xid, e.retired_at, e.lost)
            for entries in windows._memory.values()
            for e in entries
        ]
        opened = [(name, window.low) for name, window in windows._windows.items()]
        brought_keys = [(heap, *sorted(keys)) for heap, keys in sorted(self.dumps._tasks._brought.items())]
        marks = sorted(self.dumps._tasks._windows)
        return (self.base, self.now, self.late, self.met, *memory, None, *sorted(opened), *marks, None, *brought_keys)

    # The log --------------------------------------------------------------------------------------------------------

    def pass_over(self) -> None:
        """From here on rows of the table are left out: it is held, stopped, or cannot be read."""
        self.dumps.void_windows_of(TABLE)
        self.now = replace(self.now, passes_over=True)

    def release(self, horizon: str) -> None:
        """Its rows count from here on; `horizon`: a snapshot that is read now. A dump is to bring the others."""
        if not self.rules.forget_passed_over:
            self.dumps.show_table(TABLE, lambda: horizon)
        self.dumps.void_windows_of(TABLE)
        self.now = replace(self.now, passes_over=False, was_released=True)

    def transaction(self, number: int, events: list[Event]) -> None:
        if self.now.passes_over:
            return
        before = self._looked_for()
        self._transaction(number, events)
        if before is not None and (now := self._looked_for()) is not None and now > before:
            raise Violation("a dump that has read all ranges has one row more to look for")

    def _looked_for(self) -> int | None:
        """How many rows a dump that has read all ranges has still to look for."""
        tasks = self.dumps._tasks._tasks.values()
        return sum(len(p.arrived) for p in tasks) if any(p.ended and not p.done for p in tasks) else None

    def _transaction(self, number: int, events: list[Event]) -> None:
        first = self.now.offset + 1
        for event in events:
            if event.shape > self.now.shape:
                self._shape(event.shape)
                first = self.now.offset + 1
            elif event.shape < self.now.shape:
                raise Violation(f"a row of T{number + 1} comes with an older shape of its table")
            self._row(event, FULL + number)
        if self.now.offset >= first:
            recorded = Recorded(first, self.now.offset, FULL + number, tuple(events))
            self._remember(recorded, self.dumps.record_rows)
            self.now = replace(self.now, recorded=(*self.now.recorded, recorded))

    def _row(self, event: Event, xid: int) -> None:
        if event.moved_from is not None:
            self._line("d", event.moved_from, xid=xid)
        op = "c" if event.moved_from is not None else event.op
        values = (
            (UNKNOWN, UNKNOWN) if event.row is None else (event.row[0], UNKNOWN if event.unchanged else event.row[1])
        )
        self._line(op, event.key, values, xid=xid, moved_from=event.moved_from)

    def _remember(self, recorded: Recorded, tell: Callable[..., None]) -> None:
        """A TRUNCATE is told apart from rows, in their order."""
        rows = []
        between = (recorded.first, recorded.last)
        for event in recorded.events:
            if event.op != "t":
                rows.append(event.touch)
                continue
            if rows:
                tell(TABLE, between, recorded.xid, rows)
                rows = []
            tell(TABLE, between, recorded.xid, None)
        if rows:
            tell(TABLE, between, recorded.xid, rows)

    def _shape(self, shape: int) -> None:
        if not self.rules.ignore_alter:
            self.dumps.void_windows_of(TABLE)
        self.now = replace(self.now, shape=shape)
        self._line("s", 0)

    # Watermarks -----------------------------------------------------------------------------------------------------

    def low(self, low: Low) -> None:
        if self.now.passes_over:
            return
        try:
            self.dumps.open_window(low, offset=self.now.offset, segment=1, at=0)
        except Refused:
            return

    def high(self, high: High) -> None:
        if self.now.passes_over:
            return
        chunk: Any = high.checksum  # the chunk itself: the checker has no files
        keys = [(key,) for key, _ in chunk.rows]
        absent = [(key,) for key in chunk.absent]
        try:
            placement = self.dumps.place_chunk(
                high, at=0, is_ours=lambda: True, rows=lambda _: enumerate(keys), absent=lambda: absent
            )
        except Refused:
            return
        self.met |= bool(chunk.arrived and chunk.rows)
        if self.rules.place_late:
            self.late = (chunk, placement)
        else:
            self.place(chunk, placement)

    def place(self, chunk: Chunk, placement: Placement) -> None:
        if chunk.shape < self.now.shape:
            raise Violation("a chunk was placed with an older shape of its table")
        if chunk.shape > self.now.shape:
            self._shape(chunk.shape)
        self._record_placed(chunk, placement)

    def _record_placed(self, chunk: Chunk, placement: Placement) -> None:
        touched = {t.key[0] for r in self.now.recorded for e in r.events if e.op != "t" for t in (e.touch,)}
        touched |= {e.key for r in self.now.recorded for e in r.events}
        keys = frozenset(key for key, _ in chunk.rows)
        self.now = replace(self.now, chunks=(*self.now.chunks, ChunkLine(self.now.offset + 1, keys)))
        for number, (key, values) in enumerate(chunk.rows):
            if number not in placement.evicted:
                self._line("r", key, values)
            elif key not in touched and 0 not in touched:
                raise Violation(f"key {key} was evicted, and the log holds nothing of it")
            else:
                self.now = replace(self.now, offset=self.now.offset + 1)
        for number, survivor in placement.survivors:
            values = chunk.rows[number][1]
            kept_values: Values = (
                values[0] if "v" in survivor.columns else UNKNOWN,
                values[1] if "big" in survivor.columns else UNKNOWN,
            )
            self._line("r", survivor.key[0], kept_values)
        for (key,) in placement.deleted:
            self._line("d", key)
        if placement.finished is not None:
            self._line("f", 0, since=placement.finished.since)

    def _line(self, op: str, key: int, values: Values = (UNKNOWN, UNKNOWN), **more: Any) -> None:
        line = Line(self.now.offset + 1, op, key, values, self.now.shape, **more)
        self.now = replace(self.now, offset=line.offset, lines=(*self.now.lines, line))
        self.replay.read(line)

    # Segments -------------------------------------------------------------------------------------------------------

    def seal(self, place: int) -> None:
        """All up to `place` in the log is read: what a manifest would say now."""
        tasks = tuple(sorted(self.dumps._tasks._tasks.items()))
        start = self.visibility.start if isinstance(self.visibility, Snapshots) else None
        starts = tuple(self.visibility.starts.items()) if isinstance(self.visibility, Snapshots) else ()
        unseen = self.dumps.earliest_unseen(self.now.offset)
        self.now = replace(self.now, place=place, tasks=tasks, unseen_after=unseen, start=start, starts=starts)


def _copy_chunks(chunks: Chunks) -> tuple[Chunks, LogOrder | Snapshots]:
    """A copy by hand: deepcopy would take most of the time. Touches are never changed, so they are shared."""
    new = object.__new__(Chunks)
    windows = object.__new__(Windows)
    tasks = object.__new__(Tasks)
    visibility: Any = chunks._visibility
    if isinstance(visibility, Snapshots):
        snapshots = visibility
        visibility = object.__new__(type(visibility))
        visibility._start = snapshots._start
        visibility._settled = snapshots._settled
        visibility._starts = dict(snapshots._starts)
        visibility._unsettled = set(snapshots._unsettled)
    old = chunks._windows
    windows._visibility = visibility
    windows._limit = old._limit
    windows._windows = dict(old._windows)
    windows._counts = dict(old._counts)
    windows._memory = {
        table: deque(
            RecordedEvents(e.first, e.offset, e.xid, e.touches, e.retired_at, e.lost, e.arrives, e.last_xid)
            for e in entries
        )
        for table, entries in old._memory.items()
    }
    tasks._tasks = dict(chunks._tasks._tasks)
    tasks._windows = dict(chunks._tasks._windows)
    tasks._of_table = {table: list(names) for table, names in chunks._tasks._of_table.items()}
    tasks._brought = {heap: set(keys) for heap, keys in chunks._tasks._brought.items()}
    tasks._void = list(chunks._tasks._void)
    tasks._changed = set(chunks._tasks._changed)
    new._visibility = visibility
    new._windows = windows
    new._tasks = tasks
    new._opened = dict(chunks._opened)
    new._probes = dict(chunks._probes)
    new._met = dict(chunks._met)
    return new, visibility
