"""One behaviour of all outputs under a relay, of their troubles: targets that are away, refuse lines, are another's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from dblog_core.errors import OutputRefused, OutputUnavailable, StateError
from dblog_core.monitoring.status import read_source_status
from dblog_core.outputs import positions
from dblog_core.outputs.relay import RelayStatus, run_relay
from dblog_core.staging.reader import lines
from dblog_core.state import recent_errors
from tests.contract import changelog
from tests.contract.relayed import PICKY, Death, Faulty, World, every, memory, offsets, once_each, picky
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@every
def test_a_target_that_is_away_is_waited_for(world: World) -> None:
    expected_texts: list[str] = []

    def away(name: str, call: int, late: bool) -> None:
        if call in (1, 3, 4, 5, 9) and not late:
            expected_texts.append(name)
            raise OutputUnavailable("nobody answers", where="the target", fix="start it")

    world.relay(Faulty(world.target.open(), away))
    assert len(expected_texts) == 5
    assert once_each(world.target.lines()) == world.all()
    with world.state() as state:
        (error,) = recent_errors.read(state)
    assert (error.part, error.times) == ("relay out", 5)


@memory
def test_a_target_that_stays_away_is_given_up_as_configured(world: World) -> None:
    def away(_: str, call: int, late: bool) -> None:
        raise OutputUnavailable("nobody answers", where="the target", fix="start it")

    with pytest.raises(OutputUnavailable):
        world.relay(Faulty(world.target.open(), away), give_up_after="1s")


@picky
def test_a_line_that_is_refused_stops_the_output_with_its_place(world: World) -> None:
    world.target.refuse(8)
    with pytest.raises(OutputRefused, match="refuses the line") as caught:
        world.relay()
    assert "offset 8, shop.orders" in caught.value.where
    assert offsets(once_each(world.target.lines())) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("kind", [*PICKY, "mariadb"])
def test_a_dead_letter_is_noted_with_its_reason_and_the_others_arrive(world: World) -> None:
    world.target.refuse(5)
    dead = {"poison": "dead_letter", "dead_letter": str(world.letters)}
    assert world.relay(**dead)
    (note,) = [orjson.loads(text) for text in world.letters.read_bytes().splitlines()]
    (refused,) = [line for line in world.all() if line["offset"] == 5]
    assert (note["source"], note["output"], note["line"]) == ("shop", "out", refused)
    assert note["reason"]
    assert once_each(world.target.lines()) == [line for line in world.all() if line != refused]
    assert world.place().dead_letters == 1
    world.relay(**dead)
    assert len(world.letters.read_bytes().splitlines()) == 1


@picky
def test_a_death_after_a_dead_letter_neither_notes_nor_sends_it_again(world: World) -> None:
    world.target.refuse(3)
    dead = {"poison": "dead_letter", "dead_letter": str(world.letters)}

    def die(name: str, _: int, late: bool) -> None:
        if name == "open" and world.letters.exists():
            raise Death

    with pytest.raises(Death):
        world.relay(Faulty(world.target.open(), die), **dead)
    world.relay(**dead)
    assert len(world.letters.read_bytes().splitlines()) == 1
    assert offsets(once_each(world.target.lines())) == [o for o in offsets(world.all()) if o != 3]


@every
def test_a_second_relay_stands_by_and_goes_on(world: World) -> None:
    first_stop = threading.Event()
    second_stop = threading.Event()
    statuses = list[RelayStatus]()

    def follow(stop: threading.Event, on_status: Callable[[RelayStatus], None] | None = None) -> None:
        run_relay(world.config(every=0.0), "out", stop=stop, output=world.target.open(), on_status=on_status)

    first = threading.Thread(target=follow, args=(first_stop,))
    first.start()
    wait_until(lambda: _has_reached(world, 14), what="the first relay")
    second = threading.Thread(target=follow, args=(second_stop, statuses.append))
    second.start()
    wait_until(lambda: any(s.holder for s in statuses), what="a standby")
    with pytest.raises(StateError, match="already runs"):
        world.relay()
    first_stop.set()
    changelog.go_on(world.staging, 5, 15)
    wait_until(lambda: _has_reached(world, 16), what="the standby")
    second_stop.set()
    first.join(timeout=PATIENCE_SECONDS)
    second.join(timeout=PATIENCE_SECONDS)
    assert world.target.lines() == world.all()


def _has_reached(world: World, offset: int) -> bool:
    with world.state() as state:
        place = positions.read_place(state, "out")
    return place is not None and place[0].offset >= offset


@every
def test_status_tells_how_far_it_is(world: World) -> None:
    (before,) = read_source_status(world.config()).to_json()["outputs"]
    assert (before["output"], before["offset"], before["lag_seconds"], before["holder"]) == ("out", None, None, None)
    world.relay()
    (output_status,) = read_source_status(world.config()).to_json()["outputs"]
    assert (output_status["offset"], output_status["lag_seconds"], output_status["dead_letters"]) == (14, 0.0, 0)


@memory
def test_only_the_tables_that_are_wanted_are_sent_and_the_place_passes_the_others(world: World) -> None:
    world.relay(tables=("shop.oth*",))
    assert offsets(world.target.lines()) == [7, 14]
    changelog.go_on(world.staging, 5, 15)
    world.relay(tables=("shop.oth*",))
    assert (world.place().offset, world.place().delivered) == (16, 14)
    assert offsets(world.target.lines()) == [7, 14]


@memory
@pytest.mark.parametrize(("start", "first"), [("earliest", 1), (8, 8), ("latest", 15)])
def test_it_begins_where_it_is_told_to(world: World, start: Any, first: int) -> None:
    world.relay(start=start)
    changelog.go_on(world.staging, 5, 15)
    world.relay(start=start)
    assert offsets(world.target.lines())[0] == first


@memory
def test_the_rest_of_a_transaction_that_is_not_staged_yet_is_waited_for(world: World, tmp_path: Path) -> None:
    whole = changelog.stage(tmp_path / "other")
    manifests = world.directory / "staging" / "shop" / "manifests"
    later = [manifests / f"{n:020d}.json" for n in (3, 4)]
    bytes_by_path = {path: path.read_bytes() for path in later}
    for path in later:
        path.unlink()
    world.relay()
    assert offsets(world.target.lines()) == [1, 2, 3]
    for path, data in bytes_by_path.items():
        path.write_bytes(data)
    world.relay()
    assert world.target.lines() == [orjson.loads(orjson.dumps(line)) for line in lines(whole)]


@memory
def test_a_stop_ends_it_between_transactions(world: World) -> None:
    stop = threading.Event()

    def ask(name: str, call: int, late: bool) -> None:
        if name == "write" and call == 3:
            stop.set()

    output = Faulty(world.target.open(), ask)
    assert not run_relay(world.config(), "out", stop=stop, output=output)
    lines_received = world.target.lines()
    assert (
        lines_received
        and not changelog.ends_in_transaction(lines_received, world.all())
        and len(lines_received) < len(world.all())
    )
