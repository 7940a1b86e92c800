"""Finding the tasks of unfinished dumps that nobody works on, and taking them, in competition with other processes.

What is taken is a lease, so two never hold one task; a worker that dies leaves leases that end by themselves, and the
next look of any process finds its task free. A lease costs a connection on ZooKeeper: who holds it is asked before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from dblog_core import control
from dblog_core.control import OVER, DumpStatus, TaskStatus
from dblog_core.hold import Hold, Permit, Workplace, give_back
from dblog_core.interfaces import Lease, StateStore


class Finder:
    """Unfinished dumps, and their tasks that nobody works on; `dump_id`, `requested_by`: only such dumps."""

    def __init__(self, state: StateStore, dump_id: str | None, requested_by: tuple[str, ...] = ()) -> None:
        self._state, self._dump_id, self._by = state, dump_id, requested_by

    def unfinished(self) -> list[DumpStatus]:
        """Raises RequestError where there is no dump `dump_id`."""
        if self._dump_id is None:
            found = control.unfinished(self._state)
        else:
            found = [d for d in [control.dump(self._state, self._dump_id)] if d.state not in OVER]
        return [d for d in found if not self._by or d.requested_by in self._by]

    def status(self, dump_id: str) -> DumpStatus:
        """Where a dump stands. Raises RequestError where there is none."""
        return control.dump(self._state, dump_id)

    def free(self, dump: DumpStatus) -> int:
        """How many workers could take a task of the dump now."""
        permits = len(list(self._permits(dump)))
        # In a dump that has all its workers, which is the rule, nothing is asked of its tasks.
        return len(list(islice(self._tasks(dump), permits)))

    def take(self, place: Workplace, holder: str) -> Hold | None:
        """A task that nobody works on, the oldest dump's first; None if there is none now."""
        for dump in self.unfinished():
            if (hold := self._take(place, holder, dump)) is not None:
                return hold
        return None

    def _take(self, place: Workplace, holder: str, dump: DumpStatus) -> Hold | None:
        ttl = place.config.state.ttl
        permit: Permit | None = None
        hold: Hold | None = None
        try:
            for task in self._tasks(dump):
                permit = permit or self._permit(dump, holder, ttl)
                if permit is None:
                    return None
                lease = self._state.acquire(_task_lease(dump, task), holder, ttl=ttl)
                if lease is not None and (hold := self._open(place, dump, task, lease, permit)) is not None:
                    return hold
        finally:
            if permit is not None and hold is None:
                give_back(permit.lease)
        return None

    def _open(self, place: Workplace, dump: DumpStatus, task: TaskStatus, lease: Lease, permit: Permit) -> Hold | None:
        """The hold, unless the worker before us has ended the task since we looked at it."""
        hold: Hold | None = None
        try:
            now = control.task(self._state, dump.id, task.number)
            if not now.over:
                hold = Hold(place, dump.id, now, lease, permit)
        finally:
            if hold is None:
                give_back(lease)
        return hold

    def _permit(self, dump: DumpStatus, holder: str, ttl: float) -> Permit | None:
        for index in self._permits(dump):
            lease = self._state.acquire(_permit_lease(dump, index), holder, ttl=ttl)
            if lease is not None:
                return Permit(index, lease)
        return None

    def _permits(self, dump: DumpStatus) -> Iterator[int]:
        if dump.state != "paused":
            for index in range(dump.options["workers"]):
                if self._state.leader(_permit_lease(dump, index)) is None:
                    yield index

    def _tasks(self, dump: DumpStatus) -> Iterator[TaskStatus]:
        if dump.state != "paused":
            for task in dump.tasks:
                if not task.over and self._state.leader(_task_lease(dump, task)) is None:
                    yield task


def _task_lease(dump: DumpStatus, task: TaskStatus) -> str:
    return f"task-{dump.id}-{task.number}"


def _permit_lease(dump: DumpStatus, index: int) -> str:
    return f"permit-{dump.id}-{index}"
