"""One dump worker: takes a task, works on it over as many attempts as it takes, gives it back, takes the next.

A task that is read and waits to be placed is kept aside meanwhile (`aside`), if there is another one to read.
"""

from __future__ import annotations

import logging
import zlib

from dblog_core.dumps.attempt import AGAIN, PLACING, READ, Attempt, WorkerPace
from dblog_core.dumps.task_lease import Hold, Workplace
from dblog_core.dumps.task_queue import Finder
from dblog_core.dumps.tasks_aside import Aside
from dblog_core.dumps.window_reader import Connections
from dblog_core.errors import ConfigError, DblogError, LeaseLost, ServerNotSafe, SourceReadOnly
from dblog_core.model import table_names
from dblog_core.state import settings_in_force

log = logging.getLogger(__name__)

PATIENCE = 5  # attempts without progress after faults that may pass, before another worker may have the task
WATERMARK_ROWS = 256
CATCHING_UP = 10.0  # seconds in which a capture whose file has changed comes to go by it


def work_until_none_is_free(finder: Finder, place: Workplace) -> list[DblogError]:
    """One worker, in the calling thread: takes tasks and works on them until none is free, or it is told to stop.

    Returns the faults of tasks that can never be done; each is recorded with its task. Raises what keeps this worker
    from working at all (it cannot connect), and a fault that may pass after PATIENCE attempts on one task.
    """
    worker = _Worker(finder, place)
    try:
        return worker.run()
    finally:
        worker.close()


class _Worker:
    """Keeps its connections from task to task, and goes on with the next one while the last waits to be placed."""

    def __init__(self, finder: Finder, place: Workplace) -> None:
        self._finder, self._place, self._pace = finder, place, WorkerPace()
        self._holder = place.new_id()[:12]
        self._aside = Aside(place, finder.give_back)
        self._connections: Connections | None = None
        self._following: Hold | None = None  # taken, and not begun yet
        self._gone: list[str] = []

    def run(self) -> list[DblogError]:
        faults: list[DblogError] = []
        while not self._place.stop.is_set():
            if (hold := self._following or self._take(sure=not self._aside)) is not None:
                self._following = None
                fault, self._following = self._carry_out(hold)
                faults += [] if fault is None else [fault]
            elif self._aside:
                self._place.clock.wait(self._place.stop, PLACING)
                self._aside.look()
            else:
                break
        return faults

    def close(self) -> None:
        """Gives back all that it has."""
        if self._gone:
            names = table_names.some(self._gone)
            log.info("%d table(s) were dropped before they were read: %s", len(self._gone), names)
        if self._following is not None:
            self._finder.give_back(self._following)
        self._aside.release()
        self._finder.close()
        self._disconnect()

    def _take(self, *, sure: bool) -> Hold | None:
        return self._finder.take(self._place, self._holder, sure=sure)

    def _carry_out(self, hold: Hold) -> tuple[DblogError | None, Hold | None]:
        """Works on the task, and gives it back or keeps it aside; what makes it impossible, and the task to go on
        with, where that is taken already."""
        kept, following = False, None
        try:
            self._pace.begin(hold.dump_id)
            fault, following = self._attempts(hold)
            kept = following is not None
        finally:
            if not kept:
                self._finder.give_back(hold)
        if hold.gone:
            self._gone.append(hold.task.table)
        return fault, following

    def _attempts(self, hold: Hold) -> tuple[DblogError | None, Hold | None]:
        """As many attempts as it takes; what makes the task impossible, and the task to go on with, where this one is
        kept aside."""
        tries, faults, placed, place = 0, 0, -1, self._place
        while not place.stop.is_set():
            fault: DblogError | None = None
            connected = False
            try:
                if hold.over():
                    return None, None
                _await_same_rules(hold)
                connections = self._connected(hold)
                connected = True
                end, following = self._attempt(Attempt(hold, connections, self._pace, self._aside.look), hold)
                if end != AGAIN:
                    return None, following
            except LeaseLost as error:
                log.warning("%s: left to others: %s", hold, error)
                self._disconnect()
                return None, None
            except DblogError as error:
                self._disconnect()
                passes = error.transient or isinstance(error, SourceReadOnly)
                if isinstance(error, ServerNotSafe) or (not passes and not connected):
                    raise  # no fault of the task: it goes on where a worker connects, or once the server is mended
                if not passes:
                    return _failed(hold, error), None
                fault = error
            self._disconnect()  # another attempt does not go on in whatever state the last one has left
            if hold.placed > placed:
                tries, faults, placed = 0, 0, hold.placed
            tries, faults = tries + 1, faults + (fault is not None)
            if fault is not None:
                if faults >= PATIENCE:
                    raise fault
                log.warning("%s: trying again: %s", hold, fault)
            place.clock.wait(place.stop, min(0.2 * tries, 2.0))
        return None, None

    def _attempt(self, attempt: Attempt, hold: Hold) -> tuple[str, Hold | None]:
        """How it ends; READ with the task to go on with, while this one is kept aside."""
        end = attempt.run(to_the_end=self._aside.full)
        if end != READ:
            return end, None
        if (following := self._take(sure=False)) is None:
            return attempt.run(to_the_end=True), None
        self._aside.add(hold, attempt=attempt.number, ordinal=attempt.ordinal)
        return READ, following

    def _connected(self, hold: Hold) -> Connections:
        if self._connections is None:
            self._connections = Connections.open(hold, _watermark_row(self._holder))
        else:
            self._connections = self._connections.of(hold)
        return self._connections

    def _disconnect(self) -> None:
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()


def _failed(hold: Hold, error: DblogError) -> DblogError | None:
    """Records the fault with the task, and returns it if the dump fails by it; the next worker will meet it again if
    the task is no longer ours."""
    try:
        return error if hold.fail(error) else None
    except LeaseLost as lost:
        log.warning("%s: left to others: %s", hold, lost)
        return None


def _await_same_rules(hold: Hold) -> None:
    """Until the capture goes by this process's rules for the table. Raises ConfigError where it does not: it would
    refuse each chunk, and one by older rules may hold in the open what newer ones hide."""
    place, table = hold.place, hold.task.table
    until = place.clock.monotonic() + CATCHING_UP
    while not settings_in_force.same_rules(place.state, place.config.source, table):
        if place.clock.monotonic() >= until:
            raise ConfigError(
                f"this process and the capture go by different rules for the columns of {table}",
                where=f'[source.columns."{table}"]',
                fix="have both use the same file, and start again whichever was started with an older one",
            )
        if place.clock.wait(place.stop, 0.5):
            return


def _watermark_row(worker: str) -> str:
    """A worker's row in the watermark table: of a bounded number, since two that share one wait only for a moment."""
    return f"worker-{zlib.crc32(worker.encode()) % WATERMARK_ROWS}"
