"""What the state store holds of a signal, with its JSON of today and of before: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from dblog_core.dumps.dump_records import DumpRecord
from dblog_core.interfaces import Json
from dblog_core.signals.message import Message


class SignalState(StrEnum):
    """Where a signal stands."""

    WAITING = "waiting"
    """Nobody has looked at it."""
    FILING = "filing"
    """Its dump is cut, and certain to be filed."""
    DONE = "done"
    REFUSED = "refused"

    @property
    def is_over(self) -> bool:
        return self in (SignalState.DONE, SignalState.REFUSED)


@dataclass(frozen=True, slots=True)
class SignalRecord:
    """A signal and what has become of it.

    `at_us`: µs UTC, by which signals are ordered; `dump`: the id of its dump; `what`: what was done, for people;
    `error` and `fix`: why it was refused. `request`: the dump that is being filed; None before, and once it is filed.
    `caller`: whose token it came with by HTTP, where that has a name.
    """

    id: str
    type: str
    data: str | None
    channel: str
    at_us: int
    state: SignalState = SignalState.WAITING
    dump: str | None = None
    what: str | None = None
    error: str | None = None
    fix: str | None = None
    request: DumpRecord | None = None
    caller: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        request = data.get("request")
        return cls(
            id=data["id"],
            type=data["type"],
            data=data["data"],
            channel=data["channel"],
            at_us=data["at"],
            state=SignalState(data["state"]),
            dump=data["dump"],
            what=data["what"],
            error=data["error"],
            fix=data["fix"],
            request=None if request is None else DumpRecord.from_json(request),
            caller=data.get("caller"),
        )

    def to_json(self) -> Json:
        """All but `request`, which only a signal with a dump has: `to_node` adds it."""
        return {
            "id": self.id,
            "type": self.type,
            "data": self.data,
            "channel": self.channel,
            "at": self.at_us,
            "state": self.state.value,
            "dump": self.dump,
            "what": self.what,
            "error": self.error,
            "fix": self.fix,
            **({"caller": self.caller} if self.caller else {}),
        }

    def to_node(self, node_before: Json | None = None) -> Json:
        """The JSON of the signal's node, in place of `node_before`; what a later version wrote there stays."""
        node = {**(node_before or {}), **self.to_json()}
        if self.request is not None or "request" in node:
            node["request"] = None if self.request is None else self.request.to_json()
        return node

    @property
    def message(self) -> Message:
        """The signal as it came."""
        return Message(self.id, self.type, self.data)
