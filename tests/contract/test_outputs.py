"""One behaviour of all outputs under a relay: memory, files, tables of databases, HTTP, Kafka, a class of a user."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from dblog_core import output_places, recent_errors, wiring
from dblog_core.config import Config
from dblog_core.errors import OutputRefused, OutputTaken, OutputUnavailable, StateError
from dblog_core.interfaces import Json, Output
from dblog_core.local.daemon import wait_until
from dblog_core.outputs.http import signature, verified
from dblog_core.relay import RelayStatus, run_relay
from dblog_core.staging.reader import lines
from dblog_core.status import status
from tests.contract import changelog
from tests.contract.targets import ExampleOne, FilesOne, HttpOne, KafkaOne, MemoryOne, TableOne, Target

EXACT = ["memory", "jsonl", "parquet", "postgres", "mysql", "example", "kafka"]
KINDS = [*EXACT, "http"]
PICKY = [kind for kind in KINDS if kind not in ("jsonl", "parquet", "example", "kafka")]
"""Those that can refuse a line."""

every = pytest.mark.parametrize("kind", KINDS)
memory = pytest.mark.parametrize("kind", ["memory"])
exact = pytest.mark.parametrize("kind", EXACT)
picky = pytest.mark.parametrize("kind", PICKY)


@pytest.fixture
def target(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Target]:
    if kind == "memory":
        yield MemoryOne()
    elif kind in ("jsonl", "parquet"):
        yield FilesOne(tmp_path / "files", kind)
    elif kind == "example":
        monkeypatch.syspath_prepend(str(tmp_path))
        yield ExampleOne(tmp_path)
    elif kind == "http":
        receiver = HttpOne()
        yield receiver
        receiver.stop()
    elif kind == "kafka":
        yield KafkaOne(request.getfixturevalue("kafka"))
    else:
        server = request.getfixturevalue(kind)
        yield TableOne(request.getfixturevalue("new_database")(server))


class World:
    """A staged super-changelog, a state store, and relays that send to a target."""

    def __init__(self, directory: Path, target: Target) -> None:
        self.directory, self.target = directory, target
        self.staging = changelog.stage(directory / "staging")
        self.letters = directory / "dead" / "letters.jsonl"

    def config(self, **more: Any) -> Config:
        output = {**self.target.settings, "start": "earliest", "batch_rows": 2, "longest_wait": 0.05, **more}
        return Config.model_validate(
            {
                "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
                "staging": {"path": str(self.directory / "staging")},
                "state": {"url": f"sqlite:///{self.directory / 'state.db'}"},
                "lake": {"path": str(self.directory / "lake")},
                "output": {"out": output},
            }
        )

    def relay(self, output: Output | None = None, *, restart: bool = False, **more: Any) -> bool:
        """All that is sealed now; in a process of its own, as far as the target can tell."""
        return run_relay(
            self.config(**more),
            "out",
            stop=threading.Event(),
            once=True,
            restart=restart,
            output=output or self.target.open(),
        )

    def all(self) -> list[Json]:
        return [orjson.loads(orjson.dumps(line)) for line in lines(self.staging)]

    def state(self) -> Any:
        return closing(wiring.open_state(self.config()))

    def place(self) -> output_places.Place:
        with self.state() as state:
            found = output_places.read(state, "out")
        assert found is not None
        return found[0]


@pytest.fixture
def world(tmp_path: Path, target: Target) -> World:
    return World(tmp_path, target)


class Death(BaseException):
    """The process is no more."""


class Faulty:
    """An output that meets a fault at one of its calls, right before it or right after it."""

    def __init__(self, output: Output, fault: Callable[[str, int, bool], None]) -> None:
        self._output, self._fault, self._calls = output, fault, itertools.count()
        self.exactly_once = output.exactly_once

    def open(self, epoch: int) -> int | None:
        return self._call("open", epoch)  # type: ignore[no-any-return]

    def write(self, lines: Sequence[Json]) -> None:
        self._call("write", lines)

    def commit(self, offset: int) -> None:
        self._call("commit", offset)

    def close(self) -> None:
        self._output.close()

    def _call(self, name: str, argument: Any) -> Any:
        number = next(self._calls)
        self._fault(name, number, False)
        result = getattr(self._output, name)(argument)
        self._fault(name, number, True)
        return result


def offsets(lines: Sequence[Json]) -> list[int]:
    return [line["offset"] for line in lines]


def once_each(lines: Sequence[Json]) -> list[Json]:
    """Lines without those that came again."""
    seen: dict[int, Json] = {}
    for line in lines:
        assert seen.setdefault(line["offset"], line) == line, "what comes again is the same"
    return list(seen.values())


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
            found = world.target.lines()
            if kind in EXACT:
                assert not changelog.torn(found, world.all())
        assert world.relay()
        found = world.target.lines()
        assert found == world.all() if kind in EXACT else once_each(found) == world.all()
    else:
        raise AssertionError("the run never ended by itself")


@every
def test_a_target_that_is_away_is_waited_for(world: World) -> None:
    told: list[str] = []

    def away(name: str, call: int, late: bool) -> None:
        if call in (1, 3, 4, 5, 9) and not late:
            told.append(name)
            raise OutputUnavailable("nobody answers", where="the target", fix="start it")

    world.relay(Faulty(world.target.open(), away))
    assert len(told) == 5
    assert once_each(world.target.lines()) == world.all()
    with world.state() as state:
        (error,) = recent_errors.read(state)
    assert (error["part"], error["times"]) == ("relay out", 5)


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


@exact
def test_a_relay_that_was_replaced_writes_nothing_more(world: World) -> None:
    sleeper, successor = world.target.open(), world.target.open()
    first, rest = world.all()[:3], world.all()[3:]
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
        record = output_places.Record.opened(state, "out", int)
        record.passed(500, delivered=490)
        record.save()
    changelog.go_on(world.staging, 5, 15)
    world.relay()
    assert offsets(world.target.lines()) == [1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 14, 15, 16]


@exact
def test_a_target_that_lost_its_place_is_not_filled_from_the_middle(world: World) -> None:
    world.relay()
    world.target.empty()
    with pytest.raises(OutputRefused, match="tells of no place"):
        world.relay()
    assert world.relay(restart=True)
    assert world.target.lines() == world.all()


@every
def test_a_second_relay_stands_by_and_goes_on(world: World) -> None:
    first_stop, second_stop, told = threading.Event(), threading.Event(), list[RelayStatus]()

    def follow(stop: threading.Event, on_status: Callable[[RelayStatus], None] | None = None) -> None:
        run_relay(world.config(every=0.0), "out", stop=stop, output=world.target.open(), on_status=on_status)

    first = threading.Thread(target=follow, args=(first_stop,))
    first.start()
    wait_until(lambda: _reached(world, 14), timeout=60, what="the first relay")
    second = threading.Thread(target=follow, args=(second_stop, told.append))
    second.start()
    wait_until(lambda: any(s.holder for s in told), timeout=60, what="a standby")
    with pytest.raises(StateError, match="passes lines on"):
        world.relay()
    first_stop.set()
    changelog.go_on(world.staging, 5, 15)
    wait_until(lambda: _reached(world, 16), timeout=60, what="the standby")
    second_stop.set()
    first.join(timeout=30)
    second.join(timeout=30)
    assert world.target.lines() == world.all()


def _reached(world: World, offset: int) -> bool:
    with world.state() as state:
        found = output_places.read(state, "out")
    return found is not None and found[0].offset >= offset


@every
def test_status_tells_how_far_it_is(world: World) -> None:
    (before,) = status(world.config())["outputs"]
    assert (before["output"], before["offset"], before["lag_seconds"], before["holder"]) == ("out", None, None, None)
    world.relay()
    (found,) = status(world.config())["outputs"]
    assert (found["offset"], found["lag_seconds"], found["dead_letters"]) == (14, 0.0, 0)


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
    held = {path: path.read_bytes() for path in later}
    for path in later:
        path.unlink()
    world.relay()
    assert offsets(world.target.lines()) == [1, 2, 3]
    for path, data in held.items():
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
    found = world.target.lines()
    assert found and not changelog.torn(found, world.all()) and len(found) < len(world.all())


http = pytest.mark.parametrize("kind", ["http"])


@http
def test_lines_that_come_again_come_under_the_same_key(world: World, target: HttpOne) -> None:
    """So that a receiver which knows keys alone has each line once, also when more is staged in between."""
    for number in range(5):

        def die(name: str, call: int, late: bool, number: int = number) -> None:
            if (name, call, late) == ("write", 1 + 2 * (number % 2), True):
                raise Death

        with pytest.raises(Death):
            world.relay(Faulty(target.open(), die), batch_rows=1000)
        changelog.go_on(world.staging, 5 + number, 15 + 2 * number)
    world.relay(batch_rows=1000)
    assert len(target.requests) > len(dict(target.requests)), "some came again"
    assert [line for lines in dict(target.requests).values() for line in lines] == world.all()


@http
@pytest.mark.parametrize("answer", [429, 500, 503, 409])
def test_a_receiver_that_asks_to_come_later_is_asked_again(world: World, target: HttpOne, answer: int) -> None:
    target.answers = [answer, answer]
    assert world.relay()
    assert target.lines() == world.all()


@http
@pytest.mark.parametrize("answer", [301, 401, 403, 404])
def test_a_receiver_that_does_not_know_us_ends_the_relay(world: World, target: HttpOne, answer: int) -> None:
    target.answers = [answer]
    with pytest.raises(OutputRefused, match=f"HTTP {answer}") as caught:
        world.relay()
    assert "user=x" not in str(caught.value) and "not for logs" not in str(caught.value)
    assert target.lines() == []


@http
def test_a_request_that_was_altered_or_is_old_is_not_ours(target: HttpOne) -> None:
    key, body = "shop/out/1-2", b"{}\n"
    headers = {"Idempotency-Key": key, "Dblog-Signature": f"t=1000,v1={signature('s', '1000', key, body)}"}
    assert verified("s", headers, body, now=1200)
    assert not verified("s", headers, body, now=1400)
    assert not verified("s", headers, b"{ }\n", now=1200)
    assert not verified("s", {**headers, "Idempotency-Key": "shop/out/1-3"}, body, now=1200)
    assert not verified("t", headers, body, now=1200)
    assert not verified("s", {"Idempotency-Key": key}, body, now=1200)


kafka = pytest.mark.parametrize("kind", ["kafka"])


@kafka
def test_a_key_keeps_to_its_partition_and_marks_come_to_all(world: World, target: KafkaOne) -> None:
    target.settings["partitions"] = 3
    world.relay()
    found = [(m.partition(), m.key(), m.value() and orjson.loads(m.value())) for m in target.messages()]
    marks = [(line["offset"], partition) for partition, key, line in found if key is None]
    assert sorted(marks) == [(offset, partition) for offset in (1, 13, 14) for partition in range(3)]
    partitions: dict[bytes, set[int]] = {}
    for partition, key, _ in found:
        partitions.setdefault(key, set()).add(partition)
    assert all(len(where) == 1 for key, where in partitions.items() if key is not None)
    assert len({partition for partition, key, _ in found if key is not None}) > 1
    (last,) = [m for m in target.messages() if m.key() == b'{"id":3}' and m.value() is None]
    assert last.topic() == f"{target.settings['topic_prefix']}shop.orders", "a delete is followed by a tombstone"


@kafka
def test_a_message_that_is_too_large_is_a_dead_letter_and_the_others_arrive(world: World, target: KafkaOne) -> None:
    long = changelog.log_rows(changelog.ORDERS, {"offset": 15, "op": "c", "after": {"id": 1, "name": "x" * 5000}})
    changelog.publish(world.staging, 5, 15, 15, (changelog.ORDERS, long))
    changelog.go_on(world.staging, 6, 16)
    target.settings["max_message"] = 2000
    assert world.relay(poison="dead_letter", dead_letter=str(world.letters), batch_rows=1000)
    (note,) = [orjson.loads(text) for text in world.letters.read_bytes().splitlines()]
    assert note["line"]["offset"] == 15 and "large" in note["reason"].lower()
    assert offsets(target.lines()) == [o for o in offsets(world.all()) if o != 15]


@kafka
def test_a_batch_that_the_broker_refuses_is_searched_for_the_one_message(world: World, target: KafkaOne) -> None:
    """The topic takes less than the client does, and answers for all that came together."""
    world.relay()
    target.limit("shop.orders", 1500)
    long = changelog.log_rows(changelog.ORDERS, {"offset": 15, "op": "c", "after": {"id": 1, "name": "x" * 5000}})
    changelog.publish(world.staging, 5, 15, 15, (changelog.ORDERS, long))
    changelog.go_on(world.staging, 6, 16)
    assert world.relay(poison="dead_letter", dead_letter=str(world.letters), batch_rows=1000)
    (note,) = [orjson.loads(text) for text in world.letters.read_bytes().splitlines()]
    assert note["line"]["offset"] == 15
    assert offsets(target.lines()) == [o for o in offsets(world.all()) if o != 15]


@kafka
def test_debeziums_envelope_has_rows_deletes_and_truncates(world: World, target: KafkaOne) -> None:
    target.settings["form"] = "debezium"
    world.relay()
    values = [orjson.loads(m.value()) for m in target.messages() if m.value() is not None]
    found = {value["source"]["offset"]: value for value in values}
    assert {offset: value["op"] for offset, value in found.items()} == {
        **dict.fromkeys((2, 3, 4, 5, 6, 7), "c"), 8: "u", 9: "d", 10: "r", 12: "r", 14: "t",
    }  # fmt: skip
    assert found[8]["after"] == {"id": 2, "name": "x", "big": "__debezium_unavailable_value"}
    assert (found[9]["before"], found[9]["after"]) == ({"id": 3}, None)
    assert found[10]["source"]["snapshot"] == "true" and found[8]["source"]["table"] == "orders"
    assert world.place().delivered == 14


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    wait_until(lambda: threading.active_count() <= before, timeout=30, what="threads to end")
