"""What befalls a dump worker at a moment of its work: faults, deaths, and workers of other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from dblog_core.dumps import task_lease
from dblog_core.dumps import task_queue as finder_module
from dblog_core.dumps.pace.source_load import Gauge
from dblog_core.dumps.task_lease import Hold, WorkerContext
from dblog_core.dumps.task_queue import TaskQueue
from tests.unit.workers_world import World


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
    if (hold := other.take(place, world.new_id())) is not None:
        _FINDERS[hold] = other
    return hold


def leave(hold: Hold) -> None:
    """That worker gives it back, and ends."""
    _FINDERS[hold].give_back(hold)
    _FINDERS[hold].close()


def watermarks_in_order(world: World) -> list[str]:
    """Watermarks in the log's order: low or high, and the chunk."""
    return [f"{type(w).__name__.lower()} {w.mark.ordinal}" for w in world.watermarks()]
