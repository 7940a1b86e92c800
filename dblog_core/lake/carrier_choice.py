"""Who carries a table's share of a merge: the driver, or Spark's executors.

One function of sizes and cores says it, and why, to the merge, to the status and to a dry run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dblog_core.config.settings import Config
from dblog_core.lake import merge_plan

WORTH_ROWS = 4_000_000
"""Rows from which on executors save more time than a Spark job and its shuffle take."""
ONE_MACHINE_ROWS = 50_000_000
"""Rows up to which one machine folds a share in minutes, with some gigabytes of its disk."""
SPREAD_SPAN_ROWS = 20_000_000
SPREAD_SPAN_BYTES = 8 << 30
"""Of a merge whose shares may be spread: what has gathered is one job and not many."""
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,")


@dataclass(frozen=True, slots=True)
class Means:
    """What a merge may use. `executor_cores`: those of executors in other processes (0: there are none; None: as many
    as the cluster gives)."""

    driver_cores: int
    executor_cores: int | None

    @classmethod
    def of(cls, config: Config) -> Means:
        """Those of the merges that the configuration starts."""
        if config.lake.engine == "local":
            return cls(_cores(), 0)
        return cls.of_spark(config.spark.master, config.spark.conf)

    @classmethod
    def of_spark(cls, master: str, conf: Mapping[str, str]) -> Means:
        """Those of a Spark with these settings, so that a dry run without Spark knows them too."""
        return cls(_cores(), executor_cores(master, conf))

    @property
    def span_rows(self) -> int:
        """Rows of one merge."""
        return merge_plan.MAX_ROWS if self.executor_cores == 0 else SPREAD_SPAN_ROWS

    @property
    def span_bytes(self) -> int:
        """Staged bytes of one merge."""
        return merge_plan.MAX_BYTES if self.executor_cores == 0 else SPREAD_SPAN_BYTES


NO_EXECUTORS = Means(1, 0)


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether executors carry a share, and why."""

    is_spread: bool
    reason: str


def _cores() -> int:
    return os.cpu_count() or 1


def executor_cores(master: str, conf: Mapping[str, str]) -> int | None:
    """The cores of executors in other processes than the driver; None where the settings do not say."""
    if (cluster := _LOCAL_CLUSTER.match(master)) is not None:
        return int(cluster[1]) * int(cluster[2])
    if master.startswith("local"):
        return 0
    if "spark.cores.max" in conf:
        return int(conf["spark.cores.max"])
    executors = conf.get("spark.executor.instances") or conf.get("spark.dynamicAllocation.maxExecutors")
    if executors is None or not executors.isdigit():
        return None
    return int(executors) * int(conf.get("spark.executor.cores", "1"))


def choose_carrier(rows: int, means: Means) -> Choice:
    """Who carries a share of so many staged rows."""
    if means.executor_cores == 0:
        return Choice(False, "the driver: Spark has no executors of its own")
    if rows >= ONE_MACHINE_ROWS:
        return Choice(True, f"executors: {rows:,} rows are more than the {ONE_MACHINE_ROWS:,} of one machine")
    if rows < WORTH_ROWS:
        return Choice(False, f"the driver: {rows:,} rows are fewer than the {WORTH_ROWS:,} that are worth a Spark job")
    if means.executor_cores is not None and means.executor_cores <= means.driver_cores:
        return Choice(
            False, f"the driver: it has {means.driver_cores} cores, and the executors have {means.executor_cores}"
        )
    cores = "all cores of the cluster" if means.executor_cores is None else f"{means.executor_cores} cores"
    return Choice(True, f"executors: {rows:,} rows, by {cores} against {means.driver_cores} of the driver")
