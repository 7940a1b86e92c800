"""What a lake task is asked to do, one record for each kind: pure, each with its JSON of today and of before.

`LAKE/_dblog/tasks/ID.json` holds the kind and these arguments (`lake_tasks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from dblog_core.interfaces import Json
from dblog_core.lake.replay_interval import IntervalEnd


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """The last change of each key that changed in an interval, applied again. `tables`: empty for all."""

    start: IntervalEnd
    end: IntervalEnd
    tables: tuple[str, ...] = ()
    kind: ClassVar[str] = "replay"

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        ends = IntervalEnd.from_json(record["from"]), IntervalEnd.from_json(record["to"])
        return cls(*ends, tuple(record["tables"]))

    def to_json(self) -> Json:
        return {"from": self.start.to_json(), "to": self.end.to_json(), "tables": list(self.tables)}


@dataclass(frozen=True, slots=True)
class _OfTable:
    """A request that names one table."""

    table: str

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        return cls(record["table"])

    def to_json(self) -> Json:
        return {"table": self.table}


@dataclass(frozen=True, slots=True)
class RebuildRequest(_OfTable):
    """A table's lake copy, made again from staging and history."""

    kind: ClassVar[str] = "rebuild"


@dataclass(frozen=True, slots=True)
class ResetRequest(_OfTable):
    """A table's lake copy, emptied and dumped again."""

    kind: ClassVar[str] = "reset"


@dataclass(frozen=True, slots=True)
class AcceptRequest(_OfTable):
    """The newest shape of a table, which the lake does not follow."""

    kind: ClassVar[str] = "accept"


@dataclass(frozen=True, slots=True)
class MaintainRequest:
    """The maintenance of the lake. `tables`: those to join, cluster and purge; empty for all."""

    tables: tuple[str, ...] = ()
    kind: ClassVar[str] = "maintain"

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        return cls(tuple(record["tables"]))

    def to_json(self) -> Json:
        return {"tables": list(self.tables)}


@dataclass(frozen=True, slots=True)
class AdoptRequest:
    """The lake, to continue with another staging."""

    kind: ClassVar[str] = "adopt"

    @classmethod
    def from_json(cls, _record: Mapping[str, Any]) -> Self:
        return cls()

    def to_json(self) -> Json:
        return {}


@dataclass(frozen=True, slots=True)
class UnknownRequest:
    """A request of another version of dblog, with its arguments as they stand in its file."""

    kind: str
    arguments: Json

    def to_json(self) -> Json:
        return self.arguments


TaskRequest = (
    ReplayRequest | RebuildRequest | ResetRequest | AcceptRequest | MaintainRequest | AdoptRequest | UnknownRequest
)

_READERS: dict[str, Callable[[Mapping[str, Any]], TaskRequest]] = {
    ReplayRequest.kind: ReplayRequest.from_json,
    RebuildRequest.kind: RebuildRequest.from_json,
    ResetRequest.kind: ResetRequest.from_json,
    AcceptRequest.kind: AcceptRequest.from_json,
    MaintainRequest.kind: MaintainRequest.from_json,
    AdoptRequest.kind: AdoptRequest.from_json,
}


def read_request(kind: str, arguments: Json) -> TaskRequest:
    """The request of a kind from its arguments. Raises KeyError, TypeError or ValueError where they are damaged."""
    reader = _READERS.get(kind)
    return UnknownRequest(kind, arguments) if reader is None else reader(arguments)
