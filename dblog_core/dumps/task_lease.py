"""A worker's hold on one task: the leases that it rests on, and what is read and written in the state store under them.

A hold has two leases. `task-DUMP-NUMBER` keeps others from the task. `permit-DUMP-INDEX` is one of as many permits as
the dump's `workers` option allows over all processes: taking one is the only way to become a worker of the dump, so
nothing has to be counted, and a worker whose index is no longer below the option is the one to leave. A worker reads
for one task at a time, and may hold others beside it whose chunks are read and wait to be placed.

Nothing is written, here or into the source or staging, once a lease is in doubt. What a paused process writes all the
same, between that question and its answer, belongs to an attempt that the capture knows is over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.clock import spawn_thread
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store, task_store
from dblog_core.dumps.dump_records import OVER, DumpOptions, DumpState, TaskStatus
from dblog_core.dumps.pace.locked_tables import LockedTables
from dblog_core.dumps.pace.source_load import Gauge
from dblog_core.errors import DblogError, LeaseLost, StateError, TableGone
from dblog_core.interfaces import Clock, Lease, Source, Spawn, StateStore
from dblog_core.model.task_id import TaskId
from dblog_core.rows.acceptance import Acceptance
from dblog_core.staging import Staging
from dblog_core.state.lease_holder import give_back, random_id

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What one worker works with; `new_id` makes holders' and windows' ids, `spawn` what continues beside the
    worker. All workers of a process share `locked_tables`."""

    config: Config
    state: StateStore
    source: Source
    staging: Staging
    gauge: Gauge
    clock: Clock
    stop: threading.Event
    new_id: Callable[[], str] = random_id
    spawn: Spawn = spawn_thread
    locked_tables: LockedTables = field(default_factory=LockedTables)


TaskLook: TypeAlias = tuple[TaskProgress, DumpState, DumpOptions]
"""How far a task is, as the capture has published it; the state and the options of its dump, as somebody set them."""


@dataclass(frozen=True, slots=True)
class Permit:
    """One of the places that a dump has for workers."""

    index: int
    lease: Lease


class Hold:
    """One task in the hands of one worker, until `release`; the permit is the finder's, for all of them."""

    def __init__(self, worker: WorkerContext, dump_id: str, task: TaskStatus, lease: Lease, permit: Permit) -> None:
        self.worker = worker
        self.dump_id = dump_id
        self.task = task
        self._lease = lease
        self._permit = permit
        self._reported = (task.held, 1.0)
        self.placed_chunks = 0
        self.attempt = 0
        self.task_id = TaskId(dump_id, task.number)
        self.gone = False
        self.accepted: Acceptance | None = None
        """What its rows are held against; None where no columns are hidden."""

    def __str__(self) -> str:
        return f"dump {self.dump_id}, task {self.task.number} ({self.task.table})"

    def check(self) -> None:
        """Raises LeaseLost unless nobody else can hold the task yet."""
        if not self.is_held():
            raise LeaseLost("the lease of the task is gone or in doubt; a worker takes it again", where=str(self))

    def is_held(self) -> bool:
        """Whether nobody else can hold the task yet."""
        return self._lease.valid()

    def is_surplus(self, options: DumpOptions) -> bool:
        """Whether the dump has fewer places for workers now than when this one began, or its place may be taken."""
        return self._permit.index >= options.workers or not self._permit.lease.valid()

    def read_settings(self) -> tuple[DumpState, DumpOptions]:
        """State and options of the dump as somebody set them last: one small node, read for every chunk."""
        return dump_store.read_settings(self.worker.state, self.dump_id, self.task.table)

    def look(self) -> TaskLook:
        """Two small nodes, read together for every chunk. Raises RequestError where the dump is gone."""
        look = dump_store.look_at_task(self.worker.state, self.task_id, self.task.table)
        self.placed_chunks = look[0].ordinal
        return look

    def is_over(self) -> bool:
        """Whether this worker is to leave the task alone before another attempt."""
        self.check()
        state, options = self.read_settings()
        return state in OVER or state == DumpState.PAUSED or self.is_surplus(options)

    def begin_attempt(self) -> int:
        """The number of a new attempt, larger than any before. Raises LeaseLost."""
        self.check()
        self.attempt = task_store.begin_attempt(self.worker.state, self.task_id)
        return self.attempt

    def goes_on(self) -> bool:
        """Whether the newest attempt may still place chunks. Raises LeaseLost."""
        self.check()
        progress, state, _ = self.look()
        stale = progress.done or progress.broken >= self.attempt or progress.attempt > self.attempt
        return not stale and state not in OVER

    def fail(self, error: DblogError) -> bool:
        """The task can never be done, and says why; False where the dump does not fail by it, since the table was
        dropped and nobody has asked for it (`gone`). Raises LeaseLost."""
        self.check()
        state = self.worker.state
        if isinstance(error, TableGone) and not dump_store.fail_task_of_gone_table(state, self.task_id, str(error)):
            self.gone = True
            return False
        log.error("%s cannot continue: %s", self, error)
        task_store.fail_task(state, self.task_id, str(error))
        return True

    def report_slowdown(self, reason: str | None, factor: float) -> None:
        """Shows in the state store, when it changes, why the worker is slow. Raises LeaseLost."""
        if self.worker.locked_tables.is_locked(self.task.table):
            return  # that is why it stands, until the table is read
        pace = (reason, round(factor, 3))
        if pace == self._reported:
            return
        self.check()
        task_store.put_pace(self.worker.state, self.task_id, held=reason, factor=pace[1])
        if reason != self._reported[0]:
            log.warning("%s: %s", self, reason or "continues at its own pace")
        self._reported = pace

    def report_lock(self, reason: str) -> None:
        """Shows in the state store that somebody keeps the table locked, until the next worker has read it. Raises
        LeaseLost."""
        if self._reported != (reason, 1.0):
            self.check()
            task_store.put_pace(self.worker.state, self.task_id, held=reason, factor=1.0)
            self._reported = (reason, 1.0)

    def release(self) -> None:
        """Gives the task back at once. A state store that is away only delays that until the leases end."""
        try:
            if self._lease.valid():
                self.report_slowdown(None, 1.0)
        except StateError as error:
            log.warning("%s: what held it back stays shown: %s", self, error)
        give_back(self._lease)
