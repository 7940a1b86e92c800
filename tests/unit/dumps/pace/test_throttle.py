"""Pace: what a worker rests, and when it stands still; no clock, only times."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dblog_core.dumps.dump_records import DumpOptions
from dblog_core.dumps.pace.throttle import EARLY, RECOVERY, SLOWEST, Limits, Pace
from dblog_core.interfaces import Strain
from dblog_core.model import sizes

FREE = Limits(delay=0.0, rate=0, workers=2, adaptive=False, max_retained=0)
ADAPTIVE = replace(FREE, adaptive=True)
CALM = Strain(replication_lag=0.0, running=3, retained_bytes=0)


def strain(lag: float | None = None, running: int | None = None, retained: int | None = None) -> Strain:
    return Strain(replication_lag=lag, running=running, retained_bytes=retained)


def read(pace: Pace, *, began: float = 0.0, seconds: float = 1.0, rows: int = 100, size: int = 100) -> None:
    """A chunk whose whole time is that of its SELECT."""
    pace.record_chunk(of=("shop.orders", size), began=began, select_seconds=seconds, ended=began + seconds, rows=rows)


def slow_down(pace: Pace) -> Pace:
    """Two looks at a source that suffers: a quarter of the time is left."""
    pace.record_strain(strain(lag=60.0), ADAPTIVE)
    pace.record_strain(strain(lag=60.0), ADAPTIVE)
    return pace


def test_the_first_chunk_waits_for_nothing() -> None:
    assert Pace().rest(0.0, replace(FREE, delay=10, rate=1)) == 0.0


def test_without_limits_there_is_no_rest() -> None:
    pace = Pace()
    read(pace)
    assert pace.rest(1.0, FREE) == 0.0


def test_the_delay_lies_between_the_end_of_one_chunk_and_the_next() -> None:
    pace = Pace()
    read(pace, began=10.0, seconds=4.0)
    assert pace.rest(14.0, replace(FREE, delay=3.0)) == 3.0
    assert pace.rest(16.5, replace(FREE, delay=3.0)) == 0.5
    assert pace.rest(17.0, replace(FREE, delay=3.0)) == 0.0


def test_the_rate_counts_from_the_beginning_of_the_chunk() -> None:
    pace = Pace()
    read(pace, began=10.0, seconds=4.0, rows=1_000)
    assert pace.rest(14.0, replace(FREE, rate=100)) == pytest.approx(6.0)
    assert pace.rest(14.0, replace(FREE, rate=10_000)) == 0.0


def test_whichever_limit_asks_for_most_holds() -> None:
    pace = slow_down(Pace())
    read(pace, began=0.0, seconds=2.0, rows=100)
    assert pace.rest(2.0, replace(ADAPTIVE, delay=1.0, rate=1)) == pytest.approx(98.0)
    assert pace.rest(2.0, replace(ADAPTIVE, delay=50.0, rate=0)) == pytest.approx(50.0)
    assert pace.rest(2.0, ADAPTIVE) == pytest.approx(6.0), "a quarter of the time for chunks"


def test_limits_that_change_count_from_the_next_look_on() -> None:
    pace = Pace()
    read(pace, rows=100)
    assert pace.rest(1.0, replace(FREE, rate=1)) == pytest.approx(99.0)
    assert pace.rest(1.0, replace(FREE, rate=50)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "looks",
    [
        [strain(lag=5.1)],
        [strain(lag=1.2), strain(lag=1.4), strain(lag=1.6)],
        [strain(running=3), strain(running=13)],
    ],
)
def test_a_source_that_suffers_halves_the_share_of_work(looks: list[Strain]) -> None:
    pace = Pace()
    for look in looks:
        pace.record_strain(look, ADAPTIVE)
    assert pace.factor == 0.5
    assert pace.slowdown is not None


@pytest.mark.parametrize(
    "looks",
    [
        [strain(lag=4.9)],
        [strain(lag=0.1), strain(lag=0.2), strain(lag=0.3)],  # noise
        [strain(lag=1.2), strain(lag=1.1), strain(lag=1.6)],  # ups and downs
        [strain(lag=1.2), strain(lag=None), strain(lag=1.4), strain(lag=1.6)],  # unknown in between
        [strain(running=3), strain(running=12)],  # twice, two workers of ours, and four more
        [strain(running=100), strain(running=150)],  # it was that busy at the start
        [strain(), None, CALM],
    ],
)
def test_a_source_that_fares_as_before_changes_nothing(looks: list[Strain | None]) -> None:
    pace = Pace()
    for look in looks:
        pace.record_strain(look, ADAPTIVE)
    assert (pace.factor, pace.slowdown) == (1.0, None)


def test_the_share_shrinks_fast_has_a_least_and_grows_slowly() -> None:
    pace = Pace()
    for _ in range(20):
        pace.record_strain(strain(lag=9.0), ADAPTIVE)
    assert pace.factor == SLOWEST
    pace.record_strain(CALM, ADAPTIVE)
    assert pace.factor == pytest.approx(SLOWEST + RECOVERY)
    assert pace.slowdown is not None, "as long as it is slowed down, it says why it was"
    for _ in range(20):
        pace.record_strain(CALM, ADAPTIVE)
    assert (pace.factor, pace.slowdown) == (1.0, None)


def test_the_reason_stays_the_same_text_while_the_numbers_move() -> None:
    pace = Pace()
    messages = set()
    for lag in (6.0, 7.5, 30.0, 8.0):
        pace.record_strain(strain(lag=lag), ADAPTIVE)
        messages.add(pace.slowdown)
    assert len(messages) == 1


def test_without_adaptive_nothing_of_this_counts_and_switching_it_off_ends_it() -> None:
    pace = Pace()
    pace.record_strain(strain(lag=60.0, running=900), FREE)
    assert (pace.factor, pace.slowdown) == (1.0, None)
    slow_down(pace).follow(FREE)
    assert (pace.factor, pace.slowdown) == (1.0, None)


def test_its_own_selects_that_become_three_times_as_slow_count_once_each() -> None:
    pace = Pace()
    for i in range(EARLY):
        read(pace, began=i, seconds=0.1)
        pace.record_strain(CALM, ADAPTIVE)
    assert pace.factor == 1.0
    read(pace, seconds=0.31)
    pace.record_strain(CALM, ADAPTIVE)
    assert pace.factor == 0.5
    for _ in range(5):
        pace.record_strain(CALM, ADAPTIVE)
    assert pace.factor == 0.5, "no SELECT since: neither another halving nor a recovery"
    for _ in range(2):
        read(pace, seconds=0.1)
    pace.record_strain(CALM, ADAPTIVE)
    assert pace.factor == pytest.approx(0.55)


def test_selects_of_milliseconds_are_never_slow() -> None:
    pace = Pace()
    for _ in range(EARLY):
        read(pace, seconds=0.001)
    read(pace, seconds=0.04)
    pace.record_strain(CALM, ADAPTIVE)
    assert pace.factor == 1.0


def test_selects_of_another_size_are_compared_with_their_like_alone() -> None:
    pace = Pace()
    for _ in range(EARLY):
        read(pace, seconds=0.1, size=100)
    for _ in range(EARLY):
        read(pace, seconds=1.0, size=1_000)
        pace.record_strain(CALM, ADAPTIVE)
    assert pace.factor == 1.0
    read(pace, seconds=4.0, size=1_000)
    pace.record_strain(CALM, ADAPTIVE)
    assert pace.factor == 0.5


def test_above_the_ceiling_it_stands_still_and_goes_on_below_nine_tenths() -> None:
    pace = Pace()
    limits = replace(FREE, max_retained=1_000)
    pace.record_strain(strain(retained=1_000), limits)
    assert pace.rest(0.0, limits) == 0.0
    pace.record_strain(strain(retained=1_001), limits)
    assert pace.rest(1e9, limits) == math.inf
    assert "max_retained = 1000" in (pace.slowdown or "")
    pace.record_strain(strain(retained=900), limits)
    assert pace.rest(1e9, limits) == math.inf
    pace.record_strain(None, limits)  # the source could not be asked: what was known last holds
    assert pace.rest(1e9, limits) == math.inf
    pace.record_strain(strain(retained=899), limits)
    assert (pace.rest(1e9, limits), pace.slowdown) == (0.0, None)


def test_a_ceiling_that_is_raised_or_lifted_lets_it_go_on() -> None:
    pace = Pace()
    limits = replace(FREE, max_retained=1_000)
    pace.record_strain(strain(retained=5_000), limits)
    pace.record_strain(strain(retained=5_000), replace(limits, max_retained=10_000))
    assert pace.rest(0.0, limits) == 0.0
    pace.record_strain(strain(retained=5_000), limits)
    pace.follow(FREE)
    assert (pace.rest(0.0, FREE), pace.slowdown) == (0.0, None)


def test_a_source_that_cannot_tell_what_it_retains_is_not_held() -> None:
    pace = Pace()
    limits = replace(FREE, max_retained=1)
    pace.record_strain(strain(), limits)
    assert pace.rest(0.0, limits) == 0.0


def test_options_of_a_request_of_an_earlier_version_hold_nothing_back() -> None:
    options = DumpOptions.from_json({"chunk_size": 10, "workers": 2, "delay": 0.5, "rate": 7, "in_flight": 4})
    limits = Limits.of(options)
    assert limits == Limits(0.5, 7, 2, adaptive=False, max_retained=0)
    assert not limits.watches


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("500", 500), ("64K", 65_536), ("10g", 10 << 30), (" 1 TB", 1 << 40)]
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert sizes.parse(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "1.5G", "10X", "10 G G", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 10G"):
        sizes.parse(text)
