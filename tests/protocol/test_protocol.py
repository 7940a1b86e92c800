"""The watermark protocol over small worlds, explored to the end; mistakes in it are found by their shortest traces."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

import pytest

from tests.fix_day import OfADay
from tests.protocol.capture import Capture, Rules, Staged, Violation
from tests.protocol.changelog import UNKNOWN
from tests.protocol.checker import Found, search
from tests.protocol.mutants import MUTANTS, Mutant
from tests.protocol.scenarios import scenarios
from tests.protocol.source import Visible
from tests.protocol.world_state import STALE, WorldState

PROCESSES = 2
A_DAY = 5  # of 288 worlds
MISTAKES_A_DAY = 8  # of 58, whose worlds are explored without the mistake too
FEWEST = 20  # states; the smallest world has 21


@pytest.mark.timeout(3600)  # all worlds, in a soak
def test_no_interleaving_breaks_the_protocol(record_property: Callable[[str, object], None], of_a_day: OfADay) -> None:
    worlds = of_a_day(scenarios(), A_DAY)
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        searches = list(pool.imap_unordered(search, worlds))
    record_property(
        "told",
        f"{sum(f.states for f in searches):,} states of {len(searches)} small worlds: {_largest(searches)}",
    )
    assert not [str(f) for f in searches if f.violation]
    assert len(searches) == len(worlds) and min(f.states for f in searches) > FEWEST


def test_values_that_stand_for_none_have_hashes_of_their_own() -> None:
    """States are told apart by their hashes alone; in Python, -1 has that of -2."""
    rows = range(100)
    assert len({hash(value) for value in (STALE, UNKNOWN, None, *rows)}) == 3 + len(rows)


def _largest(searches: list[Found]) -> str:
    return "; ".join(str(f) for f in sorted(searches, key=lambda f: -f.states)[:3])


def test_a_dump_of_a_larger_table_gives_up_where_a_row_moves_on_before_each_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search goes on beyond that, and shows what is brought by then."""
    (larger,) = (s for s in scenarios() if s.name == f"{Visible.ATOMIC.value}, arrived, restless, a larger table")

    def end(self: WorldState) -> None:
        raise Violation("a dump has given up")

    monkeypatch.setattr(WorldState, "_end_given_up", end)
    assert str(search(larger).violation) == "a dump has given up"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
@pytest.mark.thorough
def test_a_mistake_is_found(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, of_a_day: OfADay, pytestconfig: pytest.Config
) -> None:
    with monkeypatch.context() as patch:
        mutant.patch(patch)
        with_mistake = search(mutant.scenario, mutant.rules)
    assert with_mistake.violation is not None
    print(with_mistake)
    if mutant in of_a_day(MUTANTS, MISTAKES_A_DAY):
        # Far beyond the states that show the mistake; a soak explores all of them.
        most_states = None if pytestconfig.option.every_kind else 3 * with_mistake.states
        assert search(mutant.scenario, most_states=most_states).violation is None


def test_a_copy_of_a_capture_has_all_that_the_capture_has() -> None:
    capture = Capture(Staged(), snapshots=True, rules=Rules())
    copy = capture.copy()
    for old, new in [
        (capture.dumps, copy.dumps),
        (capture.dumps._windows, copy.dumps._windows),
        (capture.dumps._tasks, copy.dumps._tasks),
        (capture.visibility, copy.visibility),
    ]:
        assert old is not new and vars(new).keys() == vars(old).keys()
