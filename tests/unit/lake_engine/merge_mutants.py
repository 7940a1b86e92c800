"""Deliberate mistakes in merges of two tables, each with the faults that show it; the judge of the runs must find all.

Those that one table shows are in `killed_commits`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from dblog_core.lake.cuts import cuts_location
from dblog_core.lake.merge_plan import next_sound_span
from dblog_core.lake_engine.events import fold
from dblog_core.lake_engine.merge_rounds import Merger
from dblog_core.lake_engine.merging import cuts
from dblog_core.lake_engine.merging.fence import Fence
from dblog_core.lake_engine.merging.merge_records import Intent, Records
from dblog_core.lake_engine.merging.merge_results import Merged
from tests.spark.faults import Fault
from tests.spark.faulty_runs import Plan

Patch = contextlib.AbstractContextManager[object]


@dataclass(frozen=True)
class Mutant:
    patched: Callable[[], Patch]
    plan: Plan
    points: list[str | None]
    """Where the plan's faults happen."""
    seed: str = "mutant"
    """Of a past that shows the mistake."""
    history: bool = False
    """Whether the tables have one."""

    @property
    def name(self) -> str:
        return self.patched.__name__


def _after(fault: str, point: str) -> tuple[Plan, list[str | None]]:
    """A merge that is well, and one with the fault; more comes before the next."""
    return Plan((None, Fault(fault, (point,))), plain=True), [point]


@contextlib.contextmanager
def the_record_is_written_after_the_commits() -> Iterator[None]:
    """What died in between is merged again, up to where the log stands by then."""
    begin, finish = Records.begin, Records.finish
    begun: dict[int, Intent] = {}

    def later(self: Records, intent: Intent) -> bool:
        begun[id(self)] = intent
        return True

    def begin_and_finish(self: Records, status: Any) -> Any:
        begin(self, begun[id(self)])
        return finish(self, status)

    with mock.patch.object(Records, "begin", later), mock.patch.object(Records, "finish", begin_and_finish):
        yield


def what_was_begun_is_finished_to_the_newest_segment() -> Patch:
    """Tables that had committed to the recorded end are left out of the rest."""
    finish = Merger._finish

    def further(self: Merger, begun: Intent) -> Merged:
        span = next_sound_span(self._staging, self.status.segment, None)
        return finish(self, begun if span is None else replace(begun, span=span))

    return mock.patch.object(Merger, "_finish", further)


@contextlib.contextmanager
def the_cut_comes_before_the_tables() -> Iterator[None]:
    """It names the versions from before the merge."""
    run = Merger._run

    def cut_first(self: Merger, intent: Intent, *, is_repeated: bool) -> Merged:
        versions = {name: t.version for name, t in self.status.tables.items() if t.version is not None}
        path, app = cuts_location(self._lake.location), f"{self._lake.app}:cuts"
        cuts.append(cuts.open_cuts(path), intent, versions, behind={}, incomplete={}, app=app, now=0.0)
        return run(self, intent, is_repeated=is_repeated)

    with mock.patch.object(Merger, "_run", cut_first):
        yield


def a_row_that_a_dump_of_its_batch_has_not_met_comes() -> Patch:
    """The table alone is searched for ghosts: the next dump finds it there."""
    return mock.patch.object(fold, "dumps_within", return_value=[])


def a_newer_claim_is_not_looked_for() -> Patch:
    """A merger that was overtaken goes on when it wakes up."""
    return mock.patch.object(Fence, "check", return_value=None)


_WELL_THEN = Plan((None,), plain=True), list[str | None]()
MUTANTS = [
    Mutant(the_record_is_written_after_the_commits, *_after("killed", "after mark")),
    Mutant(what_was_begun_is_finished_to_the_newest_segment, *_after("killed", "after mark")),
    Mutant(the_cut_comes_before_the_tables, *_WELL_THEN),
    Mutant(
        a_row_that_a_dump_of_its_batch_has_not_met_comes, *_after("killed", "after history of ghosts"), history=True
    ),
    Mutant(a_newer_claim_is_not_looked_for, *_after("overtaken", "before version")),
]
