"""How a merge that runs for a slice of time leaves the lake to the next one, whose Spark has started by then.

    holder of the lake          who is next
    (its slice is over)         holds the lease NEXT, and waits
    writes OVER, merges on  ->  starts Spark
    ends                    <-  writes READY, waits for the lake

A node counts for the epoch that it names alone: what a process left that died says nothing to its successors. Should
either die on the way, the lake's own lock decides, as between any two merges.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import orjson

from dblog_core.clock import SystemClock
from dblog_core.errors import LakeBusy, StateUnavailable
from dblog_core.interfaces import Clock, StateStore
from dblog_core.lake_engine.merging.lock import LEASE
from dblog_core.state import compare_and_set
from dblog_core.state.lease_holder import give_back, holder_name

NEXT = "merge_next"
"""The lease of the process that merges next."""
OVER = "merge_handover/over"
"""Node: the epoch of the merge whose slice is over."""
READY = "merge_handover/ready"
"""Node: the epoch of the next one's lease, once its Spark has started."""

GRACE_SECONDS = 600.0
"""After a slice, for somebody to be next; then the merge ends all the same, so that Airflow starts another."""
_LOOK_SECONDS = 1.0


class Slice:
    """The time for which a merge holds the lake."""

    def __init__(self, state: StateStore, seconds: float, clock: Clock | None = None) -> None:
        """`seconds` from now on. The caller holds the lake's lease."""
        self._state = state
        self._clock = clock or SystemClock()
        self._ends = self._clock.monotonic() + seconds
        self._looks_again = self._ends
        self._has_said_so = False

    def is_over(self) -> bool:
        """Whether the slice is over, and who is next is ready for the lake; or nobody was next for all of the grace.

        While the state store cannot be reached it is not over: whether the merge may continue, its lease says.
        """
        now = self._clock.monotonic()
        if now < self._looks_again:
            return False
        self._looks_again = now + _LOOK_SECONDS
        try:
            following = self._state.leader(NEXT)
            if following is None:
                return now >= self._ends + GRACE_SECONDS
            if not self._has_said_so and (merging := self._state.leader(LEASE)) is not None:
                _put(self._state, OVER, merging.epoch)
                self._has_said_so = True
            return _epoch(self._state, READY) == following.epoch
        except StateUnavailable:
            return False


@contextmanager
def in_line(
    state: StateStore, *, ttl: float, go_on: Callable[[], bool], clock: Clock | None = None
) -> Iterator[Callable[[], None]]:
    """Waits to be next, and then until the lake is free or its holder's slice is over; yields what says that we are
    ready. Raises LakeBusy once `go_on` says no."""
    clock = clock or SystemClock()
    never = threading.Event()
    while (lease := state.acquire(NEXT, holder_name(), ttl=ttl, wait=_LOOK_SECONDS)) is None:
        _check(go_on)
    try:
        while (merging := state.leader(LEASE)) is not None and _epoch(state, OVER) != merging.epoch:
            _check(go_on)
            clock.wait(never, _LOOK_SECONDS)
        yield lambda: _put(state, READY, lease.epoch)
    finally:
        give_back(lease)


def _check(go_on: Callable[[], bool]) -> None:
    if not go_on():
        raise LakeBusy("another process merges into this lake", fix="wait for it, or stop it")


def _epoch(state: StateStore, path: str) -> int | None:
    entry = state.get(path)
    return None if entry is None else int(orjson.loads(entry.data)["epoch"])


def _put(state: StateStore, path: str, epoch: int) -> None:
    compare_and_set.change(state, path, lambda _: {"epoch": epoch})
