"""Finding the tasks of unfinished dumps that nobody works on, and taking them, in competition with other processes.

What is taken is a lease, so two never hold one task; a worker that dies leaves leases that end automatically, and the
next look of any process finds its task free. A lease costs a connection on ZooKeeper: who holds it is asked before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from dblog_core.dumps import dump_store, task_store
from dblog_core.dumps.dump_records import OVER, DumpState, TaskStatus
from dblog_core.dumps.status import DumpStatus
from dblog_core.dumps.task_lease import Hold, Permit, WorkerContext
from dblog_core.errors import RequestError
from dblog_core.interfaces import Lease, StateStore
from dblog_core.model.task_id import TaskId
from dblog_core.state.lease_holder import give_back

_RELOOK_SECONDS = 1.0  # for which a worker goes by what it has seen of the dumps' tasks
REST_FACTOR = 10.0  # times as long as a look took: a look at thousands of tasks takes its time


class TaskQueue:
    """Unfinished dumps, and their tasks that nobody works on; `dump_id`, `requested_by`: only such dumps.

    `take` and `give_back` are for one worker, whose permits it keeps: one for each dump of which it has a task.
    """

    def __init__(self, state: StateStore, dump_id: str | None, requested_by: tuple[str, ...] = ()) -> None:
        self._state = state
        self._dump_id = dump_id
        self._requested_by = requested_by
        self._seen: list[DumpStatus] = []
        self._seen_at = -math.inf
        self._rest_seconds = _RELOOK_SECONDS
        # Tasks that were taken or over when we looked, by dump and number: each take passes over all of them again,
        # and the names of their leases would be built again each time (0.5 s of CPU in a dump of 1,000 tasks).
        self._passed: set[tuple[str, int]] = set()
        self._permit_of: dict[str, Permit] = {}
        self._holds: Counter[str] = Counter()  # tasks that we have, by dump
        self.has_resting_task = False
        """Whether the last `take` has passed over a task whose table is locked."""

    def list_unfinished(self) -> list[DumpStatus]:
        """Raises RequestError where there is no dump `dump_id`."""
        if self._dump_id is None:
            return dump_store.list_unfinished_dumps(self._state, requested_by=self._requested_by)
        dump = dump_store.read_dump(self._state, self._dump_id)
        is_meant = not self._requested_by or dump.requested_by in self._requested_by
        return [dump] if is_meant and dump.state not in OVER else []

    def read_dump(self, dump_id: str) -> DumpStatus:
        """Where a dump stands. Raises RequestError where there is none."""
        return dump_store.read_dump(self._state, dump_id)

    def count_free_places(self, dump: DumpStatus) -> int:
        """How many workers could take a task of the dump now."""
        if dump.state == DumpState.PAUSED:
            return 0
        permits = len(list(self._permits(dump.id, dump.options.workers)))
        # In a dump that has all its workers, which is the rule, nothing is asked of its tasks.
        free = (task for task in dump.tasks if not task.over and self._state.leader(_task_lease(dump.id, task)) is None)
        return len(list(islice(free, permits)))

    def take(self, worker: WorkerContext, holder: str, *, sure: bool = True) -> Hold | None:
        """A task that nobody works on, the oldest dump's first; None if there is none now, or, unless `sure`, if there
        was none a moment ago."""
        fresh = worker.clock.monotonic() - self._seen_at >= self._rest_seconds
        if fresh:
            self._look(worker)
        hold = self._take_seen(worker, holder)
        if hold is None and sure and not fresh:
            self._look(worker)
            hold = self._take_seen(worker, holder)
        self._give_back_permits()
        return hold

    def give_back(self, hold: Hold) -> None:
        """The worker is through with the task, or leaves the rest of it to the next worker."""
        hold.release()
        self._holds[hold.dump_id] -= 1
        self._passed.discard((hold.dump_id, hold.task.number))

    def close(self) -> None:
        """The worker ends."""
        self._holds.clear()
        self._give_back_permits()

    def _look(self, worker: WorkerContext) -> None:
        began = worker.clock.monotonic()
        self._seen = self.list_unfinished()
        self._seen_at = worker.clock.monotonic()
        self._rest_seconds = max(_RELOOK_SECONDS, REST_FACTOR * (self._seen_at - began))
        self._passed.clear()

    def _take_seen(self, worker: WorkerContext, holder: str) -> Hold | None:
        self.has_resting_task = False
        for dump in self._seen:
            if (hold := self._take(worker, holder, dump)) is not None:
                self._holds[dump.id] += 1
                return hold
        return None

    def _take(self, worker: WorkerContext, holder: str, dump: DumpStatus) -> Hold | None:
        for task in dump.tasks:
            if (dump.id, task.number) in self._passed or task.over:
                continue
            if worker.locked_tables.rests(task.table, worker.clock.monotonic()):
                self.has_resting_task = self.has_resting_task or dump.state != DumpState.PAUSED
                continue
            try:
                is_over, state, options = dump_store.look_for_work(self._state, TaskId(dump.id, task.number))
            except RequestError:
                return None  # it is gone
            if state in OVER or state == DumpState.PAUSED:
                return None
            permit = self._own_permit(dump.id, options.workers)
            name = _task_lease(dump.id, task)
            # Beside a permit that is ours a lease costs no more than the question who has it.
            if is_over or (permit is None and self._state.leader(name) is not None):
                self._passed.add((dump.id, task.number))
                continue
            permit = permit or self._permit(dump.id, options.workers, holder, worker.config.state.ttl)
            if permit is None:
                return None
            self._passed.add((dump.id, task.number))
            lease = self._state.acquire(name, holder, ttl=worker.config.state.ttl, beside=permit.lease)
            if lease is not None and (hold := self._open(worker, dump, task, lease, permit)) is not None:
                return hold
        return None

    def _open(
        self, worker: WorkerContext, dump: DumpStatus, task: TaskStatus, lease: Lease, permit: Permit
    ) -> Hold | None:
        """The hold, unless the worker before us has ended the task since we looked at it."""
        hold: Hold | None = None
        try:
            now = task_store.read_task(self._state, TaskId(dump.id, task.number))
            if not now.over:
                hold = Hold(worker, dump.id, now, lease, permit)
        finally:
            if hold is None:
                give_back(lease)
        return hold

    def _own_permit(self, dump_id: str, workers: int) -> Permit | None:
        """The permit that we have, if it is still one."""
        permit = self._permit_of.get(dump_id)
        if permit is not None and (permit.index >= workers or not permit.lease.valid()):
            del self._permit_of[dump_id]
            give_back(permit.lease)
            return None
        return permit

    def _permit(self, dump_id: str, workers: int, holder: str, ttl: float) -> Permit | None:
        for index in self._permits(dump_id, workers):
            lease = self._state.acquire(task_store.permit_lease(dump_id, index), holder, ttl=ttl)
            if lease is not None:
                self._permit_of[dump_id] = Permit(index, lease)
                return self._permit_of[dump_id]
        return None

    def _give_back_permits(self) -> None:
        """Of dumps of which we no longer have a task."""
        for dump_id in [dump_id for dump_id in self._permit_of if self._holds[dump_id] <= 0]:
            give_back(self._permit_of.pop(dump_id).lease)

    def _permits(self, dump_id: str, workers: int) -> Iterator[int]:
        return (n for n in range(workers) if self._state.leader(task_store.permit_lease(dump_id, n)) is None)


def _task_lease(dump_id: str, task: TaskStatus) -> str:
    return task_store.task_lease(TaskId(dump_id, task.number))
