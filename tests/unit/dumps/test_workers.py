"""How many dump workers there are, and what becomes of a task whose worker stops, dies, or is in doubt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.dumps import control, task_store
from dblog_core.errors import (
    RequestError,
    SourceUnavailable,
)
from dblog_core.interfaces import Strain
from dblog_core.model import watermark
from dblog_core.model.task_id import TaskId
from dblog_core.model.watermark import Low
from dblog_core.staging import Staging
from dblog_core.staging.changelog import ChunkFile
from dblog_core.state.memory import MemoryLease
from tests.unit.worker_moments import at_read, fault_at, finder, kill_after, leave, take
from tests.unit.workers_world import DUMP, World, world

__all__ = ["world"]


def test_a_paused_dump_gives_its_tasks_back_when_its_chunks_are_placed(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({}, {"after": 50})
    at_read(world, 3, lambda: control.pause(world.state, DUMP))
    world.work()
    assert (world.status().state, world.held_leases(), len(world.placed_keys())) == ("paused", [], 30)
    control.resume(world.state, DUMP)
    world.work()
    assert sorted(set(world.placed_keys())) == list(range(1, 101))
    assert world.placed_keys()[:40] == list(range(1, 41)), "it goes on after the last placed chunk"


def test_a_cancelled_dump_is_left_at_once(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({})
    at_read(world, 3, lambda: control.cancel(world.state, DUMP))
    world.work()
    assert (world.status().state, world.held_leases(), len(world.source.reads)) == ("cancelled", [], 3)


def test_a_stopped_worker_gives_its_task_back_at_once(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({})
    world.capturing = False
    at_read(world, 2, world.stop.set)
    before = world.clock.now
    world.work()
    assert (world.held_leases(), world.clock.now, len(world.source.reads)) == ([], before, 2)


def test_the_workers_of_a_dump_are_limited_over_all_processes(world: World) -> None:
    world.fill(*range(1, 101))
    world.request(*({"after": k * 20, "key_to": k * 20 + 20} for k in range(5)), workers=2)
    first = take(world)
    second = take(world)
    assert first is not None and second is not None
    assert (first.task.number, second.task.number) == (0, 1)
    assert take(world) is None
    leave(first)
    third = take(world)
    assert third is not None and third.task.number == 0
    control.retune(world.state, DUMP, workers=4)
    tasks_taken = [hold.task.number for hold in iter(lambda: take(world), None)]
    assert tasks_taken == [2, 3]


def test_each_dump_has_workers_of_its_own(world: World) -> None:
    world.request({}, {}, workers=1)
    world.request({}, {}, dump_id="d2", workers=1)
    tasks_taken = [(hold.dump_id, hold.task.number) for hold in iter(lambda: take(world), None)]
    assert tasks_taken == [("d1", 0), ("d2", 0)]


def test_only_tasks_that_are_left_call_for_workers(world: World) -> None:
    world.request({}, {}, {}, {}, workers=3)
    other, _ = finder(world)
    assert other.count_free_places(world.status()) == 3
    for number in (0, 1):
        task_store.fail_task(world.state, TaskId(DUMP, number), "gone")
    assert other.count_free_places(world.status()) == 2
    assert take(world) is not None
    assert other.count_free_places(world.status()) == 1
    control.pause(world.state, DUMP)
    assert other.count_free_places(world.status()) == 0


def test_a_task_that_is_taken_between_look_and_grasp_leaves_no_place_occupied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.request({}, workers=3)
    real = type(world.state).acquire

    def faster(self: Any, name: str, holder: str, **more: Any) -> MemoryLease | None:
        if name.startswith("task-") and not holder.startswith("other"):
            assert real(self, name, "other", **more) is not None
        return real(self, name, holder, **more)

    monkeypatch.setattr(type(world.state), "acquire", faster)
    assert take(world) is None
    assert world.held_leases() == ["task-d1-0"]


def test_a_worker_that_is_one_too_many_gives_its_task_back_after_its_chunk(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({"key_to": 50}, {"after": 50}, workers=2)
    first = take(world)
    assert first is not None
    at_read(world, 2, lambda: control.retune(world.state, DUMP, workers=1))
    world.work()
    assert first.task.number == 0
    assert world.held_leases() == ["permit-d1-0", "task-d1-0"], "the one that may stay is left alone"
    world.place()
    assert world.placed_keys() == list(range(51, 71)), "the chunk that it was reading counts"
    leave(first)
    world.work()
    assert sorted(world.placed_keys()) == list(range(1, 101))


def test_a_dead_worker_is_replaced_and_its_range_goes_on_after_the_last_placed_chunk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill(*range(1, 101))
    world.request({}, chunk_size=10, in_flight=1)
    kill_after(world, monkeypatch, reads=4)
    assert world.placed_keys() == list(range(1, 31))
    assert take(world) is None, "its leases have not ended"
    world.expire()
    world.source.reads.clear()
    world.work()
    assert world.source.reads[0][0] == (30,)
    assert world.placed_keys() == list(range(1, 101))
    assert world.status().tasks[0].record.attempt == 2


def test_a_worker_whose_place_may_be_taken_leaves(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({}, workers=1)
    at_read(world, 2, lambda: world.expire("permit-d1-0"))
    world.work()
    assert world.status().state == "done", "it takes the task again, with a new place"
    assert [w.mark.attempt for w in world.highs()][:3] == [1, 1, 2]


@pytest.mark.parametrize("moment", ["before the low watermark", "in the SELECT", "while the rows are written"])
def test_a_worker_whose_lease_is_in_doubt_writes_nothing_more(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    world.fill(*range(1, 101))
    world.request({}, delay=1, adaptive=True)  # the next chunk is due with the next look at the source
    files: list[str] = []
    written: list[int] = []
    real = Staging.write_chunk

    def doubt() -> None:
        if not written:
            world.expire("task-d1-0")
            assert take(world) is not None  # by another worker
            written.append(len(world.database.log))

    def write(self: Staging, directory: str, name: str, rows: pa.RecordBatch) -> ChunkFile:
        if len(files) == 1 and moment == "while the rows are written":
            doubt()
        files.append(name)
        return real(self, directory, name, rows)

    def suffers() -> Strain:
        if files and moment == "before the low watermark":
            doubt()
        return Strain(None, None, None)

    if moment == "in the SELECT":
        at_read(world, 2, doubt)
    world.source.suffers = suffers
    monkeypatch.setattr(Staging, "write_chunk", write)
    world.work()
    assert [len(world.database.log)] == written, "no watermark"
    assert len(files) == (2 if moment == "while the rows are written" else 1), "no file"
    assert len(world.highs()) == 1
    assert world.status().tasks[0].error is None
    assert "task-d1-0" in world.held_leases(), "the other worker's lease is left alone"


def test_a_lease_that_is_lost_while_its_worker_waits_ends_nothing_else(world: World) -> None:
    world.fill(*range(1, 31))
    world.request({}, {"after": 10}, workers=2)
    world.source.on_read = fault_at(world, 1, SourceUnavailable("the connection broke"))

    def lose() -> None:
        if len(world.source.begun) == 1 and "task-d1-0" in world.held_leases():
            world.expire("task-d1-0")
            assert world.state.acquire("task-d1-0", "other", ttl=1) is not None
            world.clock.hooks.remove(lose)

    world.clock.hooks.append(lose)
    world.work()
    assert [t.progress.done for t in world.status().tasks] == [False, True]


def test_a_fault_of_a_worker_whose_lease_is_in_doubt_is_not_recorded(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({}, workers=1)

    def doubt() -> None:
        world.expire("task-d1-0")
        assert world.state.acquire("task-d1-0", "other", ttl=1) is not None
        raise RequestError("gone")

    at_read(world, 2, doubt)
    world.work()
    assert world.status().tasks[0].error is None


def test_a_newer_attempt_of_somebody_else_is_answered_by_a_newer_one(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({}, in_flight=1)

    def zombie() -> None:
        number = task_store.begin_attempt(world.state, TaskId(DUMP, 0))
        low = [w for w in world.watermarks() if isinstance(w, Low)][-1]
        stray = Low(replace(low.mark, attempt=number, window="z" * 32))
        world.source.open_watermarks("zombie").write(watermark.encode(stray))

    at_read(world, 3, zombie)
    world.work()
    assert world.placed_keys() == list(range(1, 101))
    assert world.highs()[-1].mark.attempt == 3
