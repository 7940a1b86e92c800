"""Each deliberate mistake is found by the judgement of the kind of commit that shows it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError

from dblog_core.errors import DblogError
from tests.unit.lake_engine.killed_commits.kinds import BY_NAME
from tests.unit.lake_engine.killed_commits.mutants import MUTANTS, Mutant
from tests.unit.lake_engine.killed_commits.storage_writes import Fault, Writes
from tests.unit.lake_engine.killed_commits.test_killed_commits import die
from tests.unit.lake_engine.killed_commits.world import World

FOUND = (AssertionError, DblogError, DeltaError)


def work_and_judge(world: World, befall: Callable[[World], None]) -> None:
    befall(world)
    world.check_death()
    world.work()
    world.judge()


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_is_found(mutant: Mutant, tmp_path: Path) -> None:
    world = World.prepare(tmp_path / "prepared", BY_NAME[mutant.kind])
    writes = Writes()
    right = world.copy_to(tmp_path / "right")
    with writes.count_writes():
        right.work()
    befall: Callable[[World], None] = World.work
    if mutant.dies_after is not None:
        at = 1 if mutant.is_first else writes.count(mutant.dies_after)
        befall = partial(die, fault=Fault(at, "after", mutant.dies_after))
    work_and_judge(world.copy_to(tmp_path / "right too"), befall)
    with mutant.patched(), pytest.raises(FOUND) as found:
        work_and_judge(world.copy_to(tmp_path / "wrong"), befall)
    print(f"{mutant.name}: {' '.join(str(found.value).split())[:200]}")
