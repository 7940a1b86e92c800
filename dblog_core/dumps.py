"""Dump tasks as the capture sees them: which watermark counts, and how far each task has come.

A task is one table, a key range or some listed keys of it, read chunk by chunk by one worker at a time. Each worker
that takes the task up writes a higher `attempt`; chunks are numbered by `ordinal` over all attempts. A chunk is placed
only if it is the task's next one, of the newest attempt, and its window was open from its low watermark on. Anything
else *breaks* the attempt: nothing more of it is placed, the worker sees that in the task's progress, and starts a new
attempt after the last placed chunk. So a zombie worker, a restart of the capture and a lost window all end the same
way, and no chunk is lost or placed twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from dblog_core.watermark import High, Low, Mark


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """How far a task has come, by what manifests hold.

    `ordinal`: chunks placed; `key`: JSON key that the next chunk starts after; `broken`: newest attempt that cannot go
    on (0: none); `since`, `since_segment`: an offset before every event that any SELECT of this task may not have seen,
    and the segment where its chunks begin; `began`, `at`: commit times (microseconds UTC, 0: none yet) of its first low
    watermark and of its last placed chunk.
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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def follows(self, other: TaskProgress) -> bool:
        """Whether this may stand in a later manifest than `other`, of the same task: none of these ever falls."""
        return all(
            mine >= theirs
            for mine, theirs in (
                (self.attempt, other.attempt),
                (self.ordinal, other.ordinal),
                (self.broken, other.broken),
                (self.done, other.done),
            )
        )


class Refused(Exception):
    """A watermark that changes nothing or breaks its attempt; the text is the reason, for the worker's log."""


class Tasks:
    """The progress of every task whose watermarks this capture has met, and the windows that its attempts opened."""

    def __init__(self, progress: dict[str, Any] | None = None) -> None:
        self._tasks = {task: TaskProgress(**data) for task, data in (progress or {}).items()}
        self._windows: dict[str, Mark] = {}
        self._void: list[str] = []
        self._changed: set[str] = set(self._tasks)

    def __getitem__(self, task: str) -> TaskProgress:
        return self._tasks[task]

    def low(self, low: Low, *, since: int, segment: int, at: int = 0) -> None:
        """Opens the watermark's window; `at`: its commit time. Raises Refused."""
        mark = low.mark
        progress = self._tasks.get(mark.task, TaskProgress(mark.table))
        if progress.done or mark.attempt < progress.attempt or mark.attempt <= progress.broken:
            raise Refused("the watermark belongs to an attempt that is over")
        if mark.attempt == progress.attempt and mark.ordinal < progress.ordinal:
            raise Refused("its chunk is placed")  # an announcement that was read before it was removed
        if mark.attempt > progress.attempt:
            self._drop(w for w, m in self._windows.items() if m.task == mark.task)
            progress = replace(progress, attempt=mark.attempt)
            if mark.ordinal != progress.ordinal:
                self._put(mark.task, progress)
                self._break(mark, f"it begins at chunk {mark.ordinal}, and {progress.ordinal} are placed")
        if mark.ordinal == 0:
            progress = replace(progress, since=since, since_segment=segment, began=progress.began or at)
        self._put(mark.task, progress)
        self._windows[mark.window] = mark

    def high(self, high: High) -> None:
        """Passes if the chunk is the one to place now. Raises Refused."""
        mark = high.mark
        progress = self._tasks.get(mark.task, TaskProgress(mark.table))
        if progress.done or mark.attempt < progress.attempt or mark.attempt <= progress.broken:
            raise Refused("the watermark belongs to an attempt that is over")
        if self._windows.pop(mark.window, None) is None:
            self._break(mark, "its window was not open: the capture has restarted since the low watermark")
        if mark.ordinal != progress.ordinal:
            self._break(mark, f"chunk {mark.ordinal} came where {progress.ordinal} is next")

    def placed(self, high: High, *, evicted: int, at: int = 0) -> TaskProgress:
        """The chunk stands in the segment that is being made."""
        progress = self._tasks[high.mark.task]
        progress = replace(
            progress,
            ordinal=progress.ordinal + 1,
            key=high.last_key if high.last_key is not None else progress.key,
            rows=progress.rows + high.rows + len(high.absent),
            evicted=progress.evicted + evicted,
            at=at,
            done=high.final,
        )
        self._put(high.mark.task, progress)
        return progress

    def void(self, mark: Mark, reason: str) -> None:
        """The chunk cannot be placed for a reason outside its numbering: its attempt is over. Raises Refused."""
        self._drop([mark.window] if mark.window in self._windows else [])
        self._break(mark, reason)

    def forget(self, gone: Iterable[str]) -> None:
        """Drops tasks of dumps that are over, and their windows."""
        names = dict.fromkeys(gone)
        for task in names:
            self._tasks.pop(task, None)
            self._changed.discard(task)
        self._drop(w for w, m in self._windows.items() if m.task in names)

    def expire(self, window: str) -> None:
        """Drops a window whose high watermark did not come; if it comes yet, it breaks its attempt."""
        self._drop([window])

    def take_void(self) -> list[str]:
        """Windows that were dropped since the last call: nothing will be placed from them."""
        void, self._void = self._void, []
        return void

    def of(self, dump: str, table: str) -> list[TaskProgress]:
        """The progress of every task of the dump that reads the table."""
        return [p for task, p in self._tasks.items() if p.table == table and task.partition("/")[0] == dump]

    def windows(self) -> dict[str, Mark]:
        return dict(self._windows)

    def to_json(self) -> dict[str, Any]:
        """For the manifest: what a restart goes on from."""
        return {task: progress.to_json() for task, progress in self._tasks.items()}

    def take_changed(self) -> dict[str, TaskProgress]:
        """Tasks whose progress has changed since the last call (at first: all)."""
        changed = {task: self._tasks[task] for task in sorted(self._changed)}
        self._changed.clear()
        return changed

    @property
    def changed(self) -> bool:
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

    def _put(self, task: str, progress: TaskProgress) -> None:
        if self._tasks.get(task) != progress:
            self._tasks[task] = progress
            self._changed.add(task)
