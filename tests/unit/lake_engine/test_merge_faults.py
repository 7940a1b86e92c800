"""Seeded merges under faults, without Spark: whatever dies, sleeps or is lost in between, each run ends with lake and
history as the model, and with every cut right. Others keep house with delta-rs meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError

from dblog_core.errors import DblogError
from dblog_core.staging import Staging
from tests.spark.faulty_runs import in_turn, run
from tests.spark.lakes import TestLake
from tests.unit.lake_engine.merge_mutants import MUTANTS, Mutant

FOUND = (AssertionError, DblogError, DeltaError)
"""How a run tells that something is wrong."""


@pytest.fixture
def lakes(tmp_path: Path) -> Iterator[TestLake]:
    """Empty ones."""
    return (
        TestLake(None, Staging(str(tmp_path / f"staging{i}"), source="shop"), tmp_path / f"lake{i}") for i in count()
    )


@pytest.mark.parametrize("number", range(5))
def test_whatever_happens_to_merges_the_lake_ends_right_at_every_cut(
    lakes: Iterator[TestLake], soak_seed: int, number: int
) -> None:
    lake = next(lakes)
    lake.history = True
    seed = f"{soak_seed}/{number}"
    print(f"seed {seed}: {', '.join(map(str, run(lake, seed, in_turn(seed, soak_seed + 20 * number))))}")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_is_found(lakes: Iterator[TestLake], mutant: Mutant) -> None:
    right, wrong = next(lakes), next(lakes)
    right.history = wrong.history = mutant.history
    assert [happening.point for happening in run(right, mutant.seed, mutant.plan)] == mutant.points
    with mutant.patched(), pytest.raises(FOUND) as found:
        run(wrong, mutant.seed, mutant.plan)
    print(f"{mutant.name}: {' '.join(str(found.value).split())[:200]}")
