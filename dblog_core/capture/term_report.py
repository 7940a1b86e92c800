"""What a term tells others: progress of dumps to the workers, and how far and how fast it is."""

from __future__ import annotations

from collections.abc import Mapping

from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.capture.sequencer import Sequencer
from dblog_core.dumps import task_store
from dblog_core.errors import LeaseLost
from dblog_core.interfaces import Clock, Lease, StateStore
from dblog_core.model.task_id import TaskId
from dblog_core.staging.manifest import Manifest
from dblog_core.state.capture_status import CaptureStatus, LeaderReport, ReportedWindow


class TermReport:
    """How far the term is, in rows a second and in seconds behind the source."""

    def __init__(self, clock: Clock, lease: Lease, sequencer: Sequencer, *, began: float, answers: bool) -> None:
        """`began`: when the term did, by the monotonic clock; `answers`: whether the leader answers windows that are
        announced in the state store."""
        self._clock = clock
        self._lease = lease
        self._sequencer = sequencer
        self._answers = answers
        self._rows = 0
        self._rows_per_second = 0.0
        self._measured_at = began
        self.caught_up = False
        """Whether the log had nothing more at the last look."""

    def count_rows(self, rows: int) -> None:
        """So many more rows are published."""
        self._rows += rows

    def measure_rate(self, now: float) -> None:
        """Sets the rate of the rows since the last call; `now`: of the monotonic clock."""
        self._rows_per_second = self._rows / max(now - self._measured_at, 1e-3)
        self._rows = 0
        self._measured_at = now

    def to_status(self, head: Manifest) -> CaptureStatus:
        """For the command that captures; `head`: the newest manifest."""
        return CaptureStatus(
            leading=True,
            epoch=self._lease.epoch,
            segment=head.segment,
            offset=head.last_offset,
            position=head.log_position,
            lag_seconds=self._lag_seconds(),
            rows_per_second=self._rows_per_second,
            windows=len(self._sequencer.dumps.open_windows()),
            leader=self._lease.holder,
        )

    def to_leader_report(self) -> LeaderReport:
        """For the state store."""
        windows = (ReportedWindow(w.table, w.dump, w.opened) for w in self._sequencer.dumps.open_windows())
        return LeaderReport(
            at_us=int(self._clock.time() * 1e6),
            lag_seconds=self._lag_seconds(),
            rows_per_second=self._rows_per_second,
            windows=tuple(windows),
            epoch=self._lease.epoch,
            answers=self._answers,
        )

    def _lag_seconds(self) -> float | None:
        # On an idle source the last transaction grows old, and nothing is missing all the same.
        if self.caught_up and not self._sequencer.dirty:
            return 0.0
        commit_time = self._sequencer.commit_time
        return None if commit_time is None else max(0.0, self._clock.time() - commit_time / 1e6)


class ProgressMirror:
    """Progress of dump tasks, as manifests have it, in the state store, from which workers learn it."""

    def __init__(self, state: StateStore, lease: Lease, *, where: str) -> None:
        """`where`: the state store's URL."""
        self._state = state
        self._lease = lease
        self._where = where
        self._behind: dict[TaskId, TaskProgress] = {}

    @property
    def is_ahead(self) -> bool:
        """Whether the mirror holds progress of a later manifest than ours: our next one shows which counts."""
        return bool(self._behind)

    def put(self, progress: Mapping[TaskId, TaskProgress], head: Manifest) -> None:
        """Mirrors what changed with the manifest `head`, and what was behind.

        The newest manifest may be an earlier one than the mirror's: this term's first publication shows which counts.
        Raises LeaseLost where it is another's.
        """
        place = (head.epoch, head.segment)
        self._behind = task_store.put_all_progress(self._state, {**self._behind, **progress}, of=place)
        if self._behind and head.epoch == self._lease.epoch:
            raise LeaseLost(
                f"the state store has progress of a segment after {head.segment}, the newest of this capture: another "
                "capture leads, or staging was restored from a copy; the next term continues",
                where=self._where,
            )
