"""The turn of a maintenance writes files again of which a row may have been deleted, however few."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dblog_core.lake_engine.tasks import upkeep
from dblog_core.lake_engine.tasks.upkeep import Upkeep
from tests.unit.lake_engine.test_upkeep import NAME, World, marked_files


def test_a_maintenance_leaves_files_with_updates_alone(
    tmp_path: Path, soak_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "plan_join", lambda table, at_least: None)
    world = World(tmp_path, random.Random(soak_seed))
    world.upkeep = Upkeep(world.staging, 0)
    while len(marked_files(world)) < 2:
        world.merge_some()
    deleted, *others = sorted(marked_files(world))
    # The world's few keys are all deleted some time.
    monkeypatch.setattr(upkeep, "with_deleted", lambda table: frozenset({deleted}))
    world.upkeep.ask({NAME: 1.0})
    assert world.step() == NAME and world.step() is None
    assert marked_files(world) == set(others) and not world.upkeep.has_asked
    assert world.upkeep.purged == {}, "old marks are left"
