"""What the entry points of Spark jobs share: options, the configuration, signals, the session, the lake's lock."""

from __future__ import annotations

import argparse
import ctypes
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
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
from dblog_core.errors import DblogError, LakeError
from dblog_core.interfaces import StateStore
from dblog_core.lake import spark_submit
from dblog_core.lake.carrier_choice import Means
from dblog_core.lake.lake_status import own_directory
from dblog_core.lake.spark_submit import (
    CONFIG_VARIABLE,
    PARENT_VARIABLE,
    SECRETS_VARIABLE,
    STOP_FILE_VARIABLE,
    config_json,
    starts_itself,
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
from spark_jobs.session import late_session, open_session, reach_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_START_OPTIONS = "PYSPARK_SUBMIT_ARGS"
"""Environment variable from which pyspark takes the options of the JVM that it starts."""
_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_RETURNED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LakeJob:
    """What a job that writes the lake works with; `check` raises LeaseLost once the lock is in doubt."""

    config: Config
    spark: SparkSession
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
    """Holds the lake's lock and a Spark session. Raises LakeBusy where another job has the lake. `hands_over`: Spark
    starts while another job still holds the lake (`handover`), and not only once the lake is free."""
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
        new_session = _session_of_job(config, name, stop, lake)
        if hands_over:
            with handover.in_line(state, ttl=config.state.ttl, go_on=go_on) as say_ready:
                spark = stack.enter_context(new_session)
                # Behind the lock's end, so that the next merge does not wait for a checkpoint.
                stack.callback(_end_checkpoints, lake)
                say(f"{name}: {'ready' if starts_itself(name, config) else 'Spark has started'}; now it takes the lake")
                say_ready()
                check = stack.enter_context(lock)
            stack.enter_context(_record_errors(state, name))
        else:
            check = stack.enter_context(lock)
            stack.enter_context(_record_errors(state, name))
            spark = stack.enter_context(new_session)
            stack.callback(_end_checkpoints, lake)
        if not starts_itself(name, config):
            lake = replace(lake, spread=_spread(config, spark))
        try:
            yield LakeJob(config, spark, open_staging(config), lake, records, stop, check, state)
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
    )


def _spread(config: Config, spark: SparkSession) -> Spread | None:
    """With what large shares are spread; None where Spark has no executors of its own."""
    from spark_jobs.spread import run_tasks

    context = spark.sparkContext
    means = Means.of_spark(str(context.master), dict(context.getConf().getAll()))
    if means.executor_cores == 0:
        return None
    settings = config_json(given_to(config, STORAGE))
    opener = partial(open_configured, settings)
    return Spread(partial(run_tasks, spark, opener, means.executor_cores), means)


def _open_tables(settings: LakeConfig) -> OpenTables:
    return OpenTables(cache_directory() / "lake-keys", memory=settings.index_memory)


@contextmanager
def _session_of_job(config: Config, name: str, stop: threading.Event, lake: Lake) -> Iterator[SparkSession]:
    """The session of a job that writes the lake, until the end of the block. Raises LakeError, or has the session raise
    it, where Spark does not start or would not be safe."""
    with ExitStack() as stack:

        def start() -> SparkSession:
            spark = stack.enter_context(session(f"dblog {name} {config.source.name}", stop, s3=config.s3))
            from spark_jobs import delta_log_store

            delta_log_store.check_excludes(spark, str(lake.location))
            return spark

        def start_late() -> SparkSession:
            say(f"{name}: starting Spark, which something in this lake needs")
            options = spark_submit.start_options(name, config, os.environ.get(SECRETS_VARIABLE))
            os.environ.update(spark_submit.environment(config.spark.master))
            os.environ[_START_OPTIONS] = shlex.join([*options, "pyspark-shell"])
            from pyspark.errors import PySparkException

            try:
                return start()
            except PySparkException as error:
                raise LakeError(
                    f"this needs Spark, which does not start: {str(error).split(chr(10), 1)[0]}",
                    where=str(lake.location),
                    fix="`dblog check` says what is missing",
                ) from error

        yield late_session(start_late, config.spark.conf) if starts_itself(name, config) else start()


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
