"""A table stops, rows of it are passed over, and the capture dies at any of its writes: nobody forgets the table.

Every point is tried: before and after each write of the capture's loop to storage and to the state store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dblog_core.dumps import dump_store
from dblog_core.staging.table_records import TableRecords
from dblog_core.state import stopped_tables
from dblog_core.state.memory import MemoryState
from dblog_core.storage.local import LocalStorage
from tests.fake_source import Change
from tests.unit.reload_world import A, B, Crash, World, world
from tests.waiting import wait_until

__all__ = ["world"]

WRITES = (
    (LocalStorage, "create"),
    (LocalStorage, "create_missing"),
    (LocalStorage, "replace"),
    (MemoryState, "create"),
    (MemoryState, "create_all"),
    (MemoryState, "update"),
    (MemoryState, "delete"),
)


@contextmanager
def dying(at: int) -> Iterator[list[str]]:
    """The process dies at point `at`, from 1: odd ones are before a write, even ones behind it. Yields the writes of
    this thread."""
    thread = threading.get_ident()
    seen: list[str] = []

    def watched(owner: type, name: str) -> Callable[..., Any]:
        real = getattr(owner, name)

        def write(self: Any, *values: Any, **options: Any) -> Any:
            if threading.get_ident() != thread:
                return real(self, *values, **options)
            seen.append(name)
            number = 2 * len(seen)
            if number - 1 == at:
                raise Crash
            result = real(self, *values, **options)
            if number == at:
                raise Crash
            return result

        return write

    with ExitStack() as stack:
        for owner, name in WRITES:
            stack.enter_context(mock.patch.object(owner, name, watched(owner, name)))
        yield seen


def stop_table(world: World) -> None:
    """A row of a cannot be read, and the next ones are passed over. Its shape is shown before: a shape that comes after
    would say that the table is well again."""
    world.put(A, 3)
    world.database.commit(Change("x", A.table, None, None))
    world.put(A, 2)
    world.put(B, 2)


def settle(world: World) -> None:
    """The capture runs until nothing is left to do."""
    with world.capturing():
        world.put(B, 99)
        wait_until(lambda: (99,) in world.replay(B), "the log is staged")
        wait_until(lambda: not dump_store.list_unfinished_dumps(world.state), "no dump is left")


def lacks_rows(world: World) -> bool:
    return world.replay(A) != world.source_rows(A) and "shop.a" not in stopped_tables.read(world.records)


def begin(world: World) -> None:
    world.write("shop.?")
    world.capture()
    world.put(A, 1)
    world.put(B, 1)
    world.capture()


def count_points(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    world = World(path, monkeypatch)
    begin(world)
    stop_table(world)
    with dying(0) as writes:
        world.capture()
    return 2 * len(writes)


def find_losses(path: Path, monkeypatch: pytest.MonkeyPatch, points: range) -> list[int]:
    """The points after which a row of the table is missing, and nothing says so."""
    losses = []
    for point in points:
        (path / str(point)).mkdir()
        world = World(path / str(point), monkeypatch)
        begin(world)
        stop_table(world)
        with pytest.raises(Crash), dying(point):
            world.capture()
        settle(world)
        if lacks_rows(world):
            losses.append(point)
    return losses


@pytest.mark.thorough
def test_a_stopped_table_is_remembered_wherever_the_capture_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "count").mkdir()
    points = count_points(tmp_path / "count", monkeypatch)
    assert points > 10
    assert find_losses(tmp_path, monkeypatch, range(1, points + 1)) == []


def test_a_record_beside_the_manifest_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest names what was known before it, and the record follows: who dies in between forgets the table."""
    real = TableRecords.write

    def write(self: TableRecords, *values: Any, **options: Any) -> dict[str, str]:
        before = self._index
        carried = real(self, *values, **options)
        return {**carried, "index": before} if before else carried

    (tmp_path / "count").mkdir()
    points = count_points(tmp_path / "count", monkeypatch)
    with mock.patch.object(TableRecords, "write", write):
        assert find_losses(tmp_path, monkeypatch, range(1, points + 1))
