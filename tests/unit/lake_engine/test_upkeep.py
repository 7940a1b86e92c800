"""Tables are put in order beside their merges, by turns, and no row changes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting import copy_on_write
from dblog_core.delta_writer.rewriting.purge_files import dead_share
from dblog_core.delta_writer.rewriting.rewrite import Rewrite, Rewritten, commit_rewritten
from dblog_core.errors import LakeError, LeaseLost, StagingUnavailable
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus, lake_at
from dblog_core.lake_engine.merging.lake import Lake as WrittenLake
from dblog_core.lake_engine.merging.upsert_rows import OpenTables
from dblog_core.lake_engine.tasks import upkeep
from dblog_core.lake_engine.tasks.upkeep import Upkeep
from dblog_core.storage.location import Location
from tests.spark.worlds import SHAPE, Oracle
from tests.unit.delta_writer.tables import Table, commit_of, metadata, newest, schema_string, write_commit
from tests.unit.lake_engine.test_upsert_rows import FIELDS, Lake, change
from tests.waiting import wait_until

NAME = str(SHAPE.table)


@dataclass
class PlacedTable(Table):
    """A table where a lake has it."""

    @property
    def path(self) -> Path:
        return self.lake / SHAPE.table.schema / SHAPE.table.name

    def location(self) -> Location:
        return lake_at(str(self.lake)) / SHAPE.table.schema / SHAPE.table.name


class World(Lake):
    """A table that is merged, and its upkeep after two commits."""

    def __init__(self, path: Path, dice: random.Random, after: int = 2) -> None:
        super().__init__(path, dice)
        self.table = PlacedTable.create_at(path / "placed", fields=dict(FIELDS), keys=SHAPE.key)
        self.tables = OpenTables(path / "index")
        self.written = WrittenLake(lake_at(str(path / "placed")), "dblog:shop", open_tables=self.tables)
        self.oracle = Oracle()
        self.now = 1_800_000_000.0
        self.upkeep = Upkeep(self.staging, after, now=lambda: self.now)

    def merge_some(self, count: int = 1) -> None:
        for _ in range(count):
            change(self)
            self.merge()
            self.oracle.read(self.source.lines, self.offset)
            self.source.end_merge()
            self.upkeep.record_merged([NAME])

    def step(self, *, wait: bool = True, at_work: Collection[str] = ()) -> str | None:
        head = self.staging.head()
        assert head is not None
        schema = head.schemas[NAME]
        status = TableStatus(State.OK, None, self.segment, self.offset, version=newest(self.table.path), schema=schema)
        done = self.upkeep.step(self.written, LakeStatus(tables={NAME: status}).tables, at_work=at_work, wait=wait)
        self.check()
        return done

    def check(self) -> None:
        assert self.rows() == self.oracle.rows

    def operations(self) -> list[str]:
        commits = (commit_of(self.table.path, version) for version in range(1, newest(self.table.path) + 1))
        return [action["commitInfo"]["operation"] for commit in commits for action in commit if "commitInfo" in action]


@pytest.fixture
def world(tmp_path: Path, soak_seed: int) -> Iterator[World]:
    world = World(tmp_path, random.Random(soak_seed))
    yield world
    world.upkeep.stop()


class Gate:
    """Rewrites wait here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        carry_out = Rewrite.carry_out

        def wait_and_carry_out(rewrite: Rewrite, check: Callable[[], None]) -> Any:
            wait_until(lambda: self.opened.wait(0.01) or bool(check()), what="the gate")
            return carry_out(rewrite, check)

        monkeypatch.setattr(Rewrite, "carry_out", wait_and_carry_out)


def test_files_are_written_again_while_merges_continue(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    world.merge_some(2)
    assert world.step(wait=False) is None
    world.merge_some(3)
    assert world.step(wait=False) is None and "OPTIMIZE" not in world.operations()
    gate.opened.set()
    assert world.step() == NAME
    assert world.operations().count("OPTIMIZE") == 1
    world.merge_some(2)
    while world.step() is not None:
        pass
    world.merge_some(2)
    world.check()


def test_a_table_that_is_being_merged_is_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of its own uses the open table: its turn begins, and ends, when that is done."""

    def is_left_alone() -> bool:
        before = newest(world.table.path)
        table = world.tables._open.get(world.table.location())
        steps = [world.step(wait=wait, at_work={NAME}) for wait in (True, False)]
        assert world.tables._open.get(world.table.location()) is table
        return steps == [None, None] and newest(world.table.path) == before

    gate = Gate(monkeypatch)
    world.merge_some(2)
    assert is_left_alone() and world.upkeep._running is None, "its turn is due"
    assert world.step(wait=False) is None and world.upkeep._running is not None
    gate.opened.set()
    wait_until(world.upkeep._running.is_ready, what="the rewrite")
    assert is_left_alone(), "its rewrite is ready"
    assert world.step() == NAME
    while world.step() is not None:
        pass
    world.upkeep.ask({NAME: 0.0})
    world.merge_some(1)
    assert is_left_alone() and world.upkeep.has_asked, "its maintenance is asked for"
    assert world.step() == NAME


def test_a_turn_ends_when_no_file_has_too_many_dead_rows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "SHARE", 0.05)
    world.merge_some(4)
    while world.step() is not None:
        pass
    table = world.open()
    table.refresh()
    assert all(dead_share(table, live) <= 0.05 for live in table.snapshot.files.values())
    before = newest(world.table.path)
    assert world.step() is None and newest(world.table.path) == before
    world.merge_some(1)
    assert world.step() is None, "one commit after its turn"
    world.merge_some(1)
    assert world.step() == NAME


def refuse_table(world: World) -> None:
    conf = {"delta.constraints.some": "true"}
    write_commit(world.table.path, newest(world.table.path) + 1, metadata(schema_string(FIELDS), **conf))


def test_a_table_that_we_do_not_write_is_named_and_left_as_it_is(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.merge_some(2)
    refuse_table(world)
    version = newest(world.table.path)
    assert world.step() is None and newest(world.table.path) == version
    assert f"{NAME}: its files are not joined: it has the constraint some" in caplog.text
    caplog.clear()
    assert world.step() is None and not caplog.text, "its turn is over"


def test_files_of_a_table_without_vectors_are_joined_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_on_write, "_SMALL", 1)  # each change leaves as many files as it has met, and one more
    write_commit(world.table.path, 1, metadata(schema_string(FIELDS), **{"delta.enableDeletionVectors": "false"}))
    for _ in range(4):
        world.merge_some(3)
        while world.step() is not None:
            pass
    assert "OPTIMIZE" in world.operations()
    added = [
        action["add"]
        for version in range(2, newest(world.table.path) + 1)
        for action in commit_of(world.table.path, version)
        if "add" in action
    ]
    assert added and not any("deletionVector" in action for action in added)


def test_a_change_that_replaces_a_file_meanwhile_has_it_joined_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table without vectors: what was written again is dropped, and no row of it comes back."""
    write_commit(world.table.path, 1, metadata(schema_string(FIELDS), **{"delta.enableDeletionVectors": "false"}))
    monkeypatch.setattr(copy_on_write, "_SMALL", 1)
    world.merge_some(3)
    overtaken: list[bool] = []

    def commit_late(table: OpenTable, rewritten: Rewritten) -> bool:
        if not overtaken:
            world.merge_some(1)
            overtaken.append(not commit_rewritten(table, rewritten))
            return not overtaken[0]
        return commit_rewritten(table, rewritten)

    monkeypatch.setattr("dblog_core.lake_engine.tasks.upkeep.commit_rewritten", commit_late)
    while world.step() is not None:
        pass
    assert overtaken == [True]
    world.merge_some(3)
    while world.step() is not None:
        pass
    assert "OPTIMIZE" in world.operations()


@pytest.mark.parametrize("error", [StagingUnavailable("storage is away"), MemoryError("no room"), pa.ArrowInvalid("x")])
def test_a_rewrite_that_fails_ends_the_turn(world: World, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any) -> Any:
        raise error

    world.merge_some(2)
    with monkeypatch.context() as failing:
        failing.setattr(Rewrite, "_write", fail)
        with pytest.raises((LakeError, StagingUnavailable)):
            world.step()
    assert world.step() is None, "others have their turns"
    world.merge_some(2)
    assert world.step() == NAME


def test_a_rewrite_that_is_overtaken_is_planned_again_and_at_last_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_out = Rewrite.carry_out
    rewrites: list[Rewrite] = []

    def be_overtaken(rewrite: Rewrite, *check: Any) -> Any:
        rewrites.append(rewrite)
        rewritten = carry_out(rewrite, *check)
        write_commit(
            world.table.path,
            newest(world.table.path) + 1,
            metadata(schema_string(FIELDS), **{"delta.checkpointInterval": str(100 + len(rewrites))}),
        )
        return rewritten

    world.merge_some(2)
    monkeypatch.setattr(Rewrite, "carry_out", be_overtaken)
    assert world.step() is None and len(rewrites) == 3
    world.check()


def test_who_has_lost_the_lake_writes_nothing_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    world.merge_some(2)
    assert world.step(wait=False) is None
    gate.opened.set()
    before = newest(world.table.path)

    def lose_lease() -> None:
        raise LeaseLost("another merge has taken the lake over")

    world.written = WrittenLake(world.written.location, "x", check=lose_lease, open_tables=world.tables)
    with pytest.raises(LeaseLost):
        world.step()
    assert newest(world.table.path) == before


def test_what_runs_is_ended_with_the_merge(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    Gate(monkeypatch)
    world.merge_some(2)
    assert world.step(wait=False) is None
    world.upkeep.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "rewrite"]
    world.check()


def test_a_table_that_has_left_the_lake_ends_its_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    Gate(monkeypatch)
    world.merge_some(2)
    assert world.step(wait=False) is None
    assert world.upkeep.step(world.written, {}, wait=False) is None
    assert not [thread for thread in threading.enumerate() if thread.name == "rewrite"]


def test_others_delete_rows_while_files_are_written_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another program, that writes files again itself: what was written is of no use."""
    gate = Gate(monkeypatch)
    world.merge_some(2)
    assert world.step(wait=False) is None
    DeltaTable(str(world.table.path)).delete("a % 2 = 0")
    world.oracle.rows = world.rows()
    gate.opened.set()
    world.step()
    world.check()


def marked_files(world: World) -> set[str]:
    table = world.open()
    table.refresh()
    return {path for path, live in table.snapshot.files.items() if live.vector is not None}


def test_a_maintenance_finds_the_dead_rows_gone_that_were_there_when_it_was_asked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    world.upkeep = Upkeep(world.staging, 0, now=lambda: world.now)
    world.merge_some(3)
    before = marked_files(world)
    assert before and world.step() is None, "no table has a turn of its own"
    world.upkeep.ask({NAME: 0.0})
    began = world.now
    assert world.step(wait=False) is None and world.upkeep.has_asked
    world.now += 60
    world.merge_some(2)
    gate.opened.set()
    while world.step() is not None:
        world.merge_some()
    assert not world.upkeep.has_asked
    assert world.upkeep.purged == {NAME: began}
    assert not before & marked_files(world)
    table = world.open()
    table.refresh()
    assert not before & table.snapshot.files.keys(), "a row that was dead then is in no file of the newest version"


def test_a_maintenance_writes_only_files_again_that_had_dead_rows_when_it_began(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merges mark rows in others all the time: it would never end."""
    monkeypatch.setattr(upkeep, "plan_join", lambda table, at_least: None)
    world.upkeep = Upkeep(world.staging, 0)
    world.merge_some(3)
    before = marked_files(world)
    world.upkeep.ask({NAME: 0.0})
    for _ in range(len(before) + 2):
        if world.step() is None:
            break
        world.merge_some()
    assert 0 < world.operations().count("OPTIMIZE") <= len(before)
    assert not world.upkeep.has_asked and marked_files(world)


def test_a_table_that_we_do_not_write_is_left_to_the_maintenance(world: World) -> None:
    world.upkeep = Upkeep(world.staging, 0)
    world.merge_some(2)
    refuse_table(world)
    world.upkeep.ask({NAME: 0.0, "shop.gone": 0.0})
    assert world.step() is None and not world.upkeep.has_asked
    assert world.upkeep.purged == {}


def test_a_fault_leaves_the_rest_to_the_maintenance(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise StagingUnavailable("storage is away")

    world.upkeep = Upkeep(world.staging, 0)
    world.merge_some(2)
    world.upkeep.ask({NAME: 0.0, "shop.other": 0.0})
    monkeypatch.setattr(Rewrite, "carry_out", fail)
    with pytest.raises(StagingUnavailable):
        world.step()
    assert not world.upkeep.has_asked and world.upkeep.purged == {}


def test_a_maintenance_that_is_overtaken_has_purged_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.upkeep = Upkeep(world.staging, 0)
    world.merge_some(2)
    world.upkeep.ask({NAME: 0.0})
    monkeypatch.setattr(upkeep, "commit_rewritten", lambda table, rewritten: False)
    assert world.step() is None
    assert not world.upkeep.has_asked and world.upkeep.purged == {}
