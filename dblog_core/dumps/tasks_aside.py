"""Tasks of a worker whose chunks are all read and wait to be placed: kept aside, while the worker reads for others.

A capture publishes a few times a second, so a worker that waited for each task would read a few small tables a
second. A task that has something left to be done, since its attempt is broken or rows have arrived, is given back:
whoever takes it next goes on after its last placed chunk.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from dblog_core.dumps import dump_store
from dblog_core.dumps.dump_records import OVER
from dblog_core.dumps.task_lease import Hold, Workplace
from dblog_core.errors import RequestError

log = logging.getLogger(__name__)

MOST = 64  # tasks of one worker
LOOK = 0.1  # seconds between two looks


@dataclass(frozen=True, slots=True)
class _Waiting:
    hold: Hold
    attempt: int
    ordinal: int


class Aside:
    """For one worker's thread; `give_back` is called with each task that is not to be kept any longer."""

    def __init__(self, place: Workplace, give_back: Callable[[Hold], None]) -> None:
        self._place, self._give_back = place, give_back
        self._waiting: list[_Waiting] = []
        self._next = -math.inf

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        return len(self._waiting) >= MOST

    def add(self, hold: Hold, *, attempt: int, ordinal: int) -> None:
        """`ordinal`: the chunk after the last one that is read."""
        self._waiting.append(_Waiting(hold, attempt, ordinal))

    def look(self) -> None:
        """Gives back what is placed, or needs somebody; now and then, however often it is called."""
        now = self._place.clock.monotonic()
        if not self._waiting or now < self._next:
            return
        self._next = now + LOOK
        waiting = self._waiting
        progress = dump_store.read_all_progress(
            self._place.state, [(w.hold.task_id, w.hold.task.table) for w in waiting]
        )
        over = {dump_id for dump_id in dict.fromkeys(w.hold.dump_id for w in waiting) if self._is_over(dump_id)}
        self._waiting = []
        for one, placed in zip(waiting, progress, strict=True):
            broken = placed.broken >= one.attempt or placed.attempt > one.attempt
            if broken:
                log.info("%s: a new attempt: %s", one.hold, placed.reason or "somebody has begun one")
            ended = placed.done or placed.ordinal >= one.ordinal or one.hold.dump_id in over
            if broken or ended or not one.hold.held():
                self._give_back(one.hold)
            else:
                self._waiting.append(one)

    def release(self) -> None:
        """Gives all of them back."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self._give_back(one.hold)

    def _is_over(self, dump_id: str) -> bool:
        try:
            return dump_store.read_settings(self._place.state, dump_id)[0] in OVER
        except RequestError:
            return True  # it is gone
