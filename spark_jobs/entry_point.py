"""What the entry points of Spark jobs share: options, the configuration, signals, the session, the lake's lock."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import psutil

from dblog_core.config import loader
from dblog_core.config.secret_settings import READER, given_to
from dblog_core.config.settings import Config
from dblog_core.errors import DblogError
from dblog_core.lake.spark_submit import (
    CONFIG_VARIABLE,
    PARENT_VARIABLE,
    STOP_FILE_VARIABLE,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
def session(name: str, stop: threading.Event) -> Iterator[SparkSession]:
    """The Spark session of this process, which spark-submit has set up, until the end of the block."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(name).getOrCreate()
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
