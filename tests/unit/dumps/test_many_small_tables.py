"""A dump of many small tables: few requests for each, and connections, permits and looks once a worker."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.algorithm.task_progress import TaskProgress, tasks_to_json
from dblog_core.algorithm.visibility import LogOrder
from dblog_core.capture.sequencer import Sequencer
from dblog_core.dumps import dump_store, task_store, tasks_aside
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.task_id import TaskId
from dblog_core.model.watermark import Low
from dblog_core.rows.column_rules import Rules
from dblog_core.state.memory import MemoryState
from tests.fake_source import ORDERS
from tests.unit.staged import manifest
from tests.unit.workers_world import DUMP, World
from tests.unit.workers_world import world as world

TABLES = 60
CALLS = ("get", "get_all", "create", "update", "delete", "children", "acquire", "leader")
WORKERS_SHARE = 9
CAPTURES_SHARE = 3
LEASE_NAMES_SHARE = 4


def counting_client(call_counts: Counter[str]) -> type[MemoryState]:
    """A client that counts what it asks."""

    def counting(name: str) -> Any:
        def call(self: MemoryState, *arguments: Any, **more: Any) -> Any:
            call_counts[name] += 1
            return getattr(MemoryState, name)(self, *arguments, **more)

        return call

    return type("Counted", (MemoryState,), {name: counting(name) for name in CALLS})


def tables(world: World, count: int) -> list[TableName]:
    names = [TableName("shop", f"t{number:03}") for number in range(count)]
    for name in names:
        world.database.schemas[name] = TableSchema(name, ORDERS.columns, ORDERS.key)
        world.fill(*range(10), table=world.database.schemas[name])
    world.request(*({"table": str(name), "parts": 1} for name in names), workers=1)
    return names


def test_a_small_table_costs_few_requests_of_the_state_store_and_no_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tables(world, TABLES)
    call_counts = Counter[str]()
    opened = Counter[str]()
    client = counting_client(call_counts)
    monkeypatch.setattr(wiring, "open_state", lambda config: client(shared=world.state))
    for what in ("open_reader", "open_watermarks"):
        real = getattr(world.source, what)

        def opening(*arguments: Any, what: str = what, real: Any = real, **options: Any) -> Any:
            opened[what] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(world.source, what, opening)
    world.work()
    assert world.status().state == "done" and world.status().rows == 10 * TABLES
    assert opened == {"open_reader": 1, "open_watermarks": 2}
    assert call_counts.total() / TABLES <= WORKERS_SHARE, call_counts
    assert sorted({w.mark.table for w in world.watermarks() if isinstance(w, Low)}) == sorted(map(str, names))
    assert world.held_leases() == []


def test_tasks_that_are_taken_or_over_cost_a_worker_no_name_of_a_lease(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a task costs does not grow with the number of the dump's tasks."""
    tables(world, TABLES)
    lease_names: list[str] = []
    task_lease = task_store.task_lease

    def record_lease_name(task: TaskId) -> str:
        lease_names.append(task_lease(task))
        return lease_names[-1]

    monkeypatch.setattr(task_store, "task_lease", record_lease_name)
    world.work()
    assert world.status().state == "done" and set(lease_names) == {task_lease(TaskId(DUMP, n)) for n in range(TABLES)}
    assert len(lease_names) / TABLES <= LEASE_NAMES_SHARE


def test_the_capture_asks_little_for_a_small_table_too(world: World, tmp_path: Path) -> None:
    tables(world, TABLES)
    call_counts = Counter[str]()
    own_state = world.state
    world.state = counting_client(call_counts)(shared=world.state)
    world.work()
    assert dump_store.read_dump(own_state, DUMP).state == "done"
    assert call_counts.total() / TABLES <= CAPTURES_SHARE, call_counts


def test_tables_are_read_while_others_wait_to_be_placed(world: World) -> None:
    """A capture that stands still: as many tables as are kept aside are read, and each is placed when it goes on."""
    tables(world, tasks_aside.MOST + 20)
    world.capturing = False
    waits = 0

    def go_on() -> None:
        nonlocal waits
        waits += 1
        world.capturing = waits > 5

    world.clock.hooks.insert(0, go_on)
    lows: list[int] = []
    world.clock.hooks.insert(0, lambda: lows.append(len([w for w in world.watermarks() if isinstance(w, Low)])))
    world.work()
    assert lows[0] == tasks_aside.MOST + 1, "before the first wait"
    assert world.status().state == "done" and len(world.placed_keys()) == 10 * (tasks_aside.MOST + 20)


def test_tables_whose_attempts_break_while_they_wait_are_read_again(world: World) -> None:
    """The capture goes on after them in the log, say, as after a fresh start: it breaks what was begun before."""
    names = tables(world, 5)
    broken = {
        TaskId(DUMP, number): TaskProgress(
            str(name), attempt=1, broken=1, reason="the capture began after it in the log"
        )
        for number, name in enumerate(names)
    }
    head = replace(manifest(1, 1, 0), tasks=tasks_to_json(broken))
    fresh = Sequencer(world.staging, source="shop", epoch=1, head=head, visibility=LogOrder(), rules=Rules({}))

    def goes_on_elsewhere() -> None:
        if world.sequencer is not fresh:
            world.sequencer = fresh
            world.stream = world.source.open_log(str(len(world.database.log)))
            for task, progress in broken.items():
                task_store.put_progress(world.state, task, progress)

    world.clock.hooks.insert(0, goes_on_elsewhere)
    world.work()
    assert world.status().state == "done" and len(world.placed_keys()) == 50
    assert {task.record.attempt for task in world.status().tasks} == {2}
    assert world.held_leases() == []


def test_a_worker_that_is_told_to_stop_gives_back_what_it_holds_and_what_it_was_to_do_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables(world, 5)
    acquire = MemoryState.acquire

    def acquiring(self: MemoryState, name: str, *arguments: Any, **more: Any) -> Any:
        if name == f"task-{DUMP}-2":
            world.stop.set()
        return acquire(self, name, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryState, "acquire", acquiring)
        world.work()
    assert len(world.source.begun) == 2
    assert world.held_leases() == []
    world.stop.clear()
    world.work()
    assert world.status().state == "done" and world.held_leases() == []
