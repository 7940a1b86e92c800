"""Every form of statement, type, name, character set and setting under a capture and dumps: each table is equal in the
end, or is told of by name, and equal once the fix is typed. The lake is folded by `judge`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.verdict import PlainLake, judge_world
from tests.conformance.world import World

MANY = 2_000
FEW = 200
"""Statements that a server takes in a soak, and in `make test`."""

STEADY = {"mysql": (2, 3), "mariadb": (3, 10), "postgres": (2, 3)}
"""Seeds that `make test` takes in turn, so that what it says is about the change that it is run for."""

NewWorld = Callable[[int, int], World]


@pytest.mark.in_turn
def test_every_table_ends_equal_or_says_why_not_and_how_to_mend_it(
    new_world: NewWorld, source_kind: str, soak_seed: int
) -> None:
    seeds = STEADY[source_kind]
    all_are_equal_or_told_of(new_world, seeds[soak_seed % len(seeds)], FEW)


@pytest.mark.soak
def test_so_does_each_of_all_forms(new_world: NewWorld, soak_seed: int) -> None:
    all_are_equal_or_told_of(new_world, soak_seed, MANY)


def all_are_equal_or_told_of(new_world: NewWorld, seed: int, statement_count: int) -> None:
    world = new_world(seed, statement_count + statement_count // 10)  # the server refuses some of them
    world.run_early()
    world.begin()
    world.run_all({20: world.dump_beside, 50: world.again, 70: world.dump_beside})
    faults = judge_world(world, PlainLake(world))
    world.end()
    assert not faults, "\n\n".join([f"{len(faults)} faults", *faults])
    assert world.taken >= statement_count, f"the server has taken {world.taken} statements"
