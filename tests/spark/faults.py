"""Faults for merges: every point at which a merger can die, stand still, or lose the answer to a commit.

Points are of kinds, and counted by them: everything that a merge does to the lake, before it and after it. That is each
of its small files, each statement that commits to a table, to its history or to the cuts, and its own steps.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from dblog_core.errors import DblogError, LakeError, LeaseLost, StagingUnavailable
from dblog_core.lake_engine.history.history_table import History
from dblog_core.lake_engine.merge_rounds import Merger
from dblog_core.lake_engine.merging import cuts, deleted_rows, upsert_rows
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.storage.location import Location
from tests.spark.lakes import Crash, TestLake

DEADLINE = 600.0

_FILES = {
    r"_dblog/mergers/\d+\.json": "claim",
    r"_dblog/merges/\d+\.json": "record",
    r"_dblog/merges/\d+\.done\.json": "outcome",
    r"_dblog/status\.json": "status",
    r"_dblog/withheld/\d+\.json": "withheld keys",
    r"_dblog/cuts/_delta_log/\d{20}\.json": "version of the cuts",
    r"_dblog/cuts/part-00000-[0-9a-f-]+-c000\.zstd\.parquet": "row of the cuts",
    r"_delta_log/\d{20}\.json": "version",
    r"deletion_vector_[0-9a-f-]+\.bin": "vectors",
    r"part-00000-[0-9a-f-]+-c000\.zstd\.parquet": "new rows",
}
COMMITS = ("mark", "truncate", "history", "history of ghosts")
"""What is committed to a table, and may be so without an answer."""

_WRITES = (*COMMITS, "table", "history table", "cut", *_FILES.values())
KINDS = (*(f"{when} {write}" for write in _WRITES for when in ("before", "after")), "step merged", "step applied")
"""All kinds of points. The other steps of a merge follow a write at once."""

BEGINNING = tuple(f"{when} {write}" for write in ("table", "history table") for when in ("before", "after"))
"""Kinds that only the first merge of a table is certain to come by."""

OFTEN = (*COMMITS, "table", "history table", "withheld keys", "version", "vectors", "new rows")
"""What a merge of two tables may do twice and more."""


class Points:
    """Counts the points of some kinds that one merger passes; does `act` at number `at`, and not again."""

    def __init__(self, kinds: tuple[str, ...], at: int, act: Callable[[str], None]) -> None:
        self._kinds, self._at, self._act = kinds, at, act
        self._lock = threading.Lock()
        self._passed = 0
        self._dead = False
        self.happened: str | None = None

    def reach(self, kind: str) -> None:
        with self._lock:
            if self._dead:
                raise Crash  # the other threads of a process that died go no further
            if kind not in self._kinds:
                return
            self._passed += 1
            is_here = self._passed == self._at
            if is_here:
                self.happened = kind
        if is_here:
            self._act(kind)

    def step(self, name: str) -> None:
        self.reach(f"step {name.split()[0]}")

    def die(self) -> None:
        self._dead = True
        raise Crash


def _file(path: Location) -> str:
    kinds = [kind for pattern, kind in _FILES.items() if re.search(f"(^|/){pattern}$", path.path)]
    assert kinds, f"a merge writes {path}, of which no kind of points knows"
    return kinds[0]


def _name_history(_history: History, _make_lines: Any, app: str, *_: Any) -> str:
    return "history of ghosts" if app.endswith(":ghosts") else "history"


@contextmanager
def count_points(points: Points) -> Iterator[None]:
    """Everything that mergers do within passes these points."""

    def around(target: Any, name: str, kind: Callable[..., str]) -> Any:
        real = getattr(target, name)

        def call_and_reach(*args: Any, **kwargs: Any) -> Any:
            what = kind(*args)
            points.reach(f"before {what}")
            result = real(*args, **kwargs)
            points.reach(f"after {what}")
            return result

        return mock.patch.object(target, name, call_and_reach)

    with ExitStack() as stack:
        for target, name, kind in (
            (LakeTable, "_create", lambda *_: "table"),
            (upsert_rows, "write", lambda *_: "mark"),
            (deleted_rows, "remove", lambda *_: "truncate"),
            (History, "_create", lambda *_: "history table"),
            (History, "_append", _name_history),
            (cuts, "append", lambda *_: "cut"),
            (Location, "create", lambda path, *_: _file(path)),
            (Location, "replace", lambda path, *_: _file(path)),
        ):
            stack.enter_context(around(target, name, kind))
        yield


def rounds(merger: Merger) -> None:
    retry = True
    while merger.run_round(retry_stopped=retry) is not None:
        retry = False


@dataclass(frozen=True)
class Fault:
    """What befalls a merge at the `at`-th point of these kinds, if it comes that far."""

    name: str
    kinds: tuple[str, ...]
    at: int = 1

    def befall(self, lake: TestLake) -> Happened:
        """A merge of all that there is, with the fault."""
        return _BEFALL[self.name](lake, self.kinds, self.at)


@dataclass(frozen=True)
class Happened:
    fault: str
    point: str | None = None
    """None: the merge did not come by."""
    then: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.fault} {self.point}{self.then}" if self.point else f"not {self.fault}"


def _kill_merger(lake: TestLake, kinds: tuple[str, ...], at: int) -> Happened:
    """A merger dies."""
    points = Points(kinds, at, lambda kind: points.die())
    with count_points(points):
        try:
            rounds(lake.merger(step=points.step))
        except Crash:
            assert points.happened is not None
    return Happened("killed", points.happened)


def _lose_answer(lake: TestLake, kinds: tuple[str, ...], at: int) -> Happened:
    """A commit succeeds, and its answer is lost."""

    def lose(kind: str) -> None:
        raise LakeError("the answer was lost") if kind == "after cut" else StagingUnavailable("the answer was lost")

    points, then = Points(kinds, at, lose), ""
    with count_points(points):
        try:
            rounds(lake.merger(step=points.step))
        except LakeError as error:
            if points.happened is None:
                raise
            then = f", ended: {error.message}"
    return Happened("unanswered", points.happened, then)


def _overtake_merger(lake: TestLake, kinds: tuple[str, ...], at: int) -> Happened:
    """A merger stands still while another takes the lake over and merges all; then it goes on."""
    return _with_another(lake, kinds, at, wait=True)


def _together(lake: TestLake, kinds: tuple[str, ...], at: int) -> Happened:
    """A merger goes on while another takes the lake over."""
    return _with_another(lake, kinds, at, wait=False)


def _with_another(lake: TestLake, kinds: tuple[str, ...], at: int, *, wait: bool) -> Happened:
    failed, other = list[Exception](), threading.Thread(target=lambda: _merge(lake, failed))

    def take_over(_kind: str) -> None:
        other.start()
        if wait:
            other.join(DEADLINE)

    points, gave_up, name = Points(kinds, at, take_over), "", "overtaken" if wait else "together"
    with count_points(points):
        try:
            rounds(lake.merger(step=points.step))
        except LeaseLost:
            gave_up = ", gave up"
        if points.happened is None:
            return Happened(name)
        other.join(DEADLINE)
    lost = [error for error in failed if isinstance(error, LeaseLost)]
    assert not other.is_alive() and failed == lost, failed
    # Whoever claims the lake last has it: the other may have been the first to.
    assert not lost or (points.happened == "before claim" and not gave_up), (lost, gave_up)
    ends = points.happened.split(maxsplit=1)[1] in _MAY_END
    assert gave_up or ends or not wait, f"a merger went on that was overtaken {points.happened}"
    return Happened(name, points.happened, gave_up)


def _merge(lake: TestLake, failed: list[Exception]) -> None:
    try:
        rounds(lake.merger())
    except DblogError as error:
        failed.append(error)


_BEFALL: dict[str, Callable[[TestLake, tuple[str, ...], int], Happened]] = {
    "killed": _kill_merger,
    "unanswered": _lose_answer,
    "overtaken": _overtake_merger,
    "together": _together,
}
_MAY_END = ("claim", "withheld keys", "outcome", "status")
"""Writes at which another may take the lake over, and the merger has no more to do when it wakes up."""

LOST = tuple(f"after {write}" for write in (*COMMITS, "cut"))
"""Where an answer can be lost."""
