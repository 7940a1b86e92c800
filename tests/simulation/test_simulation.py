"""Many seeds of the whole system; what they all did must be more than nothing, and one seed is one run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.simulation.mutants import KINDS, MUTANTS, READ_ONLY
from tests.simulation.oracle import judge
from tests.simulation.world import Violation, World

SEEDS = 150  # of every day, others from day to day
MOST_DAYS = 5  # whose seeds are taken until everything has happened: ghosts come in one seed of thirty
SOAK = 100  # seeds for each one that the soak asks for
PROCESSES = len(os.sched_getaffinity(0))
FIRST = 1_000_000_000  # the soak's seeds are others than those of every day
ROOT = Path(__file__).parents[2]


def run(first: int, last: int, *, hash_seed: str = "random") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.simulation", str(first), str(last)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    with process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    run_result: dict[str, Any] = orjson.loads(output)
    return run_result


def run_all(first: int, count: int) -> dict[str, int]:
    """Runs seeds on all processes; returns what happened, counted over all of them."""
    share = -(-count // PROCESSES)
    starts = range(first, first + count, share)
    total: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(run(start, min(start + share, first + count) - 1)) for start in starts]
        for process in running:
            stack.callback(process.kill)  # where one fails the others need not go on
        for process in running:
            for name, number in result(process)["counts"].items():
                total[name] = total.get(name, 0) + number
    return total


WANTED = (
    "chunks placed",
    "rows evicted",
    "rows evicted in part",
    "arrivals",
    "attempts broken",
    "dumps done",
    "dumps cancelled",
    "takeovers",
    "restarts",
    "kills",
    "pauses",
    "expired",
    "errors",
    "lost",
    "withheld keys asked for",
    "transactions in parts",
    "truncates",
    "altered",
    "keys changed",
    "ghosts",
    "power cuts",
    "fresh starts",
    "sessions lost",
    "creates denied",
    "files made late",
)
RARE = ("zombies fenced",)
"""Some four times in the seeds of a day, and now and then never: a soak must have them."""


@pytest.mark.timeout(1800)
def test_hundreds_of_seeds_come_to_rest_with_the_lake_as_the_source(pytestconfig: pytest.Config) -> None:
    counts = Counter[str]()
    for day in range(MOST_DAYS):
        counts.update(run_all((pytestconfig.option.soak_first + day) * SEEDS, SEEDS))
        if all(counts[name] for name in WANTED):
            break
    print(counts)
    assert [name for name in WANTED if not counts[name]] == [], "nothing of the kind happened"


@pytest.fixture(scope="module")
def event_counts(pytestconfig: pytest.Config) -> Iterator[Counter[str]]:
    """What the seeds of the whole soak did; of a thousand, everything."""
    counts = Counter[str]()
    yield counts
    if pytestconfig.option.soak_seeds * SOAK >= 1_000:
        assert [name for name in (*WANTED, *RARE) if not counts[name]] == [], "nothing of the kind happened"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_more_seeds(soak_seed: int, event_counts: Counter[str]) -> None:
    event_counts.update(run_all(FIRST + soak_seed * SOAK, SOAK))


FINDERS = {
    "attempts_go_on_that_began_before_the_capture": 3_017,
    "no_memory_after_a_restart": 3_013,
    "rows_looked_for_wherever_they_go": 3_012,
}
"""A seed that has found a mutant which few find: it is asked first."""


@pytest.mark.one_of(4)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_of_the_engine_is_found(name: str) -> None:
    """Within so many seeds, or the simulation is blind for it."""
    seeds = range(3_000, 3_400)
    assert any(_finds(seed, name) for seed in (FINDERS.get(name, seeds.start), *seeds))


def _finds(seed: int, mutant: str) -> bool:
    world = World(seed)
    if KINDS.get(mutant, world.kind) != world.kind or (mutant in READ_ONLY and not world.config.source.read_only):
        return False
    with MUTANTS[mutant]():
        try:
            world.run(judge)
        except Violation:
            return True
    return False


def test_one_seed_is_one_run() -> None:
    first_result, second_result = (result(run(77, 79, hash_seed=seed)) for seed in ("1", "2"))
    assert first_result == second_result
    assert first_result["last trace"] != result(run(78, 78))["last trace"]
