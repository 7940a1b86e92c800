"""A chunk is staged while the next one is read: order, evictions, and faults of the storage."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from dblog_core.errors import (
    StagingUnavailable,
)
from dblog_core.staging import Staging
from dblog_core.staging.changelog import ChunkFile
from tests.fake_source import ORDERS, Change
from tests.unit.worker_moments import at_read, watermarks_in_order
from tests.unit.workers_world import World, world

__all__ = ["world"]


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


def test_a_chunk_is_staged_while_the_next_is_read(world: World) -> None:
    world.fill(*range(1, 31))
    Late(world)
    world.request({}, chunk_size=10)
    seen: list[list[str]] = []
    world.source.on_read = lambda: seen.append(watermarks_in_order(world))
    world.work()
    assert seen[:3] == [["low 0"], ["low 0", "low 1"], ["low 0", "low 1", "high 0", "low 2"]]
    assert [w.mark.ordinal for w in world.highs()] == list(range(len(world.highs())))
    assert (world.placed_keys(), world.status().state) == (list(range(1, 31)), "done")


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
    assert (world.placed_keys(), world.status().state) == (list(range(1, 26)), "done")


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
    assert (world.placed_keys(), world.status().state) == (list(range(1, 31)), "done")


def test_a_worker_leaves_its_task_when_the_last_chunk_is_told_of(world: World) -> None:
    """Its connections are closed right after."""
    world.fill(*range(1, 31))
    late = Late(world)
    world.request({}, chunk_size=10)
    at_read(world, 2, world.stop.set)
    world.work()
    assert watermarks_in_order(world) == ["low 0", "low 1", "high 0", "high 1"]
    late.join()
    assert watermarks_in_order(world)[-1] == "high 1"
