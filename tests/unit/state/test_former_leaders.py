"""The names that captures lead under, one after the other."""

from __future__ import annotations

from dblog_core.state import former_leaders
from dblog_core.state.memory import MemoryState


def test_a_leader_knows_the_names_before_it_and_none_of_another_state_store() -> None:
    state = MemoryState()
    first, nobody = former_leaders.enter(state, 1)
    second, before = former_leaders.enter(state, 2)
    third, earlier = former_leaders.enter(state, 2)  # another term under the same lease
    assert (nobody, before, earlier) == (frozenset(), {first}, {first, second})
    assert len({first, second, third}) == 3
    assert former_leaders.enter(MemoryState(), 9)[1] == frozenset()


def test_a_leader_that_was_paused_does_not_end_its_successor() -> None:
    state = MemoryState()
    first, _ = former_leaders.enter(state, 1)
    newer, _ = former_leaders.enter(state, 5)
    assert former_leaders.enter(state, 4)[1] == {first}, f"{newer} leads since"


def test_it_does_not_grow() -> None:
    state = MemoryState()
    names = [former_leaders.enter(state, epoch)[0] for epoch in range(1, 60)]
    assert former_leaders.enter(state, 60)[1] == set(names[-former_leaders.KEPT :])
