"""A merge whose slice is over holds the lake until the next one has started its Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dblog_core.errors import LakeBusy, StateUnavailable
from dblog_core.interfaces import LeaseInfo
from dblog_core.lake_engine.merging.handover import GRACE_SECONDS, NEXT, OVER, READY, Slice, in_line
from dblog_core.lake_engine.merging.lock import LEASE
from dblog_core.state.memory import MemoryState
from dblog_core.state.sqlite import SqliteState
from tests.drawn_clock import DrawnClock
from tests.waiting import wait_until

TTL = 30.0


@pytest.fixture
def clock() -> DrawnClock:
    return DrawnClock()


@pytest.fixture
def state(clock: DrawnClock) -> Iterator[MemoryState]:
    with closing(MemoryState(clock=clock)) as store:
        yield store


def is_over_after(time_slice: Slice, clock: DrawnClock, seconds: float) -> bool:
    clock.now += seconds
    return time_slice.is_over()


def test_a_slice_ends_once_the_next_merge_is_ready(state: MemoryState, clock: DrawnClock) -> None:
    assert state.acquire(LEASE, "first", ttl=TTL) is not None
    time_slice = Slice(state, 60, clock)
    looks = iter([False, False, True])

    def first_goes_on() -> bool:
        """What the first merge does while the second one waits."""
        assert is_over_after(time_slice, clock, 25) is False, "nobody is ready"
        return next(looks, True)

    with pytest.raises(LakeBusy), in_line(state, ttl=TTL, go_on=first_goes_on, clock=clock):
        pass
    with in_line(state, ttl=TTL, go_on=lambda: is_over_after(time_slice, clock, 25) is False, clock=clock) as say_ready:
        assert state.get(OVER) is not None, "it waits until the slice is over"
        assert is_over_after(time_slice, clock, 25) is False, "its Spark has not started"
        say_ready()
        assert is_over_after(time_slice, clock, 25)
    assert state.leader(NEXT) is None


def test_a_slice_in_which_nobody_is_next_ends_after_the_grace(state: MemoryState, clock: DrawnClock) -> None:
    state.acquire(LEASE, "first", ttl=TTL)
    time_slice = Slice(state, 60, clock)
    assert [is_over_after(time_slice, clock, s) for s in (59, 2, GRACE_SECONDS - 2, 2)] == [False, False, False, True]
    assert state.get(OVER) is None


def test_what_a_process_has_said_that_died_counts_for_its_own_lease_alone(
    state: MemoryState, clock: DrawnClock
) -> None:
    state.acquire(LEASE, "first", ttl=TTL)
    time_slice = Slice(state, 0, clock)
    with in_line(state, ttl=TTL, go_on=lambda: not is_over_after(time_slice, clock, 2), clock=clock) as say_ready:
        say_ready()
    assert state.get(READY) is not None
    assert state.acquire(NEXT, "third", ttl=TTL) is not None
    assert is_over_after(time_slice, clock, 2) is False, "the third one's Spark has not started"


def test_a_slice_that_was_over_before_says_nothing_of_a_later_one(state: MemoryState, clock: DrawnClock) -> None:
    first = state.acquire(LEASE, "first", ttl=TTL)
    time_slice = Slice(state, 0, clock)
    second = state.acquire(NEXT, "second", ttl=TTL)
    assert first is not None and second is not None
    assert is_over_after(time_slice, clock, 2) is False and state.get(OVER) is not None
    first.release()
    second.release()
    state.acquire(LEASE, "next", ttl=TTL)
    looks_at = []

    def go_on() -> bool:
        looks_at.append(clock.now)
        return len(looks_at) < 5

    with pytest.raises(LakeBusy), in_line(state, ttl=TTL, go_on=go_on, clock=clock):
        pass
    assert len(looks_at) == 5, "it waits for the new merge's slice"


def test_a_free_lake_is_not_waited_for(state: MemoryState, clock: DrawnClock) -> None:
    with in_line(state, ttl=TTL, go_on=lambda: False, clock=clock):
        assert state.leader(NEXT) is not None
    assert clock.now == 0.0


def test_a_state_store_that_is_away_ends_no_slice(
    state: MemoryState, clock: DrawnClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_slice = Slice(state, 0, clock)

    def away(name: str) -> LeaseInfo | None:
        raise StateUnavailable("cannot be reached", where="zk")

    monkeypatch.setattr(state, "leader", away)
    assert is_over_after(time_slice, clock, 2 * GRACE_SECONDS) is False


def test_one_waits_at_a_time_and_threads_of_two_processes_hand_over(tmp_path: Path) -> None:
    """With a real store and clock: the second is in line, the third waits behind it."""
    stores = [SqliteState(str(tmp_path / "state.db"), prefix="t") for _ in range(3)]
    holding = stores[0].acquire(LEASE, "first", ttl=TTL)
    assert holding is not None
    time_slice = Slice(stores[0], 0)
    order: list[str] = []
    may_end = threading.Event()

    def stand_by(store: SqliteState, name: str) -> None:
        with in_line(store, ttl=TTL, go_on=lambda: True) as say_ready:
            order.append(name)
            say_ready()
            may_end.wait()

    threads = [threading.Thread(target=stand_by, args=(store, f"process {n}")) for n, store in enumerate(stores[1:])]
    for thread in threads:
        thread.start()
    wait_until(time_slice.is_over, "the slice is over")
    assert len(order) == 1
    holding.release()
    may_end.set()
    for thread in threads:
        thread.join()
    assert len(order) == 2
    for store in stores:
        store.close()
