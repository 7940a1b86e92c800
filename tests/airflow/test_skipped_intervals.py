"""Runs that take longer than their interval: Airflow skips intervals, and neither keys nor hours are left out.

Airflow's own timetables say which interval follows. They ask the real clock, and know only multiples of the interval:
so a moment of the future is asked for as the same moment within the present interval.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.timetables.base import DataInterval, TimeRestriction, Timetable
from airflow.timetables.interval import CronDataIntervalTimetable, DeltaDataIntervalTimetable

from dblog_core import wiring
from dblog_core.airflow import in_process, lake_operators
from dblog_core.config.settings import Config
from dblog_core.lake import lake_tasks
from dblog_core.lake.task_requests import ReplayRequest
from dblog_core.lake.task_results import ReplayCounts, ReplayedTable, ReplayResult
from dblog_core.verify import slice_times
from dblog_core.verify.slices import Slice
from tests.airflow.test_lake_tasks import config, run

DAY = dt.timedelta(days=1)
HOUR = dt.timedelta(hours=1)
SLICES = 30
_START_DELAY = 0.00001  # of an interval: from its end, or the end of the run before, to the beginning of a run
LENGTHS = [0.5, 1.2, 1.5, 2.0, 2.5]
Interval = tuple[dt.datetime, dt.datetime]


def scheduled_intervals(timetable: Timetable, period: dt.timedelta, length: float, *, runs: int) -> list[Interval]:
    """The intervals of so many runs, each `length` intervals long, of which one runs at a time and none catches up."""
    intervals: list[Interval] = []
    now = dt.datetime.now(dt.UTC)
    last: DataInterval | None = None
    for _ in range(runs):
        last = _next_interval(timetable, period, last, now)
        begins = max(now, last.end) + _START_DELAY * period
        now = begins + length * period
        intervals.append((last.start, last.end))
    return intervals


def _next_interval(
    timetable: Timetable, period: dt.timedelta, last: DataInterval | None, now: dt.datetime
) -> DataInterval:
    while True:
        present = _number(pendulum.now("UTC"), period)
        shift = (_number(now, period) - present) * period
        shifted = None if last is None else DataInterval(_instance(last.start - shift), _instance(last.end - shift))
        info = timetable.next_dagrun_info(
            last_automated_data_interval=shifted,
            restriction=TimeRestriction(_instance(dt.datetime(2025, 1, 1, tzinfo=dt.UTC)), None, catchup=False),
        )
        if _number(pendulum.now("UTC"), period) == present:  # otherwise an interval has ended between the two looks
            assert info is not None
            start, end = info.data_interval
            return DataInterval(_instance(start + shift), _instance(end + shift))


def _number(moment: dt.datetime, period: dt.timedelta) -> int:
    return int(moment.timestamp() // period.total_seconds())


def _instance(moment: dt.datetime) -> pendulum.DateTime:
    return pendulum.instance(moment)


def repaired_slices(task: lake_operators.RepairSlice, config: Config, intervals: list[Interval]) -> Iterator[int]:
    """The slice of each run; each run compares it whole."""
    for number, (begin, end) in enumerate(intervals):
        with task.take_request({**run({}, begin, end, "scheduled"), "run_id": f"run {number}"}, config) as request:
            assert request.slice is not None
            with closing(wiring.open_state(config)) as state:
                now_us = int(dt.datetime.now(dt.UTC).timestamp() * 1e6)
                slice_times.record_compared(state, request.slice, began_us=now_us)
            yield request.slice.number


@pytest.mark.parametrize("length", LENGTHS)
def test_all_slices_are_compared_however_long_a_run_takes(tmp_path: Path, length: float) -> None:
    intervals = scheduled_intervals(DeltaDataIntervalTimetable(DAY), DAY, length, runs=90)
    by_interval = [lake_operators.slice_of(begin, SLICES, DAY.total_seconds()) for begin, _ in intervals]
    every = set(range(1, SLICES + 1))
    assert (set(by_interval) == every) == (length < 1), "a slice that follows from the interval is left out for ever"
    task = lake_operators.RepairSlice(
        task_id="repair", config_file="shop.toml", slices=SLICES, period=DAY.total_seconds()
    )
    numbers = list(repaired_slices(task, config(tmp_path), intervals))
    assert all(set(numbers[i : i + SLICES]) == every for i in range(len(numbers) - SLICES + 1))


@pytest.mark.parametrize("length", LENGTHS)
def test_no_hour_is_left_out_however_long_a_replay_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: float
) -> None:
    hourly = CronDataIntervalTimetable("0 * * * *", timezone="UTC")
    intervals = scheduled_intervals(hourly, HOUR, length, runs=12)
    assert _have_gaps([(begin.timestamp(), end.timestamp()) for begin, end in intervals]) == (length > 1)
    requests = Replays(tmp_path, monkeypatch)
    for begin, end in intervals:
        requests.run(begin, end)
    assert not _have_gaps(requests.ends)
    assert requests.ends[0][0] == intervals[0][0].timestamp() and requests.ends[-1][1] == intervals[-1][1].timestamp()


def _have_gaps(ends: list[tuple[float, float]]) -> bool:
    return any(begin > end for (_, end), (begin, _) in itertools.pairwise(ends))


class Replays:
    """Runs of the replay DAG, whose lake tasks are only noted."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends: list[tuple[float, float]] = []
        self.notes: list[str] = []
        self.error: str | None = None
        self.config = config(directory)
        monkeypatch.setattr(lake_tasks, "carry_out", self._carry_out)
        monkeypatch.setattr(in_process, "configuration", lambda _: self.config)
        monkeypatch.setenv("AIRFLOW_CONN_DBLOG_SPARK", '{"conn_type": "spark", "host": "local[2]"}')

    def _carry_out(self, _: Config, request: ReplayRequest, __: type[ReplayResult], **___: Any) -> ReplayResult:
        self.ends.append((request.start.value / 1e6, request.end.value / 1e6))
        table = ReplayedTable("shop.a", None if self.error else ReplayCounts(keys=1), self.error)
        return ReplayResult(request.start, request.end, (table,))

    def run(self, begin: dt.datetime, end: dt.datetime, kind: str = "scheduled", **params: str) -> Interval:
        """The interval that a run of it replays."""
        ti = SimpleNamespace(xcom_push=lambda _, note: self.notes.append(note))
        task = lake_operators.ReplayInterval(task_id="replay", config_file="shop.toml")
        task.execute({**run(params, begin, end, kind), "ti": ti})
        low, high = (dt.datetime.fromtimestamp(moment, dt.UTC) for moment in self.ends[-1])
        return low, high


NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


def test_a_replay_begins_where_the_last_one_ended_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Replays(tmp_path, monkeypatch)
    assert requests.run(NOON, NOON + HOUR) == (NOON, NOON + HOUR), "the first run of all takes its interval"
    requests.error = "its files are gone"
    with pytest.raises(AirflowFailException):
        requests.run(NOON + 2 * HOUR, NOON + 3 * HOUR)
    requests.error = None
    assert requests.run(NOON + 4 * HOUR, NOON + 5 * HOUR) == (NOON + HOUR, NOON + 5 * HOUR)
    assert (
        requests.notes[-1] == "from 2026-11-21 13:00 to 2026-11-21 17:00: looked at 1 key of 1 table: nothing to repair"
    )
    assert requests.run(NOON + 2 * HOUR, NOON + 3 * HOUR) == (NOON + 2 * HOUR, NOON + 3 * HOUR), "a run that is cleared"
    assert requests.run(NOON - 9 * HOUR, NOON - 8 * HOUR, "backfill") == (NOON - 9 * HOUR, NOON - 8 * HOUR)
    at_six = (NOON + 6 * HOUR).isoformat()
    assert requests.run(NOON, NOON + HOUR, "manual", **{"from": at_six, "to": at_six}) == 2 * (NOON + 6 * HOUR,)
    requests.run(NOON + 5 * HOUR, NOON + 6 * HOUR, "backfill")
    assert requests.run(NOON + 6 * HOUR, NOON + 7 * HOUR)[0] == NOON + 5 * HOUR, "only scheduled runs count"


def test_slices_that_another_number_of_slices_has_compared_do_not_count(tmp_path: Path) -> None:
    with closing(wiring.open_state(config(tmp_path))) as state:
        for number in (1, 2):
            slice_times.record_compared(state, Slice(number, 3), began_us=number)
        slice_times.record_compared(state, Slice(3, 4), began_us=9)
        times = slice_times.read_times(state)
    assert times is not None and (times.of, times.compared_count, times.oldest) == (4, 1, None)
