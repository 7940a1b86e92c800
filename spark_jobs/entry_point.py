"""What the entry points of Spark jobs share: options, the configuration, signals, the session, the lake's lock."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import psutil

from dblog_core.config import loader
from dblog_core.config.lake import LakeConfig
from dblog_core.config.secret_settings import READER, STORAGE, given_to
from dblog_core.config.settings import Config, S3Config
from dblog_core.errors import DblogError
from dblog_core.interfaces import StateStore
from dblog_core.lake.carrier_choice import Means
from dblog_core.lake.lake_status import own_directory
from dblog_core.lake.spark_submit import (
    CONFIG_VARIABLE,
    PARENT_VARIABLE,
    STOP_FILE_VARIABLE,
    config_json,
    needs_spark,
)
from dblog_core.lake_engine.merging import handover
from dblog_core.lake_engine.merging.lake import Lake
from dblog_core.lake_engine.merging.lock import lake_lock
from dblog_core.lake_engine.merging.merge_records import Records
from dblog_core.lake_engine.merging.spreading.tasks import open_configured
from dblog_core.lake_engine.merging.spreading.write_spread import Spread
from dblog_core.lake_engine.merging.upsert_rows import OpenTables
from dblog_core.staging import Staging
from dblog_core.state import recent_errors
from dblog_core.user_cache import cache_directory
from dblog_core.wiring import open_lake, open_staging, open_state
from spark_jobs.session import open_session, reach_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_RETURNED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LakeJob:
    """What a job that writes the lake works with; `check` raises LeaseLost once the lock is in doubt."""

    config: Config
    staging: Staging
    lake: Lake
    records: Records
    stop: threading.Event
    check: Callable[[], None]
    state: StateStore


def build_parser(description: str) -> argparse.ArgumentParser:
    """The options of every job; a job adds its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--config", type=Path, help=f"the TOML file; default: the JSON in {CONFIG_VARIABLE}")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds to wait for another merge of this lake")
    parser.add_argument("--json", action="store_true", help="one JSON object per result on stdout")
    return parser


def run(job: Callable[[], int], name: str) -> int:
    """The job's exit code; 1, and the error on stderr, where it fails in a way that is foreseen."""
    os.umask(0o077)
    try:
        return job()
    except DblogError as error:
        say(f"{name}: {error}")
        return 1


def load_config(options: argparse.Namespace, needs: Collection[str] = READER) -> Config:
    """The configuration of the file, or of the environment, with the secrets of those sections alone that the job
    `needs`: code that reads another one fails, also where the file has it."""
    if options.config is not None:
        return given_to(loader.load(options.config, needs=needs), needs)
    return given_to(Config.model_validate_json(os.environ[CONFIG_VARIABLE]), needs)


@contextmanager
def open_lake_job(options: argparse.Namespace, name: str, *, hands_over: bool = False) -> Iterator[LakeJob]:
    """Holds the lake's lock and, where the job needs it, a Spark session. Raises LakeBusy where another job has the
    lake. `hands_over`: Spark starts while another job still holds the lake (`handover`), and not only once it is free.
    """
    return_freed_memory()
    config = load_config(options)
    lake = build_lake(config)
    records = Records(own_directory(lake.location))
    stop = stop_on_signals()
    starters = Starters()
    has_said_so = False

    def go_on() -> bool:
        nonlocal has_said_so
        if not has_said_so and options.wait:
            say(f"{name}: another one has this lake; standing by")
        has_said_so = True
        return not stop.is_set() and starters.are_alive()

    with closing(open_state(config)) as state, ExitStack() as stack:
        lock = lake_lock(records.directory, state, ttl=config.state.ttl, wait=options.wait, go_on=go_on)
        if hands_over:
            with handover.in_line(state, ttl=config.state.ttl, go_on=go_on) as say_ready:
                lake = _start_spark(config, name, stop, lake, stack)
                # Behind the lock's end, so that the next merge does not wait for a checkpoint.
                stack.callback(_end_checkpoints, lake)
                say(f"{name}: {'Spark has started' if needs_spark(name, config) else 'ready'}; now it takes the lake")
                say_ready()
                check = stack.enter_context(lock)
            stack.enter_context(_record_errors(state, name))
        else:
            check = stack.enter_context(lock)
            stack.enter_context(_record_errors(state, name))
            lake = _start_spark(config, name, stop, lake, stack)
            stack.callback(_end_checkpoints, lake)
        try:
            yield LakeJob(config, open_staging(config), lake, records, stop, check, state)
        finally:
            if lake.open_tables is not None:
                lake.open_tables.close()


def _end_checkpoints(lake: Lake) -> None:
    """Waits for the checkpoint that is being made: Spark stops next."""
    if lake.open_tables is not None:
        lake.open_tables.checkpoints.close()


def return_freed_memory() -> None:
    """Arrays of a mebibyte and more go back to the system as soon as they are freed, whichever threads made them.

    With each large array that is freed glibc raises the size from which it does so, up to 32 MiB, and keeps smaller
    ones for the next array of the same thread. After merges of a million rows it kept up to 600 MB for nobody.
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
        open_tables=_open_tables(settings),
        vectors=settings.deletion_vectors,
        spark_settings=config.spark.conf,
    )


def _spread(config: Config, spark: SparkSession, settings: Mapping[str, str]) -> Spread | None:
    """With what large shares are spread; None where Spark has no executors of its own."""
    from spark_jobs.spread import run_tasks

    means = Means.of_spark(str(spark.sparkContext.master), settings)
    if means.executor_cores == 0:
        return None
    opener = partial(open_configured, config_json(given_to(config, STORAGE)))
    return Spread(partial(run_tasks, spark, opener, means.executor_cores), means)


def _open_tables(settings: LakeConfig) -> OpenTables:
    return OpenTables(cache_directory() / "lake-keys", memory=settings.index_memory)


def _start_spark(config: Config, name: str, stop: threading.Event, lake: Lake, stack: ExitStack) -> Lake:
    """The lake with what Spark gives it: executors for large shares, and properties of new tables. Spark ends with
    `stack`. Raises LakeError where it would not be safe."""
    if not needs_spark(name, config):
        return lake
    from spark_jobs import delta_log_store

    spark = stack.enter_context(session(f"dblog {name} {config.source.name}", stop, s3=config.s3))
    delta_log_store.check_excludes(spark, str(lake.location))
    settings = dict(spark.sparkContext.getConf().getAll())
    return replace(lake, spread=_spread(config, spark, settings), spark_settings=settings)


@contextmanager
def session(name: str, stop: threading.Event, *, s3: S3Config | None = None) -> Iterator[SparkSession]:
    """The Spark session of this process, until the end of the block. `s3`: how it reaches paths on an object store."""
    spark = open_session(name=name)
    if s3 is not None:
        reach_s3(spark, s3)
    if threading.current_thread() is threading.main_thread():  # elsewhere Spark sets none
        stop_on_signals(stop)  # again: Spark has set its own handlers
    try:
        yield spark
    finally:
        spark.stop()


def stop_on_signals(stop: threading.Event | None = None) -> threading.Event:
    """An event that is set when this process is asked to end."""
    event = stop or threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: event.set())
    # Only now: a signal from before was ignored, and whoever sent it made the file first.
    if Path(os.environ.get(STOP_FILE_VARIABLE, os.devnull)).is_file():
        event.set()
    return event


class Starters:
    """The processes that this job serves: the one that started it, and the one that this one works for."""

    def __init__(self) -> None:
        self._ids = {os.getppid(), int(os.environ.get(PARENT_VARIABLE, os.getppid()))}

    def are_alive(self) -> bool:
        return all(_lives(number) for number in self._ids)


def _lives(number: int) -> bool:
    """One that is dead stays in the list of processes until its own parent asks for it: it serves nobody."""
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def say(text: str) -> None:
    """Progress and messages."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_json(result: Any) -> None:
    """One result, as JSON, on a line of its own."""
    sys.stdout.write(orjson.dumps(result).decode() + "\n")
    sys.stdout.flush()
