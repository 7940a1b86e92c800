"""README's sentence on the proof says how much `make test` runs and how much the soak, and the numbers are true."""

from __future__ import annotations

import re
from pathlib import Path

from tests.airflow import test_faults
from tests.nemesis import takeover_faults, test_takeover
from tests.protocol import mutants, scenarios, test_protocol
from tests.simulation import test_simulation
from tests.spark import test_merge_faults

ROOT = Path(__file__).parents[2]
DATABASES = 3


def test_the_numbers_of_worlds_seeds_and_faults_in_the_readme_are_those_of_the_tests() -> None:
    seeds = int(re.search(r"^SEEDS \?= (\d+)$", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1))  # type: ignore[union-attr]
    sentence = " ".join((ROOT / "README.md").read_text().partition("**It is tested where it may fail.**")[2].split())
    for claim in (
        f"explores {test_protocol.A_DAY} of {len(scenarios.scenarios())} small worlds",
        f"finds {len(mutants.MUTANTS)} deliberate mistakes",
        f"runs {test_simulation.SEEDS} seeds of a simulation",
        f"{test_takeover.A_DAY} of {len(takeover_faults.FAULTS)} faults of high availability",
        f"{test_faults.A_DAY} of {len(test_faults.FAULTS)} faults of Airflow",
        f"{seeds * test_simulation.SOAK:,} more seeds of the simulation",
        f"{seeds * test_merge_faults.SOAK} of merges under faults",
        f"{seeds * DATABASES} of processes that are killed",
    ):
        assert claim in sentence, claim
