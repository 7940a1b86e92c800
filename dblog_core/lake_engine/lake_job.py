"""A job that writes the lake: it holds the lake's lock, and opens staging, state and records."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass

from dblog_core.config.settings import Config
from dblog_core.errors import DblogError
from dblog_core.interfaces import StateStore
from dblog_core.lake.lake_status import own_directory
from dblog_core.lake_engine.merging import handover
from dblog_core.lake_engine.merging.lake import Lake
from dblog_core.lake_engine.merging.lock import lake_lock
from dblog_core.lake_engine.merging.merge_records import Records
from dblog_core.lake_engine.merging.upsert_rows import OpenTables
from dblog_core.staging import Staging
from dblog_core.state import recent_errors
from dblog_core.user_cache import cache_directory
from dblog_core.wiring import open_lake, open_staging, open_state

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_RETURNED_BYTES = 1 << 20


def _as_it_is(lake: Lake, _stack: ExitStack) -> Lake:
    return lake


def _true() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Caller:
    """The process that a job runs in.

    `say` gets progress, a line at a time. `is_wanted`: False ends it. `start_carrier`: adds
    executors to the lake, which end with the ExitStack; `ready`: says that it has.
    """

    stop: threading.Event
    say: Callable[[str], None]
    is_wanted: Callable[[], bool] = _true
    start_carrier: Callable[[Lake, ExitStack], Lake] = _as_it_is
    ready: str = "ready"


@dataclass(frozen=True, slots=True)
class LakeJob:
    """What a job that writes the lake works with; `check` raises LeaseLost once the lock is in doubt."""

    config: Config
    staging: Staging
    lake: Lake
    records: Records
    check: Callable[[], None]
    state: StateStore


@contextmanager
def open_lake_job(
    config: Config, name: str, caller: Caller, *, wait_seconds: float, hands_over: bool = False
) -> Iterator[LakeJob]:
    """Holds the lake's lock. Raises LakeBusy where another job has the lake for longer than `wait_seconds`.

    `hands_over`: the carrier starts while another job still holds the lake (`handover`), and not only once it is free.
    """
    return_freed_memory()
    lake = build_lake(config)
    records = Records(own_directory(lake.location))
    has_said_so = False

    def go_on() -> bool:
        nonlocal has_said_so
        if not has_said_so and wait_seconds:
            caller.say(f"{name}: another one has this lake; standing by")
        has_said_so = True
        return not caller.stop.is_set() and caller.is_wanted()

    with closing(open_state(config)) as state, ExitStack() as stack:
        lock = lake_lock(records.directory, state, ttl=config.state.ttl, wait=wait_seconds, go_on=go_on)
        if hands_over:
            with handover.in_line(state, ttl=config.state.ttl, go_on=go_on) as say_ready:
                lake = caller.start_carrier(lake, stack)
                # Behind the lock's end, so that the next merge does not wait for a checkpoint.
                stack.callback(lake.open_tables.checkpoints.close)
                caller.say(f"{name}: {caller.ready}; now it takes the lake")
                say_ready()
                check = stack.enter_context(lock)
            stack.enter_context(_record_errors(state, name))
        else:
            check = stack.enter_context(lock)
            stack.enter_context(_record_errors(state, name))
            lake = caller.start_carrier(lake, stack)
            stack.callback(lake.open_tables.checkpoints.close)
        try:
            yield LakeJob(config, open_staging(config), lake, records, check, state)
        finally:
            lake.open_tables.close()


def return_freed_memory() -> None:
    """Arrays of a mebibyte and more go back to the system as soon as they are freed, whichever threads made them.

    With each large array that is freed glibc raises the size from which it does so, up to 32 MiB, and keeps smaller
    ones for the next array of the same thread. After merges of a million rows it kept up to 600 MB that nothing used.
    """
    with suppress(OSError, AttributeError):  # not of glibc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _RETURNED_BYTES)


@contextmanager
def _record_errors(state: StateStore, name: str) -> Iterator[None]:
    """What the job fails with is found by who asks for the source's status."""
    try:
        yield
    except DblogError as error:
        recent_errors.record(state, name, error, time.time())
        raise


def build_lake(config: Config) -> Lake:
    """The lake as the configuration wants it."""
    settings = config.lake
    return Lake(
        open_lake(config),
        f"dblog:{config.source.name}",
        history=settings.history,
        drop_columns=settings.drop_columns,
        changes=settings.schema_changes_of,
        json_as=settings.json_as_of,
        open_tables=OpenTables(cache_directory() / "lake-keys", memory=settings.index_memory),
        vectors=settings.deletion_vectors,
        spark_settings=config.spark.conf,
    )
