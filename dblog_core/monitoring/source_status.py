"""What is known of one source, as `status --json` has it (CONTRACT): records, each with its JSON form."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from dblog_core.dumps.status import DumpStatus
from dblog_core.interfaces import Json, LeaseInfo
from dblog_core.lake.lake_status import MergeCounts
from dblog_core.monitoring.storage_usage import StorageStatus
from dblog_core.state.recent_errors import RecentError
from dblog_core.verify.last_results import LastResult


@dataclass(frozen=True, slots=True)
class TableInStatus:
    """A table as the lake has it, and whether the capture has stopped it.

    `state`: one of `lake_status.State`. `lake_offset`: up to where the lake has it. `awaits`: the dump that it waits
    for. `merged`: how its last rows were written. `cause` and `fix`: why it is not well.
    `unmaintained`: why the last maintenance has failed for its files.
    """

    table: str
    state: str
    error: str | None = None
    lake_offset: int | None = None
    awaits: str | None = None
    merged: MergeCounts | None = None
    cause: str | None = None
    fix: str | None = None
    captured: bool = True
    verified: LastResult | None = None
    unmaintained: str | None = None

    def to_json(self) -> Json:
        verified = None if self.verified is None else self.verified.to_json()
        return {**asdict(replace(self, verified=None)), "verified": verified}


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A window of a dump, and since how many seconds it is open."""

    table: str
    dump: str
    age_seconds: float


@dataclass(frozen=True, slots=True)
class MergeProgress:
    """Up to which offset the lake has the super-changelog, and how long the oldest line waits that it lacks.

    `error` and `fix`: why merges refuse the staging (`lake.continuity`); nobody knows a lag then.
    """

    offset: int | None
    lag_seconds: float | None
    error: str | None = None
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class OutputInStatus:
    """An output that is configured, in the same way; `holder`: the relay that works on it."""

    output: str
    kind: str
    offset: int | None
    lag_seconds: float | None
    dead_letters: int
    holder: str | None


@dataclass(frozen=True, slots=True)
class SlicesInStatus:
    """The slices of the full state that repairs take in turn: how many, how many of them were ever compared, and when
    the one was that waited longest (microseconds UTC; None: some never was)."""

    of: int
    compared: int
    oldest_at: int | None


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One source; what is not known yet is None. Offsets are those of the super-changelog."""

    source: str
    leader: LeaseInfo | None
    position: str | None
    offset: int | None
    lag_seconds: float | None
    rows_per_second: float | None
    tables: tuple[TableInStatus, ...]
    windows: tuple[OpenWindow, ...]
    dumps: tuple[DumpStatus, ...]
    merge: MergeProgress
    outputs: tuple[OutputInStatus, ...]
    errors: tuple[RecentError, ...]
    storage: StorageStatus
    slices: SlicesInStatus | None = None

    def to_json(self) -> Json:
        leader = self.leader
        return {
            "source": self.source,
            "leader": None if leader is None else {"id": leader.holder, "epoch": leader.epoch},
            "position": self.position,
            "offset": self.offset,
            "lag_seconds": self.lag_seconds,
            "rows_per_second": self.rows_per_second,
            "tables": [table.to_json() for table in self.tables],
            "windows": [asdict(window) for window in self.windows],
            "dumps": [dump.to_json() for dump in self.dumps],
            "merge": asdict(self.merge),
            "outputs": [asdict(output) for output in self.outputs],
            "errors": [error.to_json() for error in self.errors],
            "storage": self.storage.to_json(),
            "slices": None if self.slices is None else asdict(self.slices),
        }
