"""Signals in the state store: each once, by its own id, whichever channel brings it and however often.

    signals/KEY      a signal and what has become of it (`signal_record`); KEY is made of the id
    signals/KEY/told/NAME  whether the channel NAME of `[[notify]]` has reported its refusal (`notifications`)
    signals-at/NAME  how far a channel is read that has a place of its own (a file)

What a channel has put here is durable: so the table's place in the log, and the place in a file, only move past a
signal that is here. Read again after a crash, its id is known.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, Self, TypeVar

import orjson

from dblog_core.errors import RequestError, VersionConflict
from dblog_core.interfaces import Json, StateStore
from dblog_core.signals.message import IGNORED, MAX_DATA_BYTES, MAX_ID_CHARS, Message
from dblog_core.signals.signal_record import SignalRecord, SignalState
from dblog_core.state import compare_and_set

KEPT_US = 30 * 86_400 * 10**6  # for which an id is remembered once its signal is over
MOST = 10_000  # signals that are over, of which the older ones are forgotten sooner, but not within a day
SURELY_KEPT_US = 86_400 * 10**6  # also where there are more than MOST
_ROOT = "signals"
_PLACES = "signals-at"
_SAFE = re.compile(r"[^A-Za-z0-9_-]+")
_CUT = "the signal was too long to be kept"


class Position(Protocol):
    """How far a channel is read."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self: ...

    def to_json(self) -> Json: ...


P = TypeVar("P", bound=Position)


def node_name(signal_id: str) -> str:
    """A node's name for an id: part of it, for people, and its digest."""
    return f"{slug(signal_id)}-{hashlib.sha256(signal_id.encode()).hexdigest()[:16]}"


def slug(signal_id: str) -> str:
    """What of an id may stand in a name."""
    return _SAFE.sub("-", signal_id).strip("-")[:40] or "signal"


def put_signal(state: StateStore, message: Message, *, channel: str, at_us: int, caller: str | None = None) -> bool:
    """Takes a signal in; whether it is new. `at_us`: µs UTC, growing within a channel, which orders them."""
    if message.type in IGNORED:
        return False
    record = replace(_new_record(message, channel, at_us), caller=caller)
    try:
        state.create(_node(node_name(message.id)), orjson.dumps(record.to_node()))
    except VersionConflict:
        return False
    return True


def put_refusal(state: StateStore, signal_id: str, *, channel: str, at_us: int, error: RequestError) -> None:
    """Remembers what came as no signal, under an id that is made for it."""
    record = _new_record(Message(signal_id, ""), channel, at_us)
    record = replace(record, state=SignalState.REFUSED, error=error.reason, fix=error.fix)
    try:
        state.create(_node(node_name(signal_id)), orjson.dumps(record.to_node()))
    except VersionConflict:
        return


def read_signal(state: StateStore, name: str) -> SignalRecord | None:
    """The signal of a node's name; None if there is none."""
    entry = state.get(_node(name))
    return None if entry is None or not entry.data else SignalRecord.from_json(orjson.loads(entry.data))


def find_signal(state: StateStore, signal_id: str) -> SignalRecord:
    """The signal of an id. Raises RequestError."""
    if (record := read_signal(state, node_name(signal_id))) is None:
        raise RequestError(f"there is no signal {signal_id!r}", fix="`dblog signals` lists them")
    return record


def node_names(state: StateStore) -> list[str]:
    """The nodes of all signals that are remembered."""
    return state.children(_ROOT)


def list_signals(state: StateStore, among: Iterable[str] | None = None) -> list[SignalRecord]:
    """Signals, in the order in which they came."""
    names = node_names(state) if among is None else among
    records = [record for name in names if (record := read_signal(state, name)) is not None]
    return sorted(records, key=lambda record: (record.at_us, record.id))


def change_signal(state: StateStore, before: SignalRecord, after: SignalRecord) -> bool:
    """Whether the signal is `after` now. It is not where another has changed it since it was read as `before`, and
    continues with it."""

    def unless_changed(node: Json | None) -> Json | None:
        return after.to_node(node) if node is not None and SignalRecord.from_json(node) == before else node

    node = compare_and_set.change(state, _node(node_name(before.id)), unless_changed)
    return node is not None and SignalRecord.from_json(node) == after


def forget_signal(state: StateStore, record: SignalRecord) -> None:
    """Its id counts as new again."""
    state.delete(_node(node_name(record.id)))


def read_position(state: StateStore, channel: str, position_type: type[P]) -> P | None:
    """How far a channel is read; None at its first look."""
    entry = state.get(f"{_PLACES}/{channel}")
    return None if entry is None else position_type.from_json(orjson.loads(entry.data))


def put_position(state: StateStore, channel: str, position: Position) -> None:
    """All before this place is here."""
    compare_and_set.change(state, f"{_PLACES}/{channel}", lambda _: position.to_json())


def _new_record(message: Message, channel: str, at_us: int) -> SignalRecord:
    """What is far too long for any signal is not kept, and refused by that."""
    long = (
        len(message.id) > MAX_ID_CHARS or len(message.type) > MAX_ID_CHARS or len(message.data or "") > MAX_DATA_BYTES
    )
    record = SignalRecord(message.id, message.type[:MAX_ID_CHARS], message.data, channel, at_us)
    if not long:
        return record
    fix = f"give an id of at most {MAX_ID_CHARS} characters, and data of at most {MAX_DATA_BYTES}"
    return replace(record, data=None, state=SignalState.REFUSED, error=_CUT, fix=fix)


def _node(name: str) -> str:
    return f"{_ROOT}/{name}"
