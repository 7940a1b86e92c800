"""The wait of a repair for a merge: for its tables alone, with a line now and then, and not without an end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from dblog_core.clock import SystemClock
from dblog_core.errors import LakeError
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus, lake_at, own_directory, read_status
from dblog_core.lake.merge_options import MergeOptions
from dblog_core.staging import Staging
from dblog_core.verify import repair, verification
from dblog_core.verify.report import Report, TableReport
from dblog_core.verify.window_positions import Interrupted
from tests.spark.segments import SegmentBuilder
from tests.unit.verify.judge.world import T

OURS, OTHER = str(T.table), "shop.other"


class StepClock(SystemClock):
    """Each wait takes its time at once, and something happens in it."""

    def __init__(self, happen: Callable[[float], None] = lambda _: None) -> None:
        self.now = 0.0
        self._happen = happen

    def monotonic(self) -> float:
        return self.now

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.now += seconds
        self._happen(self.now)
        return event.is_set()


@dataclass
class Merging:
    """A lake, and somebody who merges for as long as `runs`."""

    root: Path
    runs: bool = True
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.staging = Staging(str(self.root / "staging"), source="shop")
        build = SegmentBuilder(self.staging)
        for key in range(1, 11):
            build.create(T, {"id": key, "v": "v", "big": "big"})
        build.seal()
        self.lake = lake_at(str(self.root / "lake"))
        self._merges = 0

    def leader(self, name: str) -> str | None:
        assert name == "merge"
        return "somebody" if self.runs else None

    def close(self) -> None:
        """As a state store."""

    def end_merge(self, offset: int, **tables: TableStatus) -> None:
        self._merges += 1
        status = LakeStatus(self._merges, offset, offset, tables={OURS: tables["ours"], OTHER: tables["other"]})
        (own_directory(self.lake) / "status.json").replace(orjson.dumps(status.to_json()))
        assert read_status(self.lake) == status

    def wait(self, clock: StepClock, stop: threading.Event | None = None) -> None:
        config: Any = None
        repair.merge_staged(
            config,
            self.lake,
            self.staging,
            [OURS],
            stop=stop or threading.Event(),
            clock=clock,
            say=self.said.append,
        )


@pytest.fixture
def merging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Merging:
    lake = Merging(tmp_path)
    monkeypatch.setattr(repair, "open_state", lambda _: lake)
    return lake


def ok(offset: int, **fields: Any) -> TableStatus:
    return TableStatus(State.OK, None, 1, offset, **fields)


def test_only_the_repaired_tables_are_waited_for(merging: Merging) -> None:
    """Another table is late: it follows on its own."""
    late = TableStatus(State.OK, None, 0, 2, begun=1)

    def happen(now: float) -> None:
        if now > 35 and not read_status(merging.lake):
            merging.end_merge(10, ours=ok(10), other=late)

    clock = StepClock(happen)
    merging.wait(clock)
    assert 35 < clock.now < 36
    assert merging.said == ["waiting for the merge that runs: it stands at offset 0 of 10"] * 3


def test_a_repaired_table_that_is_late_is_waited_for(merging: Merging) -> None:
    def happen(now: float) -> None:
        merging.end_merge(10, ours=ok(10) if now > 5 else TableStatus(State.OK, None, 0, 4, begun=1), other=ok(10))

    clock = StepClock(happen)
    merging.wait(clock)
    assert 5 < clock.now < 6


def test_a_stopped_table_is_not_waited_for(merging: Merging) -> None:
    merging.end_merge(5, ours=TableStatus(State.STOPPED, "it is broken", 0, 3), other=ok(5))
    clock = StepClock()
    merging.wait(clock)
    assert clock.now == 0


def test_a_merge_that_ends_rounds_has_the_time_it_takes(merging: Merging) -> None:
    """Three quarters of an hour, a round each quarter."""

    def happen(now: float) -> None:
        done = int(now // 900)
        if (read_status(merging.lake) or LakeStatus()).merge < done:
            merging.end_merge(done + 7, ours=ok(done + 7), other=ok(done + 7))

    clock = StepClock(happen)
    merging.wait(clock)
    assert 2700 <= clock.now < 2701


def test_a_merge_that_ends_no_round_is_an_error(merging: Merging) -> None:
    merging.end_merge(4, ours=ok(4), other=ok(4))
    clock = StepClock()
    with pytest.raises(LakeError, match=r"ended no round for 30 min.*offset 4, and the dump at 10"):
        merging.wait(clock)
    assert 1800 < clock.now < 1801


def test_who_is_asked_to_stop_waits_no_longer(merging: Merging) -> None:
    stop = threading.Event()
    with pytest.raises(Interrupted):
        merging.wait(StepClock(lambda now: stop.set() if now > 2 else None), stop)


def test_without_a_merge_it_runs_one_and_says_what_that_says(merging: Merging, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_merge(config: Any, options: MergeOptions, *, on_line: Callable[[str], None], **_: Any) -> int:
        on_line("merge 1: 10 rows")
        return 1

    merging.runs = False
    monkeypatch.setattr(repair, "run_merge", run_merge)
    with pytest.raises(LakeError, match="the merge of the dump has failed"):
        merging.wait(StepClock())
    assert merging.said == ["merge 1: 10 rows"]


def test_a_merge_that_fails_leaves_what_was_found_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise LakeError("a merge runs, but has ended no round", fix="verify again")

    monkeypatch.setattr(repair, "dump_differences", lambda *_, **__: repair.Dumped({OURS: "d1"}, {}))
    monkeypatch.setattr(repair, "merge_staged", fail)
    stop = threading.Event()
    clock = StepClock()
    names = dict.fromkeys(("config", "lake", "staging"))
    tools: Any = SimpleNamespace(**names, workers=1, say=lambda _: None, stop=stop, clock=clock)
    first = Report((TableReport(OURS, missing=(5,)), TableReport(OTHER)))
    report = verification._repair_tables(tools, first)
    repaired, other = report.tables
    assert repaired.missing == (5,) and repaired.error is not None and "ended no round" in repaired.error
    assert other.equal and not report.equal


@pytest.mark.parametrize(
    ("extra", "keys"), [((1, 2), (1, 2)), ((1, None), ()), (([1, 2], [1, None]), ()), (([1, 2],), ([1, 2],))]
)
def test_a_row_with_null_in_its_key_is_removed_by_a_dump_of_the_table(extra: Any, keys: Any) -> None:
    """No SELECT asks for such a key."""
    request = repair._request(TableReport(OURS, extra=extra))
    assert (request.tables, request.keys) == ((OURS,), keys)
