"""What the demo sees of its parts while it waits for them, from where an operator would look."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.dumps.status import DumpStatus
from dblog_core.interfaces import StateStore
from dblog_core.lake import lake_status
from dblog_core.local.demo.parts import Workload
from dblog_core.state import capture_status


@dataclass(frozen=True, slots=True)
class Sight:
    """The parts at one moment. `merged`: the lake's offset; `rate`: the workload's transactions a second."""

    leader: str
    offset: int
    lag_seconds: float | None
    rows_per_second: float
    dumps: tuple[DumpStatus, ...]
    merged: int
    rate: float
    transactions: int

    def facts(self) -> dict[str, str]:
        """All of it, a line for each part."""
        facts = {
            "workload": f"{self.rate:.0f} transactions/s, {self.transactions:,} so far",
            "capture": f"{self.leader}; offset {self.offset:,}, {self.rows_per_second:,.0f} rows/s, lag {self._lag}",
        }
        for dump in self.dumps:
            counts = f"{dump.rows:,} rows, {dump.chunks} chunks, {dump.evicted:,} evicted"
            facts[f"dump {dump.id[-6:]}"] = f"{dump.state}, {counts}"
        facts["lake"] = f"offset {self.merged:,}, {self.offset - self.merged:,} behind"
        return facts

    def brief(self) -> str:
        """What matters most, in a few words."""
        # A running dump matters more than how far the lake is behind.
        running = [f"dump {dump.rows:,} rows" for dump in self.dumps if dump.state == "running"]
        behind = [f"lake {self.offset - self.merged:,} behind"] if self.merged else []
        return ", ".join([*(running or behind), f"offset {self.offset:,}", f"lag {self._lag}"])

    @property
    def _lag(self) -> str:
        return "unknown" if self.lag_seconds is None else f"{self.lag_seconds:.1f} s"


class View:
    """Looks at state store, staging and lake, and remembers the lags that it has seen."""

    def __init__(self, config: Config, state: StateStore, workload: Workload) -> None:
        self._state = state
        self._workload = workload
        self._staging = wiring.open_staging(config)
        self._source = wiring.open_source(config.source)
        self._lake = wiring.open_lake(config)
        self._lags: list[float] = []

    def look(self) -> Sight:
        """Raises LocalError if the workload has ended before it was stopped."""
        self._workload.check()
        leader = self._state.leader("capture")
        report = capture_status.read_status(self._state)
        lag = None if report is None else report.lag_seconds
        # Without a leader the status is the last one's, and its lag grows for another reason.
        if leader is not None and lag is not None:
            self._lags.append(lag)
        return Sight(
            leader=f"{leader.holder}, epoch {leader.epoch}" if leader else "nobody leads",
            offset=self.offset(),
            lag_seconds=lag,
            rows_per_second=0.0 if report is None else report.rows_per_second,
            dumps=tuple(dump_store.list_dumps(self._state)),
            merged=self.lake_offset(),
            rate=self.rate(),
            transactions=self._workload.report.transactions,
        )

    def offset(self) -> int:
        """The newest one that is staged."""
        head = self._staging.head()
        return head.last_offset if head else 0

    def epoch(self) -> int:
        """That of the leader that sealed the newest segment."""
        head = self._staging.head()
        return head.epoch if head else 0

    def lake_offset(self) -> int:
        """Up to where all is merged."""
        status = lake_status.read_status(self._lake)
        return status.offset if status else 0

    def rate(self) -> float:
        """The workload's transactions a second."""
        return self._workload.report.rate

    def rows_dumped(self) -> int:
        return sum(dump.rows for dump in dump_store.list_dumps(self._state))

    def newest_dump(self) -> DumpStatus:
        return max(dump_store.list_dumps(self._state), key=lambda dump: dump.id)

    def position(self) -> str:
        """Where the source's log ends now."""
        return self._source.current_position()

    def has_captured(self, position: str) -> bool:
        """Whether all of the source's log up to there is staged."""
        head = self._staging.head()
        return head is not None and not head.partial and self._source.has_reached(head.position, position)

    def totals(self) -> dict[str, str]:
        """What the manifests say of the whole run, for the summary."""
        segments = list(self._staging.manifests())
        rows = sum(file.rows for manifest in segments for file in manifest.files)
        seconds = (segments[-1].sealed_at - segments[0].sealed_at) / 1e6
        merges = (lake_status.read_status(self._lake) or lake_status.LakeStatus()).merge
        median, most = (statistics.median(self._lags), max(self._lags)) if self._lags else (0.0, 0.0)
        return {
            "super-changelog": f"{rows:,} rows of the log, {rows / max(seconds, 1):,.0f} a second; "
            f"{segments[-1].segment} segments",
            "lag of the capture": f"median {median:.1f} s, at most {most:.1f} s",
            "merges": f"{merges}, up to offset {self.lake_offset():,}",
        }
