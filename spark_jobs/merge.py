"""The spark-submit entry point of the merge: the lake engine, with executors for large shares.

spark-submit … spark_jobs/merge.py --config FILE [--once | --continuous [--slice SECONDS] | --tasks] [--wait SECONDS]
  [--json]
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dblog_core.config.secret_settings import STORAGE, given_to
from dblog_core.config.settings import Config
from dblog_core.lake.carrier_choice import Means
from dblog_core.lake.merge_options import MergeOptions, Mode
from dblog_core.lake.spark_submit import config_json
from dblog_core.lake_engine import merge_job
from dblog_core.lake_engine.lake_job import Caller
from dblog_core.lake_engine.merging.lake import Lake
from dblog_core.lake_engine.merging.spreading.tasks import open_configured
from dblog_core.lake_engine.merging.spreading.write_spread import Spread
from spark_jobs import entry_point
from spark_jobs.entry_point import Starters, say
from spark_jobs.spread import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 failed, interrupted, or a table is stopped."""
    options = _parse_options(arguments)
    if options.slice is not None and not options.continuous:
        say("merge: --slice is for --continuous")
        return 1
    return entry_point.run(lambda: _run(options), "merge")


def _parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = entry_point.build_parser("Apply staged segments to the lake.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="apply all that is sealed now, and end (the default)")
    mode.add_argument("--continuous", action="store_true", help="continue until stopped")
    mode.add_argument("--tasks", action="store_true", help="carry out the lake tasks that wait, and end")
    parser.add_argument(
        "--slice",
        type=float,
        metavar="SECONDS",
        help="with --continuous: end after so long, once the next merge has started its Spark",
    )
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace) -> int:
    config = entry_point.load_config(options)
    stop = entry_point.stop_on_signals()
    mode: Mode = "continuous" if options.continuous else "tasks" if options.tasks else "once"
    caller = Caller(stop, say, Starters().are_alive, partial(_start_spark, config, stop), ready="Spark has started")
    on_result = entry_point.print_json if options.json else None
    return merge_job.run(config, MergeOptions(mode, options.wait, options.slice), caller, on_result)


def _start_spark(config: Config, stop: threading.Event, lake: Lake, stack: ExitStack) -> Lake:
    """The lake with what Spark gives it: executors for large shares, and properties of new tables. Spark ends with
    `stack`."""
    spark = stack.enter_context(entry_point.session(f"dblog merge {config.source.name}", stop))
    settings = dict(spark.sparkContext.getConf().getAll())
    return replace(lake, spread=_spread(config, spark, settings), spark_settings=settings)


def _spread(config: Config, spark: SparkSession, settings: Mapping[str, str]) -> Spread | None:
    """With what large shares are spread; None where Spark has no executors of its own."""
    means = Means.of_spark(str(spark.sparkContext.master), settings)
    if means.executor_cores == 0:
        return None
    opener = partial(open_configured, config_json(given_to(config, STORAGE)))
    return Spread(partial(run_tasks, spark, opener, means.executor_cores), means)


if __name__ == "__main__":
    sys.exit(main())
