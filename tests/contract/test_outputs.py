"""One behaviour of all outputs under a relay: memory, files, tables of databases, HTTP, Kafka, a class of a user.

Here each line arrives, once where the output says so, whatever dies; `test_output_troubles` has what goes wrong.
"""

from __future__ import annotations

import itertools

import pytest

from dblog_core.errors import OutputRefused, OutputTaken
from dblog_core.outputs import positions
from tests.contract import changelog
from tests.contract.relayed import EXACT, KINDS, Death, Faulty, World, every, exact, offsets, once_each

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.mark.parametrize("kind", [*KINDS, "mariadb"])
def test_every_line_arrives_once_and_in_order(world: World) -> None:
    assert world.relay()
    assert world.target.lines() == world.all()
    assert offsets(world.all()) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14]


@every
def test_a_relay_goes_on_where_the_last_one_ended(world: World) -> None:
    world.relay()
    world.relay()
    changelog.go_on(world.staging, 5, 15)
    world.relay(batch_rows=1000)
    assert world.target.lines() == world.all()
    assert world.place().offset == 16


@pytest.mark.one_of(4)
@every
def test_a_death_at_any_call_loses_nothing_and_tears_no_transaction(world: World, kind: str) -> None:
    """Exactly once where the output says so; otherwise lines may come again, and none is missed."""
    step = {"postgres": 5, "mysql": 5, "kafka": 7}.get(kind, 1)
    for number, after in itertools.product(range(0, 40, step), (False, True)):
        world.target.empty()

        def die(_: str, call: int, late: bool, number: int = number, after: bool = after) -> None:
            if (call, late) == (number, after):
                raise Death

        try:
            assert world.relay(Faulty(world.target.open(), die), restart=True)
            break
        except Death:
            lines_received = world.target.lines()
            if kind in EXACT:
                assert not changelog.ends_in_transaction(lines_received, world.all())
        assert world.relay()
        lines_received = world.target.lines()
        assert lines_received == world.all() if kind in EXACT else once_each(lines_received) == world.all()
    else:
        raise AssertionError("the run never ended by itself")


@exact
def test_a_relay_that_was_replaced_writes_nothing_more(world: World) -> None:
    sleeper = world.target.open()
    successor = world.target.open()
    first = world.all()[:3]
    rest = world.all()[3:]
    assert sleeper.open(1) is None
    locks = ("postgres", "mysql", "python")  # the other would wait for them
    sleeper_writes = world.target.settings["kind"] not in locks
    if sleeper_writes:
        sleeper.write(first)
    assert successor.open(2) is None
    successor.write(first)
    successor.commit(3)
    with pytest.raises(OutputTaken):
        sleeper.write(first) if not sleeper_writes else sleeper.commit(3)
    sleeper.close()
    successor.write(rest)
    successor.commit(14)
    assert world.target.lines() == world.all()
    successor.close()


@exact
def test_what_was_written_and_not_committed_is_gone(world: World) -> None:
    output = world.target.open()
    output.open(1)
    output.write(world.all()[:3])
    assert output.open(1) is None
    output.write(world.all()[:1])
    output.commit(1)
    assert output.open(1) == 1
    output.close()
    assert offsets(world.target.lines()) == [1]


@exact
def test_a_target_that_was_restored_gets_what_it_lacks(world: World, kind: str) -> None:
    """Played by a place in the state store that is ahead of the target's."""
    world.relay(batch_rows=1, tables=("shop.orders",))
    with world.state() as state:
        record = positions.Record.open(state, "out", int)
        record.advance(500, delivered=490)
        record.save()
    changelog.go_on(world.staging, 5, 15)
    world.relay()
    assert offsets(world.target.lines()) == [1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 14, 15, 16]


@exact
def test_a_target_that_lost_its_place_is_not_filled_from_the_middle(world: World) -> None:
    world.relay()
    world.target.empty()
    with pytest.raises(OutputRefused, match="the target has no place"):
        world.relay()
    assert world.relay(restart=True)
    assert world.target.lines() == world.all()
