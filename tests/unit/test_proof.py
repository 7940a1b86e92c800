"""README's sentence on the proof says how much `make test` runs and how much the soak, and the numbers are true."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.airflow import test_faults
from tests.nemesis import takeover_faults, test_takeover
from tests.protocol import mutants, scenarios, test_protocol
from tests.simulation import test_simulation
from tests.spark import test_merge_faults

ROOT = Path(__file__).parents[2]
DATABASES = 3
EACH_RUN = (
    test_protocol.test_no_interleaving_breaks_the_protocol,
    test_protocol.test_a_mistake_is_found,
    test_simulation.test_hundreds_of_seeds_come_to_rest_with_the_lake_as_the_source,
    test_takeover.test_whatever_fails_somebody_goes_on_and_nothing_is_lost,
)
MOST_RUNS = 10
"""Of so many runs docs/comparison.md says that one at least has any test."""
_ONE_OF = re.compile(r"\bone_of\((\d+)\)")


def runs_between(test: Callable[..., object]) -> int:
    """Of so many whole runs one has the test."""
    marks: list[pytest.Mark] = getattr(test, "pytestmark", [])
    return next((mark.args[0] for mark in marks if mark.name == "one_of"), 1)


RUNS_OF_AIRFLOW = runs_between(test_faults.test_whatever_fails_of_airflow_the_log_flows_again_and_nothing_is_lost)


@pytest.mark.parametrize("test", EACH_RUN)
def test_what_each_run_does_by_the_readme_waits_for_no_other_run(test: Callable[..., object]) -> None:
    assert runs_between(test) == 1


def test_no_test_waits_for_more_runs_than_the_comparison_says() -> None:
    counts = {int(n) for file in (ROOT / "tests").rglob("*.py") for n in _ONE_OF.findall(file.read_text())}
    assert max(counts) == MOST_RUNS
    assert "in one run of at most ten" in (ROOT / "docs" / "comparison.md").read_text()


def test_the_numbers_of_worlds_seeds_and_faults_in_the_readme_are_those_of_the_tests() -> None:
    seeds = int(re.search(r"^SEEDS \?= (\d+)$", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1))  # type: ignore[union-attr]
    sentence = " ".join((ROOT / "README.md").read_text().partition("**It is tested where it may fail.**")[2].split())
    for claim in (
        f"explores {test_protocol.A_DAY} of {len(scenarios.scenarios())} small worlds",
        f"finds {len(mutants.MUTANTS)} deliberate mistakes",
        f"runs {test_simulation.SEEDS} seeds of a simulation",
        f"{test_takeover.A_DAY} of {len(takeover_faults.FAULTS)} faults of high availability",
        f"one run of {RUNS_OF_AIRFLOW} also causes {test_faults.A_DAY} of {len(test_faults.FAULTS)} faults of Airflow",
        f"{seeds * test_simulation.SOAK:,} more seeds of the simulation",
        f"{seeds * test_merge_faults.SOAK} of merges under faults",
        f"{seeds * DATABASES} of processes that are killed",
    ):
        assert claim in sentence, claim
