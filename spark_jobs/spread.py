"""The tasks of a share that is spread (`merging.spreading`), carried by Spark's executors with `mapInArrow`."""

from __future__ import annotations

import pickle
import re
from typing import TYPE_CHECKING

from dblog_core.errors import LakeError
from dblog_core.lake_engine.merging.spreading import tasks
from dblog_core.lake_engine.merging.spreading.tasks import Opener, SpreadWork

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONTENTS_AT_ONCE = 8
"""That Spark gives a task in one batch: each has some mebibytes."""
_TASKS_A_CORE = 8
_REASON = re.compile(r"^[A-Za-z_.]+(Error|Exception): ")  # the last line of a traceback


def run_tasks(spark: SparkSession, opener: Opener, cores: int | None, work: SpreadWork) -> list[tuple[str, bytes]]:
    """What the executors hand over: kinds and contents. `opener`: gives an executor the staging and the lake; its
    secrets go with the tasks, and into no file."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_CONTENTS_AT_ONCE))
    most = _TASKS_A_CORE * (cores or session.sparkContext.defaultParallelism)
    payload = session.sparkContext.broadcast(pickle.dumps(work))
    try:
        contents = session.range(0, len(work.units), 1, min(len(work.units), most)).mapInArrow(
            lambda units: tasks.split(opener, payload.value, units), tasks.HANDED_OVER
        )
        plans = contents.repartition(work.buckets, "bucket").mapInArrow(
            lambda batches: tasks.plan(opener, payload.value, batches), tasks.HANDED_OVER
        )
        rows = plans.select("kind", "content").toArrow()
    except (PySparkException, Py4JError) as error:
        reasons = [line for line in str(error).splitlines() if _REASON.match(line)] or [type(error).__name__]
        raise LakeError(
            f"an executor cannot work: {reasons[-1]}",
            fix="see that each has dblog, under the driver's Python or spark.pyspark.python; or set "
            '`[lake] engine = "local"`: the driver then carries every share',
        ) from error
    finally:
        payload.destroy()
    return list(zip(rows["kind"].to_pylist(), rows["content"].to_pylist(), strict=True))
