"""The spark-submit entry point: dump workers on the executors of a cluster.

spark-submit … spark_jobs/dump.py --config FILE [--dump ID]

A Spark task is one worker, the same as in `dblog work`: it takes ranges from the state store until no dump is
unfinished. So nothing that Spark knows counts: what an executor had when it was lost goes to other workers once its
leases end, and what a lost driver leaves behind to the next run. No row goes through the driver.
"""

from __future__ import annotations

import argparse
import re
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dblog_core.clock import SystemClock
from dblog_core.config.secret_settings import SOURCE, given_to
from dblog_core.dumps.status import DumpStatus, line
from dblog_core.dumps.task_queue import TaskQueue
from dblog_core.errors import LakeError
from dblog_core.interfaces import StateStore
from dblog_core.lake.spark_submit import CONFIG_VARIABLE, config_json
from dblog_core.wiring import open_state
from spark_jobs import entry_point

LOOK_SECONDS = 1.0  # seconds between two looks at the dumps
MOST_WORKERS = 64  # workers, as of one process
_REASON = re.compile(r"^[A-Za-z_.]+(Error|Exception): ")  # the last line of a traceback


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 every dump it worked on is done, 1 failed, cancelled or interrupted."""
    parser = argparse.ArgumentParser(description="Work on dumps on the executors of a cluster.")
    parser.add_argument("--config", type=Path, help=f"the TOML file; default: the JSON in {CONFIG_VARIABLE}")
    parser.add_argument("--dump", metavar="ID", help="the dump to work on; default: every unfinished one")
    options = parser.parse_args(arguments)
    return entry_point.run(lambda: _run(options), "dump")


def _run(options: argparse.Namespace) -> int:
    config = entry_point.load_config(options, SOURCE)
    stop = entry_point.stop_on_signals()
    with closing(open_state(config)) as state, entry_point.session(f"dblog dump {config.source.name}", stop) as spark:
        crew = SparkCrew(spark, state, options.dump, stop)
        errors = crew.run(config_json(given_to(config, SOURCE)))
        ended = crew.read_worked_on()
    for text in errors:
        entry_point.say(f"dump: {text}")
    return 1 if errors or stop.is_set() or any(status.state != "done" for status in ended) else 0


class SparkCrew:
    """As many Spark tasks as the dumps' options want workers; tells their progress."""

    def __init__(self, spark: SparkSession, state: StateStore, dump_id: str | None, stop: threading.Event) -> None:
        self._context = spark.sparkContext
        self._stop = stop
        self._dump = dump_id
        self._queue = TaskQueue(state, dump_id)
        self._starters = entry_point.Starters()
        self._said: dict[str, str] = {}
        self._seen: set[str] = set() if dump_id is None else {dump_id}

    def run(self, config: str) -> list[str]:
        """What workers could not do. `config`: with the secrets that a worker needs, as JSON; Spark sends it with the
        tasks, and shows it nowhere."""
        unfinished = self._look()
        workers = min(sum(dump.options.workers for dump in unfinished), MOST_WORKERS)
        if not workers:
            return []
        job = self._context.parallelize(range(workers), workers).map(_worker(config, self._dump))
        with ThreadPoolExecutor(1, thread_name_prefix="spark") as beside:
            running = beside.submit(job.collect)
            self._watch(running)
            return [] if self._stop.is_set() else _collect_errors(running)

    def read_worked_on(self) -> list[DumpStatus]:
        """The dumps that were worked on, as they are now."""
        return [self._queue.read_dump(dump_id) for dump_id in sorted(self._seen)]

    def _watch(self, running: Future[list[list[str]]]) -> None:
        clock = SystemClock()
        while not running.done():
            self._look()
            if clock.wait(self._stop, LOOK_SECONDS) or not self._starters.are_alive():
                self._stop.set()
                self._context.cancelAllJobs()
                break
        self._tell(self.read_worked_on())

    def _look(self) -> list[DumpStatus]:
        unfinished = self._queue.list_unfinished()
        self._seen |= {dump.id for dump in unfinished}
        self._tell(unfinished)
        return unfinished

    def _tell(self, dumps: list[DumpStatus]) -> None:
        for dump in dumps:
            text = line(dump)
            if self._said.get(dump.id) != text:
                self._said[dump.id] = text
                entry_point.say(text)


def _collect_errors(running: Future[list[list[str]]]) -> list[str]:
    """What the workers have reported. Raises LakeError where executors could not run them."""
    try:
        return sorted({text for texts in running.result() for text in texts})
    except (Py4JError, PySparkException) as error:
        reasons = [line for line in str(error).splitlines() if _REASON.match(line)] or [type(error).__name__]
        raise LakeError(
            f"an executor cannot work: {reasons[-1]}",
            fix="see that each has dblog, under the driver's Python or spark.pyspark.python; `dblog work` continues",
        ) from error


def _worker(config: str, dump_id: str | None) -> Callable[[int], list[str]]:
    """What a task does: one worker, until no dump is unfinished. An executor needs dblog, and nothing of this job."""

    def work(_: int) -> list[str]:
        import threading

        from dblog_core.config.settings import Config
        from dblog_core.dumps import work_loop
        from dblog_core.errors import DblogError

        try:
            work_loop.work(Config.model_validate_json(config), stop=threading.Event(), dump_id=dump_id, workers=1)
        except DblogError as error:
            return [str(error)]
        return []

    return work


if __name__ == "__main__":
    sys.exit(main())
