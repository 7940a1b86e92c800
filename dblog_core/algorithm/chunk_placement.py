"""Placing chunks: what watermarks, row events and table changes make of dumps (DBLog, section 3.3; ARCHITECTURE.md).

`Chunks` joins the numbering of tasks (`dumps`) with the windows (`window`): the sequencer tells it what the log shows,
in log order, and it answers where a chunk goes, which of its rows the log knows better, what survives of those, which
requested keys are gone, and when a dump has seen a whole table. It knows offsets and watermarks; no clock, no I/O (the
one thing it may ask for is the keys in a chunk's file, when an event overlaps with it).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dblog_core.algorithm.arriving_rows import Look, Move
from dblog_core.algorithm.eviction import Overlap, Survivor, Touches, incomplete_moves
from dblog_core.algorithm.task_progress import Refused, TaskProgress, Tasks
from dblog_core.algorithm.visibility import Visibility
from dblog_core.algorithm.window import TooManyKeys, UnknownWindow, Windows
from dblog_core.model.schema import TableName
from dblog_core.model.task_id import TaskId
from dblog_core.model.values import Key, key_text
from dblog_core.model.watermark import Heals, High, Low, Mark, Probe

RowsWith = Callable[[Collection[Key]], Iterable[tuple[int, Key]]]
"""Number and key of every row of a chunk that has one of these keys, by growing number; others may be among them."""


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A window for `status`: its table, its dump and the commit time of its low watermark (microseconds)."""

    table: str
    dump: str
    opened: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A dump has seen every row of `heals` that lived at offset `since` or before; its chunks begin in `segment`."""

    table: str
    dump: str
    since: int
    segment: int
    heals: Heals


@dataclass(frozen=True, slots=True)
class Placement:
    """A chunk that stands in the super-changelog here.

    `evicted`: numbers of its rows that the log knows better; `survivors`: what survives of some of them, as refreshes
    of their own; `deleted`: requested keys that neither the SELECT nor an event it may not have seen has; `heals_not`:
    its table's dump has ended, and too many rows have arrived meanwhile (`task_progress`): only another one heals.
    """

    evicted: tuple[int, ...]
    survivors: tuple[tuple[int, Survivor], ...]
    deleted: tuple[Key, ...]
    finished: Finished | None
    heals_not: bool = False


class Chunks:
    """Every dump's tasks and windows, from a manifest's progress on. Offsets that it gets never fall."""

    def __init__(self, visibility: Visibility, tasks: Mapping[TaskId, TaskProgress] | None = None) -> None:
        """`tasks`: those of the newest manifest."""
        self._visibility = visibility
        self._windows = Windows(visibility)
        self._tasks = Tasks(tasks)
        self._opened: dict[str, OpenWindow] = {}
        self._probes: dict[str, OpenWindow] = {}
        self._met: dict[str, float] = {}  # by window: the first look at which it was open

    # The log's own events -------------------------------------------------------------------------------------------

    def wants(self, table: TableName) -> bool:
        """Whether row events of the table must be recorded."""
        return self._windows.wants(table) or self._tasks.is_healing(str(table))

    @property
    def tables(self) -> set[TableName]:
        """Those of which a window is open."""
        return self._windows.tables

    def record_rows(
        self,
        table: TableName,
        offsets: tuple[int, int],
        xid: int | None,
        touches: Touches | None,
        *,
        arrives: bool = True,
    ) -> None:
        """Row events of one transaction (None: a TRUNCATE), the first and the last of them at `offsets`; `arrives`:
        whether there may be incomplete moves among them (`window`)."""
        self._windows.record(table, offsets, xid, touches, arrives=arrives)
        if touches is None:
            self._tasks.forget_arrivals(str(table))
        elif arrives:
            self._tasks.record_moves(str(table), _moves(incomplete_moves(touches)))

    def recall_rows(
        self,
        table: TableName,
        offsets: tuple[int, int],
        xid: int | None,
        touches: Touches | None,
        *,
        arrives: bool = True,
    ) -> None:
        """As `record_rows`, of what came before a restart."""
        self._windows.record(table, offsets, xid, touches, arrives=arrives)

    def void_windows_of(self, table: TableName) -> None:
        """The table has another shape from here on: chunks that are being read may have the old one."""
        for window, mark in self._tasks.windows().items():
            if mark.table == str(table):
                self._tasks.expire(window)
        self._drop_probes([w for w, probe in self._probes.items() if probe.table == str(table)])
        self._discard_void()

    def advance_horizon(self, snapshot: str, offset: int) -> None:
        """Every SELECT of a window opened after `offset` sees what `snapshot` sees (PostgreSQL)."""
        self._windows.advance_horizon(snapshot, offset)
        self._visibility.advance_horizon(snapshot)

    def show_table(self, table: TableName, read_horizon: Callable[[], str | None]) -> None:
        """Events of the table are recorded from here on; those of before are nowhere remembered, and every chunk must
        have seen them. `read_horizon`: as `Source.horizon`, which may raise."""
        if self._visibility.records_always() and (start := read_horizon()) is not None:
            self._visibility.show_table(str(table), start)

    # Watermarks -----------------------------------------------------------------------------------------------------

    def knows_dump(self, task: TaskId) -> bool:
        """Whether a watermark of the task's dump has come, and it is not forgotten since."""
        return self._tasks.knows_dump(task)

    def open_window(self, low: Low, *, offset: int, segment: int, at: int) -> None:
        """Opens a window right after `offset`; `at`: the watermark's commit time. Raises Refused."""
        mark = low.mark
        table = TableName.parse(mark.table)
        since = self.earliest_unseen(offset)
        is_followed = self._tasks.is_followed(mark)
        try:
            if not self._visibility.may_open(mark.table):
                self._tasks.refuse_low(low, "its SELECT may not see what was logged before its table was shown")
            self._tasks.admit_low(low, since=since, segment=segment, at=at)
            if mark.heals is not None and not is_followed:
                self._tasks.record_earlier_moves(mark.task, _moves(self._windows.moves_after(table, since)))
            self._windows.open(mark.window, table, offset)
            self._opened[mark.window] = OpenWindow(mark.table, mark.task.dump, at)
        finally:
            self._discard_void()

    def place_chunk(
        self, high: High, *, at: int, is_ours: Callable[[], bool], rows: RowsWith, absent: Callable[[], Sequence[Key]]
    ) -> Placement:
        """Places the chunk; nothing of it is looked at before it is clear that it counts. `is_ours`: whether our
        staging has it; `absent`: requested keys that the SELECT did not find. Raises Refused, and what the functions
        raise."""
        mark = high.mark
        try:
            self._tasks.admit_high(high)
            self._require_ours(high, is_ours)
            overlap = self._overlap(high)
            evicted, survivors, overlapping_keys = _overlapping(overlap, high.rows, rows)
            deleted = () if overlap.everything else tuple(key for key in absent() if key not in overlap.touched)
            look = _look(high, overlap, overlapping_keys) if high.arrived else None
            has_met_row = look is not None and self._tasks.record_look(mark.task, look)
            progress = self._tasks.record_placed_chunk(high, evicted=len(evicted), at=at, has_met_row=has_met_row)
            finished = self._finished(mark) if progress.done else None
            heals_not = finished is not None and self._tasks.has_forgotten_rows(mark.task)
            return Placement(evicted, survivors, deleted, None if heals_not else finished, heals_not)
        finally:
            self._windows.discard(mark.window)
            self._opened.pop(mark.window, None)
            self._discard_void()

    def refuse_watermark(self, watermark: Low | High, reason: str) -> None:
        """No chunk of its table can be placed now: the attempt is over, so that its worker begins another one instead
        of waiting for this one. Raises Refused."""
        if isinstance(watermark, High):
            self.refuse_chunk(watermark, reason)
            return
        try:
            self._tasks.refuse_low(watermark, reason)
        finally:
            self._discard_void()

    def refuse_chunk(self, high: High, reason: str) -> None:
        """The chunk must not stand in the super-changelog: its attempt is over. Raises Refused."""
        mark = high.mark
        try:
            self._tasks.admit_high(high)
            self._tasks.break_attempt(mark, reason)
        finally:
            self._windows.discard(mark.window)
            self._opened.pop(mark.window, None)
            self._discard_void()

    def give_up_chunk(self, high: High, reason: str) -> None:
        """What the chunk's watermark or file holds cannot be read: its attempt is over. Raises Refused."""
        try:
            self._tasks.break_attempt(high.mark, reason)
        finally:
            self._discard_void()

    def _require_ours(self, high: High, is_ours: Callable[[], bool]) -> None:
        """The log may be older than our staging, and hold watermarks of dumps into one that is gone; and a staging that
        was put back from a copy may lack the later chunks of an attempt. Raises Refused.
        """
        if not is_ours():
            reason = "its chunk is not in this staging directory: it was dumped into another one"
            self._tasks.break_attempt(high.mark, reason)

    def _overlap(self, high: High) -> Overlap:
        if not self._visibility.admits(high.snapshot, high.mark.table):
            reason = "its SELECT may not have seen what was logged before the log was first opened, or showed the table"
            self._tasks.break_attempt(high.mark, reason)
        try:
            return self._windows.close(high.mark.window, high.snapshot)
        except UnknownWindow:
            self._tasks.break_attempt(high.mark, "its window was given up")
        except TooManyKeys:
            self._tasks.break_attempt(high.mark, "more keys of its table changed meanwhile than are remembered")
        raise AssertionError("void() raises")

    def _finished(self, mark: Mark) -> Finished | None:
        """The end of a dump's last task for the table, where that shows ghosts."""
        dump = mark.task.dump
        done = [p for p in self._tasks.of(dump, mark.table) if p.done]
        if mark.heals is None or len(done) < mark.parts:
            return None
        since = min(p.since for p in done)
        segment = min(p.since_segment for p in done)
        return Finished(mark.table, dump, since, segment, mark.heals)

    def open_probe(self, probe: Probe, *, offset: int, at: int) -> None:
        """Opens the window of a verification right after `offset`; `at`: the watermark's commit time."""
        if probe.window not in self._probes:
            self._windows.open(probe.window, TableName.parse(probe.table), offset)
            self._probes[probe.window] = OpenWindow(probe.table, "", at)

    def close_probe(self, probe: Probe) -> int | None:
        """The largest offset before every event that the SELECT of a verification may not have seen.

        None: nobody can tell (its low watermark lies before a restart, the table was altered meanwhile, or it may not
        have seen what was logged before the log was first opened), so it must be read again.
        """
        was_open = self._probes.pop(probe.window, None) is not None
        if not was_open or not self._visibility.admits(probe.snapshot, probe.table):
            self._windows.discard(probe.window)
            return None
        return self._windows.close_probe(probe.window, probe.snapshot)

    # Housekeeping ---------------------------------------------------------------------------------------------------

    def forget_dumps(self, is_over: Callable[[str, Collection[int]], bool]) -> None:
        """Drops the tasks of dumps that are over by `is_over(dump id, numbers of its tasks that are not done here)`,
        which is asked once for each."""
        unfinished: dict[str, list[int]] = {}
        for task, progress in self._tasks.all().items():
            numbers = unfinished.setdefault(task.dump, [])
            if not progress.done:
                numbers.append(task.number)
        over = {dump for dump, numbers in unfinished.items() if is_over(dump, numbers)}
        self._tasks.forget([task for task in self._tasks if task.dump in over])
        self._discard_void()

    def expire_windows(self, now: float, patience: float) -> None:
        """Drops windows that were open at a look `patience` seconds ago, and at each since: their worker is gone.

        `now`: seconds of one clock, ours, in each call. When the low watermark was committed is what another clock
        says, and may be long ago where the log is read late.
        """
        self._met = {window: self._met.get(window, now) for window in (*self._opened, *self._probes)}
        gone = [window for window, met in self._met.items() if now - met >= patience]
        for window in self._opened.keys() & set(gone):
            self._tasks.expire(window)
        self._drop_probes([window for window in gone if window in self._probes])
        self._discard_void()

    def break_attempts(self, broken: Mapping[TaskId, TaskProgress]) -> None:
        """Takes the progress of tasks whose watermarks the log may not show (`term_start.break_attempts`)."""
        self._tasks.break_attempts(broken)
        self._discard_void()

    def give_up_window(self, window: str) -> None:
        """Drops a window, of a dump or of a verification, whose worker never learnt that it is open."""
        if window in self._tasks.windows():
            self._tasks.expire(window)
        if self._probes.pop(window, None) is not None:
            self._windows.discard(window)
        self._discard_void()

    def open_windows(self) -> list[OpenWindow]:
        return list(self._opened.values())

    def earliest_unseen(self, offset: int) -> int:
        """The largest offset, `offset` at most, before every event that a SELECT from now on may not see."""
        return self._windows.earliest_unseen(offset)

    def progress(self) -> dict[TaskId, TaskProgress]:
        """For the manifest: what a restart continues from."""
        return self._tasks.all()

    def take_progress(self) -> dict[TaskId, TaskProgress]:
        """Tasks whose progress has changed since the last call (at first: all)."""
        return self._tasks.take_changes()

    @property
    def has_changes(self) -> bool:
        """Whether `take_progress` would give anything."""
        return self._tasks.has_changes

    def _drop_probes(self, windows: Iterable[str]) -> None:
        for window in windows:
            del self._probes[window]
            self._windows.discard(window)

    def _discard_void(self) -> None:
        for window in self._tasks.take_void():
            self._windows.discard(window)
            self._opened.pop(window, None)


def _overlapping(
    overlap: Overlap, count: int, rows: RowsWith
) -> tuple[tuple[int, ...], tuple[tuple[int, Survivor], ...], set[Key]]:
    """Numbers of the rows that the log knows better, what survives of them, and their keys."""
    if overlap.everything:
        return tuple(range(count)), (), set()
    if not count or not overlap.rows:
        return (), (), set()
    keys = {number: key for number, key in rows(overlap.rows) if key in overlap.rows}
    survivors = [(number, overlap.rows[key]) for number, key in keys.items()]
    return tuple(keys), tuple((number, rest) for number, rest in survivors if rest is not None), set(keys.values())


def _look(high: High, overlap: Overlap, overlapping_keys: set[Key]) -> Look:
    """What a chunk of keys that rows have arrived at tells; `overlapping_keys`: keys of the overlap that it
    has."""
    missed = {
        key_text(key): None if first is None else key_text(first)
        for key, first in overlap.partial.items()
        if first not in overlapping_keys
    }
    return Look(frozenset(high.arrived), frozenset(map(key_text, overlap.touched)), missed, high.whole)


def _moves(keys: Iterable[tuple[Key, Key]]) -> Iterator[Move]:
    return ((key_text(key), key_text(to)) for key, to in keys)


__all__ = ["Chunks", "Finished", "OpenWindow", "Placement", "Refused"]
