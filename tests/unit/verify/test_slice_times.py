"""Which slice a run takes: the one that waited longest, whatever fails, overlaps or is repeated."""

from __future__ import annotations

import itertools
import random
from contextlib import ExitStack

import pytest

from dblog_core.lake.replay_reach import DueInterval, find_due
from dblog_core.state.memory import MemoryState
from dblog_core.verify.slice_times import SliceTime, SliceTimes, read_times, record_compared, take_slice
from dblog_core.verify.slices import Slice


class Runs:
    """Runs of one source, on a clock that counts."""

    def __init__(self, of: int) -> None:
        self.state = MemoryState()
        self.of = of
        self.now = 0.0

    def time(self) -> float:
        self.now += 1.0
        return self.now

    def take(self, run: str, number: int | None = None) -> ExitStack:
        """A run that works; closing it ends it."""
        stack = ExitStack()
        self.taken = stack.enter_context(
            take_slice(self.state, self.of, run=run, number=number, ttl=5.0, now=self.time)
        )
        return stack

    def run(self, run: str, *, is_equal: bool = True, number: int | None = None) -> int:
        with self.take(run, number):
            assert self.taken is not None
            if is_equal:
                record_compared(self.state, Slice(self.taken, self.of), began_us=int(self.time() * 1e6))
            return self.taken


def test_the_slice_that_waited_longest_is_next() -> None:
    runs = Runs(4)
    assert [runs.run(f"r{n}") for n in range(6)] == [1, 2, 3, 4, 1, 2]
    assert runs.run("by hand", number=4) == 4
    assert [runs.run(f"s{n}") for n in range(4)] == [3, 1, 2, 4]


def test_a_run_that_failed_does_not_count_and_another_attempt_takes_its_slice_again() -> None:
    runs = Runs(3)
    assert runs.run("a", is_equal=False) == 1
    assert runs.run("a") == 1, "another attempt of the same run"
    assert runs.run("b", is_equal=False) == 2
    assert runs.run("c") == 3, "the next run takes the one behind it"
    assert runs.run("d") == 2, "and then it is tried again"
    assert runs.run("c") == 3, "a run that is cleared"
    times = read_times(runs.state)
    assert times is not None and times.oldest == int(times.time_of(1).compared)


def test_a_slice_that_always_fails_takes_half_of_the_runs_at_most() -> None:
    runs = Runs(5)
    numbers = [_run_unless(runs, f"r{n}", bad={2, 3}) for n in range(60)]
    for number in (1, 4, 5):
        places = [place for place, taken in enumerate(numbers) if taken == number]
        assert max(after - before for before, after in itertools.pairwise(places)) <= 2 * 3 + 1
    assert numbers.count(2) + numbers.count(3) <= 31 and abs(numbers.count(2) - numbers.count(3)) <= 1


def test_all_slices_are_compared_where_runs_fail_now_and_then() -> None:
    runs = Runs(10)
    chance = random.Random(7)
    compared = dict.fromkeys(range(1, 11), 0)
    for number in range(400):
        is_equal = chance.random() > 0.4
        if (slice_ := runs.run(f"r{number}", is_equal=is_equal)) and is_equal:
            compared[slice_] = number
        assert number - min(compared.values()) <= 60, "six rounds, where four runs in ten fail"


def _run_unless(runs: Runs, name: str, *, bad: set[int]) -> int:
    with runs.take(name):
        assert runs.taken is not None
        if runs.taken not in bad:
            record_compared(runs.state, Slice(runs.taken, runs.of), began_us=int(runs.time() * 1e6))
        return runs.taken


def test_two_runs_do_not_take_the_same_slice() -> None:
    runs = Runs(2)
    first = runs.take("a")
    assert runs.taken == 1
    second = runs.take("b")
    assert runs.taken == 2
    with runs.take("c"):
        assert runs.taken is None, "both are taken"
    with runs.take("by hand", number=2):
        assert runs.taken == 2, "who names a slice gets it"
    first.close()
    with runs.take("d"):
        assert runs.taken == 1, "it was not compared"
    second.close()


def test_another_number_of_slices_begins_again() -> None:
    runs = Runs(3)
    assert [runs.run(f"r{n}") for n in range(2)] == [1, 2]
    runs.of = 4
    assert [runs.run(f"s{n}") for n in range(5)] == [1, 2, 3, 4, 1]


def test_times_are_read_as_they_were_written() -> None:
    times = SliceTimes(3, {2: SliceTime(5, 4, "r"), 3: SliceTime(compared=7)})
    assert SliceTimes.from_json(times.to_json()) == times
    assert (times.oldest, times.compared_count) == (None, 2)
    assert times.with_time(1, SliceTime(compared=9)).oldest == 5


@pytest.mark.parametrize(
    ("upto", "reach", "due"),
    [
        (None, None, DueInterval(100, 200)),
        (100, None, DueInterval(100, 200)),
        (40, None, DueInterval(40, 200)),
        (40, 30, DueInterval(40, 200)),
        (40, 60, DueInterval(60, 200, removed=40)),
        (40, 150, DueInterval(100, 200, removed=40)),
        (120, 150, DueInterval(120, 200)),
        (200, None, DueInterval(100, 200)),
        (900, None, DueInterval(100, 200)),
    ],
)
def test_a_replay_follows_the_last_one_as_far_as_staging_reaches(
    upto: int | None, reach: int | None, due: DueInterval
) -> None:
    assert find_due(100, 200, upto=upto, reach=reach) == due
