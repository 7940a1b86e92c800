"""Deliberate mistakes in the merge, each with the faults that show it; the judge of the runs must find all."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from deltalake import DeltaTable as PlainTable

from dblog_core.delta_writer.append import AppendedTable
from dblog_core.lake.cuts import cuts_location
from dblog_core.lake.merge_plan import next_sound_span
from dblog_core.lake_engine.merge_rounds import Merger
from dblog_core.lake_engine.merging import cuts, deleted_rows, upsert_rows
from dblog_core.lake_engine.merging.fence import Fence
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.lake_engine.merging.merge_records import Intent, Records
from dblog_core.lake_engine.merging.merge_results import Merged
from dblog_core.lake_engine.merging.table_merge import TableMerge
from dblog_core.lake_engine.merging.withheld_keys import Withheld
from dblog_core.lake_engine.merging.work_commit import WorkCommit
from dblog_core.model.values import Key
from dblog_core.staging.manifest import LogMark
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


def the_transaction_is_not_read_back() -> Patch:
    """Whoever finishes a merge takes no table for done."""
    return mock.patch.object(LakeTable, "newest_merge", return_value=None)


@contextlib.contextmanager
def the_cut_comes_before_the_tables() -> Iterator[None]:
    """It names the versions from before the merge."""
    run = Merger._run

    def cut_first(self: Merger, intent: Intent, *, is_repeated: bool) -> Merged:
        versions = {name: t.version for name, t in self.status.tables.items() if t.version is not None}
        path, app = cuts_location(self._lake.location), f"{self._lake.app}:cuts"
        cuts.append(path, intent, versions, behind={}, incomplete={}, app=app, now=0.0)
        return run(self, intent, is_repeated=is_repeated)

    with mock.patch.object(Merger, "_run", cut_first):
        yield


@contextlib.contextmanager
def the_cut_is_added_without_a_look() -> Iterator[None]:
    """Whoever finishes a merge adds its row again."""
    with (
        mock.patch.object(PlainTable, "transaction_version", return_value=None),
        mock.patch.object(AppendedTable, "newest_order", return_value=0),
    ):
        yield


@contextlib.contextmanager
def the_history_follows_the_table() -> Iterator[None]:
    """Appended when the lake has the rows: a merge that is finished finds the table done, and tells nothing."""
    tell, commit = TableMerge._append_history, WorkCommit.commit
    waiting = threading.local()

    def wait(self: TableMerge, *arguments: Any, **more: Any) -> None:
        waiting.tell = lambda: tell(self, *arguments, **more)

    def commit_and_tell(self: WorkCommit, *arguments: Any, **how: Any) -> int:
        withheld = commit(self, *arguments, **how)
        waiting.tell()
        return withheld

    with (
        mock.patch.object(TableMerge, "_append_history", wait),
        mock.patch.object(WorkCommit, "commit", commit_and_tell),
    ):
        yield


def a_newer_claim_is_not_looked_for() -> Patch:
    """A merger that was overtaken goes on when it wakes up."""
    return mock.patch.object(Fence, "check", return_value=None)


@contextlib.contextmanager
def keys_are_withheld_after_the_commit() -> Iterator[None]:
    """What dies in between has left the rows out, and nobody asks for them."""
    add, apply = Withheld.add, upsert_rows.write
    waiting = threading.local()

    def later(self: Withheld, table: str, keys: Iterable[Key]) -> None:
        waiting.add = lambda: add(self, table, keys)

    def apply_and_withhold(*arguments: Any, **more: Any) -> Any:
        waiting.add = lambda: None
        done = apply(*arguments, **more)
        waiting.add()
        return done

    with mock.patch.object(Withheld, "add", later), mock.patch.object(upsert_rows, "write", apply_and_withhold):
        yield


def ghosts_are_told_by_their_keys_alone() -> Patch:
    """A row that was born while the dump went on is taken for a ghost."""
    remove = deleted_rows.remove_ghosts

    def all_unseen(staging: Any, lake: Any, schema: Any, mark: LogMark, **more: Any) -> int:
        return remove(staging, lake, schema, replace(mark, since=mark.offset), **more)

    return mock.patch.object(deleted_rows, "remove_ghosts", all_unseen)


_WELL_THEN = Plan((None,), plain=True), list[str | None]()
_DIED_WITHHOLDING = Plan((None, Fault("killed", ("after mark",))), then=False), list[str | None](["after mark"])
_DIED_WITH_GHOSTS = Plan((None, Fault("killed", ("after ghosts",))), then=False), list[str | None](["after ghosts"])

MUTANTS = [
    Mutant(the_record_is_written_after_the_commits, *_after("killed", "after mark")),
    Mutant(what_was_begun_is_finished_to_the_newest_segment, *_after("killed", "after mark")),
    Mutant(the_transaction_is_not_read_back, *_after("killed", "after mark")),
    Mutant(the_cut_comes_before_the_tables, *_WELL_THEN),
    Mutant(the_cut_is_added_without_a_look, *_after("killed", "after cut")),
    Mutant(the_history_follows_the_table, *_after("killed", "after mark")),
    Mutant(a_newer_claim_is_not_looked_for, *_after("overtaken", "before version")),
    Mutant(keys_are_withheld_after_the_commit, *_DIED_WITHHOLDING, seed="mutant46"),
    Mutant(ghosts_are_told_by_their_keys_alone, *_DIED_WITH_GHOSTS, seed="mutant0"),
]
