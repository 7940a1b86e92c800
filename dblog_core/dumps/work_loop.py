"""Dump workers: read tables chunk by chunk between watermarks, without ever waiting for the log.

work_loop               work on dumps, wait for them: what commands, Airflow and the capture call
worker_pool             the workers of one process
deferred_planning       the plans of dumps that a process without access to the source has filed
worker                  one worker: task after task
task_queue, task_lease  taking a task in competition with others; the leases and the state store under one task
attempt, throttle       one attempt on a task: chunk after chunk, at the pace that is asked for
reading                 one chunk between its watermarks, and whether it may be staged
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import closing

from dblog_core import wiring
from dblog_core.clock import SystemClock, spawn_thread
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.dumps.deferred_planning import DeferredPlanner
from dblog_core.dumps.dump_records import OVER
from dblog_core.dumps.pace.locked_tables import LockedTables
from dblog_core.dumps.pace.source_load import Gauge
from dblog_core.dumps.status import DumpStatus
from dblog_core.dumps.task_lease import WorkerContext
from dblog_core.dumps.task_queue import REST_FACTOR, TaskQueue
from dblog_core.dumps.worker import work_until_none_is_free
from dblog_core.dumps.worker_pool import OnProgress, WorkerPool
from dblog_core.errors import DblogError
from dblog_core.interfaces import Clock, Spawn
from dblog_core.state.lease_holder import random_id

_POLL_SECONDS = 0.2  # between two looks at a dump that somebody waits for


def work(
    config: Config,
    *,
    stop: threading.Event,
    once: bool = True,
    dump_id: str | None = None,
    workers: int | None = None,
    requested_by: tuple[str, ...] = (),
    on_progress: OnProgress | None = None,
    clock: Clock | None = None,
) -> None:
    """Works on unfinished dumps (on `dump_id` alone, or those that `requested_by` filed) until none is left.

    With `once` false it waits for more. `workers`: at most so many in this process; over all processes a dump has as
    many as its options say, from moment to moment.

    A task that can never be done (its table is gone, say) is recorded as such, and the others continue; with `once` the
    first such fault is raised at the end, and so is a fault that may pass when patience is at its end. Otherwise both
    are logged. Raises what keeps a worker from working at all.
    """
    clock = clock or SystemClock()
    gauge = Gauge(wiring.open_source(config.source), clock)
    locked = LockedTables()
    member = functools.partial(_work_here, config, stop, clock, dump_id, requested_by, random_id, gauge, locked)
    with closing(wiring.open_state(config)) as state:
        WorkerPool(
            TaskQueue(state, dump_id, requested_by),
            member,
            DeferredPlanner(config, state, clock).plan,
            stop=stop,
            clock=clock,
            once=once,
            workers=workers,
            on_progress=on_progress,
        ).run()


def work_here(
    config: Config,
    *,
    stop: threading.Event,
    clock: Clock | None = None,
    dump_id: str | None = None,
    requested_by: tuple[str, ...] = (),
    new_id: Callable[[], str] = random_id,
    spawn: Spawn = spawn_thread,
) -> None:
    """One worker in the calling thread, until no task is free; it waits by the clock alone. `spawn` stages its chunks.

    Raises the first fault that made a task impossible, after it has worked on the others; at once what keeps it from
    working at all, and a fault that may pass after several attempts without progress.
    """
    clock = clock or SystemClock()
    with closing(wiring.open_state(config)) as state:
        unfinished = TaskQueue(state, dump_id, requested_by).list_unfinished()
        faults = DeferredPlanner(config, state, clock).plan(unfinished)
    gauge = Gauge(wiring.open_source(config.source), clock)
    faults += _work_here(config, stop, clock, dump_id, requested_by, new_id, gauge, LockedTables(), spawn)
    if faults:
        raise faults[0]


def wait(
    config: Config,
    dump_id: str,
    *,
    stop: threading.Event,
    on_progress: OnProgress | None = None,
    clock: Clock | None = None,
) -> DumpStatus:
    """Waits until the dump is over or `stop` is set; returns where it stands then."""
    clock = clock or SystemClock()
    with closing(wiring.open_state(config)) as state:
        while True:
            began = clock.monotonic()
            status = dump_store.read_dump(state, dump_id)
            took = clock.monotonic() - began  # thousands of tasks take their time
            if on_progress is not None:
                on_progress(status)
            if status.state in OVER or clock.wait(stop, max(_POLL_SECONDS, REST_FACTOR * took)):
                return status


def _work_here(
    config: Config,
    stop: threading.Event,
    clock: Clock,
    dump_id: str | None,
    requested_by: tuple[str, ...],
    new_id: Callable[[], str],
    gauge: Gauge,
    locked: LockedTables,
    spawn: Spawn = spawn_thread,
) -> list[DblogError]:
    source = wiring.open_source(config.source)
    staging = wiring.open_staging(config)
    with closing(wiring.open_state(config)) as state:
        worker = WorkerContext(config, state, source, staging, gauge, clock, stop, new_id, spawn, locked)
        return work_until_none_is_free(TaskQueue(state, dump_id, requested_by), worker)
