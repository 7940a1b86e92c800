"""One dump worker: takes a task, works on it over as many attempts as it takes, gives it back, takes the next.

A task that is read and waits to be placed is kept aside meanwhile (`tasks_aside`), if there is another one to read.
Tasks of a table that somebody keeps locked rest (`pace.locked_tables`), and a worker that has met one waits for it.
"""

from __future__ import annotations

import logging
import zlib

from dblog_core.dumps.attempt import PLACED_POLL_SECONDS, Attempt, AttemptEnd, WorkerPace
from dblog_core.dumps.pace.locked_tables import explain_lock
from dblog_core.dumps.reading.connections import Connections
from dblog_core.dumps.task_lease import Hold, WorkerContext
from dblog_core.dumps.task_queue import TaskQueue
from dblog_core.dumps.tasks_aside import TasksAside
from dblog_core.errors import (
    ConfigError,
    DblogError,
    LeaseLost,
    NoWatermarkTable,
    RequestError,
    ServerNotSafe,
    SourceReadOnly,
    TableLocked,
)
from dblog_core.model import table_names
from dblog_core.model.schema import TableName
from dblog_core.rows import column_rule_faults
from dblog_core.rows.acceptance import Acceptance, Held
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.held_problems import explain
from dblog_core.staging import table_records
from dblog_core.staging.table_records import TableRecords
from dblog_core.state import accepted_shapes, settings_in_force, stopped_tables

log = logging.getLogger(__name__)

FAULTY_ATTEMPTS = 5  # without progress after faults that may pass, before another worker may have the task
WATERMARK_ROWS = 256
_LOOK_SECONDS = 2.0  # at most between two looks for work while all that is left is locked
_CATCH_UP_SECONDS = 10.0  # in which a capture whose file has changed comes to go by it


def work_until_none_is_free(queue: TaskQueue, context: WorkerContext) -> list[DblogError]:
    """One worker, in the calling thread: takes tasks and works on them until none is free, or it is asked to stop.

    Returns the faults of tasks that can never be done; each is recorded with its task. Raises what keeps this worker
    from working at all (it cannot connect), and a fault that may pass after FAULTY_ATTEMPTS on one task.
    """
    worker = _Worker(queue, context)
    try:
        return worker.run()
    finally:
        worker.close()


class _Worker:
    """Keeps its connections from task to task, and continues with the next one while the last waits to be placed."""

    def __init__(self, queue: TaskQueue, context: WorkerContext) -> None:
        self._queue = queue
        self._context = context
        self._pace = WorkerPace()
        self._holder = context.new_id()[:12]
        self._aside = TasksAside(context, queue.give_back)
        self._connections: Connections | None = None
        self._following: Hold | None = None  # taken, and not begun yet
        self._gone_tables: list[str] = []

    def run(self) -> list[DblogError]:
        faults: list[DblogError] = []
        while not self._context.stop.is_set():
            if (hold := self._following or self._take(sure=not self._aside)) is not None:
                self._following = None
                fault, self._following = self._carry_out(hold)
                faults += [] if fault is None else [fault]
            elif self._aside:
                self._context.clock.wait(self._context.stop, PLACED_POLL_SECONDS)
                self._aside.look()
            elif self._queue.has_resting_task:
                self._context.clock.wait(self._context.stop, self._seconds_to_next_try())
            else:
                break
        return faults

    def close(self) -> None:
        """Gives back all that it has."""
        if self._gone_tables:
            names = table_names.some(self._gone_tables)
            log.info("%d table(s) were dropped before they were read: %s", len(self._gone_tables), names)
        if self._following is not None:
            self._queue.give_back(self._following)
        self._aside.release()
        self._queue.close()
        self._disconnect()

    def _seconds_to_next_try(self) -> float:
        """Until this worker tries a locked table again, or somebody may have ended its dump."""
        seconds = self._context.locked_tables.seconds_to_next_try(self._context.clock.monotonic())
        return min(seconds or 0.0, _LOOK_SECONDS)

    def _take(self, *, sure: bool) -> Hold | None:
        return self._queue.take(self._context, self._holder, sure=sure)

    def _carry_out(self, hold: Hold) -> tuple[DblogError | None, Hold | None]:
        """Works on the task, and gives it back or keeps it aside; what makes it impossible, and the task to continue
        with, where that is taken already."""
        is_kept_aside = False
        following = None
        try:
            self._pace.begin(hold.dump_id)
            fault, following = self._attempts(hold)
            is_kept_aside = following is not None
        finally:
            if not is_kept_aside:
                self._queue.give_back(hold)
        if hold.gone:
            self._gone_tables.append(hold.task.table)
        return fault, following

    def _attempts(self, hold: Hold) -> tuple[DblogError | None, Hold | None]:
        """As many attempts as it takes; what makes the task impossible, and the task to continue with, where this one
        is kept aside."""
        tries = 0
        faults = 0
        placed_chunks = -1
        context = self._context
        while not context.stop.is_set():
            fault: DblogError | None = None
            is_connected = False
            try:
                # The first attempt comes right after such a look, and looks again before its first chunk.
                if tries and hold.is_over():
                    return None, None
                _await_same_rules(hold)
                _await_acceptance(hold)
                connections = self._connect(hold)
                is_connected = True
                end, following = self._attempt(Attempt(hold, connections, self._pace, self._aside.look), hold)
                if end is not AttemptEnd.RETRY:
                    return None, following
            except LeaseLost as error:
                log.warning("%s: left to others: %s", hold, error)
                self._disconnect()
                return None, None
            except TableLocked:
                self._disconnect()
                _let_table_rest(hold)
                return None, None
            except DblogError as error:
                self._disconnect()
                passes = error.transient or isinstance(error, SourceReadOnly)
                is_of_task = is_connected or isinstance(error, RequestError)
                if isinstance(error, ServerNotSafe) or (not passes and not is_of_task):
                    raise  # no fault of the task: it goes on where a worker connects, or once the server is mended
                if not passes:
                    return _record_fault(hold, error), None
                fault = error
            self._disconnect()  # another attempt does not go on in whatever state the last one has left
            if hold.placed_chunks > placed_chunks:
                tries = 0
                faults = 0
                placed_chunks = hold.placed_chunks
            tries += 1
            if fault is not None:
                faults += 1
                if faults >= FAULTY_ATTEMPTS:
                    raise fault
                log.warning("%s: trying again: %s", hold, fault)
            pause = _LOOK_SECONDS if isinstance(fault, NoWatermarkTable) else min(0.2 * tries, 2.0)
            context.clock.wait(context.stop, pause)  # a capture that leads makes the table again
        return None, None

    def _attempt(self, attempt: Attempt, hold: Hold) -> tuple[AttemptEnd, Hold | None]:
        """How it ends; ALL_READ with the task to continue with, while this one is kept aside."""
        end = attempt.run(to_the_end=self._aside.is_full)
        if end is not AttemptEnd.ALL_READ:
            return end, None
        if (following := self._take(sure=False)) is None:
            return attempt.run(to_the_end=True), None
        self._aside.add(hold, attempt=attempt.number, ordinal=attempt.ordinal)
        return AttemptEnd.ALL_READ, following

    def _connect(self, hold: Hold) -> Connections:
        if self._connections is None:
            self._connections = Connections.open(hold, _watermark_row(self._holder))
        else:
            self._connections = self._connections.of(hold)
        return self._connections

    def _disconnect(self) -> None:
        connections = self._connections
        self._connections = None
        if connections is not None:
            connections.close()


def _record_fault(hold: Hold, error: DblogError) -> DblogError | None:
    """Records the fault with the task, and returns it if the dump fails by it; the next worker will meet it again if
    the task is no longer ours."""
    try:
        return error if hold.fail(error) else None
    except LeaseLost as lost:
        log.warning("%s: left to others: %s", hold, lost)
        return None


def _let_table_rest(hold: Hold) -> None:
    """Other tasks come first: the table's own ones rest in this process. Says so once, with who keeps it locked."""
    worker = hold.worker
    table = hold.task.table
    is_news = worker.locked_tables.record_locked(table, worker.clock.monotonic())
    reason = explain_lock(worker.source, TableName.parse(table))
    if is_news:
        log.warning("%s waits, and other tables come first: %s", hold, reason)
    try:
        hold.report_lock(reason)
    except LeaseLost as lost:
        log.warning("%s: left to others: %s", hold, lost)


def _await_same_rules(hold: Hold) -> None:
    """Until the capture goes by this process's rules for the table. Raises ConfigError where it does not: it would
    refuse each chunk, and one by older rules may hold in the open what newer ones hide."""
    context = hold.worker
    table = hold.task.table
    _refuse_held(hold)
    until = context.clock.monotonic() + _CATCH_UP_SECONDS
    while not settings_in_force.has_same_rules(_read_records(context), context.config.source, table):
        if context.clock.monotonic() >= until:
            raise ConfigError(
                f"this process and the capture go by different rules for the columns of {table}",
                where=f'[source.columns."{table}"]',
                fix="have both use the same file, and start again whichever was started with an older one",
            )
        if context.clock.wait(context.stop, 0.5):
            return


def _await_acceptance(hold: Hold) -> None:
    """Waits until the manifest says as what the table was accepted, where columns of the source are hidden, or the task
    is over. Raises RequestError for a table that is held."""
    context = hold.worker
    rules = context.config.source.columns
    if not any(map(column_rule_faults.hidden_columns, rules.values())):
        hold.accepted = None
        return
    hold.accepted = Acceptance(why_held=Held.UNWATCHED)
    table = hold.task.table
    entry = Rules.of(context.config.source).digest(TableName.parse(table))
    while True:
        records = table_records.read_newest(context.staging, accepted_shapes.node_of(table))
        accepted = accepted_shapes.find(records, table)
        if accepted is not None and accepted.why_held not in (None, Held.GONE):
            problem = explain(table, accepted.why_held)
            raise RequestError(problem.what, fix=problem.fix)
        if accepted is not None and accepted.why_held is None and not accepted.since and accepted.entry == entry:
            hold.accepted = accepted
            return
        if context.clock.wait(context.stop, 0.2) or hold.is_over():
            return


def _refuse_held(hold: Hold) -> None:
    """Raises RequestError for a table that is held: its rows might be staged in the open."""
    held = stopped_tables.read_held(_read_records(hold.worker), hold.worker.config.source)
    if (entry := held.get(hold.task.table)) is not None:
        raise RequestError(entry.why, fix=entry.fix)


def _read_records(worker: WorkerContext) -> TableRecords:
    return table_records.read_newest(worker.staging, *stopped_tables.HELD_NODES)


def _watermark_row(worker: str) -> str:
    """A worker's row in the watermark table: of a bounded number, since two that share one wait only for a moment."""
    return f"worker-{zlib.crc32(worker.encode()) % WATERMARK_ROWS}"
