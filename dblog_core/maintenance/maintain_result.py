"""What came of a maintenance of the lake, with its JSON: what `dblog maintain` prints and Airflow's XCom keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from dblog_core.errors import LakeError
from dblog_core.interfaces import Json
from dblog_core.maintenance.schedule import TableSize
from dblog_core.staging.log_start import Need


@dataclass(frozen=True, slots=True)
class MaintainedTable:
    """A Delta table as the maintenance leaves it. `did`: what it did to the files, in words; `removed_files`: those
    that no cut needs any longer."""

    size: TableSize
    did: tuple[str, ...]
    removed_files: int

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        size = TableSize(**{field.name: record[field.name] for field in fields(TableSize) if field.name in record})
        return cls(size, tuple(record["done"]), record["removed_files"])

    def to_json(self) -> Json:
        return {**asdict(self.size), "done": list(self.did), "removed_files": self.removed_files}


@dataclass(frozen=True, slots=True)
class MaintainedCuts:
    """The number of the oldest cut that is kept (None: there is none yet), and how many were removed."""

    oldest: int | None
    removed: int

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        return cls(record["oldest"], record["removed"])

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MaintainedStaging:
    """Where staging begins now, how many files were removed, and what keeps older segments."""

    segment: int
    offset: int
    removed_files: int
    held: tuple[Need, ...]

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        needs = tuple(Need(need["segment"], need["why"]) for need in record["held"])
        return cls(record["segment"], record["offset"], record["removed_files"], needs)

    def to_json(self) -> Json:
        needs = [{"segment": need.segment, "why": need.why} for need in self.held]
        place = {"segment": self.segment, "offset": self.offset}
        return {**place, "removed_files": self.removed_files, "held": needs}


@dataclass(frozen=True, slots=True)
class FailedPlace:
    """A table, a history (TABLE__history), `cuts` or `staging`, of which the maintenance has failed, and why."""

    name: str
    error: str
    fix: str

    def __str__(self) -> str:
        return f"{self.name}: {self.error}"


@dataclass(frozen=True, slots=True)
class MaintainResult:
    """What was done to the tables, the cuts (None: it has failed) and staging (None: its retention has failed).
    `failed`: what could not be maintained; all else was."""

    tables: tuple[MaintainedTable, ...]
    cuts: MaintainedCuts | None
    staging: MaintainedStaging | None
    failed: tuple[FailedPlace, ...] = ()

    def fault(self) -> LakeError | None:
        """What could not be maintained, and why; None: all was."""
        if not self.failed:
            return None
        names = "; ".join(map(str, self.failed))
        fix = next((place.fix for place in self.failed if place.fix), "")
        return LakeError(f"maintenance has failed for {names}", fix=fix)

    def check(self) -> None:
        """Raises LakeError if something could not be maintained."""
        if (fault := self.fault()) is not None:
            raise fault

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        tables = tuple(map(MaintainedTable.from_json, record["tables"]))
        cuts = None if record["cuts"] is None else MaintainedCuts.from_json(record["cuts"])
        staging = None if record["staging"] is None else MaintainedStaging.from_json(record["staging"])
        failed = (FailedPlace(place["name"], place["error"], place["fix"]) for place in record.get("failed", ()))
        return cls(tables, cuts, staging, tuple(failed))

    def to_json(self) -> Json:
        tables = [table.to_json() for table in self.tables]
        cuts = None if self.cuts is None else self.cuts.to_json()
        staging = None if self.staging is None else self.staging.to_json()
        failed = [asdict(place) for place in self.failed]
        return {"tables": tables, "cuts": cuts, "staging": staging, "failed": failed}
