"""Dump tasks as the capture sees them: which watermark counts, and how far each task has come.

A task is one table, a key range or some listed keys of it, read chunk by chunk by one worker at a time. Each worker
that takes the task up writes a higher `attempt`; chunks are numbered by `ordinal` over all attempts. A chunk is placed
only if it is the task's next one, of the newest attempt, and its window was open from its low watermark on. Anything
else *breaks* the attempt: nothing more of it is placed, the worker sees that in the task's progress, and starts a new
attempt after the last placed chunk. So a zombie worker, a restart of the capture and a lost window all end the same
way, and no chunk is lost or placed twice.

A dump that *heals* has brought, at its end, every value of every row that lives. One thing stands between it and that:
rows that change their key while the dump reads (`arrivals`). A worker reads the keys of their trails among its chunks.
The last task is done once no trail is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, Self

from dblog_core.algorithm import arriving_rows
from dblog_core.algorithm.arriving_rows import LOOKS, Look, Move, Trail
from dblog_core.model.task_id import TaskId
from dblog_core.model.watermark import High, Low, Mark

BROUGHT = 50_000
"""Keys of rows that have been brought, remembered at most for a table of a dump: some 10 MB."""
_HEALING = frozenset({"parts", "arrived", "ended", "looks", "looks_in_vain", "forgotten"})


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """How far a task has come, by what manifests hold.

    `ordinal`: chunks placed; `key`: JSON key that the next chunk starts after; `broken`: newest attempt that cannot
    continue (0: none); `since`, `since_segment`: an offset before every event that any SELECT of this task may not have
    seen, and the segment where its chunks begin; `began`, `at`: commit times (microseconds UTC, 0: none yet) of its
    first low watermark and of its last placed chunk.

    Of a dump that heals: `parts`: its tasks for the table (0: it does not heal); `arrived`: trails of rows that a
    worker of this task is to look for; `ended`: those are all that is left of it; `looks`: chunks of trails' keys since
    then; `looks_in_vain`: the last ones of them in a row that left no trail fewer; `forgotten`: there were more trails,
    or looks in vain, than a dump takes.
    """

    table: str
    attempt: int = 0
    ordinal: int = 0
    key: Any = None
    rows: int = 0
    evicted: int = 0
    broken: int = 0
    reason: str = ""
    since: int = 0
    since_segment: int = 1
    began: int = 0
    at: int = 0
    done: bool = False
    parts: int = 0
    arrived: tuple[Trail, ...] = ()
    ended: bool = False
    looks: int = 0
    looks_in_vain: int = 0
    forgotten: bool = False

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        # A manifest from before there were trails has the keys alone.
        trails = tuple((trail,) if isinstance(trail, str) else tuple(trail) for trail in data.get("arrived", ()))
        return cls(**{**data, "arrived": trails})

    def to_json(self) -> dict[str, Any]:
        """Without what is not the case: every manifest has that of every task."""
        return {name: value for name, value in asdict(self).items() if value or name not in _HEALING}

    def follows(self, other: TaskProgress) -> bool:
        """Whether this may stand in a later manifest than `other`, of the same task: these numbers never fall."""
        return all(
            later >= earlier
            for later, earlier in (
                (self.attempt, other.attempt),
                (self.ordinal, other.ordinal),
                (self.broken, other.broken),
                (self.done, other.done),
            )
        )


def tasks_from_json(data: Mapping[str, dict[str, Any]]) -> dict[TaskId, TaskProgress]:
    """The tasks of a manifest."""
    return {TaskId.parse(task): TaskProgress.from_json(progress) for task, progress in data.items()}


def tasks_to_json(tasks: Mapping[TaskId, TaskProgress]) -> dict[str, dict[str, Any]]:
    """The tasks as a manifest has them."""
    return {str(task): progress.to_json() for task, progress in tasks.items()}


class Refused(Exception):
    """A watermark that changes nothing or breaks its attempt; the text is the reason, for the worker's log."""


class Tasks:
    """The progress of every task whose watermarks this capture has met, and the windows that its attempts opened."""

    def __init__(self, tasks: Mapping[TaskId, TaskProgress] | None = None) -> None:
        """`tasks`: those of the newest manifest."""
        self._tasks = dict(tasks or {})
        self._of_table: dict[str, list[TaskId]] = {}
        for task, progress in self._tasks.items():
            self._of_table.setdefault(progress.table, []).append(task)
        self._windows: dict[str, Mark] = {}
        self._brought: dict[tuple[str, str], set[str]] = {}  # by dump and table: keys of rows that need no look
        self._void: list[str] = []
        self._changed: set[TaskId] = set(self._tasks)

    def __iter__(self) -> Iterator[TaskId]:
        return iter(self._tasks)

    def __getitem__(self, task: TaskId) -> TaskProgress:
        return self._tasks[task]

    def knows_dump(self, task: TaskId) -> bool:
        """Whether we have progress of the task's dump."""
        return task in self._tasks or any(other.dump == task.dump for other in reversed(self._tasks))  # newest first

    def admit_low(self, low: Low, *, since: int, segment: int, at: int = 0) -> None:
        """Opens the watermark's window; `at`: its commit time. Raises Refused."""
        mark = low.mark
        progress = self._require_current(mark)
        if mark.attempt > progress.attempt:
            self._drop(w for w, m in self._windows.items() if m.task == mark.task)
            progress = replace(progress, attempt=mark.attempt)
            if mark.ordinal != progress.ordinal:
                self._put(mark.task, progress)
                self._break(mark, f"it begins at chunk {mark.ordinal}, and {progress.ordinal} are placed")
        if mark.ordinal == 0:
            progress = replace(progress, since=since, since_segment=segment, began=progress.began or at)
        self._put(mark.task, replace(progress, parts=0 if mark.heals is None else mark.parts))
        self._windows[mark.window] = mark

    def refuse_low(self, low: Low, reason: str) -> None:
        """No chunk that is SELECTed now can be placed: the watermark's attempt is over. Raises Refused."""
        progress = self._require_current(low.mark)
        if low.mark.attempt > progress.attempt:
            self._drop(w for w, m in self._windows.items() if m.task == low.mark.task)
        self._break(low.mark, reason)

    def _require_current(self, mark: Mark) -> TaskProgress:
        """The progress of a low watermark's task. Raises Refused where another attempt has begun, or has come this
        far."""
        progress = self._tasks.get(mark.task, TaskProgress(mark.table))
        if progress.done or mark.attempt < progress.attempt or mark.attempt <= progress.broken:
            raise Refused("the watermark belongs to an attempt that is over")
        if mark.attempt == progress.attempt and mark.ordinal < progress.ordinal:
            raise Refused("its chunk is placed")  # an announcement that was read before it was removed
        return progress

    def admit_high(self, high: High) -> None:
        """Passes if the chunk is the one to place now. Raises Refused."""
        mark = high.mark
        progress = self._tasks.get(mark.task, TaskProgress(mark.table))
        if progress.done or mark.attempt < progress.attempt or mark.attempt <= progress.broken:
            raise Refused("the watermark belongs to an attempt that is over")
        if self._windows.pop(mark.window, None) is None:
            self._break(mark, "its window was not open: the capture has restarted since the low watermark")
        if mark.ordinal != progress.ordinal:
            self._break(mark, f"chunk {mark.ordinal} came where {progress.ordinal} is next")

    def record_placed_chunk(self, high: High, *, evicted: int, at: int = 0, has_met_row: bool = False) -> TaskProgress:
        """The chunk stands in the segment that is being made; `has_met_row`: by `record_look`."""
        task = high.mark.task
        progress = self._tasks[task]
        trails = self._trails_to_read(task) if high.final else None
        is_look = high.final and progress.ended
        looks_in_vain = 0 if has_met_row else progress.looks_in_vain + is_look
        if trails and looks_in_vain >= LOOKS:
            progress = replace(progress, forgotten=True)
            self._put(task, progress)
            trails = ()
        progress = replace(
            progress,
            ordinal=progress.ordinal + 1,
            key=high.last_key if high.last_key is not None else progress.key,
            rows=progress.rows + high.rows + len(high.absent),
            evicted=progress.evicted + evicted,
            at=at,
            arrived=progress.arrived if trails is None else trails,
            ended=high.final,
            looks=progress.looks + is_look,
            looks_in_vain=looks_in_vain,
            done=high.final and not trails,
        )
        self._put(task, progress)
        return progress

    # Rows that have arrived -----------------------------------------------------------------------------------------

    def is_healing(self, table: str) -> bool:
        """Whether a dump that heals is reading the table."""
        return any(True for _ in self._healing(table))

    def is_followed(self, mark: Mark) -> bool:
        """Whether the watermark's dump takes up moves of its table already: one of its tasks there has begun."""
        return any(progress.parts for progress in self.of(mark.task.dump, mark.table))

    def record_moves(self, table: str, moves: Iterable[Move]) -> None:
        """Rows have moved, in this order, and the log left columns of them out. Each move is given once."""
        dumps = list(self._healing(table))
        new_moves = list(moves) if dumps else []
        for tasks in dumps if new_moves else []:
            self._follow_moves(tasks, new_moves)

    def record_earlier_moves(self, task: TaskId, moves: Iterable[Move]) -> None:
        """As `record_moves`, of moves from before the first task of this dump began with the table: other dumps have
        followed them, and the rows of today may be others than those that had these keys then."""
        if earlier_moves := list(moves):
            self._follow_moves(self._beside(task), earlier_moves)

    def _follow_moves(self, tasks: list[TaskId], moves: list[Move]) -> None:
        """`tasks`: those of one dump for the table."""
        before = tuple(chain.from_iterable(self._tasks[task].arrived for task in tasks))
        whole_rows = self._whole_rows(tasks[0])
        trails = arriving_rows.follow_moves(before, moves, whole_rows, all_read=self._all_read(tasks))
        owner = min(tasks, key=lambda name: (self._tasks[name].done, name))
        short = arriving_rows.shorten(trails)
        if short is None:
            self._put(owner, replace(self._tasks[owner], forgotten=True))
            return
        for task in tasks:
            self._put(task, replace(self._tasks[task], arrived=short if task == owner else ()))

    def record_look(self, task: TaskId, look: Look) -> bool:
        """Takes what a chunk of the task says about rows that have arrived; whether it leaves fewer trails."""
        whole_rows = self._whole_rows(task)
        has_met_row = False
        for name in self._beside(task):
            trails = self._tasks[name].arrived
            left = arriving_rows.apply_look(trails, look, whole_rows)
            has_met_row |= len(left) < len(trails)
            self._put(name, replace(self._tasks[name], arrived=left))
        return has_met_row

    def has_forgotten_rows(self, task: TaskId) -> bool:
        """Whether more rows have arrived than the task's dump remembers."""
        return any(self._tasks[name].forgotten for name in self._beside(task))

    def forget_arrivals(self, table: str) -> None:
        """The table no longer has rows."""
        for task in self._of_table.get(table, ()):
            self._put(task, replace(self._tasks[task], arrived=()))
            self._brought.pop(self._heap(task), None)

    def _whole_rows(self, task: TaskId) -> set[str]:
        """Keys of rows of the task's table that its dump has brought whole, and that it knows of."""
        keys = self._brought.setdefault(self._heap(task), set())
        if len(keys) > BROUGHT:
            keys.clear()  # costs looks, and no row
        return keys

    def _heap(self, task: TaskId) -> tuple[str, str]:
        """The task's dump and table."""
        return task.dump, self._tasks[task].table

    def _all_read(self, tasks: list[TaskId]) -> bool:
        """Whether no range of a dump is left to be read."""
        progress = [self._tasks[task] for task in tasks]
        return sum(p.done or p.ended for p in progress) >= max(p.parts for p in progress)

    def _healing(self, table: str) -> Iterator[list[TaskId]]:
        """The tasks, as far as they have begun, of each dump that heals and is reading the table."""
        dumps: dict[str, list[TaskId]] = {}
        for task in self._of_table.get(table, ()):
            dumps.setdefault(task.dump, []).append(task)
        for tasks in dumps.values():
            parts = max(self._tasks[task].parts for task in tasks)
            if sum(self._tasks[task].done for task in tasks) < parts:
                yield tasks

    def _beside(self, task: TaskId) -> list[TaskId]:
        """The tasks of the same dump for the same table, itself among them."""
        return [other for other in self._of_table[self._tasks[task].table] if other.dump == task.dump]

    def _trails_to_read(self, task: TaskId) -> tuple[Trail, ...] | None:
        """What the last task has still to read at its end, which is what is left of all; None: it is not the last."""
        others = [name for name in self._beside(task) if name != task]
        progress = self._tasks[task]
        if sum(self._tasks[name].done for name in others) + 1 < progress.parts:
            return None
        if self.has_forgotten_rows(task):
            return ()  # what they tell together heals nothing
        trails = (*progress.arrived, *chain.from_iterable(self._tasks[name].arrived for name in others))
        for name in others:
            self._put(name, replace(self._tasks[name], arrived=()))
        return trails

    # Housekeeping ---------------------------------------------------------------------------------------------------

    def break_attempt(self, mark: Mark, reason: str) -> None:
        """The chunk cannot be placed for a reason outside its numbering: its attempt is over. Raises Refused."""
        self._drop([mark.window] if mark.window in self._windows else [])
        self._break(mark, reason)

    def break_attempts(self, broken: Mapping[TaskId, TaskProgress]) -> None:
        """Takes this progress of tasks whose attempts are broken outside of the log."""
        changed = {task for task, progress in broken.items() if self._tasks.get(task) != progress}
        for task in changed:
            self._put(task, broken[task])
        self._drop([window for window, mark in self._windows.items() if mark.task in changed])

    def forget(self, tasks: Iterable[TaskId]) -> None:
        """Drops tasks of dumps that are over, and their windows."""
        names = dict.fromkeys(tasks)
        for task in names:
            if task in self._tasks:
                self._brought.pop(self._heap(task), None)
                self._of_table[self._tasks.pop(task).table].remove(task)
            self._changed.discard(task)
        self._drop(w for w, m in self._windows.items() if m.task in names)

    def expire(self, window: str) -> None:
        """Drops a window whose high watermark did not come; if it comes yet, it breaks its attempt."""
        self._drop([window])

    def take_void(self) -> list[str]:
        """Windows that were dropped since the last call: nothing will be placed from them."""
        void = self._void
        self._void = []
        return void

    def of(self, dump: str, table: str) -> list[TaskProgress]:
        """The progress of every task of the dump that reads the table."""
        return [self._tasks[task] for task in self._of_table.get(table, ()) if task.dump == dump]

    def windows(self) -> dict[str, Mark]:
        return dict(self._windows)

    def all(self) -> dict[TaskId, TaskProgress]:
        """For the manifest: what a restart continues from."""
        return dict(self._tasks)

    def take_changes(self) -> dict[TaskId, TaskProgress]:
        """Tasks whose progress has changed since the last call (at first: all)."""
        changed = {task: self._tasks[task] for task in sorted(self._changed)}
        self._changed.clear()
        return changed

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    def _drop(self, windows: Iterable[str]) -> None:
        for window in list(windows):
            del self._windows[window]
            self._void.append(window)

    def _break(self, mark: Mark, reason: str) -> None:
        progress = self._tasks.get(mark.task, TaskProgress(mark.table))
        attempt = max(progress.attempt, mark.attempt)
        self._put(mark.task, replace(progress, attempt=attempt, broken=mark.attempt, reason=reason))
        raise Refused(reason)

    def _put(self, task: TaskId, progress: TaskProgress) -> None:
        before = self._tasks.get(task)
        if before != progress:
            if before is None:
                self._of_table.setdefault(progress.table, []).append(task)
            self._tasks[task] = progress
            self._changed.add(task)
