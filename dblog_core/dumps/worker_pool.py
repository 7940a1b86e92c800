"""The dump workers of one process: as many threads as there are tasks to take and places for workers, now."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from dblog_core.dumps.dump_records import DumpState
from dblog_core.dumps.status import DumpStatus
from dblog_core.dumps.task_queue import REST_FACTOR, TaskQueue
from dblog_core.errors import DblogError
from dblog_core.interfaces import Clock

log = logging.getLogger(__name__)

_MOST_WORKERS = 64  # of one process
_SEARCH_SECONDS = 1.0  # between two looks for work
_REPORT_SECONDS = 0.5  # between two looks at dumps that are worked on
_RECOVERY_SECONDS = 2.0  # before a worker is replaced that ended by a fault that may pass

OnProgress = Callable[[DumpStatus], None]
Member = Callable[[], list[DblogError]]
"""Works until no task is free; returns the faults of tasks that can never be done. Raises what ends the worker."""
Plan = Callable[[list[DumpStatus]], list[DblogError]]
"""Plans deferred dumps; returns the faults of those that can never be planned. Raises what may pass."""


class WorkerPool:
    """Starts a worker wherever one is missing, and looks again, about twice a second.

    `once`: until no dump is unfinished; `workers`: at most so many, else as many as the dumps' options say together.
    """

    def __init__(
        self,
        queue: TaskQueue,
        member: Member,
        plan: Plan,
        *,
        stop: threading.Event,
        clock: Clock,
        once: bool,
        workers: int | None,
        on_progress: OnProgress | None,
    ) -> None:
        self._queue = queue
        self._member = member
        self._plan = plan
        self._stop = stop
        self._clock = clock
        self._once = once
        self._workers = workers
        self._on_progress = on_progress
        self._members: set[Future[list[DblogError]]] = set()
        self._moved = threading.Event()
        self._reported: set[str] = set()
        self._end: DblogError | None = None
        self._faults: list[DblogError] = []
        self._not_before = clock.monotonic()

    def run(self) -> None:
        """Raises what ends a worker for good, once the other workers are through, and with `once` also the first fault
        that made a task impossible, and faults that may pass. Otherwise those are reported, and the work continues."""
        with ThreadPoolExecutor(_MOST_WORKERS, thread_name_prefix="dump") as pool:
            try:
                self._keep_up(pool)
            except Exception:
                raise
            except BaseException:
                self._stop.set()  # the pool waits for the workers, which may wait for ever: a Ctrl-C would end nothing
                raise
        self._reap()
        if self._end is not None:
            raise self._end
        if self._once and self._faults:
            raise self._faults[0]

    def _keep_up(self, pool: ThreadPoolExecutor) -> None:
        """Replaces workers that have ended, until there is no work or we are stopped."""
        unfinished: list[DumpStatus] = []
        due = -math.inf
        while not self._stop.is_set():
            fresh = self._clock.monotonic() >= due
            if fresh:
                began = self._clock.monotonic()
                unfinished = self._list_unfinished()
                now = self._clock.monotonic()
                due = now + REST_FACTOR * (now - began)
            if not self._members and (self._end is not None or (self._once and fresh and not unfinished)):
                return
            if self._end is None and fresh:
                self._grow(pool, unfinished)
            event = self._moved if self._members else self._stop
            self._clock.wait(event, _REPORT_SECONDS if unfinished else _SEARCH_SECONDS)
            self._moved.clear()
            if self._reap() and not self._members:
                due = -math.inf  # the last one has ended: there may be nothing more to do

    def _list_unfinished(self) -> list[DumpStatus]:
        """Dumps to work on; tells their progress."""
        try:
            unfinished = self._queue.list_unfinished()
            if any(dump.deferred is not None for dump in unfinished):
                self._faults += self._plan(unfinished)
                unfinished = self._queue.list_unfinished()
            self._report(unfinished)
        except DblogError as error:
            if self._once or not error.transient:
                raise
            log.warning("looking for work again: %s", error)
            return []
        return unfinished

    def _report(self, unfinished: list[DumpStatus]) -> None:
        now = {dump.id: dump for dump in unfinished}
        if self._on_progress is not None:
            for dump_id in sorted(self._reported | now.keys()):  # ids begin with their time
                self._on_progress(now.get(dump_id) or self._queue.read_dump(dump_id))
        self._reported = set(now)

    def _grow(self, pool: ThreadPoolExecutor, unfinished: list[DumpStatus]) -> None:
        if self._clock.monotonic() < self._not_before:
            return
        most_workers = self._workers or sum(d.options.workers for d in unfinished if d.state != DumpState.PAUSED)
        missing = min(most_workers, _MOST_WORKERS) - len(self._members)
        if missing > 0:
            for _ in range(min(missing, self._count_free_places(unfinished))):
                member = pool.submit(self._member)
                member.add_done_callback(lambda _: self._moved.set())
                self._members.add(member)

    def _count_free_places(self, unfinished: list[DumpStatus]) -> int:
        try:
            return sum(map(self._queue.count_free_places, unfinished))
        except DblogError as error:
            if self._once or not error.transient:
                raise
            log.warning("looking for work again: %s", error)
            return 0

    def _reap(self) -> bool:
        """Takes note of workers that have ended; whether any has. Raises what is no DblogError."""
        done = {member for member in self._members if member.done()}
        self._members -= done
        for member in done:
            error = member.exception()
            if error is None:
                self._faults += member.result()
            elif not isinstance(error, DblogError):
                raise error
            elif error.transient and not self._once:
                log.warning("a dump worker ended, and will be replaced: %s", error)
                self._not_before = self._clock.monotonic() + _RECOVERY_SECONDS
            else:
                self._end = self._end or error
        return bool(done)
