"""What a lake task will do, fixed before anything is changed: one record for each kind, with its JSON of today and
of before.

`LAKE/_dblog/merges/NUMBER.json` holds a plan with the merge that the task becomes, so that a crash changes nothing of
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from dblog_core.interfaces import Json
from dblog_core.lake.accept_schema import BY_RESET, Way
from dblog_core.lake.replay_interval import IntervalEnd


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The interval, the tables, and the segment after which all of the interval is staged."""

    start: IntervalEnd
    end: IntervalEnd
    tables: tuple[str, ...]
    after: int
    kind: ClassVar[str] = "replay"

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        ends = IntervalEnd.from_json(record["from"]), IntervalEnd.from_json(record["to"])
        return cls(*ends, tuple(record["tables"]), record["after"])

    def to_json(self) -> Json:
        ends = {"from": self.start.to_json(), "to": self.end.to_json()}
        return {**ends, "tables": list(self.tables), "after": self.after}


@dataclass(frozen=True, slots=True)
class Past:
    """The lines of a table's history after `lower`, where the table had no row, up to `upto`: no change of it is
    missing between the two."""

    lower: int
    upto: int

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        return cls(record["lower"], record["upto"])

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """The segment to read staging after. `begins_with`: what the rows are made from, for people; `past`: what the
    history says about the time before (None: it is not needed)."""

    table: str
    after: int
    begins_with: str
    past: Past | None = None
    kind: ClassVar[str] = "rebuild"

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        past = Past.from_json(record["history"]) if "history" in record else None
        return cls(record["table"], record["after"], record["from"], past)

    def to_json(self) -> Json:
        history = {} if self.past is None else {"history": self.past.to_json()}
        return {"table": self.table, "after": self.after, "from": self.begins_with, **history}


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """Where the table's log begins to count again: after `segment` and `offset`, in the shape `schema` (its
    fingerprint). `renamed`: the offset of the last rename that this shape has already; 0: none."""

    table: str
    schema: str
    segment: int
    offset: int
    renamed: int = 0
    kind: ClassVar[str] = "reset"

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """One without `renamed` was planned before the lake followed renames."""
        place = record["segment"], record["offset"]
        return cls(record["table"], record["schema"], *place, record.get("renamed", 0))

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class AcceptPlan:
    """The way in which the shape `schema` is accepted, with what is staged up to `offset`; `changes` and `does`: what
    it changes and does, for people. `reset`: where the table's log begins to count again, if what is staged before is
    left to a dump (`BY_RESET`)."""

    table: str
    way: Way
    schema: str
    offset: int
    changes: tuple[str, ...]
    does: str
    reset: ResetPlan | None = None
    kind: ClassVar[str] = "accept"

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        way = Way(record["way"])
        reset = ResetPlan.from_json(record) if way in BY_RESET else None
        texts = tuple(record["changes"]), record["does"]
        return cls(record["table"], way, record["schema"], record["offset"], *texts, reset)

    def to_json(self) -> Json:
        place = {"table": self.table, "way": self.way.value, "schema": self.schema, "offset": self.offset}
        if self.reset is not None:
            place |= self.reset.to_json()
        return {**place, "changes": list(self.changes), "does": self.does}


@dataclass(frozen=True, slots=True)
class MaintainPlan:
    """`tables`: those to join, cluster and purge; empty for all."""

    tables: tuple[str, ...] = ()
    kind: ClassVar[str] = "maintain"

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        return cls(tuple(record["tables"]))

    def to_json(self) -> Json:
        return {"tables": list(self.tables)}


@dataclass(frozen=True, slots=True)
class AdoptPlan:
    """The identity of the staging that the lake continues with, after `segment` and `offset`, where it begins."""

    staging: str
    segment: int
    offset: int
    kind: ClassVar[str] = "adopt"

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        return cls(record["staging"], record["segment"], record["offset"])

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class UnknownPlan:
    """A plan of another version of dblog, as it stands in the record of its merge."""

    kind: str
    arguments: Json

    def to_json(self) -> Json:
        return self.arguments


TaskPlan = ReplayPlan | RebuildPlan | ResetPlan | AcceptPlan | MaintainPlan | AdoptPlan | UnknownPlan

_READERS: dict[str, Callable[[Mapping[str, Any]], TaskPlan]] = {
    ReplayPlan.kind: ReplayPlan.from_json,
    RebuildPlan.kind: RebuildPlan.from_json,
    ResetPlan.kind: ResetPlan.from_json,
    AcceptPlan.kind: AcceptPlan.from_json,
    MaintainPlan.kind: MaintainPlan.from_json,
    AdoptPlan.kind: AdoptPlan.from_json,
}


def read_plan(kind: str, arguments: Json) -> TaskPlan:
    """The plan of a kind from its record. Raises KeyError, TypeError or ValueError where that is damaged."""
    reader = _READERS.get(kind)
    return UnknownPlan(kind, arguments) if reader is None else reader(arguments)
