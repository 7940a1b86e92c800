"""A merge that goes on, over a source that is written all the time."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from dblog_core.errors import LakeError
from dblog_core.lake_engine.commit_pace import BYTES_A_SECOND, CommitPace
from dblog_core.lake_engine.lake_job import Caller
from dblog_core.lake_engine.merge_job import Job
from dblog_core.lake_engine.merging.merge_results import Merged
from dblog_core.lake_engine.merging.withheld_keys import DumpEnd

ROUNDS = 50  # after which a merge that only merges is stopped


@dataclass
class BusyMerger:
    """There is always one more sealed segment than was merged; one lake task waits."""

    stop: threading.Event
    done: list[str] = field(default_factory=list)
    merged: int = 0
    written_vectors: int = 0
    """Bytes of each merge."""

    def load(self) -> None:
        """Nothing was begun before."""

    def newest_segment(self) -> int:
        return self.merged + 1

    def run_round(
        self, *, retry_stopped: bool, upto: int | None = None, patience: float | None = None
    ) -> Merged | None:
        if upto is not None and self.merged >= upto:
            return None
        self.merged += 1
        if self.merged >= ROUNDS:
            self.stop.set()
        return Merged(self.merged, self.merged, self.merged, 0.0, ())

    def run_task(self, *, beside: bool = False) -> Merged | None:
        if self.done:
            self.stop.set()
            return None
        self.done.append("maintain")
        return Merged(self.merged, self.merged, self.merged, 0.0, (), task="maintain")

    def settle(self, *, brings_rows: bool) -> Merged | None:
        return None

    def close(self) -> None:
        """Nothing is at work."""

    def compact(self, *, wait: bool) -> str | None:
        return None

    def rewritten_bytes(self) -> int:
        return self.written_vectors * self.merged

    def late_tables(self) -> list[str]:
        return []

    def stopped_tables(self) -> dict[str, str]:
        return {}

    def incomplete_tables(self) -> list[str]:
        return []

    def tables_awaiting_dump(self) -> frozenset[str]:
        return frozenset()


@dataclass
class AskedRows:
    """Counts how often dumps of rows that are withheld are asked for."""

    request_count: int = 0

    def find_ended(self, dumps: Any) -> dict[str, DumpEnd]:
        return {}

    def request_dumps(self, dumps: Any, *, ended: Any, but_for: Any) -> list[LakeError]:
        self.request_count += 1
        return [LakeError("no dump can be requested", where="shop.a")]


def test_new_segments_all_the_time_keep_neither_tasks_nor_upkeep_nor_withheld_rows_waiting() -> None:
    stop = threading.Event()
    upkeep = list[int]()
    merger = BusyMerger(stop)
    withheld = AskedRows()
    job = Job(merger, withheld, None, Caller(stop, print), upkeep=lambda: upkeep.append(merger.merged))  # type: ignore[arg-type]
    assert job.continuous() == 0
    assert merger.done == ["maintain"] and upkeep and withheld.request_count
    assert merger.merged < ROUNDS


@dataclass
class PassingMerger(BusyMerger):
    """Is stopped after some passes of the loop."""

    passes: int = 0

    def run_task(self, *, beside: bool = False) -> Merged | None:
        return None

    def compact(self, *, wait: bool) -> str | None:
        self.passes += 1
        if self.passes == 8:
            self.stop.set()
        return None


@pytest.mark.parametrize(("written", "rounds"), [(1 << 40, 1), (0, 4)])
def test_rounds_are_further_apart_where_vectors_are_large(written: int, rounds: int) -> None:
    stop = threading.Event()
    merger = PassingMerger(stop, written_vectors=written)
    job = Job(merger, AskedRows(), None, Caller(stop, print))  # type: ignore[arg-type]
    assert job.continuous() == 0
    assert merger.passes == 8 and merger.merged == rounds


@pytest.mark.parametrize(
    ("written", "seconds"), [(0, 0.0), (BYTES_A_SECOND // 2, 0.5), (5 * BYTES_A_SECOND, 5.0), (1 << 40, 30.0)]
)
def test_the_next_round_is_due_when_the_vectors_of_the_last_leave_room_for_it(written: int, seconds: float) -> None:
    rewritten_bytes = 1_000
    now = 100.0
    pace = CommitPace(lambda: rewritten_bytes, now=lambda: now)
    assert pace.is_due()
    pace.begin()
    rewritten_bytes += written
    now += max(0.0, seconds - 0.01)
    assert pace.is_due() == (not written)
    now += 0.01
    assert pace.is_due()
    pace.begin()
    assert pace.is_due(), "the next round has written none"
