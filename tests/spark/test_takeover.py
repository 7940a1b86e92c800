"""A merger that was paused, and wakes up after another took the lake over, changes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.errors import LeaseLost
from dblog_core.lake.lake_status import own_directory, read_status
from dblog_core.lake_engine.merging import deleted_rows, upsert_rows
from dblog_core.lake_engine.merging.deleted_rows import Ghosts
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.lake_engine.tables import log
from dblog_core.storage.location import Location
from tests.fix_day import OfADay
from tests.spark.lakes import TestLake
from tests.spark.segments import table

pytestmark = pytest.mark.one_of(6)

ONE = table("one", id=pa.int64(), v=pa.string(), big=pa.string())
TWO = table("two", id=pa.int64(), v=pa.string(), big=pa.string())
SECONDS = 300  # a deadline, for a machine that is busy


class Pause:
    """Stands still at one named point, once, until it is let go."""

    def __init__(self, point: str) -> None:
        self.point, self._reached, self._go = point, threading.Event(), threading.Event()
        self.armed = False

    def at(self, name: str) -> None:
        if self.armed and name == self.point and not self._reached.is_set():
            self._reached.set()
            assert self._go.wait(SECONDS), "it was never let go"

    def wait_for_sleeper(self, sleeper: Future[None]) -> bool:
        """Waits until the sleeper stands at the point, or has ended."""
        _until(lambda: self._reached.is_set() or sleeper.done())
        return self._reached.is_set()

    def go(self) -> None:
        self._go.set()


@contextmanager
def _points(pause: Pause, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Points within the writes themselves: after the last look at the fence, before the write."""

    def before(target: Any, name: str, point: Callable[..., str]) -> None:
        real = getattr(target, name)

        def call_paused(*args: Any, **kwargs: Any) -> Any:
            pause.at(point(*args))
            return real(*args, **kwargs)

        patch.setattr(target, name, call_paused)

    with monkeypatch.context() as patch:
        before(upsert_rows, "write", lambda table, *_: f"mark {table.files.root.path}")
        for verb in ("create", "replace"):
            before(Location, verb, lambda path, *_, verb=verb: f"{verb} {path.path}")
        before(log, "check_unused", lambda path, *_: f"look {path.path}")
        yield


def _what_is_left(lake: TestLake) -> dict[str, Any]:
    """All that a merger writes: tables, cuts, records, the status as it is read, withheld keys."""
    dblog_directory = lake.path / "_dblog"
    tables = [lake.table(ONE), lake.table(TWO), own_directory(lake.location) / "cuts"]
    records = sorted(p for p in dblog_directory.glob("merges/*"))
    withheld = max((dblog_directory / "withheld").iterdir())
    return {
        "versions": [log.version(table) for table in tables],
        "rows": [lake.rows(ONE, provenance=True), lake.rows(TWO, provenance=True)],
        "cuts": lake.cuts(),
        "records": {p.name: p.read_bytes() for p in records},
        "status": read_status(lake.location),
        "withheld": (withheld.name, withheld.read_bytes()),
    }


def _segment(lake: TestLake, number: int) -> None:
    """A change of each kind, and a row that has to be withheld."""
    build = lake.build
    for schema in (ONE, TWO):
        build.create(schema, {"id": number, "v": "new", "big": "b"})
        build.update(schema, {"id": 1, "v": f"v{number}", "big": "b"})
    build.update(TWO, {"id": 1000 + number, "v": "x", "big": None}, unchanged=["big"])
    build.seal()


ENDS = ("create _dblog/merges/{next}.done.json", "replace _dblog/status.json")
VERSION = "create shop/one/_delta_log/{version}.json"
"""The commit itself, which nothing but its own condition can refuse any more."""
OTHERS = ("create _dblog/merges/{next}.json", "replace _dblog/withheld/{epoch}.json", *ENDS)
POINTS = (VERSION, "mark shop/one", *OTHERS)


@contextmanager
def _asleep(lake: TestLake, pause: Pause) -> Iterator[Future[None]]:
    """A merger in a thread of its own, whose clock tells it for ever that it has the lake."""
    with ThreadPoolExecutor(1) as thread:
        merger = lake.merger(step=pause.at)
        pause.armed = True

        def run() -> None:
            while merger.run_round(retry_stopped=False) is not None:
                pass

        yield thread.submit(run)


def _take_over(lake: TestLake) -> dict[str, Any]:
    """Another merger merges all that there is; what it leaves."""
    successor = lake.merger()
    while successor.run_round(retry_stopped=True) is not None:
        pass
    return _what_is_left(lake)


def test_a_merger_that_wakes_up_after_another_took_over_changes_nothing(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch, of_a_day: OfADay
) -> None:
    _segment(lake, 1)
    lake.merge_well()
    for number, point in enumerate(of_a_day(POINTS, 3), 2):
        status = read_status(lake.location)
        assert status is not None
        epoch = len(list((lake.path / "_dblog" / "mergers").iterdir())) + 1
        names = {"version": f"{(log.version(lake.table(ONE)) or 0) + 1:020d}", "epoch": f"{epoch:012d}"}
        pause = Pause(point.format(next=f"{status.merge + 1:012d}", **names))
        _segment(lake, number)
        with _points(pause, monkeypatch), _asleep(lake, pause) as sleeper:
            assert pause.wait_for_sleeper(sleeper), (pause.point, sleeper)
            left = _take_over(lake)
            pause.go()
            error = sleeper.exception(SECONDS)
        # Where the merge has been finished meanwhile, it has no more to do, and ends.
        assert isinstance(error, LeaseLost) or (error is None and point in ENDS), (point, error)
        after = _what_is_left(lake)
        assert after == left, point
        waits = {name: t.waits for name, t in after["status"].tables.items()}
        assert waits == {"shop.one": False, "shop.two": True}, point
        assert [r["v"] for r in lake.rows(ONE)] == [f"v{number}", *["new"] * (number - 1)]


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)


def test_who_has_lost_the_lake_removes_no_row_that_a_dump_has_not_met(lake: TestLake) -> None:
    def lose() -> None:
        raise LeaseLost("another merge has taken the lake over")

    build = lake.build
    for number in (1, 2):
        build.create(ONE, {"id": number, "v": "v", "big": "b"})
    build.seal()
    lake.merge_well()
    rows = lake.rows(ONE)
    since = build.offset
    build.chunk(ONE, [rows[1]])
    build.finished(ONE, "d1", since=since, since_segment=1)
    build.seal()
    (mark,) = [mark for manifest in lake.staging.manifests() for mark in manifest.marks if mark.dump == "d1"]
    readings = Ghosts(lake.staging, ONE, [mark], 2, None).readings()
    with pytest.raises(LeaseLost):
        deleted_rows.remove(LakeTable(lake.table(ONE), ONE, app="shop", check=lose), mark.offset, readings=readings)
    assert lake.rows(ONE) == rows
    deleted_rows.remove(LakeTable(lake.table(ONE), ONE, app="shop"), mark.offset, readings=readings)
    assert lake.rows(ONE) == rows[1:]
