"""Faults for merges: every point at which a merger can die, stand still, or lose the answer to a commit.

Points are counted over everything that a merge does to the lake: its own steps, each of its small files, and each
statement that commits to a table or to the cuts, before it and after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from pyspark.errors import PySparkException

from dblog_core.errors import DblogError, LeaseLost
from dblog_core.storage.location import Location
from spark_jobs import cuts
from spark_jobs.lake import LakeTable
from spark_jobs.rounds import Merger
from tests.spark.lakes import Crash, TestLake

DEADLINE = 600.0


class Points:
    """Numbers the points that one merger passes; does `act` at number `at`, and not again."""

    def __init__(self, at: int, act: Callable[[str], None], *, only: str = "") -> None:
        """`only`: counts points of these beginnings alone."""
        self._at, self._act, self._only = at, act, only
        self._lock = threading.Lock()
        self._passed = 0
        self._dead = False
        self.happened: str | None = None

    def reach(self, name: str) -> None:
        with self._lock:
            if self._dead:
                raise Crash  # the other threads of a process that died go no further
            if not name.startswith(self._only):
                return
            self._passed += 1
            here = self._passed == self._at
            if here:
                self.happened = name
        if here:
            self._act(name)

    def die(self) -> None:
        self._dead = True
        raise Crash


@contextmanager
def counted(points: Points) -> Iterator[None]:
    """Everything that mergers do within passes these points."""

    def around(target: Any, name: str, kind: str) -> Any:
        real = getattr(target, name)

        def called(*args: Any, **kwargs: Any) -> Any:
            what = f"{kind} {getattr(args[0], 'path', '')}"
            points.reach(f"before {what}")
            result = real(*args, **kwargs)
            points.reach(f"after {what}")
            return result

        return mock.patch.object(target, name, called)

    with (
        around(LakeTable, "_merge", "commit"),
        around(LakeTable, "_append", "commit"),
        around(LakeTable, "remove_older", "commit"),
        around(Location, "create", "create"),
        around(Location, "replace", "replace"),
        around(cuts, "append", "cut"),
    ):
        yield


def rounds(merger: Merger) -> None:
    retry = True
    while merger.round(retry_stopped=retry) is not None:
        retry = False


def killed(lake: TestLake, at: int) -> str:
    """A merger that dies at point `at`, if it comes that far; where it died."""
    points = Points(at, lambda name: points.die())
    with counted(points):
        try:
            rounds(lake.merger(step=points.reach))
        except Crash:
            assert points.happened is not None
    return f"killed {points.happened}" if points.happened else "merged"


def unanswered(lake: TestLake, at: int) -> str:
    """A merger whose `at`-th commit succeeds, while Spark says that it failed."""

    def lose(name: str) -> None:
        raise PySparkException(f"the answer was lost {name}")

    points = Points(at, lose, only="after commit")
    with counted(points):
        rounds(lake.merger(step=lambda name: None))
    return f"answer lost {points.happened}" if points.happened else "merged"


def overtaken(lake: TestLake, at: int) -> str:
    """A merger that stands still at point `at` while another takes the lake over and merges all; then it goes on."""
    return _with_another(lake, at, wait=True)


def together(lake: TestLake, at: int) -> str:
    """A merger that goes on while another takes the lake over from point `at` on."""
    return _with_another(lake, at, wait=False)


def _with_another(lake: TestLake, at: int, *, wait: bool) -> str:
    failed, other = list[DblogError](), threading.Thread(target=lambda: _merge(lake, failed))

    def take_over(name: str) -> None:
        other.start()
        if wait:
            other.join(DEADLINE)

    points, gave_up = Points(at, take_over), ""
    with counted(points):
        try:
            rounds(lake.merger(step=points.reach))
        except LeaseLost:
            gave_up = ", gave up"
        if points.happened is None:
            return "merged"
        other.join(DEADLINE)
    assert not other.is_alive() and not failed, failed
    return f"overtaken {'and waiting ' if wait else ''}{points.happened}{gave_up}"


def _merge(lake: TestLake, failed: list[DblogError]) -> None:
    try:
        rounds(lake.merger())
    except DblogError as error:
        failed.append(error)


FAULTS: dict[str, Callable[[TestLake, int], str]] = {
    "killed": killed,
    "unanswered": unanswered,
    "overtaken": overtaken,
    "together": together,
}
