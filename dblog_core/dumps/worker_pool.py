"""The dump workers of one process: as many threads as there are tasks to take and places for workers, now."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from dblog_core.dumps.dump_records import DumpState
from dblog_core.dumps.status import DumpStatus
from dblog_core.dumps.task_queue import REST, Finder
from dblog_core.errors import DblogError
from dblog_core.interfaces import Clock

log = logging.getLogger(__name__)

LARGEST = 64  # workers of one process
SEARCH = 1.0  # seconds between two looks for work
REPORT = 0.5  # seconds between two looks at dumps that are worked on
RECOVER = 2.0  # seconds before a worker is replaced that ended by a fault that may pass

OnProgress = Callable[[DumpStatus], None]
Member = Callable[[], list[DblogError]]
"""Works until no task is free; returns the faults of tasks that can never be done. Raises what ends the worker."""


class Crew:
    """Starts a worker wherever one is missing, and looks again, about twice a second.

    `once`: until no dump is unfinished; `workers`: at most so many, else as many as the dumps' options say together.
    """

    def __init__(
        self,
        finder: Finder,
        member: Member,
        *,
        stop: threading.Event,
        clock: Clock,
        once: bool,
        workers: int | None,
        on_progress: OnProgress | None,
    ) -> None:
        self._finder, self._member, self._stop, self._clock = finder, member, stop, clock
        self._once, self._workers, self._on_progress = once, workers, on_progress
        self._members: set[Future[list[DblogError]]] = set()
        self._moved = threading.Event()
        self._known: set[str] = set()
        self._end: DblogError | None = None
        self._faults: list[DblogError] = []
        self._not_before = clock.monotonic()

    def run(self) -> None:
        """Raises what ends a worker for good, once the other workers are through, and with `once` also the first fault
        that made a task impossible, and faults that may pass. Otherwise those are told, and the work goes on."""
        with ThreadPoolExecutor(LARGEST, thread_name_prefix="dump") as pool:
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
        found: list[DumpStatus] = []
        due = -math.inf
        while not self._stop.is_set():
            fresh = self._clock.monotonic() >= due
            if fresh:
                began = self._clock.monotonic()
                found = self._unfinished()
                now = self._clock.monotonic()
                due = now + REST * (now - began)
            if not self._members and (self._end is not None or (self._once and fresh and not found)):
                return
            if self._end is None and fresh:
                self._grow(pool, found)
            event = self._moved if self._members else self._stop
            self._clock.wait(event, REPORT if found else SEARCH)
            self._moved.clear()
            if self._reap() and not self._members:
                due = -math.inf  # the last one has ended: there may be nothing more to do

    def _unfinished(self) -> list[DumpStatus]:
        """Dumps to work on; tells their progress."""
        try:
            found = self._finder.unfinished()
            self._tell(found)
        except DblogError as error:
            if self._once or not error.transient:
                raise
            log.warning("looking for work again: %s", error)
            return []
        return found

    def _tell(self, found: list[DumpStatus]) -> None:
        now = {dump.id: dump for dump in found}
        if self._on_progress is not None:
            for dump_id in sorted(self._known | now.keys()):  # ids begin with their time
                self._on_progress(now.get(dump_id) or self._finder.status(dump_id))
        self._known = set(now)

    def _grow(self, pool: ThreadPoolExecutor, found: list[DumpStatus]) -> None:
        if self._clock.monotonic() < self._not_before:
            return
        wanted = self._workers or sum(d.options.workers for d in found if d.state != DumpState.PAUSED)
        missing = min(wanted, LARGEST) - len(self._members)
        if missing > 0:
            for _ in range(min(missing, self._free(found))):
                member = pool.submit(self._member)
                member.add_done_callback(lambda _: self._moved.set())
                self._members.add(member)

    def _free(self, found: list[DumpStatus]) -> int:
        try:
            return sum(map(self._finder.free, found))
        except DblogError as error:
            if self._once or not error.transient:
                raise
            log.warning("looking for work again: %s", error)
            return 0

    def _reap(self) -> bool:
        """Takes note of workers that have ended; whether any has. Raises what is no fault of ours to know."""
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
                self._not_before = self._clock.monotonic() + RECOVER
            else:
                self._end = self._end or error
        return bool(done)
