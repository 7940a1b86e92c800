"""A merge does not wait for a table that is at work for long: the others go on, and nothing is lost by it."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import State, TableStatus
from dblog_core.lake.merge_plan import Span
from dblog_core.lake.task_results import ResetResult
from dblog_core.lake_engine.merging import late_tables, merge_records
from dblog_core.lake_engine.merging.merge_records import Intent
from dblog_core.lake_engine.tasks import registry
from dblog_core.lake_engine.tasks.context import Done
from tests.unit.merge_world import NAMES, NOTE, NOTED, World, a_world, plan_note, wait_until_held
from tests.waiting import PATIENCE_SECONDS

A, B, C = NAMES
STEPS = ("recorded", "cut", "finished", *(f"applied {name}" for name in NAMES))


@pytest.fixture(autouse=True, scope="module", params=[merge_records.WHOLE_BYTES, 0], ids=["few", "many"])
def _outcomes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Outcomes are written as for few tables, whole; or as for many."""
    with mock.patch.object(merge_records, "WHOLE_BYTES", request.param):
        yield


def test_a_table_at_work_delays_no_commit_of_another() -> None:
    with a_world() as world:
        world.write([A, B, C], 1)
        world.merge_all()
        world.hold(C)
        for _ in range(4):
            world.write([A, B, C], 2)
            assert world.round()
            assert all(world.versions[name][-1].offsets == world.prefix(name, world.build.offset) for name in (A, B))
        assert len(world.versions[C]) == 1
        status = world.status()
        assert list(status.late_tables) == [C] and status.tables[A].offset == status.offset
        assert status.common_offset == status.tables[C].offset < status.offset
        world.merge_all()
        # The share that was at work, and all that came meanwhile in one more.
        assert [v.number for v in world.versions[C]] == [1, 2, 6]
        assert not world.status().late_tables and world.status().tables[C].begun is None


def test_who_waits_for_the_thread_of_a_late_table_holds_no_merge_up() -> None:
    with mock.patch.object(late_tables, "_TOGETHER", 1), a_world() as world:
        world.write([C], 1)
        world.merge_all()
        # New tables are made by Spark: A is at work, and B waits for it.
        world.hold(A)
        world.write([A, C], 1)
        world.round()
        wait_until_held(world, A)
        world.write([B, C], 1)
        merged = world.merger.run_round(retry_stopped=False, patience=PATIENCE_SECONDS)
        assert merged is not None and merged.late == (A, B)
        assert world.versions[C][-1].offsets == world.prefix(C, world.build.offset)


def test_a_cut_waits_for_its_tables_and_names_the_versions_of_then() -> None:
    with a_world() as world:
        world.write([A, B], 1)
        world.merge_all()
        world.hold(B)
        for _ in range(3):
            world.time += 1
            world.write([A, B], 1)
            world.round()
        world.time += 1
        assert [cut.number for cut in world.cuts] == [1]
        world.merge_all()
        _, waited, newest = world.cuts
        assert waited.number == 2 and waited.versions == {A: 1, B: 1}
        assert waited.time == 1, "VACUUM may remove what was replaced before"
        assert newest.number == 5 and newest.versions == {A: 3, B: 2}
        assert not any(cut.behind for cut in world.cuts)


def test_a_table_that_was_at_work_before_stops_for_the_cut_of_another() -> None:
    """Otherwise tables that are late in turn would never stand at one offset."""
    with a_world() as world:
        world.write([A, B, C], 1)
        world.merge_all()
        for name in (B, C):
            world.hold(name)
            world.write([A, B, C], 1)
            world.round()
        _let_arrive(world, B)
        world.hold(B)
        world.write([A, B, C], 1)
        world.round()
        # The row of merge 4 waits for its own share of B, and for C, which is at work on merge 3.
        assert [cut.number for cut in world.cuts] == [1, 2]
        _let_arrive(world, C)
        _let_arrive(world, B)
        for _ in range(3):
            world.write([A, B, C], 1)
            world.merger.run_round(retry_stopped=False, patience=PATIENCE_SECONDS)
        assert not world.status().late_tables, "a table that stops for each cut never is where the others are"
        assert [cut.number for cut in world.cuts][:3] == [1, 2, 4]
        assert [v.number for v in world.versions[C]][:4] == [1, 2, 3, 5]
        assert world.cuts[2].versions == {A: 3, B: 2, C: 3}


def test_new_table_that_is_late_in_its_first_merge_lacks_nothing_later() -> None:
    with a_world() as world:
        world.hold(A)
        for _ in range(3):
            world.write([A, B], 1)
            world.round()
        assert world.status().tables[A].version is None
        world.die(lambda: "dies after its commit")
        world.merge_all()
        assert world.versions[A][-1].offsets == world.prefix(A, world.build.offset)


def test_what_came_in_late_is_known_after_a_crash_of_the_next_merge() -> None:
    with a_world() as world:
        world.write([A, B], 1)
        world.merge_all()
        world.hold(B)
        world.write([A, B], 1, emptied=B)
        world.round()
        world.write([A], 1)
        world.round()
        _let_arrive(world, B)
        world.write([A, B], 1)
        assert world.die_at("recorded")
        world.round()
        assert world.status().merge == 4 and world.status().tables[B].state is State.OK


def test_a_late_table_with_a_fault_stops_alone_and_is_tried_again() -> None:
    with a_world() as world:
        world.write([A, B], 1)
        world.merge_all()
        world.hold(B)
        world.failing.add(B)
        world.write([A, B], 1)
        world.round()
        world.release(B)
        world.merger.settle()
        assert world.status().tables[B].state is State.STOPPED
        world.write([A, B], 1)
        world.round()
        assert world.cuts[-1].behind == {B: world.status().tables[B].offset}
        world.failing.clear()
        world.merge_all()
        assert world.versions[B][-1].offsets == world.prefix(B, world.build.offset)


def test_what_a_dead_merger_has_committed_of_a_late_table_is_not_merged_again() -> None:
    with a_world() as world:
        _die_behind_the_commit_of(world, B)
        assert [v.number for v in world.versions[B]] == [1, 2] and B in world.status().late_tables
        world.write([A, B], 1)
        world.merge_all()
        assert [v.number for v in world.versions[B]][:2] == [1, 2] and len(world.versions[B]) == 3
        assert world.versions[B][-1].offsets == world.prefix(B, world.build.offset)


def test_who_settles_after_a_crash_waits_for_the_committed_share() -> None:
    with a_world() as world:
        _die_behind_the_commit_of(world, B)
        world.hold(B)

        def release() -> None:
            wait_until_held(world, B)
            world.release(B)

        releasing = threading.Thread(target=release)
        releasing.start()
        while world.merger.settle() is not None:
            pass
        releasing.join()
        assert not world.status().late_tables and len(world.versions[B]) == 2


@pytest.mark.parametrize(("behind", "is_found"), [({}, False), ({B: 2}, False), ({B: 3}, True)])
def test_a_share_that_began_elsewhere_is_none_of_the_table(behind: dict[str, int], is_found: bool) -> None:
    with a_world() as world:
        intent = Intent(7, Span(9, 9, 90, 99, "p", None), behind)
        records = SimpleNamespace(intent={7: intent}.get)
        at = TableStatus(State.STOPPED, "a fault", 3, 30)
        share = late_tables.find_committed_share(B, at, 7, records, world.staging)  # type: ignore[arg-type]
        assert (share is not None) == is_found
        assert late_tables.find_committed_share(B, at, None, records, world.staging) is None  # type: ignore[arg-type]
        assert late_tables.find_committed_share(B, at, 8, records, world.staging) is None  # type: ignore[arg-type]


def test_a_committed_share_holds_no_merge_up_while_it_is_brought_to_its_end() -> None:
    with a_world() as world:
        _die_behind_the_commit_of(world, B)
        world.hold(B)
        for _ in range(2):
            world.write([A, B], 1)
            assert world.round()
        assert world.status().tables[A].offset == world.status().offset
        assert list(world.status().late_tables) == [B] and len(world.versions[B]) == 2
        world.merge_all()
        assert world.versions[B][-1].offsets == world.prefix(B, world.build.offset)


def test_a_table_that_stopped_behind_its_commit_is_not_merged_again_from_before_it() -> None:
    with a_world() as world:
        world.write([A, B], 1)
        world.failing_late.add(B)
        world.round()
        assert world.status().tables[B].state is State.STOPPED and len(world.versions[B]) == 1
        world.write([A, B], 1)
        world.round(retry=True)
        assert len(world.versions[B]) == 1
        world.merge_all()
        assert len(world.versions[B]) == 2 and world.status().tables[B].state is State.INCOMPLETE


def test_a_stopped_table_is_not_tried_twice_at_a_time() -> None:
    with a_world() as world:
        world.write([A, B], 1)
        world.failing.add(B)
        world.round()
        world.failing.clear()
        world.hold(B)
        for _ in range(3):
            world.write([A, B], 1)
            world.round(retry=True)
        assert world.status().tables[B].state is State.STOPPED
        _let_arrive(world, B)
        world.merge_all()
        assert [v.number for v in world.versions[B]] == [2, 5]


def test_a_lake_task_waits_until_no_table_is_late() -> None:
    with a_world() as world:
        world.write([A, B], 1)
        world.merge_all()
        world.hold(B)
        for _ in range(2):
            world.write([A, B], 1)
            world.round()
        task = lake_tasks.file_task(world.location, NOTE)
        world.release_all()
        kinds = [merged.task for merged in iter(world.merger.run_task, None)]
        assert kinds[-1] == NOTE.kind and kinds[:-1] == [None] * (len(kinds) - 1)
        outcome = lake_tasks.read_outcome(world.location, task.id, ResetResult)
        assert outcome is not None and outcome.error is None


def test_a_table_that_a_task_has_set_back_is_in_the_task_s_cut() -> None:
    """It waits for a dump: no other row of the cuts ever shows it at that offset."""
    with a_world() as world:
        for _ in range(2):
            world.write([A, B], 1)
            world.merge_all()
        at = world.status().tables[B]
        set_back = Done(NOTED, {B: replace(at, segment=1, offset=min(world.lines[B]), awaits="dump")})
        with mock.patch.dict(registry.KINDS, {NOTE.kind: registry.Kind(lambda tools, plan: set_back, plan_note)}):
            lake_tasks.file_task(world.location, NOTE)
            assert [merged.task for merged in iter(world.merger.run_task, None)] == [NOTE.kind]
        assert [cut.number for cut in world.cuts] == [1, 2, 3] and not world.status().late_tables
        assert world.merger.run_round(retry_stopped=False) is None


def test_what_is_in_when_a_merge_ends_is_recorded() -> None:
    with a_world() as world:
        world.write([A, B], 1)
        world.merge_all()
        world.hold(B)
        for _ in range(2):
            world.write([A, B], 1)
            world.round()
        world.settle(brings_rows=False)
        at = world.status().tables[B]
        assert at.begun == at.offset and world.prefix(B, at.offset) == world.versions[B][-1].offsets


@pytest.mark.thorough
def test_walks_come_by_all_that_can_happen() -> None:
    happened = sum((_walk(random.Random(f"late {seed}"), 60) for seed in range(8)), Counter[str]())
    assert happened.keys() >= {"late", "died at a step", "died at work", "taken over", "woke up", "task", "stopped"}


@settings(max_examples=30)
@given(st.integers(0, 1 << 32))
@pytest.mark.thorough
def test_random_walks_with_crashes_and_takeovers_lose_and_repeat_nothing(seed: int) -> None:
    _walk(random.Random(seed), 25)


def _walk(dice: random.Random, steps: int) -> Counter[str]:
    happened = Counter[str]()
    with a_world() as world:
        for _ in range(steps):
            happened[_take_step(world, dice)] += 1
        check_all_is_merged(world)
    return happened


def check_all_is_merged(world: World) -> None:
    """Merges what there is; every table, the record and the last cut then have all of it."""
    world.merge_all()
    end = world.build.offset
    for name in NAMES:
        assert not world.lines[name] or world.versions[name][-1].offsets == world.prefix(name, end)
    status = world.status()
    assert status.common_offset == status.offset == end
    if end:
        assert world.cuts[-1].offset == end and not world.cuts[-1].behind


def _take_step(world: World, dice: random.Random) -> str:
    """What happened."""
    name = dice.choice(NAMES)
    step = dice.random()
    if step < 0.3:
        world.write(dice.sample(NAMES, dice.randint(1, 3)), dice.randint(1, 3), emptied=dice.choice((name, None, None)))
        return "written"
    if step < 0.55:
        world.round(retry=dice.random() < 0.3)
        states = {at.state for at in world.status().tables.values()}
        return "late" if world.status().late_tables else "stopped" if State.STOPPED in states else "merged"
    if step < 0.68:
        world.hold(name)
        return "held"
    if step < 0.8:
        world.release(name)
        return "released"
    if step < 0.84:
        world.die(lambda: dice.choice(("dies", "dies after its commit")))
        return "died at work"
    if step < 0.88:
        return "died at a step" if world.die_at(dice.choice(STEPS)) else "merged"
    if step < 0.92:
        world.take_over()
        return "taken over"
    if step < 0.94:
        tables_with_a_fault = dice.choice((world.failing, world.failing_late))
        tables_with_a_fault ^= {name}
        return "fault"
    if step < 0.97 and world.sleepers:
        world.sleepers.pop(dice.randrange(len(world.sleepers))).open(dice.choice(("goes on", "commits all the same")))
        return "woke up"
    if dice.random() < 0.5:
        world.settle(brings_rows=dice.random() < 0.5)
        return "settled"
    lake_tasks.file_task(world.location, NOTE)
    world.release_all()
    while world.merger.run_task() is not None:
        pass
    return "task"


def _die_behind_the_commit_of(world: World, name: str) -> None:
    """The table's second share is committed, late, and no record says so."""
    world.write([A, name], 1)
    world.merge_all()
    world.hold(name)
    world.write([A, name], 1)
    world.round()
    wait_until_held(world, name)
    world.die(lambda: "dies after its commit")


def _let_arrive(world: World, name: str) -> None:
    """The share of a late table comes in."""
    wait_until_held(world, name)
    share = world.merger._late._shares[name]
    world.release(name)
    share.outcome.result(PATIENCE_SECONDS)
