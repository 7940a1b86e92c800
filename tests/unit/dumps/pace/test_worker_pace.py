"""How fast a dump worker reads: delay, rate, ceilings, and a source that suffers."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import orjson
import pytest

from dblog_core.dumps import control
from dblog_core.errors import (
    SourceUnavailable,
)
from dblog_core.interfaces import Strain
from tests.unit.worker_moments import at_read
from tests.unit.workers_world import DUMP, World, world

__all__ = ["world"]


def node(world: World, name: str, number: int = 0) -> Any:
    entry = world.state.get(f"dumps/{DUMP}/tasks/{number}/{name}")
    return None if entry is None else orjson.loads(entry.data)


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
    messages: list[Any] = []
    world.source.suffers = lambda: Strain(None, None, 2_000 if world.clock.now < began + 60 else 10)
    world.clock.hooks.append(lambda: messages.append(node(world, "pace")))
    with caplog.at_level(logging.WARNING):
        world.work()
    assert world.source.begun[0] == pytest.approx(began + 60, abs=2)
    assert "max_retained" in messages[0]["held"] and world.status().state == "done"
    assert node(world, "pace") == {"held": None, "factor": 1.0}
    assert caplog.text.count("stands still") == 1
    assert len(world.source.looks) < 70, "about once a second"


def test_a_held_worker_still_hears_of_a_cancel(world: World) -> None:
    world.fill(1)
    world.request({}, max_retained=1)
    world.source.suffers = lambda: Strain(None, None, 2)
    world.clock.hooks.append(
        lambda: control.cancel(world.state, DUMP) if len(world.source.looks) == 5 and not is_cancelled() else None
    )

    def is_cancelled() -> bool:
        return world.status().state == "cancelled"

    world.work()
    assert is_cancelled() and world.held_leases() == [] and world.source.reads == []
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
