"""Faults that a dump worker meets: which fail its task, and which are tried again."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.dumps import task_store
from dblog_core.dumps.worker import FAULTY_ATTEMPTS
from dblog_core.errors import (
    RequestError,
    SourceReadOnly,
    SourceRefused,
    SourceUnavailable,
    StateUnavailable,
)
from dblog_core.model.schema import Column, TableSchema
from dblog_core.model.task_id import TaskId
from dblog_core.state.memory import MemoryLease
from tests.fake_source import ORDERS
from tests.unit.worker_moments import at_read, take
from tests.unit.workers_world import DUMP, LINES, World, world

__all__ = ["world"]


WIDE = TableSchema(ORDERS.table, (*ORDERS.columns, Column("extra", "text", pa.string())), ORDERS.key)


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
    assert world.held_leases() == []


def test_a_failed_task_is_not_taken_up_again(world: World) -> None:
    world.fill(*range(1, 31))
    world.request({}, {"after": 10})
    task_store.fail_task(world.state, TaskId(DUMP, 0), "gone")
    world.work()
    assert {w.mark.task for w in world.watermarks()} == {TaskId(DUMP, 1)}


def test_a_task_that_fails_between_look_and_grasp_is_not_taken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.request({})
    real = type(world.state).acquire

    def acquire_late(self: Any, name: str, holder: str, **more: Any) -> MemoryLease | None:
        task_store.fail_task(world.state, TaskId(DUMP, 0), "gone")
        return real(self, name, holder, **more)

    monkeypatch.setattr(type(world.state), "acquire", acquire_late)
    assert take(world) is None
    assert world.held_leases() == []


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
    assert world.placed_keys() == list(range(1, 31))


def test_a_table_that_loses_its_key_fails_its_task(world: World) -> None:
    world.database.schemas[ORDERS.table] = TableSchema(ORDERS.table, ORDERS.columns, ())
    world.request({})
    with pytest.raises(RequestError, match="no longer has a key"):
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
    assert world.placed_keys() == list(range(1, 31))


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
    assert world.placed_keys() == list(range(1, 201))


def test_a_fault_that_does_not_pass_leaves_the_task_to_others(world: World) -> None:
    world.fill(*range(1, 31))
    world.request({})

    def always() -> None:
        raise SourceUnavailable("the connection broke")

    world.source.on_read = always
    with pytest.raises(SourceUnavailable):
        world.work()
    assert len(world.source.reads) == FAULTY_ATTEMPTS
    assert (world.held_leases(), world.status().tasks[0].error) == ([], None)


def test_a_server_that_is_read_only_for_a_while_fails_no_task(world: World) -> None:
    """A primary is, while it is switched over."""
    world.fill(*range(1, 31))
    world.request({})

    def switched_over() -> None:
        raise SourceReadOnly("--read-only")

    world.source.on_read = switched_over
    with pytest.raises(SourceReadOnly):
        world.work()
    assert (world.held_leases(), world.status().tasks[0].error) == ([], None)
    world.source.on_read = None
    world.work()
    assert world.placed_keys() == list(range(1, 31))


def test_a_worker_that_may_not_connect_fails_no_task(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.request({})

    def refuse_connection(worker: str) -> Any:
        raise SourceRefused("wrong password")

    monkeypatch.setattr(world.source, "open_watermarks", refuse_connection)
    with pytest.raises(SourceRefused):
        world.work()
    assert (world.held_leases(), world.status().tasks[0].error) == ([], None)


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
    assert "expires" in caplog.text
