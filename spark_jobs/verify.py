"""The spark-submit entry point: compares what the source has said with the lake, some tables at the same time, in
one warm session.

spark-submit … spark_jobs/verify.py --config FILE --desk DIRECTORY

Tasks and answers lie in the staging (`dblog_core.verify.exchange`); each answer is announced on stdout. It only reads
the lake, and takes no lock.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dblog_core.errors import DblogError, LakeError, SegmentReplaced
from dblog_core.lake.lake_status import table_location
from dblog_core.storage.location import Location
from dblog_core.verify.exchange import TOGETHER, Answer, Ask, Desk, Task
from dblog_core.wiring import open_lake, open_staging
from spark_jobs import entry_point
from spark_jobs.verifying.compare_hashes import Judge

_POLL = 0.05  # seconds between two looks for a task
_TRIES = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 asked to end, 1 failed or interrupted."""
    parser = entry_point.build_parser("Compare what the source has said with the lake.")
    parser.add_argument("--desk", required=True, help="the directory of the tasks, below the staging")
    options = parser.parse_args(arguments)
    return entry_point.run(lambda: _run(options), "verify")


def _run(options: argparse.Namespace) -> int:
    config = entry_point.load_config(options)
    directory = options.desk
    stop = entry_point.stop_on_signals()
    starters = entry_point.Starters()
    staging = open_staging(config)
    lake = open_lake(config)
    desk = Desk(staging.storage, directory)
    with (
        entry_point.session(f"dblog verify {config.source.name}", stop, s3=config.s3) as spark,
        ThreadPoolExecutor(TOGETHER, thread_name_prefix="verdict") as pool,
    ):
        judge = Judge(spark, staging, desk)
        number = 1
        running: list[Future[None]] = []
        while not stop.is_set() and starters.are_alive():
            running = [answer for answer in running if not _is_over(answer)]
            if (task := desk.read_task(number)) is None:
                stop.wait(_POLL)
                continue
            if task.ask is Ask.END:
                return 0
            running.append(pool.submit(_put_answer, desk, judge, lake, number, task))
            number += 1
    return 1


def _is_over(answer: Future[None]) -> bool:
    """Raises what kept it from any answer: nobody shall wait for that."""
    return answer.done() and answer.result() is None


def _put_answer(desk: Desk, judge: Judge, lake: Location, number: int, task: Task) -> None:
    try:
        desk.put_answer(number, answer_task(judge, task, lake))
    except DblogError as error:
        desk.put_error(number, {"message": error.message, "where": error.where, "fix": error.fix})
    entry_point.print_json({"answered": number})


def answer_task(judge: Judge, task: Task, lake: Location) -> Answer:
    """The answer to a task. Raises LakeError, or what staging raises."""
    table = table_location(lake, task.shape.table)
    asks: dict[Ask, Callable[[Task, Location], Answer]] = {
        Ask.COMPARE: judge.compare,
        Ask.COLUMNS: judge.columns,
        Ask.SUMS: judge.sums,
        Ask.SAMPLE: judge.sample,
        Ask.HISTORY: lambda task, _: judge.history(task, lake),
    }
    for _ in range(_TRIES):
        try:
            return asks[task.ask](task, table)
        except SegmentReplaced:
            continue  # its rows were joined with others meanwhile: they are found in their new place
        except (PySparkException, Py4JError) as error:
            raise LakeError(
                f"Spark cannot read it: {str(error).strip().splitlines()[0][:500]}",
                where=str(table),
                fix="if VACUUM has removed the version meanwhile, verify again; otherwise restore or rebuild the table",
            ) from error
    return asks[task.ask](task, table)


if __name__ == "__main__":
    sys.exit(main())
