"""Removes dumps of long ago from the state store, so that it does not grow with every dump that ever was.

A dump goes when it has been over for `[dump] keep`, or when MOST newer ones are over too; never within SHORTEST, in
which a waiting process still sees its end, and while a channel of notices has not reported that end, not before LONG
times as long. The leader looks now and then. When a dump was over is what the leader's clock said when it saw that
first: no other clock has to be right.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
import threading
from collections.abc import Collection, Iterator

from dblog_core.dumps import dump_store
from dblog_core.errors import DblogError
from dblog_core.interfaces import Clock, StateStore
from dblog_core.notifications.delivery import has_told_end

log = logging.getLogger(__name__)

LOOK = 600.0  # seconds between two looks
FIRST = 30.0  # seconds of a term before the first: terms may be short, and begin with better things to do
MOST = 5_000
SHORTEST = 3600.0
LONG = 4
_AWAY = 1_000  # dumps that one look removes at most
_UNFILED = dt.timedelta(days=2)  # after which tasks without a dump are those of a request that was never filed


def remove(state: StateStore, clock: Clock, stop: threading.Event, *, keep: float) -> None:
    """Looks until `stop` is set; `keep`: seconds, infinite: forever."""
    ended = EndedDumps(state, clock, keep=keep)
    wait = FIRST
    while not clock.wait(stop, wait):
        wait = LOOK
        try:
            ended.look(stop)
        except DblogError as error:
            log.warning("dumps of long ago are not removed: %s", error)


class EndedDumps:
    """What is known of dumps that are over; for one thread."""

    def __init__(self, state: StateStore, clock: Clock, *, keep: float) -> None:
        self._state = state
        self._clock = clock
        self._keep = keep
        self._ended: dict[str, float] = {}  # by dump: when it was over, seconds UTC

    def look(self, stop: threading.Event) -> None:
        """Removes what is due. Raises StateError."""
        dump_store.list_unfinished_dumps(self._state)  # records what has ended
        ids = self._state.children("dumps")
        self._ended = {dump_id: at for dump_id, at in self._ended.items() if dump_id in set(ids)}
        unknown = [dump_id for dump_id in ids if dump_id not in self._ended]
        self._take_in(unknown)
        dump_store.register_unfinished_dumps(
            self._state, [dump_id for dump_id in unknown if dump_id not in self._ended]
        )
        for dump_id in [*self._due(), *self._tasks_without_dump(unknown)][:_AWAY]:
            if stop.is_set():
                return
            dump_store.remove_dump(self._state, dump_id)
            self._ended.pop(dump_id, None)

    def _take_in(self, ids: list[str]) -> None:
        """Notes when dumps were over, also in the state store: for the next leader."""
        for dump_id, record in zip(ids, dump_store.read_records(self._state, ids), strict=True):
            if record is None or not record.over:
                continue
            over_at = record.over_at
            if over_at is None:
                over_at = self._clock.time()
                dump_store.record_end_time(self._state, dump_id, over_at)
            self._ended[dump_id] = over_at

    def _due(self) -> Iterator[str]:
        if math.isinf(self._keep):
            return
        now = self._clock.time()
        newest = sorted(self._ended, key=lambda dump_id: (self._ended[dump_id], dump_id), reverse=True)
        newest_few = set(newest[:MOST])
        channels = self._state.children("notify")
        for dump_id in reversed(newest):
            age = now - self._ended[dump_id]
            over = age >= self._keep or dump_id not in newest_few
            if age >= SHORTEST and over and (age >= LONG * self._keep or self._all_told(dump_id, channels)):
                yield dump_id

    def _all_told(self, dump_id: str, channels: Collection[str]) -> bool:
        """Whether every channel knows of the dump's end, or began after it."""
        (record,) = dump_store.read_records(self._state, [dump_id])
        return record is None or has_told_end(self._state, dump_id, record.requested_at, channels)

    def _tasks_without_dump(self, ids: list[str]) -> Iterator[str]:
        """Tasks whose request died before it was filed, or that came while their dump was removed: by the time in
        their dump's id, which was another's clock, so after days."""
        now = dt.datetime.fromtimestamp(self._clock.time(), dt.UTC)
        for dump_id, record in zip(ids, dump_store.read_records(self._state, ids), strict=True):
            filed_at = _time_of(dump_id)
            if record is None and filed_at is not None and now - filed_at > _UNFILED:
                yield dump_id


def _time_of(dump_id: str) -> dt.datetime | None:
    try:
        return dt.datetime.strptime(dump_id[:15], "%Y%m%dT%H%M%S").replace(tzinfo=dt.UTC)
    except ValueError:
        return None
