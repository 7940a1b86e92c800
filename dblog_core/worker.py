"""One dump worker: takes a task, works on it over as many attempts as it takes, gives it back, takes the next."""

from __future__ import annotations

import logging
import zlib

from dblog_core import reload, table_names
from dblog_core.attempt import Attempt, WorkerPace
from dblog_core.errors import ConfigError, DblogError, LeaseLost, ServerNotSafe, SourceReadOnly
from dblog_core.finder import Finder
from dblog_core.hold import Hold, Workplace
from dblog_core.window_reader import Connections

log = logging.getLogger(__name__)

PATIENCE = 5  # attempts without progress after faults that may pass, before another worker may have the task
WATERMARK_ROWS = 256
CATCHING_UP = 10.0  # seconds in which a capture whose file has changed comes to go by it


def work_until_none_is_free(finder: Finder, place: Workplace) -> list[DblogError]:
    """One worker, in the calling thread: takes tasks and works on them until none is free, or it is told to stop.

    Returns the faults of tasks that can never be done; each is recorded with its task. Raises what keeps this worker
    from working at all (it cannot connect), and a fault that may pass after PATIENCE attempts on one task.
    """
    faults: list[DblogError] = []
    gone: list[str] = []
    pace, holder = WorkerPace(), place.new_id()[:12]
    while not place.stop.is_set() and (hold := finder.take(place, holder)) is not None:
        try:
            pace.begin(hold.dump_id)
            if (fault := _carry_out(hold, pace)) is not None:
                faults.append(fault)
        finally:
            hold.release()
        if hold.gone:
            gone.append(hold.task.table)
    if gone:
        log.info("%d table(s) were dropped before they were read: %s", len(gone), table_names.some(gone))
    return faults


def _carry_out(hold: Hold, pace: WorkerPace) -> DblogError | None:
    """As many attempts as it takes; returns what makes the task impossible."""
    tries, faults, placed = 0, 0, -1
    while not hold.place.stop.is_set():
        fault: DblogError | None = None
        connections: Connections | None = None
        try:
            if hold.over():
                return None
            _await_same_rules(hold)
            connections = Connections.open(hold, _watermark_row(hold))
            if Attempt(hold, connections, pace).run():
                return None
        except LeaseLost as error:
            log.warning("%s: left to others: %s", hold, error)
            return None
        except DblogError as error:
            passes = error.transient or isinstance(error, SourceReadOnly)
            if isinstance(error, ServerNotSafe) or (not passes and connections is None):
                raise  # no fault of the task: it goes on where a worker connects, or once the server is mended
            if not passes:
                return _failed(hold, error)
            fault = error
        finally:
            if connections is not None:
                connections.close()
        if hold.placed > placed:
            tries, faults, placed = 0, 0, hold.placed
        tries, faults = tries + 1, faults + (fault is not None)
        if fault is not None:
            if faults >= PATIENCE:
                raise fault
            log.warning("%s: trying again: %s", hold, fault)
        hold.place.clock.wait(hold.place.stop, min(0.2 * tries, 2.0))
    return None


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
    while not reload.same_rules(place.state, place.config.source, table):
        if place.clock.monotonic() >= until:
            raise ConfigError(
                f"this process and the capture go by different rules for the columns of {table}",
                where=f'[source.columns."{table}"]',
                fix="have both use the same file, and start again whichever was started with an older one",
            )
        if place.clock.wait(place.stop, 0.5):
            return


def _watermark_row(hold: Hold) -> str:
    """Our row in the watermark table: of a bounded number, since two that share one wait only for a moment."""
    return f"worker-{zlib.crc32(f'{hold.dump_id}/{hold.task.number}'.encode()) % WATERMARK_ROWS}"
