"""Every form of statement, type, name, character set and setting under a capture and dumps: each table is equal in the
end, or is told of by name, and equal once the fix is typed. The lake is folded by `judge`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.verdict import PlainLake, judged
from tests.conformance.world import World

MANY, FEW = 2_000, 200
"""Statements that a server takes in a soak, and in `make test`."""

NewWorld = Callable[[int], World]


@pytest.mark.in_turn
def test_every_table_ends_equal_or_says_why_not_and_how_to_mend_it(new_world: NewWorld) -> None:
    all_are_equal_or_told_of(new_world, FEW)


@pytest.mark.soak
def test_so_does_each_of_all_forms(new_world: NewWorld) -> None:
    all_are_equal_or_told_of(new_world, MANY)


def all_are_equal_or_told_of(new_world: NewWorld, wanted: int) -> None:
    world = new_world(wanted + wanted // 10)  # the server refuses some of them
    world.run_early()
    world.begin()
    world.run_all({20: world.dump_beside, 50: world.again, 70: world.dump_beside})
    faults = judged(world, PlainLake(world))
    world.end()
    assert not faults, "\n\n".join([f"{len(faults)} faults", *faults])
    assert world.taken >= wanted, f"the server has taken {world.taken} statements"
