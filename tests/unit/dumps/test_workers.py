"""Dump workers: what they read and when, how many there are, and what becomes of a task whose worker ends."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import orjson
import pyarrow as pa
import pytest

from dblog_core.clock import SystemClock
from dblog_core.dumps import control, dump_records, task_lease, task_store, work_loop
from dblog_core.dumps import task_queue as finder_module
from dblog_core.dumps.source_load import Gauge
from dblog_core.dumps.status import DumpStatus
from dblog_core.dumps.task_lease import Hold, WorkerContext
from dblog_core.dumps.task_queue import TaskQueue
from dblog_core.dumps.worker import FAULTY_ATTEMPTS
from dblog_core.errors import (
    RequestError,
    SourceReadOnly,
    SourceRefused,
    SourceUnavailable,
    StagingUnavailable,
    StateUnavailable,
)
from dblog_core.interfaces import Strain
from dblog_core.model import watermark
from dblog_core.model.schema import Column, TableSchema
from dblog_core.model.task_id import TaskId
from dblog_core.model.watermark import Heals, High, Low
from dblog_core.staging import Staging
from dblog_core.staging.changelog import ChunkFile
from dblog_core.state.memory import MemoryLease
from tests.fake_source import ORDERS, Change
from tests.unit.workers_world import DUMP, LINES, World, world
from tests.waiting import PATIENCE_SECONDS

__all__ = ["world"]


WIDE = TableSchema(ORDERS.table, (*ORDERS.columns, Column("extra", "text", pa.string())), ORDERS.key)
EQUAL = {"column": "name", "op": "=", "values": ["x"]}


class Killed(BaseException):
    """The process is gone: nothing that it would do afterwards happens."""


def kill_after(world: World, monkeypatch: pytest.MonkeyPatch, reads: int) -> None:
    """The worker dies at its SELECT number `reads`; its leases stay as they are."""
    with monkeypatch.context() as patch:
        for module in (task_lease, finder_module):
            patch.setattr(module, "give_back", lambda lease: None)
        world.source.on_read = fault_at(world, reads, Killed())
        with pytest.raises(Killed):
            world.work()
    world.source.on_read = None


def fault_at(world: World, number: int, error: BaseException) -> Callable[[], None]:
    """Raises at that SELECT (the first is 1), once."""
    first = len(world.source.begun)

    def strike() -> None:
        if len(world.source.begun) - first == number:
            raise error

    return strike


def at_read(world: World, number: int, act: Callable[[], Any]) -> None:
    """Does something right before that SELECT (the first is 1)."""

    def strike() -> None:
        if len(world.source.begun) == number:
            act()

    world.source.on_read = strike


def finder(world: World) -> tuple[TaskQueue, WorkerContext]:
    """Another process."""
    gauge = Gauge(world.source, world.clock)
    place = WorkerContext(
        world.config, world.state, world.source, world.staging, gauge, world.clock, world.stop, world.new_id
    )
    return TaskQueue(world.state, None), place


_FINDERS: WeakKeyDictionary[Hold, TaskQueue] = WeakKeyDictionary()


def take(world: World) -> Hold | None:
    """What a worker of another process takes."""
    other, place = finder(world)
    if (taken := other.take(place, world.new_id())) is not None:
        _FINDERS[taken] = other
    return taken


def leave(taken: Hold) -> None:
    """That worker gives it back, and ends."""
    _FINDERS[taken].give_back(taken)
    _FINDERS[taken].close()


def node(world: World, name: str, number: int = 0) -> Any:
    entry = world.state.get(f"dumps/{DUMP}/tasks/{number}/{name}")
    return None if entry is None else orjson.loads(entry.data)


# What is read ---------------------------------------------------------------------------------------------------------


def test_ranges_of_a_table_together_read_every_row_once(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({"key_to": 33}, {"after": 33, "key_to": 66}, {"after": 66}, chunk_size=10)
    world.work()
    assert sorted(world.dumped()) == list(range(1, 101))
    assert world.status().state == "done"


def test_a_range_includes_both_of_its_ends(world: World) -> None:
    world.fill(*range(1, 51))
    world.request({"key_from": 10, "key_to": 30}, chunk_size=7)
    world.work()
    assert world.dumped() == list(range(10, 31))


def test_a_range_whose_ends_are_not_there_has_the_rows_between(world: World) -> None:
    world.fill(*range(0, 50, 4))
    world.request({"key_from": 10, "key_to": 30}, chunk_size=2)
    world.work()
    assert world.dumped() == [12, 16, 20, 24, 28]


@pytest.mark.parametrize("task", [{}, {"after": 5}, {"key_from": 5}, {"key_from": 5, "key_to": 9}, {"key_to": 9}])
def test_an_empty_table_is_done_by_a_chunk_without_rows(world: World, task: dict[str, Any]) -> None:
    world.request(task)
    world.work()
    assert (world.status().state, world.dumped()) == ("done", [])


def test_the_end_of_an_open_range_is_fixed_by_its_first_window(world: World) -> None:
    world.fill(*range(1, 31))
    world.request({"after": 5}, chunk_size=10)
    at_read(world, 2, lambda: world.fill(31, 32, 33))
    world.work()
    assert world.dumped() == list(range(6, 31))
    assert [upto for _, upto, _ in world.source.reads] == [None, (30,), (30,)]


def test_what_its_first_select_sees_lies_within_an_open_range(world: World) -> None:
    """A commit that becomes visible in the first window may be in no log that is read: it must not fall outside."""
    world.fill(*range(1, 21))
    world.request({}, chunk_size=10)
    at_read(world, 1, lambda: world.fill(21))
    world.work()
    assert world.dumped() == list(range(1, 22))


def test_filters_leave_rows_out_also_at_the_first_key_of_a_range(world: World) -> None:
    world.fill(*range(1, 41))
    world.fill(*range(1, 41, 3), name="x")
    world.request({"key_from": 2, "key_to": 30, "filters": [EQUAL]}, chunk_size=4)
    world.work()
    assert world.dumped() == list(range(4, 31, 3))


def test_listed_keys_that_are_not_there_are_absent(world: World) -> None:
    world.fill(1, 2, 3)
    world.request({"keys": [1, 3, 9]})
    world.work()
    (high,) = world.highs()
    assert (world.dumped(), high.absent, high.final) == ([1, 3], (9,), True)


def test_a_listed_key_that_a_filter_leaves_out_is_not_called_absent(world: World) -> None:
    world.fill(1, 2)
    world.fill(3, name="x")
    world.request({"keys": [1, 3, 9], "filters": [EQUAL]})
    world.work()
    (high,) = world.highs()
    assert (world.dumped(), high.absent) == ([3], ())


def test_watermarks_tell_of_all_parts_and_of_the_range_that_is_healed(world: World) -> None:
    world.fill(*range(1, 21))
    world.request(
        {"key_to": 10, "heals": {"key_from": None, "key_to": 20}},
        {"after": 10, "key_to": 20, "heals": {"key_from": None, "key_to": 20}},
        {"keys": [3], "parts": 1},
        workers=1,
    )
    world.work()
    told = {(w.mark.task.number, w.mark.parts, w.mark.heals) for w in world.watermarks()}
    healed = Heals(None, 20)
    assert told == {(0, 3, healed), (1, 3, healed), (2, 1, None)}


def test_chunk_size_counts_from_the_next_chunk_on(world: World) -> None:
    world.fill(*range(1, 31))
    world.request({}, chunk_size=5)
    at_read(world, 2, lambda: control.retune(world.state, DUMP, chunk_size=20))
    world.work()
    assert [limit for *_, limit in world.source.reads] == [5, 5, 20]
    assert world.dumped() == list(range(1, 31))


def test_no_more_chunks_are_read_ahead_than_in_flight(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({}, chunk_size=10, in_flight=3)
    world.capturing = False
    seen: list[int] = []
    world.clock.hooks.append(lambda: seen.append(len(world.source.reads)))
    world.clock.hooks.append(lambda: world.stop.set() if len(seen) > 20 else None)
    world.work()
    assert seen[-1] == 3


# What goes on beside the worker -------------------------------------------------------------------------------------


class Late:
    """Steps that run as late as they may: when they are awaited, or when the worker waits for the clock."""

    def __init__(self, world: World) -> None:
        self._waiting: list[Callable[[], None]] = []
        world.clock.hooks.insert(0, self.join)
        world.spawn = self.spawn

    def spawn(self, name: str, function: Callable[[], None]) -> Late:
        assert not self._waiting, "two chunks are staged at once"
        self._waiting.append(function)
        return self

    def join(self, timeout: float | None = None) -> None:
        while self._waiting:
            self._waiting.pop()()


def told(world: World) -> list[str]:
    """Watermarks in the log's order: low or high, and the chunk."""
    return [f"{type(w).__name__.lower()} {w.mark.ordinal}" for w in world.watermarks()]


def test_a_chunk_is_staged_while_the_next_is_read(world: World) -> None:
    world.fill(*range(1, 31))
    Late(world)
    world.request({}, chunk_size=10)
    seen: list[list[str]] = []
    world.source.on_read = lambda: seen.append(told(world))
    world.work()
    assert seen[:3] == [["low 0"], ["low 0", "low 1"], ["low 0", "low 1", "high 0", "low 2"]]
    assert [w.mark.ordinal for w in world.highs()] == list(range(len(world.highs())))
    assert (world.dumped(), world.status().state) == (list(range(1, 31)), "done")


def test_rows_that_change_under_overlapping_windows_are_evicted_from_both(world: World) -> None:
    world.fill(*range(1, 31))
    Late(world)
    world.request({}, chunk_size=10)

    def change() -> None:
        """After the first chunk's SELECT, before its high watermark; before the second's SELECT, after its low one."""
        rows = world.database.rows[ORDERS.table]
        changes = [Change("u", ORDERS.table, before=rows[(k,)], after={**rows[(k,)], "name": "new"}) for k in (5, 15)]
        world.database.commit(*changes)

    at_read(world, 2, change)
    world.work()
    progress = world.status().tasks[0].progress
    assert (progress.done, progress.rows, progress.evicted) == (True, 30, 2)


@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_a_chunk_that_cannot_be_staged_is_read_again_and_no_later_one_is_told_of(
    world: World, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    world.fill(*range(1, 26))
    Late(world)
    world.request({}, chunk_size=10)
    real = Staging.write_chunk
    failed = []

    def full(self: Staging, directory: str, name: str, rows: pa.RecordBatch) -> ChunkFile:
        if name.startswith(f"{chunk:08d}") and not failed:
            failed.append(name)
            raise StagingUnavailable("no space left", where="disk", fix="make room")
        return real(self, directory, name, rows)

    monkeypatch.setattr(Staging, "write_chunk", full)
    world.work()
    first = [w.mark.ordinal for w in world.highs() if w.mark.attempt == 1]
    assert (len(failed), first) == (1, list(range(chunk)))
    assert (world.dumped(), world.status().state) == (list(range(1, 26)), "done")


def test_nothing_is_told_of_a_chunk_whose_lease_ends_while_it_is_staged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill(*range(1, 31))
    Late(world)
    world.request({}, chunk_size=10)
    real = Staging.write_chunk
    ended = []

    def slow(self: Staging, directory: str, name: str, rows: pa.RecordBatch) -> ChunkFile:
        if name.startswith("00000001") and not ended:
            ended.append(name)
            world.expire()
        return real(self, directory, name, rows)

    monkeypatch.setattr(Staging, "write_chunk", slow)
    world.work()
    assert [w.mark.ordinal for w in world.highs() if w.mark.attempt == 1] == [0]
    assert (world.dumped(), world.status().state) == (list(range(1, 31)), "done")


def test_a_worker_leaves_its_task_when_the_last_chunk_is_told_of(world: World) -> None:
    """Its connections are closed right after."""
    world.fill(*range(1, 31))
    late = Late(world)
    world.request({}, chunk_size=10)
    at_read(world, 2, world.stop.set)
    world.work()
    assert told(world) == ["low 0", "low 1", "high 0", "high 1"]
    late.join()
    assert told(world)[-1] == "high 1"


# Pause, cancel, stop --------------------------------------------------------------------------------------------------


def test_a_paused_dump_gives_its_tasks_back_when_its_chunks_are_placed(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({}, {"after": 50})
    at_read(world, 3, lambda: control.pause(world.state, DUMP))
    world.work()
    assert (world.status().state, world.held(), len(world.dumped())) == ("paused", [], 30)
    control.resume(world.state, DUMP)
    world.work()
    assert sorted(set(world.dumped())) == list(range(1, 101))
    assert world.dumped()[:40] == list(range(1, 41)), "it goes on after the last placed chunk"


def test_a_cancelled_dump_is_left_at_once(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({})
    at_read(world, 3, lambda: control.cancel(world.state, DUMP))
    world.work()
    assert (world.status().state, world.held(), len(world.source.reads)) == ("cancelled", [], 3)


def test_a_stopped_worker_gives_its_task_back_at_once(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({})
    world.capturing = False
    at_read(world, 2, world.stop.set)
    before = world.clock.now
    world.work()
    assert (world.held(), world.clock.now, len(world.source.reads)) == ([], before, 2)


# Any number of workers ------------------------------------------------------------------------------------------------


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
    taken = [hold.task.number for hold in iter(lambda: take(world), None)]
    assert taken == [2, 3]


def test_each_dump_has_workers_of_its_own(world: World) -> None:
    world.request({}, {}, workers=1)
    world.request({}, {}, dump_id="d2", workers=1)
    taken = [(hold.dump_id, hold.task.number) for hold in iter(lambda: take(world), None)]
    assert taken == [("d1", 0), ("d2", 0)]


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
    assert world.held() == ["task-d1-0"]


def test_a_worker_that_is_one_too_many_gives_its_task_back_after_its_chunk(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({"key_to": 50}, {"after": 50}, workers=2)
    first = take(world)
    assert first is not None
    at_read(world, 2, lambda: control.retune(world.state, DUMP, workers=1))
    world.work()
    assert first.task.number == 0
    assert world.held() == ["permit-d1-0", "task-d1-0"], "the one that may stay is left alone"
    world.place()
    assert world.dumped() == list(range(51, 71)), "the chunk that it was reading counts"
    leave(first)
    world.work()
    assert sorted(world.dumped()) == list(range(1, 101))


def test_a_dead_worker_is_replaced_and_its_range_goes_on_after_the_last_placed_chunk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill(*range(1, 101))
    world.request({}, chunk_size=10, in_flight=1)
    kill_after(world, monkeypatch, reads=4)
    assert world.dumped() == list(range(1, 31))
    assert take(world) is None, "its leases have not ended"
    world.expire()
    world.source.reads.clear()
    world.work()
    assert world.source.reads[0][0] == (30,)
    assert world.dumped() == list(range(1, 101))
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
    assert "task-d1-0" in world.held(), "the other worker's lease is left alone"


def test_a_lease_that_is_lost_while_its_worker_waits_ends_nothing_else(world: World) -> None:
    world.fill(*range(1, 31))
    world.request({}, {"after": 10}, workers=2)
    world.source.on_read = fault_at(world, 1, SourceUnavailable("the connection broke"))

    def lose() -> None:
        if len(world.source.begun) == 1 and "task-d1-0" in world.held():
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
    assert world.dumped() == list(range(1, 101))
    assert world.highs()[-1].mark.attempt == 3


# Faults ---------------------------------------------------------------------------------------------------------------


def test_a_dropped_table_fails_its_own_task_and_the_others_go_on(world: World) -> None:
    world.fill(*range(1, 31))
    world.fill(*range(1, 31), table=LINES)
    world.request({"table": "shop.lines"}, {"table": "shop.orders"})
    at_read(world, 2, lambda: world.database.schemas.pop(LINES.table))
    with pytest.raises(RequestError, match=r"shop\.lines does not exist"):
        world.work()
    status = world.status()
    assert [t.progress.done for t in status.tasks] == [False, True]
    assert "does not exist" in (status.tasks[0].error or "")
    assert status.state == "failed"
    assert world.held() == []


def test_a_failed_task_is_not_taken_up_again(world: World) -> None:
    world.fill(*range(1, 31))
    world.request({}, {"after": 10})
    task_store.fail_task(world.state, TaskId(DUMP, 0), "gone")
    world.work()
    assert {w.mark.task for w in world.watermarks()} == {TaskId(DUMP, 1)}


def test_a_task_that_fails_between_look_and_grasp_is_not_taken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.request({})
    real = type(world.state).acquire

    def late(self: Any, name: str, holder: str, **more: Any) -> MemoryLease | None:
        task_store.fail_task(world.state, TaskId(DUMP, 0), "gone")
        return real(self, name, holder, **more)

    monkeypatch.setattr(type(world.state), "acquire", late)
    assert take(world) is None
    assert world.held() == []


@pytest.mark.parametrize(
    ("task", "words"),
    [({"filters": [{"column": "gone", "op": "=", "values": ["x"]}]}, "gone"), ({"after": "A-1"}, "not a value")],
)
def test_a_filter_or_a_key_that_no_longer_fits_fails_its_task(world: World, task: dict[str, Any], words: str) -> None:
    world.fill(*range(1, 31))
    world.request(task, {})
    with pytest.raises(RequestError, match=words):
        world.work()
    assert [t.over for t in world.status().tasks] == [True, True]
    assert world.dumped() == list(range(1, 31))


def test_a_table_that_loses_its_key_fails_its_task(world: World) -> None:
    world.database.schemas[ORDERS.table] = TableSchema(ORDERS.table, ORDERS.columns, ())
    world.request({})
    with pytest.raises(RequestError, match="no key any more"):
        world.work()


def test_a_table_that_is_altered_before_the_select_is_read_by_a_new_attempt(world: World) -> None:
    world.fill(*range(1, 31))
    world.request({})

    def alter() -> None:
        world.database.schemas[ORDERS.table] = WIDE
        for row in world.database.rows[ORDERS.table].values():
            row["extra"] = None
        raise SourceRefused("unknown column")  # as a server answers to a list of columns that are no longer so

    at_read(world, 2, alter)
    world.work()
    assert world.status().state == "done"
    assert world.dumped() == list(range(1, 31))


def test_faults_that_may_pass_are_tried_again_and_counted_from_the_last_progress(world: World) -> None:
    world.fill(*range(1, 201))
    world.request({}, in_flight=1)
    strikes = itertools.count(1)

    def sometimes() -> None:
        if next(strikes) % 2 == 0:
            raise SourceUnavailable("the connection broke")

    world.source.on_read = sometimes
    world.work()
    assert next(strikes) > 2 * FAULTY_ATTEMPTS
    assert world.dumped() == list(range(1, 201))


def test_a_fault_that_does_not_pass_leaves_the_task_to_others(world: World) -> None:
    world.fill(*range(1, 31))
    world.request({})

    def always() -> None:
        raise SourceUnavailable("the connection broke")

    world.source.on_read = always
    with pytest.raises(SourceUnavailable):
        world.work()
    assert len(world.source.reads) == FAULTY_ATTEMPTS
    assert (world.held(), world.status().tasks[0].error) == ([], None)


def test_a_server_that_is_read_only_for_a_while_fails_no_task(world: World) -> None:
    """A primary is, while it is switched over."""
    world.fill(*range(1, 31))
    world.request({})

    def switched_over() -> None:
        raise SourceReadOnly("--read-only")

    world.source.on_read = switched_over
    with pytest.raises(SourceReadOnly):
        world.work()
    assert (world.held(), world.status().tasks[0].error) == ([], None)
    world.source.on_read = None
    world.work()
    assert world.dumped() == list(range(1, 31))


def test_a_worker_that_may_not_connect_fails_no_task(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.request({})

    def refused(worker: str) -> Any:
        raise SourceRefused("wrong password")

    monkeypatch.setattr(world.source, "open_watermarks", refused)
    with pytest.raises(SourceRefused):
        world.work()
    assert (world.held(), world.status().tasks[0].error) == ([], None)


def test_a_state_store_that_is_away_does_not_hide_why_a_task_is_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.fill(1)
    world.request({})

    def away(self: MemoryLease) -> None:
        raise StateUnavailable("away")

    monkeypatch.setattr(MemoryLease, "release", away)
    with caplog.at_level(logging.WARNING):
        world.stop.clear()
        at_read(world, 1, world.stop.set)
        world.work()
    assert "ends by itself" in caplog.text


# Pace -----------------------------------------------------------------------------------------------------------------


def test_a_delay_lies_between_two_chunks_and_counts_at_once(world: World) -> None:
    world.fill(*range(1, 51))
    world.request({}, delay=30)
    at_read(world, 3, lambda: control.retune(world.state, DUMP, delay=0.5))
    world.work()
    gaps = [b - a for a, b in itertools.pairwise(world.source.begun)]
    assert gaps == pytest.approx([30, 30, 0.5, 0.5])


def test_a_rate_holds_over_the_whole_task(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({}, rate=5)
    world.work()
    assert world.source.begun[-1] - world.source.begun[0] == pytest.approx(9 * 10 / 5)


def test_above_the_ceiling_nothing_is_read_and_the_reason_is_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.fill(*range(1, 101))
    world.request({}, max_retained=1_000)
    began = world.clock.now
    told: list[Any] = []
    world.source.suffers = lambda: Strain(None, None, 2_000 if world.clock.now < began + 60 else 10)
    world.clock.hooks.append(lambda: told.append(node(world, "pace")))
    with caplog.at_level(logging.WARNING):
        world.work()
    assert world.source.begun[0] == pytest.approx(began + 60, abs=2)
    assert "max_retained" in told[0]["held"] and world.status().state == "done"
    assert node(world, "pace") == {"held": None, "factor": 1.0}
    assert caplog.text.count("stands still") == 1
    assert len(world.source.looks) < 70, "about once a second"


def test_a_held_worker_still_hears_of_a_cancel(world: World) -> None:
    world.fill(1)
    world.request({}, max_retained=1)
    world.source.suffers = lambda: Strain(None, None, 2)
    world.clock.hooks.append(
        lambda: control.cancel(world.state, DUMP) if len(world.source.looks) == 5 and not cancelled() else None
    )

    def cancelled() -> bool:
        return world.status().state == "cancelled"

    world.work()
    assert cancelled() and world.held() == [] and world.source.reads == []
    assert node(world, "pace") == {"held": None, "factor": 1.0}, "nothing holds a task that nobody works on"


def test_adaptive_work_slows_down_while_the_source_suffers(world: World) -> None:
    world.fill(*range(1, 201))
    world.request({}, adaptive=True, delay=1)
    factors: list[float] = []
    world.source.suffers = lambda: Strain(9.0 if len(world.source.looks) < 6 else 0.0, 1, None)
    world.clock.hooks.append(lambda: factors.append((node(world, "pace") or {"factor": 1.0})["factor"]))
    world.work()
    assert min(factors) < 0.05
    assert world.status().state == "done"


def test_one_look_counts_once(world: World) -> None:
    world.fill(*range(1, 201))
    world.request({}, adaptive=True, delay=0.1)
    factors: list[float] = []
    world.source.suffers = lambda: Strain(9.0 if len(world.source.looks) == 2 else 0.0, 1, None)
    world.clock.hooks.append(lambda: factors.append((node(world, "pace") or {"factor": 1.0})["factor"]))
    world.work()
    assert min(factors) == 0.5


def test_a_source_that_cannot_be_asked_for_a_while_is_a_warning(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.fill(*range(1, 101))
    world.request({}, adaptive=True, delay=1)

    def away() -> Strain:
        raise SourceUnavailable("too many connections")

    world.source.suffers = away
    with caplog.at_level(logging.WARNING):
        world.work()
    assert world.status().state == "done"
    assert caplog.text.count("too many connections") == 1


def test_nobody_asks_how_the_source_fares_where_nothing_depends_on_it(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({}, delay=5)
    world.work()
    assert world.source.looks == []


# The crew -------------------------------------------------------------------------------------------------------------


class Running:
    """`work` in a thread, beside a capture in another."""

    def __init__(self, world: World, **more: Any) -> None:
        self.world = world
        self.error = None
        self.stop = threading.Event()
        world.clock = SystemClock()  # type: ignore[assignment]
        self._quit = threading.Event()
        self._capture = threading.Thread(target=self._place)
        self._work = threading.Thread(target=self._run, kwargs=more)
        self._capture.start()
        self._work.start()

    def _place(self) -> None:
        while not self._quit.wait(0.02):
            self.world.place()

    def _run(self, **more: Any) -> None:
        try:
            work_loop.work(self.world.config, stop=self.stop, **more)
        except Exception as error:  # noqa: BLE001  whatever ends the work is looked at by the test
            self.error = error

    def end(self, *, stop: bool = False) -> None:
        """Waits until the work is over; `stop`: tells it to."""
        if stop:
            self.stop.set()
        self._work.join(timeout=PATIENCE_SECONDS)
        ended = not self._work.is_alive()
        self.stop.set()
        self._quit.set()
        self._capture.join(timeout=PATIENCE_SECONDS)
        self._work.join(timeout=PATIENCE_SECONDS)
        assert ended, "the work goes on"


def test_a_crew_grows_to_the_number_that_is_set_while_it_works(world: World) -> None:
    world.fill(*range(1, 101))
    world.request(*({"after": k * 20, "key_to": k * 20 + 20} for k in range(5)), workers=1)
    together = threading.Barrier(3, timeout=PATIENCE_SECONDS)
    met = threading.Event()

    def meet() -> None:
        if not met.is_set():
            together.wait()  # three workers read at the same time, or this breaks
            met.set()

    world.source.on_read = meet
    running = Running(world)
    control.retune(world.state, DUMP, workers=3)
    running.end()
    assert running.error is None and met.is_set()
    assert sorted(world.dumped()) == list(range(1, 101))


def test_a_crew_has_no_more_members_than_it_is_told(world: World) -> None:
    world.fill(*range(1, 101))
    world.request(*({"after": k * 20, "key_to": k * 20 + 20} for k in range(5)), workers=5)
    at_work: set[str] = set()
    most: list[int] = []

    def count() -> None:
        at_work.add(threading.current_thread().name)
        most.append(len([n for n in world.held() if n.startswith("permit-")]))

    world.source.on_read = count
    running = Running(world, workers=2)
    running.end()
    assert running.error is None
    assert len(at_work) <= 2 and max(most) <= 2
    assert sorted(world.dumped()) == list(range(1, 101))


def test_a_crew_tells_its_progress_to_the_end(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({}, {"keys": [3]})
    told: list[str] = []
    running = Running(world, on_progress=lambda status: told.append(status.state))
    running.end()
    assert running.error is None
    assert told[-1] == "done" and told.count("done") == 1


def test_a_crew_raises_the_fault_of_a_task_after_all_others_are_done(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({"table": "shop.nothing"}, {})
    running = Running(world)
    running.end()
    assert isinstance(running.error, RequestError)
    assert world.dumped() == list(range(1, 101))


def test_a_service_survives_faulty_tasks_and_lost_connections_and_waits_for_more(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({"table": "shop.nothing"}, {})
    over = {DUMP: threading.Event(), "d2": threading.Event()}
    strikes = itertools.count()

    def sometimes() -> None:
        if next(strikes) < FAULTY_ATTEMPTS:
            raise SourceUnavailable("the connection broke")

    def told(status: DumpStatus) -> None:
        if status.state in dump_records.OVER:
            over[status.id].set()

    world.source.on_read = sometimes
    running = Running(world, once=False, on_progress=told)
    assert over[DUMP].wait(30)
    assert world.status().state == "failed"
    assert world.dumped() == list(range(1, 101))
    world.request({"key_to": 5}, dump_id="d2")
    assert over["d2"].wait(30)
    running.end(stop=True)
    assert running.error is None
    assert world.dumped()[100:] == [1, 2, 3, 4, 5]


def test_high_watermarks_count_the_chunks_of_all_attempts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.fill(*range(1, 51))
    world.request({}, in_flight=1)
    kill_after(world, monkeypatch, reads=3)
    world.expire()
    world.work()
    assert [h.mark.ordinal for h in world.highs()] == [0, 1, 2, 3, 4]
    assert all(isinstance(h, High) for h in world.highs())


def test_an_interrupt_of_the_crew_ends_its_workers_too(world: World) -> None:
    """Nobody places the chunks here, so a worker that is not stopped waits for ever, and the process with it."""
    world.fill(*range(1, 101))
    world.request({"after": 0, "key_to": 100}, workers=1)
    stop = threading.Event()

    def interrupt(_: Any) -> None:
        if world.source.begun:  # a worker is at work
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work_loop.work(world.config, stop=stop, on_progress=interrupt)
    assert stop.is_set()
