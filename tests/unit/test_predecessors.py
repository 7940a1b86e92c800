"""The names that captures lead under, one after the other."""

from __future__ import annotations

from dblog_core import predecessors
from dblog_core.state.memory import MemoryState


def test_a_leader_knows_the_names_before_it_and_none_of_another_state_store() -> None:
    state = MemoryState()
    first, nobody = predecessors.enter(state, 1)
    second, before = predecessors.enter(state, 2)
    third, earlier = predecessors.enter(state, 2)  # another term under the same lease
    assert (nobody, before, earlier) == (frozenset(), {first}, {first, second})
    assert len({first, second, third}) == 3
    assert predecessors.enter(MemoryState(), 9)[1] == frozenset()


def test_a_leader_that_was_paused_does_not_end_its_successor() -> None:
    state = MemoryState()
    first, _ = predecessors.enter(state, 1)
    newer, _ = predecessors.enter(state, 5)
    assert predecessors.enter(state, 4)[1] == {first}, f"{newer} leads since"


def test_it_does_not_grow() -> None:
    state = MemoryState()
    names = [predecessors.enter(state, epoch)[0] for epoch in range(1, 60)]
    assert predecessors.enter(state, 60)[1] == set(names[-predecessors.KEPT :])
