"""A table that somebody keeps locked waits alone: its worker reads all others, and comes back to it."""

from __future__ import annotations

import logging

import pytest

from dblog_core.dumps import control, filing
from dblog_core.dumps.requests import SHAPES, DumpRequest
from dblog_core.errors import TableLocked
from dblog_core.model.filters import FiledFilter
from dblog_core.model.schema import TableName
from tests.fake_source import ORDERS, FakeReader
from tests.unit.workers_world import DUMP, LINES, World, world

__all__ = ["world"]

HOLDER = "process 7 (user app)"


@pytest.fixture
def locked(world: World, monkeypatch: pytest.MonkeyPatch) -> set[TableName]:
    """Tables that nobody can read; whoever tries waits a second in vain."""
    tables = {ORDERS.table}

    def refuse(table: TableName) -> None:
        if table in tables:
            world.clock.now += 1.0
            raise TableLocked(f"reading {table}: lock timeout")

    for name in ("read", "read_keys"):
        real = getattr(FakeReader, name)

        def reading(self: FakeReader, schema: object, *rest: object, real: object = real, **more: object) -> object:
            refuse(schema.table)  # type: ignore[attr-defined]
            return real(self, schema, *rest, **more)  # type: ignore[operator]

        monkeypatch.setattr(FakeReader, name, reading)
    monkeypatch.setattr(world.source, "find_lock_holder", lambda table: HOLDER)
    return tables


def request_both(world: World) -> None:
    """A locked table first, in two ranges, and then a free one."""
    world.fill(*range(1, 41))
    world.fill(*range(1, 41), table=LINES)
    world.request({"key_to": 20}, {"after": 20}, {"table": "shop.lines"})


def test_other_tables_are_read_while_one_is_locked(
    world: World, locked: set[TableName], caplog: pytest.LogCaptureFixture
) -> None:
    request_both(world)
    free_at = world.clock.now + 100
    seen = []

    def look() -> None:
        dump = world.status()
        if dump.tasks[2].progress.done:
            seen.append((dump.state, dump.held, [t.progress.rows for t in dump.tasks]))
        if world.clock.now >= free_at:
            locked.clear()

    world.clock.hooks.append(look)
    with caplog.at_level(logging.WARNING):
        world.work()
    assert seen[0] == ("running", f"shop.orders is locked by {HOLDER}", [0, 0, 40])
    assert (world.status().state, world.status().held) == ("done", None)
    assert sorted(world.placed_keys()) == sorted([*range(1, 41)] * 2)
    lines = [r.getMessage() for r in caplog.records if "locked" in r.getMessage()]
    assert lines == [
        f"dump {DUMP}, task 0 (shop.orders) waits, and other tables come first: shop.orders is locked by {HOLDER}"
    ]
    assert not [r for r in caplog.records if "trying again" in r.getMessage()], "it is no fault of the task"


def test_a_locked_table_is_tried_for_a_bounded_part_of_the_time(world: World, locked: set[TableName]) -> None:
    request_both(world)
    world.clock.hooks.append(lambda: locked.clear() if world.clock.now >= 1_500 else None)
    world.work()
    tries = world.status().tasks[0].record.attempt + world.status().tasks[1].record.attempt
    assert 30 < tries < 120, "in 500 seconds"
    assert world.held_leases() == []


@pytest.mark.parametrize(("how", "after"), [("cancel", "cancelled"), ("pause", "paused")])
def test_a_worker_that_waits_for_a_locked_table_ends_with_its_dump(
    world: World, locked: set[TableName], how: str, after: str
) -> None:
    request_both(world)
    act = {"cancel": control.cancel, "pause": control.pause}[how]
    world.clock.hooks.append(
        lambda: act(world.state, DUMP) if world.clock.now >= 1_050 and world.status().state == "running" else None
    )
    world.work()
    assert world.status().state == after
    assert world.clock.now < 1_055


def test_a_worker_that_waits_for_a_locked_table_ends_when_it_is_asked_to(world: World, locked: set[TableName]) -> None:
    request_both(world)
    world.clock.hooks.append(lambda: world.stop.set() if world.clock.now >= 1_050 else None)
    world.work()
    assert (world.status().state, world.held_leases()) == ("running", [])
    assert world.clock.now < 1_055


def test_a_table_that_is_locked_in_the_midst_of_its_dump_continues_after_the_last_placed_chunk(
    world: World, locked: set[TableName]
) -> None:
    locked.clear()
    world.fill(*range(1, 101))
    world.fill(*range(1, 11), table=LINES)
    world.request({}, {"table": "shop.lines"})

    def lock_for_a_while() -> None:
        if len(world.source.reads) == 3:
            locked.add(ORDERS.table)

    world.source.on_read = lock_for_a_while
    said = []

    def look() -> None:
        if world.clock.now >= 1_030:
            locked.clear()
        dump = world.status()
        if dump.state == "running" and dump.tasks[0].progress.ordinal > 5:
            said.append(dump.held)

    world.clock.hooks.append(look)
    world.work()
    assert world.status().state == "done"
    assert said and set(said) == {None}, "it is free"
    assert sorted(world.placed_keys()) == sorted([*range(1, 101), *range(1, 11)]), "each row once"


def test_what_an_earlier_process_said_of_a_lock_goes_once_the_table_is_read(
    world: World, locked: set[TableName]
) -> None:
    request_both(world)
    world.clock.hooks.append(lambda: world.stop.set() if world.clock.now >= 1_050 else None)
    world.work()
    assert world.status().held is not None
    world.stop.clear()
    world.clock.hooks.pop()
    locked.clear()
    world.work()
    assert (world.status().state, [task.held for task in world.status().tasks]) == ("done", [None] * 3)


def refuse_to_look(*_: object, **__: object) -> object:
    raise TableLocked("lock timeout")


def test_a_locked_table_is_filed_uncut_with_the_order_of_its_key(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FakeReader, "explain", refuse_to_look)
    monkeypatch.setattr(world.source, "find_lock_holder", lambda table: HOLDER)
    request = DumpRequest(tables=("shop.orders",), key_from=3, filters=(("name", "=", "n"),))
    with caplog.at_level(logging.WARNING):
        dump_id = filing.submit(world.config, request, state=world.state)
    (task,) = world.status(dump_id).tasks
    with_order = world.source.open_reader().key_order(ORDERS)
    record = task.record
    assert (record.key_from, record.key_to, record.parts, record.order) == (3, None, 1, with_order)
    assert record.estimated is None and [condition.column for condition in record.filters] == ["name"]
    assert isinstance(record.filters[0], FiledFilter)
    assert f"shop.orders is locked by {HOLDER}; once it is free it is dumped" in caplog.text


def test_a_window_for_a_shape_looks_at_no_table_when_it_is_requested(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("explain", "key_order"):
        monkeypatch.setattr(FakeReader, name, refuse_to_look)
    dump_id = filing.submit(world.config, SHAPES, state=world.state)
    monkeypatch.undo()
    assert [(task.table, task.record.keys, task.record.order) for task in world.status(dump_id).tasks] == [
        ("shop.orders", (), None), ("shop.lines", (), None),
    ]  # fmt: skip
