"""Wherever a process dies in a commit of any kind, the next one brings the table, its history and its cuts to the same
end: every write of each kind is tried, before it, behind it, and with its answer lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from dblog_core.errors import DblogError
from tests.fix_day import OfADay
from tests.spark.lakes import Crash
from tests.unit.lake_engine.killed_commits.children import kill_process
from tests.unit.lake_engine.killed_commits.kinds import KINDS
from tests.unit.lake_engine.killed_commits.storage_writes import Fault, Writes
from tests.unit.lake_engine.killed_commits.world import World

DEATHS, KILLS = 5, 1
"""Of each kind a day."""


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Each kind of commit in turn, about to be made."""
    return World.prepare(tmp_path / "prepared", request.param)


def count_writes(world: World, path: Path) -> int:
    """The writes of a process to which nothing happens; its lake is right."""
    other = world.copy_to(path)
    writes = Writes()
    with writes.count_writes():
        other.work()
    other.judge()
    return len(writes.names)


def die(world: World, fault: Fault) -> None:
    """In this process: what its threads do behind the fault has no effect."""
    writes = Writes(fault)
    world.check_alive = writes.check_alive
    with writes.count_writes(), suppress(Crash):
        world.work()
    world.check_alive = lambda: None
    assert writes.happened


def lose_answer(world: World, fault: Fault) -> None:
    """The process goes on, or ends with an error."""
    writes = Writes(fault)
    with writes.count_writes(), suppress(DblogError):
        world.work()
    world.ask_again()
    assert writes.happened


def recover(world: World, path: Path, fault: Fault, befall: Callable[[World, Fault], None]) -> None:
    other = world.copy_to(path)
    try:
        befall(other, fault)
        other.check_death()
        other.work()
        other.judge()
        shutil.rmtree(path)
    except BaseException as error:
        error.add_note(f"{world.kind.name}: {befall.__name__} {fault}")
        raise


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[Path]:
    return (tmp_path / f"lake {number}" for number in count())


def test_whatever_befalls_a_commit_the_next_process_ends_right(
    world: World, paths: Iterator[Path], of_a_day: OfADay
) -> None:
    writes = range(1, count_writes(world, next(paths)) + 1)
    faults = [Fault(at, moment) for at in writes for moment in ("before", "after", "unanswered")]
    for fault in of_a_day(faults, DEATHS):
        recover(world, next(paths), fault, lose_answer if fault.moment == "unanswered" else die)


def test_the_same_holds_of_a_process_that_is_killed(world: World, paths: Iterator[Path], of_a_day: OfADay) -> None:
    writes = range(1, count_writes(world, next(paths)) + 1)
    faults = [Fault(at, moment) for at in writes for moment in ("before", "after")]
    for fault in of_a_day(faults, KILLS):
        recover(world, next(paths), fault, kill_process)
