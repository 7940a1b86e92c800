"""The retry policy: what is tried again, how long it waits, when it ends."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from dblog_core.errors import DblogError, SourceRefused, SourceUnavailable
from dblog_core.retry import retrying, wait_for
from tests.drawn_clock import DrawnClock


def failing(times: int, error: Exception, clock: DrawnClock, seen: list[float]) -> object:
    def step() -> str:
        seen.append(clock.now)
        if len(seen) <= times:
            raise error
        return "done"

    return step


def test_transient_errors_are_tried_again_ever_more_slowly() -> None:
    clock = DrawnClock()
    seen = []
    step = failing(7, SourceUnavailable("away"), clock, seen)
    assert retrying(clock=clock, first_wait=0.1, longest_wait=1.0)(step) == "done"
    waits = [round(b - a, 3) for a, b in itertools.pairwise(seen)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("error", [SourceRefused("wrong password"), ValueError("a fault"), OSError("raw")])
def test_other_errors_pass_through_at_once(error: Exception) -> None:
    clock = DrawnClock()
    seen = []
    with pytest.raises(type(error)) as caught:
        retrying(clock=clock)(failing(9, error, clock, seen))
    assert caught.value is error and seen == [0.0]


def test_it_gives_up_with_the_last_error_as_it_was() -> None:
    clock = DrawnClock()
    seen = []
    error = SourceUnavailable("away", where="db", fix="start it")
    with pytest.raises(SourceUnavailable) as caught:
        retrying(clock=clock, give_up_after=2.0, first_wait=0.5)(failing(99, error, clock, seen))
    assert caught.value is error
    assert 2.0 <= clock.now <= 4.0


def test_a_policy_that_is_used_twice_counts_anew() -> None:
    clock = DrawnClock()
    policy_seen = []
    policy = retrying(clock=clock, give_up_after=1.0)
    for _ in range(2):
        seen: list[float] = []
        clock.now += 100
        assert policy(failing(2, SourceUnavailable("away"), clock, seen)) == "done"
        policy_seen.append(len(seen))
    assert policy_seen == [3, 3]


def test_a_stop_ends_the_waiting() -> None:
    clock = DrawnClock()
    stop = threading.Event()
    seen = []

    def hear(_: DblogError, __: float) -> None:
        stop.set()

    with pytest.raises(SourceUnavailable):
        retrying(clock=clock, stop=stop, first_wait=60, longest_wait=60, on_retry=hear)(
            failing(99, SourceUnavailable("away"), clock, seen)
        )
    assert clock.now < 1


def test_every_failure_is_announced_with_its_wait() -> None:
    clock = DrawnClock()
    waits = []
    error = SourceUnavailable("away")
    policy = retrying(clock=clock, first_wait=0.5, on_retry=lambda e, wait: waits.append((e, wait)))
    policy(failing(2, error, clock, []))
    assert waits == [(error, 0.5), (error, 1.0)]


def looking(clock: DrawnClock, looked_at: list[float]) -> Callable[[], int]:
    """How often somebody has looked; when is noted."""

    def look() -> int:
        looked_at.append(clock.now)
        return len(looked_at)

    return look


def test_a_wait_looks_at_once_and_then_ever_more_rarely() -> None:
    clock = DrawnClock()
    looked_at: list[float] = []
    look = looking(clock, looked_at)
    assert wait_for(look, until=lambda looks: looks == 6, waits=(0.1, 0.5), clock=clock) == 6
    assert [round(moment, 3) for moment in looked_at] == [0.0, 0.1, 0.3, 0.7, 1.2, 1.7]


def test_a_wait_that_is_over_at_once_takes_no_time() -> None:
    clock = DrawnClock()
    assert wait_for(lambda: "here", waits=(1.0, 1.0), give_up_after=0.0, clock=clock) == "here" and clock.now == 0


@pytest.mark.parametrize("stop", [None, threading.Event()])
def test_a_wait_gives_up_with_what_it_has_seen_last(stop: threading.Event | None) -> None:
    clock = DrawnClock()
    looked_at: list[float] = []
    look = looking(clock, looked_at)
    assert wait_for(look, until=lambda _: False, waits=(0.5, 0.5), give_up_after=2.0, stop=stop, clock=clock) == 5
    assert looked_at == [0.0, 0.5, 1.0, 1.5, 2.0], "the last look is at the deadline"


def test_a_stop_ends_a_wait_without_another_look() -> None:
    clock = DrawnClock()
    stop = threading.Event()
    looked_at: list[float] = []

    def look() -> bool:
        looked_at.append(clock.now)
        assert not stop.is_set()
        if len(looked_at) == 3:
            stop.set()
        return False

    assert wait_for(look, waits=(1.0, 1.0), stop=stop, clock=clock) is False
    assert looked_at == [0.0, 1.0, 2.0]


def test_what_a_look_raises_ends_the_wait() -> None:
    clock = DrawnClock()
    error = SourceUnavailable("away")
    with pytest.raises(SourceUnavailable) as caught:
        wait_for(failing(1, error, clock, []), waits=(1.0, 1.0), clock=clock)
    assert caught.value is error and clock.now == 0
