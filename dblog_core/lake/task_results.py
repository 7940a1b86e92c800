"""What came of a lake task, one record for each kind, with its JSON: what commands print and Airflow's XCom keeps.

That of a maintenance is `dblog_core.maintenance.maintain_result`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

from dblog_core.interfaces import Json
from dblog_core.lake.accept_schema import Way
from dblog_core.lake.replay_interval import IntervalEnd


class TaskResult(Protocol):
    """What came of a task that succeeded."""

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self: ...

    def to_json(self) -> Json: ...


@dataclass(frozen=True, slots=True)
class ReplayCounts:
    """Keys of a table that a replay looked at, and what it did to their rows; `withheld`: keys that wait for a dump."""

    keys: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    withheld: int = 0

    @property
    def has_written(self) -> bool:
        """Whether it did anything."""
        return any((self.inserted, self.updated, self.deleted, self.withheld))

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        return cls(record["keys"], record["inserted"], record["updated"], record["deleted"], record["withheld"])

    def to_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ReplayedTable:
    """One table of a replay: its counts, or the error that left it as it was."""

    table: str
    counts: ReplayCounts | None
    error: str | None = None

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        counts = None if record["error"] is not None else ReplayCounts.from_json(record)
        return cls(record["table"], counts, record["error"])

    def to_json(self) -> Json:
        counts = {} if self.counts is None else self.counts.to_json()
        return {"table": self.table, **counts, "error": self.error}


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The interval, and what was done to each table."""

    start: IntervalEnd
    end: IntervalEnd
    tables: tuple[ReplayedTable, ...]

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        ends = IntervalEnd.from_json(record["from"]), IntervalEnd.from_json(record["to"])
        return cls(*ends, tuple(map(ReplayedTable.from_json, record["tables"])))

    def to_json(self) -> Json:
        tables = [table.to_json() for table in self.tables]
        return {"from": self.start.to_json(), "to": self.end.to_json(), "tables": tables}


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """How many rows the table has now, and how many keys wait for a dump. `begins_with`: what the rows are made from,
    for people."""

    table: str
    begins_with: str
    rows: int
    withheld: int

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        return cls(record["table"], record["from"], record["rows"], record["withheld"])

    def to_json(self) -> Json:
        return {"table": self.table, "from": self.begins_with, "rows": self.rows, "withheld": self.withheld}


@dataclass(frozen=True, slots=True)
class ResetResult:
    """The id of the dump that brings the rows; the table's log counts again after `offset`."""

    table: str
    dump: str
    offset: int

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        return cls(record["table"], record["dump"], record["offset"])

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class AdoptResult:
    """The identity of the staging that the lake continues with; `dumps`: by table, the id of the one that brings its
    rows."""

    staging: str
    dumps: dict[str, str]

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        return cls(record["staging"], record["dumps"])

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class AcceptResult:
    """How the shape was accepted; `does` and `changes` are for people. `dump`: the id of the one that brings what is
    missing; None where nothing is."""

    table: str
    way: Way
    does: str
    changes: tuple[str, ...]
    dump: str | None

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        texts = record["does"], tuple(record["changes"])
        return cls(record["table"], Way(record["way"]), *texts, record["dump"])

    def to_json(self) -> Json:
        texts = {"does": self.does, "changes": list(self.changes)}
        return {"table": self.table, "way": self.way.value, **texts, "dump": self.dump}
