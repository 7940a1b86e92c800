"""A lake in memory for the real `Merger`: its tables take offsets in place of rows, and its threads stop where they are
told to.

A version of a table is the set of offsets that it has all changes of. So each can be compared with the log: it must
hold a beginning of it, without a gap. A TRUNCATE shows whether what a share says of its table is kept: the table is
complete from then on.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pyarrow as pa

from dblog_core.delta_writer.append import AppendedTable
from dblog_core.errors import LakeError, LeaseLost, StagingUnavailable
from dblog_core.lake.lake_status import LakeStatus, State, read_status
from dblog_core.lake.merge_plan import Work
from dblog_core.lake.task_plans import ResetPlan
from dblog_core.lake.task_requests import ResetRequest
from dblog_core.lake.task_results import ResetResult
from dblog_core.lake_engine.merge_rounds import Merger
from dblog_core.lake_engine.merging import late_tables, table_turn
from dblog_core.lake_engine.merging.lake import Lake
from dblog_core.lake_engine.merging.late_tables import LateTables
from dblog_core.lake_engine.merging.merge_records import Intent, Records
from dblog_core.lake_engine.merging.merge_results import Applied
from dblog_core.lake_engine.merging.table_merge import Share
from dblog_core.lake_engine.merging.table_turn import TableTurn
from dblog_core.lake_engine.merging.upsert_rows import OpenTables
from dblog_core.lake_engine.merging.withheld_keys import Withheld
from dblog_core.lake_engine.tasks import registry
from dblog_core.lake_engine.tasks.context import Done, Tools
from dblog_core.maintenance.retention_needs import of_lake
from dblog_core.staging import Staging
from dblog_core.storage.location import Location
from tests.simulation.storage import Disk, MemoryStorage
from tests.spark.segments import SegmentBuilder, table
from tests.unit.lying_storage import Late, Lying
from tests.waiting import PATIENCE_SECONDS, wait_until

TABLES = tuple(table(name, id=pa.int64()) for name in "abc")
NAMES = tuple(str(schema.table) for schema in TABLES)
NOTE = ResetRequest("shop.any")
"""A lake task that looks, and changes nothing."""
NOTED = ResetResult("shop.any", "none", 0)


class Crash(BaseException):
    """The process died here."""


@dataclass(frozen=True)
class Version:
    """A commit: the number of its merge, and the offsets that the table has then."""

    number: int
    offsets: frozenset[int]


@dataclass
class Gate:
    """Where one merge of a table stands still; `fate`: what becomes of it then."""

    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)
    fate: str = "goes on"

    def open(self, fate: str = "goes on") -> None:
        self.fate = fate
        self.opened.set()


@dataclass
class Cut:
    number: int
    time: float
    offset: int
    versions: Mapping[str, int]
    behind: Mapping[str, int]


class World:
    """The log, the tables and the cuts; and the merger of now. `liar`: dice of a lake's storage that lies."""

    def __init__(self, liar: random.Random | None = None) -> None:
        self.staging = Staging(source="shop", storage=MemoryStorage(Disk()))
        self.late: Late = []
        self.storage = MemoryStorage(Disk()) if liar is None else Lying(Disk(), liar, self.late)
        self.location = Location(self.storage)
        self.build = SegmentBuilder(self.staging)
        self.lines: dict[str, list[int]] = {name: [] for name in NAMES}
        self.versions: dict[str, list[Version]] = {name: [] for name in NAMES}
        self.cuts: list[Cut] = []
        self.emptied: dict[str, int] = {}
        self.held: set[str] = set()
        self.gates: dict[str, Gate] = {}
        self.sleepers: list[Gate] = []
        self.dies_at: str | None = None
        self.has_died = False
        self.failing: set[str] = set()
        self.failing_late: set[str] = set()
        """Behind their commits."""
        self.overtaken: set[str] = set()
        """Tables to which a merger has committed that had been replaced: nobody knows of that beforehand."""
        self.time = 0.0
        self.errors: list[BaseException] = []
        self._lock = threading.Lock()
        self._awaited: set[str] = set()
        """Tables of this round whose merge has neither ended nor come to its gate."""
        self.mergers: list[Merger] = []
        self.merger = self.take_over()

    def take_over(self) -> Merger:
        """A new process merges; what is at work in the one before stays so."""
        self.sleepers += self.gates.values()
        self.gates = {}
        records = Records(self.location / "_dblog")
        lake = Lake(self.location, "dblog:shop", open_tables=OpenTables())
        self.merger = Merger(self.staging, lake, records, Withheld(records), step=self._step, now=lambda: self.time)
        self.mergers.append(self.merger)
        try:
            self.merger.load()
        except StagingUnavailable:  # that process ends, and another one begins
            return self.take_over()
        return self.merger

    def write(self, names: list[str], rows: int, *, emptied: str | None = None) -> None:
        """A segment with rows of these tables; one of them may be `emptied` by it."""
        for schema in TABLES:
            name = str(schema.table)
            for _ in range(rows if name in names else 0):
                self.lines[name].append(self.build.create(schema, {"id": self.build.offset}))
            if name == emptied and name in names:
                self.build.truncate(schema)
                self.lines[name].append(self.build.offset)
                self.emptied.setdefault(name, self.build.offset)
        self.build.seal()

    def hold(self, name: str) -> None:
        """The table's next merge stands still."""
        self.held.add(name)

    def release(self, name: str, fate: str = "goes on") -> None:
        with self._lock:
            self.held.discard(name)
            gate = self.gates.pop(name, None)
        if gate is not None:
            gate.open(fate)

    def release_all(self) -> None:
        for name in NAMES:
            self.release(name)

    def round(self, *, retry: bool = False) -> bool:
        """One merge that waits for nobody; whether there was something to do."""
        merged = self.merger.run_round(retry_stopped=retry, upto=self.merger.newest_segment(), patience=0.0)
        self.check()
        return merged is not None

    def settle(self, *, brings_rows: bool = True) -> None:
        """Until no table is late."""
        self.release_all()
        while self.merger.settle(brings_rows=brings_rows) is not None:
            pass
        self.check()

    def die(self, fates: Callable[[], str]) -> None:
        """The process dies while tables are at work; each commit lands or does not."""
        for name in NAMES:
            self.release(name, fates())
        self.merger.close()
        self.take_over()

    def die_at(self, step: str) -> bool:
        """The process dies after this step of the next merge, in whichever thread; whether it came by it."""
        self.dies_at = step
        with contextlib.suppress(Crash):
            self.round()
        with self._lock:
            self.dies_at = None
        if died := self.has_died:
            self.has_died = False
            self.merger.close()
            self.take_over()
        return died

    def merge_all(self) -> None:
        """All that there is, for certain."""
        self.failing = set()
        self.failing_late = set()
        self.release_all()
        while self.merger.run_round(retry_stopped=True) is not None:
            pass
        self.settle()

    def prefix(self, name: str, offset: int) -> frozenset[int]:
        return frozenset(line for line in self.lines[name] if line <= offset)

    def status(self) -> LakeStatus:
        return read_status(self.location) or LakeStatus()

    def check(self) -> None:
        """The record tells the truth: each table's version has all up to its offset, and keeps the staging for the
        rest."""
        assert not self.errors, self.errors
        status = self.status()
        needs = [need.segment for need in of_lake(status)]
        for name, at in status.tables.items():
            recorded = self.versions[name][at.version].offsets if at.version is not None else frozenset()
            assert recorded == self.prefix(name, at.offset), f"{name} is not as its record says"
            assert not at.segment < status.segment or min(needs) <= at.segment + 1
            is_complete = name in self.emptied and self.emptied[name] <= at.offset
            assert (at.lacks is None) == is_complete, f"{name} is not as complete as its record says"
            assert at.segment <= status.segment
        for name in NAMES:
            if self.prefix(name, status.offset) and name not in status.tables:
                raise AssertionError(f"the record knows nothing of {name}")

    def await_shares(self, names: Iterable[str]) -> None:
        """The round of now waits until each of them has come as far as it can."""
        with self._lock:
            self._awaited = set(names)

    def share_ended(self, name: str) -> None:
        with self._lock:
            self._awaited.discard(name)

    def all_stand(self) -> bool:
        """Whether nothing of this round goes on by itself: a busy machine makes no table late."""
        with self._lock:
            return not self._awaited or len(self.gates) >= late_tables._TOGETHER

    # What the merger calls ------------------------------------------------------------------------------------------

    def _step(self, name: str) -> None:
        with self._lock:
            if name != self.dies_at:
                return
            self.dies_at = None
            self.has_died = True
            gates = self.gates
            self.gates = {}
            self.held = set()
        for gate in gates.values():
            gate.open("dies")
        raise Crash

    def apply(self, lake: Lake, share: Share) -> Applied:
        """In place of `TableMerge.apply`. What it finds wrong is kept: nobody asks for the outcome of who died."""
        try:
            return self._apply(lake, share)
        except AssertionError as error:
            self.errors.append(error)
            raise

    def _apply(self, lake: Lake, share: Share) -> Applied:
        work, number, span, merged = share.work, share.number, share.span, share.merged
        name = work.table
        gate = Gate()
        with self._lock:
            if is_held := name in self.held:
                self.gates[name] = gate
                self._awaited.discard(name)
        gate.reached.set()
        assert not is_held or gate.opened.wait(PATIENCE_SECONDS), "it was never let go"
        if gate.fate == "dies":
            raise Crash
        if gate.fate != "commits all the same":  # else it has looked right before it stood still
            lake.check()
        if name in self.failing:
            raise LakeError("its own fault", where=name, fix="none")
        versions = self.versions[name]
        newest = versions[-1] if versions else Version(0, frozenset())
        if not (share.is_repeated and newest.number == number):
            if newest.number >= number:
                raise LeaseLost("its number is taken", where=name)
            parts = [(f.first_offset, f.last_offset) for f in work.files]
            offsets = {o for o in self.lines[name] if any(first <= o <= last for first, last in parts)}
            offsets |= {mark.offset for mark in work.truncates}
            if work.ends_empty and not work.files and self._may_pass_over(name):
                # What vanishes by a TRUNCATE at the end is never applied to a table that stands still, or is new.
                offsets |= self.prefix(name, work.last_offset) - newest.offsets
            assert all(o <= merged for o in offsets & newest.offsets), "rows are applied again without a comparison"
            assert gate.fate == "commits all the same" or name in self.overtaken or not offsets & newest.offsets, (
                f"{name} is merged from before what it has"
            )
            assert max(offsets) <= span.offset
            after = newest.offsets | offsets
            assert after == self.prefix(name, max(after)), f"{name} has a gap"
            versions.append(Version(number, after))
            self.overtaken |= {name} if gate.fate == "commits all the same" else set()
        if gate.fate == "dies after its commit":
            raise Crash
        if name in self.failing_late:
            raise LakeError("its own fault behind the commit", where=name, fix="none")
        return Applied(name, work.rows, version=len(self.versions[name]) - 1)

    def _may_pass_over(self, name: str) -> bool:
        status = self.status().tables.get(name)
        return status is None or status.version is None or status.state is State.STOPPED

    def append_cut(
        self,
        intent: Intent,
        versions: Mapping[str, int],
        *,
        behind: Mapping[str, int],
        now: float,
        check: Callable[[], None],
        **_: object,
    ) -> None:
        """In place of `cuts.append`: the table of cuts, which compares what it gets with the log."""
        check()
        if self.cuts and self.cuts[-1].number >= intent.number:
            return
        offset = intent.span.offset
        for name in NAMES:
            upto = behind.get(name, offset)
            there = self.versions[name][versions[name]].offsets if name in versions else frozenset()
            assert there == self.prefix(name, upto), f"cut {intent.number} has {name} as it was at another offset"
        self.cuts.append(Cut(intent.number, now, offset, dict(versions), dict(behind)))


def plan_note(tools: Tools, request: ResetRequest) -> ResetPlan:
    """The plan of `NOTE`."""
    return ResetPlan(request.table, "none", 0, 0)


@contextmanager
def a_world(liar: random.Random | None = None) -> Iterator[World]:
    """Its tables are the merger's for as long as the block lasts. `liar`: see `World`."""
    worlds: list[World] = []

    class Tables:
        """In place of `TableMerge`."""

        def __init__(self, staging: Staging, lake: Lake, withheld: Withheld, **_: Any) -> None:
            self._lake = lake

        def apply(self, share: Share) -> Applied:
            return worlds[0].apply(self._lake, share)

    def newest_transaction(_: Location, app: str) -> int | None:
        versions = worlds[0].versions[app.rpartition(":")[2]]
        return versions[-1].number if versions else None

    def look(tools: Tools, arguments: Any) -> Done:
        """A task finds all tables where the lake is, and nobody at work."""
        assert not worlds[0].gates
        for name, at in tools.status.tables.items():
            newest = worlds[0].versions[name][-1].offsets if worlds[0].versions[name] else frozenset()
            assert at.state is State.STOPPED or newest == worlds[0].prefix(name, tools.status.offset)
        return Done(NOTED)

    def merge(turn: TableTurn, work: Work) -> Applied | None:
        try:
            return merge_table(turn, work)
        finally:
            worlds[0].share_ended(work.table)

    def run(late: LateTables, turn: TableTurn, works: Mapping[str, Work], *, patience: float | None, **_: Any) -> Any:
        worlds[0].await_shares(works)
        return run_shares(late, turn, works, patience=patience, has_news=worlds[0].all_stand)

    merge_table, run_shares = TableTurn.merge, LateTables.run

    def append_cut(table: AppendedTable, intent: Intent, versions: Mapping[str, int], **more: Any) -> None:
        worlds[0].append_cut(intent, versions, check=table.check, **more)

    with (
        mock.patch.object(table_turn, "TableMerge", Tables),
        mock.patch.object(TableTurn, "merge", merge),
        mock.patch.object(LateTables, "run", run),
        mock.patch("dblog_core.lake_engine.merging.cuts.append", append_cut),
        mock.patch("dblog_core.lake_engine.tables.log.newest_transaction", newest_transaction),
        mock.patch.object(Staging, "is_published", return_value=True),
        mock.patch.object(late_tables, "_LOOK_SECONDS", 0.02),
        mock.patch.dict(registry.KINDS, {NOTE.kind: registry.Kind(look, plan_note)}),
    ):
        worlds.append(World(liar))
        try:
            yield worlds[0]
        finally:
            for gate in (*worlds[0].gates.values(), *worlds[0].sleepers):
                gate.open("dies")
            for merger in worlds[0].mergers:
                merger.close()


def wait_until_held(world: World, name: str) -> None:
    """Until a merge of the table stands still."""
    wait_until(lambda: name in world.gates and world.gates[name].reached.is_set(), f"a merge of {name}")
