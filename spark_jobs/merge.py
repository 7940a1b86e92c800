"""The spark-submit entry point: applies staged segments to the lake, once or for as long as it runs.

spark-submit … spark_jobs/merge.py --config FILE [--once | --continuous] [--wait SECONDS] [--json]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import orjson
import psutil

from dblog_core import config as configuration
from dblog_core.config import Config
from dblog_core.errors import DblogError, LakeError
from dblog_core.lake import own_directory
from dblog_core.spark import CONFIG_VARIABLE, PARENT_VARIABLE
from dblog_core.wiring import open_staging, open_state
from spark_jobs.apply import Lake
from spark_jobs.lock import lake_lock
from spark_jobs.record import Records
from spark_jobs.rounds import Merged, Merger
from spark_jobs.session import open_session
from spark_jobs.withheld import ControlDumps, Withheld

_POLL = 0.1  # seconds between two looks for a new segment
_RETRY = 30.0  # seconds between two tries of a stopped table
_COMPACT_RETRY = 600.0  # seconds without compaction after one that failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 failed, interrupted, or a table is stopped."""
    os.umask(0o077)
    options = _options(arguments)
    try:
        return _run(_config(options), options)
    except DblogError as error:
        _say(f"merge: {error}")
        return 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Apply staged segments to the lake.")
    parser.add_argument("--config", type=Path, help=f"the TOML file; default: the JSON in {CONFIG_VARIABLE}")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="apply all that is sealed now, and end (the default)")
    mode.add_argument("--continuous", action="store_true", help="go on until stopped")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds to wait for another merge of this lake")
    parser.add_argument("--json", action="store_true", help="one JSON object per merge on stdout")
    return parser.parse_args(arguments)


def _config(options: argparse.Namespace) -> Config:
    if options.config is not None:
        return configuration.load(options.config)
    return Config.model_validate_json(os.environ[CONFIG_VARIABLE])


def _run(config: Config, options: argparse.Namespace) -> int:
    staging, lake = open_staging(config), Lake(Path(config.lake.path).absolute(), f"dblog:{config.source.name}")
    records = Records(own_directory(lake.path))
    records.prepare()
    stop = threading.Event()
    _stop_on_signals(stop)
    with (
        closing(open_state(config)) as state,
        lake_lock(records.directory, state, ttl=config.state.ttl, wait=options.wait) as check,
    ):
        spark = open_session(name=f"dblog merge {config.source.name}")
        _stop_on_signals(stop)  # again: Spark has set its own handlers
        try:
            withheld = Withheld(records)
            merger = Merger(
                spark, staging, lake, records, withheld, check=check, compact_after=config.lake.compact_after
            )
            job = Job(merger, withheld, ControlDumps(config), stop, json=options.json)
            return job.continuous() if options.continuous else job.once()
        finally:
            spark.stop()


def _stop_on_signals(stop: threading.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())


class Job:
    """Rounds until all is merged, or until told to stop."""

    def __init__(
        self, merger: Merger, withheld: Withheld, dumps: ControlDumps, stop: threading.Event, *, json: bool
    ) -> None:
        self._merger, self._withheld, self._dumps, self._stop, self._json = merger, withheld, dumps, stop, json
        self._compact_again = float("-inf")
        self._parents = {os.getppid(), int(os.environ.get(PARENT_VARIABLE, os.getppid()))}

    def once(self) -> int:
        """Applies all that is sealed now."""
        self._merger.load()
        self._catch_up(retry_stopped=True)
        while not self._stop.is_set() and self._compact():
            pass
        return 1 if self._stop.is_set() or self._tell_stopped() else 0

    def continuous(self) -> int:
        """Goes on until stopped, or until the process that started us is gone."""
        self._merger.load()
        retried = float("-inf")
        while not self._stop.is_set() and all(psutil.pid_exists(parent) for parent in self._parents):
            retry = bool(self._merger.stopped()) and time.monotonic() - retried >= _RETRY
            retried = time.monotonic() if retry else retried
            self._catch_up(retry_stopped=retry)
            self._stop.wait(_POLL)
        return 1 if self._tell_stopped() else 0

    def _catch_up(self, *, retry_stopped: bool) -> None:
        ended = self._withheld.ended(self._dumps)
        while not self._stop.is_set() and (merged := self._merger.round(retry_stopped=retry_stopped)) is not None:
            retry_stopped = False
            self._tell(merged)
            self._compact()
        if not self._stop.is_set():
            self._withheld.ask(self._dumps, ended=ended)

    def _compact(self) -> bool:
        """Joins the small files of one table that is due; False where none is, or its turn comes again later."""
        if time.monotonic() < self._compact_again:
            return False
        try:
            table = self._merger.compact()
        except LakeError as error:  # nothing is lost by it, and nothing waits for it
            _say(f"merge: {error}")
            self._compact_again = time.monotonic() + _COMPACT_RETRY
            return False
        if table is not None:
            _say(f"{table}: small files joined")
        return table is not None

    def _tell(self, merged: Merged) -> None:
        rows, tables = sum(t.rows for t in merged.tables), len(merged.tables)
        _say(
            f"merge {merged.number}: {rows} rows of {tables} tables up to offset {merged.offset} in {merged.seconds} s"
        )
        for table in merged.tables:
            if table.error is not None:
                _say(f"{table.table} is stopped: {table.error}")
        if self._json:
            sys.stdout.write(orjson.dumps(asdict(merged)).decode() + "\n")
            sys.stdout.flush()

    def _tell_stopped(self) -> bool:
        stopped = self._merger.stopped()
        if stopped:
            _say(f"stopped tables: {', '.join(sorted(stopped))}; `dblog status` tells why")
        return bool(stopped)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
