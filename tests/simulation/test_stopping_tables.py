"""Worlds in which tables stop: nothing hidden is written in clear, and a table equals its source or says why not."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.stopping_mutants import STOPPING_MUTANTS
from tests.simulation.stopping_tables import StoppingWorld, judge_stops
from tests.simulation.world import Violation

SEEDS = (*range(1, 11), 1283, 1289, 1326, 1610, 2053, 2333)
"""The same every day. The last ones have found dumps that missed what was logged while their table was held, and
workers that waited forever for a chunk of a table that was repaired before its dump was ended."""
MUTANT_SEEDS = range(1, 41)
HAPPENS = (
    "statement rename",
    "statement swap",
    "statement replace",
    "statement add",
    "tables accepted",
    "unreadable rows",
    "tables forbidden",
    "tables that lack rows, and say so",
    "kills",
    "expired",
    "power cuts",
)
FINDERS = {
    "an_unknown_shape_passes": 7,
    "statements_move_no_names": 4,
    "chunks_pass_unproven": 34,
    "a_record_that_follows_its_manifest": 2,
    "a_record_beside_the_manifest": 264,
    "dumps_that_fail_are_forgotten": 71,
}
"""A seed that has found the mutant, which is asked first."""


def test_a_table_that_has_stopped_comes_back_equal_and_shows_nothing_hidden() -> None:
    counts = Counter[str]()
    for seed in SEEDS:
        world = StoppingWorld(seed)
        world.run(judge_stops)
        counts.update(world.simulation.counts)
    print(counts)
    assert [name for name in HAPPENS if not counts[name]] == [], "nothing of the kind happened"


@pytest.mark.one_of(2)
@pytest.mark.parametrize("name", STOPPING_MUTANTS)
def test_a_mistake_with_tables_that_stop_is_found(name: str) -> None:
    assert any(_finds(seed, name) for seed in (FINDERS[name], *MUTANT_SEEDS))


def _finds(seed: int, mutant: str) -> bool:
    world = StoppingWorld(seed)
    with STOPPING_MUTANTS[mutant]():
        try:
            world.run(judge_stops)
        except Violation as violation:
            print(seed, violation)
            return True
    return False
