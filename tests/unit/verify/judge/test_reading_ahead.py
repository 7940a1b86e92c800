"""The lake is read while the source is, and a fault of that is raised by the comparison."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dblog_core.errors import LakeError
from dblog_core.verify.judge.comparison import Comparison
from dblog_core.verify.judge.judge import Judge
from dblog_core.verify.pinned_version import Pin
from dblog_core.verify.window_positions import Interrupted
from tests.unit.verify.judge.world import T, World, kinds_of
from tests.waiting import wait_until


def make_world(tmp_path: Path) -> World:
    world = World(tmp_path, random.Random(1))
    for _ in range(20):
        world.write(8)
    world.seal()
    world.merge()
    return world


def test_lake_and_log_are_read_ahead_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(tmp_path)
    read: list[Any] = []
    read_ahead = Judge.read_ahead
    monkeypatch.setattr(Judge, "read_ahead", lambda self, *comparison: read.append(read_ahead(self, *comparison)))
    with world.judge:
        world.judge.begin_reading(T, world.pin())
        wait_until(lambda: read, "the lake to be read")
        (table,) = world.judge._tables.values()
        assert table.lake.count == len(world.lake_rows())
        comparison, seen = world.reading(world.build.offset)
        assert kinds_of(world.judge.compare(comparison)) == world.right_kinds(comparison, seen)
        assert list(world.judge._tables.values()) == [table]


def test_a_fault_of_reading_ahead_is_raised_by_the_comparison(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    missing_version = Pin(99, 0, 0, 0)
    with world.judge:
        world.judge.begin_reading(T, missing_version)
        with pytest.raises(LakeError, match="no longer shows version 99"):
            world.judge.compare(Comparison(T, missing_version))
    with pytest.raises(Interrupted):  # nothing waits for a table that is read ahead
        world.judge.read_ahead(T, world.pin())
