"""Tasks of a worker whose chunks are all read and wait to be placed: kept aside, while the worker reads for others.

A capture publishes a few times a second, so a worker that waited for each task would read a few small tables a second.
A task that has something left to be done, since its attempt is broken or rows have arrived, is given back: the worker
that takes it next continues after its last placed chunk.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from dblog_core.dumps import dump_store, task_store
from dblog_core.dumps.dump_records import OVER
from dblog_core.dumps.task_lease import Hold, WorkerContext
from dblog_core.errors import RequestError

log = logging.getLogger(__name__)

MOST = 64  # tasks of one worker
_POLL_SECONDS = 0.1  # between two looks


@dataclass(frozen=True, slots=True)
class _Waiting:
    hold: Hold
    attempt: int
    ordinal: int


class TasksAside:
    """For one worker's thread; `give_back` is called with each task that is not to be kept any longer."""

    def __init__(self, worker: WorkerContext, give_back: Callable[[Hold], None]) -> None:
        self._worker = worker
        self._give_back = give_back
        self._waiting: list[_Waiting] = []
        self._next = -math.inf

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= MOST

    def add(self, hold: Hold, *, attempt: int, ordinal: int) -> None:
        """`ordinal`: the chunk after the last one that is read."""
        self._waiting.append(_Waiting(hold, attempt, ordinal))

    def look(self) -> None:
        """Gives back what is placed, or needs somebody; now and then, however often it is called."""
        now = self._worker.clock.monotonic()
        if not self._waiting or now < self._next:
            return
        self._next = now + _POLL_SECONDS
        waiting = self._waiting
        progress = task_store.read_all_progress(
            self._worker.state, [(w.hold.task_id, w.hold.task.table) for w in waiting]
        )
        over = {dump_id for dump_id in dict.fromkeys(w.hold.dump_id for w in waiting) if self._is_over(dump_id)}
        self._waiting = []
        for task, placed in zip(waiting, progress, strict=True):
            is_broken = placed.broken >= task.attempt or placed.attempt > task.attempt
            if is_broken:
                log.info("%s: a new attempt: %s", task.hold, placed.reason or "somebody has begun one")
            has_ended = placed.done or placed.ordinal >= task.ordinal or task.hold.dump_id in over
            if is_broken or has_ended or not task.hold.is_held():
                self._give_back(task.hold)
            else:
                self._waiting.append(task)

    def release(self) -> None:
        """Gives all of them back."""
        waiting = self._waiting
        self._waiting = []
        for task in waiting:
            self._give_back(task.hold)

    def _is_over(self, dump_id: str) -> bool:
        try:
            return dump_store.read_settings(self._worker.state, dump_id)[0] in OVER
        except RequestError:
            return True  # it is gone
