"""Signals are carried out once by their ids, in order, whatever dies in between."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from dblog_core.clock import SystemClock
from dblog_core.dumps import dump_records, dump_store, filing, requests
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import StateError, StateUnavailable, VersionConflict
from dblog_core.model.events import SignalSeen
from dblog_core.signals import inbox, table
from dblog_core.signals.message import Message
from dblog_core.signals.processor import SignalProcessor
from dblog_core.signals.signal_record import SignalState
from tests.unit.requests_world import World
from tests.unit.signals_world import Dies, Fragile, desk, execute, world

__all__ = ["desk", "world"]


NOW = time.time_ns() // 1000


def send(world: World, id_: str, type_: str = "execute-snapshot", data: str | None = None, at: int = 0) -> bool:
    return inbox.put_signal(world.state, Message(id_, type_, data or execute()), channel="test", at_us=NOW + at)


def test_a_signal_files_one_dump_with_its_id(world: World, desk: SignalProcessor) -> None:
    assert send(world, "ad hoc/1")
    desk.carry_out_waiting()
    (dump,) = dump_store.list_dumps(world.state)
    assert (dump.signal, dump.requested_by, dump.state, dump.tables) == (
        "ad hoc/1", dump_records.SIGNAL, "requested", ("shop.orders",),
    )  # fmt: skip
    assert "-ad-hoc-1-" in dump.id
    assert inbox.find_signal(world.state, "ad hoc/1").state == SignalState.DONE
    assert inbox.find_signal(world.state, "ad hoc/1").dump == dump.id


def test_a_signal_that_comes_again_does_nothing(world: World, desk: SignalProcessor) -> None:
    for _ in range(3):
        send(world, "one")
        desk.carry_out_waiting()
    assert not send(world, "one", data=execute("shop.customers"))
    SignalProcessor(world.config, world.state, SystemClock()).carry_out_waiting()
    assert len(dump_store.list_dumps(world.state)) == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(1, 7))
def test_a_crash_at_any_step_files_one_whole_dump(world: World, step: int, after: bool) -> None:
    send(world, "one", data=execute("shop.orders", "shop.customers"))
    try:
        SignalProcessor(world.config, Fragile(world.state, step, after=after), SystemClock()).carry_out_waiting()  # type: ignore[arg-type]
        died = False
    except Dies:
        died = True
    assert died, "two tasks, the signal, the list, the request, the signal: fewer steps than are tried?"
    SignalProcessor(world.config, world.state, SystemClock()).carry_out_waiting()
    (dump,) = dump_store.list_dumps(world.state)
    assert [t.table for t in dump.tasks] == ["shop.orders", "shop.customers"]
    assert inbox.find_signal(world.state, "one").state == SignalState.DONE


@pytest.mark.parametrize("step", range(1, 6), ids=["tasks", "filing", "list", "request", "done"])
def test_a_slow_leader_beside_its_successor_files_no_second_dump(world: World, step: int) -> None:
    """The successor carries the signal out in the very middle of what the first one does."""
    send(world, "one")
    successor = SignalProcessor(world.config, world.state, SystemClock())

    class Interrupted(Fragile):
        def _count_calls(self, change: Callable[..., Any]) -> Callable[..., Any]:
            def count_change(*arguments: Any) -> Any:
                self._left -= 1
                if self._left == 0:
                    successor.carry_out_waiting()
                return change(*arguments)

            return count_change

    slow = SignalProcessor(world.config, Interrupted(world.state, step, after=False), SystemClock())  # type: ignore[arg-type]
    with contextlib.suppress(VersionConflict):  # from its step on the successor was faster
        slow.carry_out_waiting()
    successor.carry_out_waiting()
    assert len(dump_store.list_dumps(world.state)) == 1
    assert inbox.find_signal(world.state, "one").state == SignalState.DONE


def test_signals_are_carried_out_in_the_order_in_which_they_came(world: World, desk: SignalProcessor) -> None:
    send(world, "b-execute", at=1)
    send(world, "a-pause", "pause-snapshot", "{}", at=2)
    desk.carry_out_waiting()
    assert [d.state for d in dump_store.list_dumps(world.state)] == ["paused"]
    send(world, "c", "resume-snapshot", "{}", at=3)
    desk.carry_out_waiting()
    assert [d.state for d in dump_store.list_dumps(world.state)] == ["requested"]
    send(world, "d", "stop-snapshot", "{}", at=4)
    desk.carry_out_waiting()
    assert [d.state for d in dump_store.list_dumps(world.state)] == ["cancelled"]


def test_what_may_pass_keeps_the_order(world: World, desk: SignalProcessor, monkeypatch: pytest.MonkeyPatch) -> None:
    send(world, "one", at=1)
    send(world, "two", "pause-snapshot", "{}", at=2)

    def away(*_: Any, **__: Any) -> Any:
        raise StateUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(filing, "make_draft", away)
        with pytest.raises(StateUnavailable):
            desk.carry_out_waiting()
    assert {r.state for r in inbox.list_signals(world.state)} == {SignalState.WAITING}
    desk.carry_out_waiting()
    assert [d.state for d in dump_store.list_dumps(world.state)] == ["paused"]


def test_a_refused_signal_says_why_and_lets_the_next_one_through(world: World, desk: SignalProcessor) -> None:
    send(world, "one", data=execute("shop.nothing"), at=1)
    send(world, "two", at=2)
    desk.carry_out_waiting()
    refused = inbox.find_signal(world.state, "one")
    assert refused.state == SignalState.REFUSED
    assert "'shop.nothing' is not a captured table" in refused.error and "shop.orders" in refused.fix
    assert [d.signal for d in dump_store.list_dumps(world.state)] == ["two"]


def test_a_signal_that_no_entry_of_the_state_store_holds_lets_the_next_one_through(
    world: World, desk: SignalProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(world, "one", at=1)
    send(world, "two", "pause-snapshot", "{}", at=2)

    def refuse(*_: Any, **__: Any) -> Any:
        raise StateError("962581 bytes do not fit in one entry", fix="ask for less at once")

    monkeypatch.setattr(filing, "make_draft", refuse)
    desk.carry_out_waiting()
    refused = inbox.find_signal(world.state, "one")
    assert (refused.state, refused.fix) == (SignalState.REFUSED, "ask for less at once")
    assert inbox.find_signal(world.state, "two").state.is_over


def test_words_leave_dumps_of_the_system_alone(world: World, desk: SignalProcessor) -> None:
    mends = filing.submit(world.config, requests.WHOLE, requested_by=dump_records.SYSTEM, state=world.state)
    person = filing.submit(world.config, DumpRequest(("shop.orders",)), state=world.state)
    send(world, "one", "stop-snapshot", "{}")
    desk.carry_out_waiting()
    assert dump_store.read_dump(world.state, mends).state == "requested"
    assert dump_store.read_dump(world.state, person).state == "cancelled"
    assert person in inbox.find_signal(world.state, "one").what


def test_tables_of_a_dump_are_stopped_and_its_others_go_on(world: World, desk: SignalProcessor) -> None:
    send(world, "one", data=execute("shop.orders", "shop.customers"), at=1)
    send(world, "two", "stop-snapshot", execute("shop.orders"), at=2)
    desk.carry_out_waiting()
    (dump,) = dump_store.list_dumps(world.state)
    assert [(t.table, t.error) for t in dump.tasks] == [
        ("shop.orders", "stopped by signal two"),
        ("shop.customers", None),
    ]
    assert dump_store.read_settings(world.state, dump.id, "shop.orders")[0] == "cancelled", "what its worker reads"
    assert dump_store.read_settings(world.state, dump.id, "shop.customers")[0] == "requested"
    send(world, "three", "stop-snapshot", execute("shop.*"), at=3)
    desk.carry_out_waiting()
    assert dump_store.read_dump(world.state, dump.id).state == "cancelled"


def test_one_dump_is_named_by_its_id_or_by_that_of_its_signal(world: World, desk: SignalProcessor) -> None:
    send(world, "one", at=1)
    send(world, "two", at=2)
    send(world, "p", "pause-snapshot", '{"dump": "two"}', at=3)
    send(world, "q", "pause-snapshot", '{"dump": "nobody"}', at=4)
    desk.carry_out_waiting()
    assert {d.signal: d.state for d in dump_store.list_dumps(world.state)} == {"one": "requested", "two": "paused"}
    assert inbox.find_signal(world.state, "q").state == SignalState.REFUSED


def test_ids_are_forgotten_only_long_after(world: World) -> None:
    class Later(SystemClock):
        def time(self) -> float:
            return (NOW + inbox.KEPT_US + 10) / 1e6

    send(world, "old", at=0)
    send(world, "new", at=20)
    SignalProcessor(world.config, world.state, Later()).carry_out_waiting()
    assert [r.id for r in inbox.list_signals(world.state)] == ["new"]
    assert len(dump_store.list_dumps(world.state)) == 2


def test_ids_that_look_alike_are_two_signals(world: World, desk: SignalProcessor) -> None:
    for number, id_ in enumerate(("a b", "a-b", "a/b", "../a", "ä" * 250)):
        assert send(world, id_, at=number)
    desk.carry_out_waiting()
    assert len(dump_store.list_dumps(world.state)) == 5


def test_a_row_without_an_id_is_refused_and_debeziums_own_are_left_alone(world: World) -> None:
    table.put_row(world.state, SignalSeen.of(1, 0, [None, "x", None]), at_us=NOW)
    table.put_row(world.state, SignalSeen.of(2, 0, []), at_us=NOW + 1)
    table.put_row(world.state, SignalSeen.of(3, 0, ["w", "snapshot-window-open", "{}"]), at_us=NOW + 2)
    table.put_row(world.state, SignalSeen.of(4, 0, [b"one", b"pause-snapshot", None]), at_us=NOW + 3)
    ids_and_states = [(r.id, r.state) for r in inbox.list_signals(world.state)]
    assert ids_and_states == [
        (f"row-{NOW}", "refused"),
        (f"row-{NOW + 1}", "refused"),
        ("one", "waiting"),
    ]


def test_a_signal_that_no_node_could_hold_is_refused(world: World, desk: SignalProcessor) -> None:
    table.put_row(world.state, SignalSeen.of(1, 0, ["one", "execute-snapshot", "x" * 200_000]), at_us=NOW)
    desk.carry_out_waiting()
    signal_record = inbox.find_signal(world.state, "one")
    assert signal_record.state == SignalState.REFUSED and signal_record.data is None and signal_record.fix
