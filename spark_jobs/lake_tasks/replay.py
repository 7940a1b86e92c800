"""The replay: keys that changed in an interval get their last change again, so that damage in the lake is undone.

A change of the interval is never applied itself: what counts is the last one of its key up to what the lake has
merged. So older rows never return, and deleted ones stay deleted. Rows that are as they should be are not written.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dblog_core.errors import DblogError, LakeError, LeaseLost, SegmentReplaced
from dblog_core.lake.lake_status import State, TableStatus
from dblog_core.lake.replay_interval import IntervalEnd, Unit
from dblog_core.lake.replay_reach import read_reach
from dblog_core.lake.task_plans import ReplayPlan
from dblog_core.lake.task_requests import ReplayRequest
from dblog_core.lake.task_results import ReplayCounts, ReplayedTable, ReplayResult
from dblog_core.model.events import DELETE
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark
from spark_jobs.delta_tables.column_types import OFFSET, quote
from spark_jobs.delta_tables.session import compute_once
from spark_jobs.events.fold import PUT, WITHHOLD
from spark_jobs.lake_tasks import answered_table, refold
from spark_jobs.lake_tasks.context import Done, Tools
from spark_jobs.lake_tasks.refold import TableEvents
from spark_jobs.merging import deleted_rows
from spark_jobs.merging.lake_table import LakeTable
from spark_jobs.merging.with_spark.batch import measure_rows


def plan(tools: Tools, request: ReplayRequest) -> ReplayPlan:
    """The tables, and the segment to read after. Raises LakeError where staging does not reach back so far."""
    statuses = tools.status.tables
    names = request.tables or tuple(
        n for n, t in statuses.items() if t.version is not None and t.state is not State.STOPPED
    )
    for name in names:
        refold.table_of(tools, name)
    if not names:
        raise LakeError("the lake has no table yet", where=str(tools.lake.location), fix="run `dblog merge`")
    return ReplayPlan(request.start, request.end, names, _after(tools.staging, request.start))


def carry_out(tools: Tools, plan: ReplayPlan) -> Done:
    """Replays table after table. One that fails leaves the others as they are, and the task says so."""
    results: list[ReplayedTable] = []
    tables: dict[str, TableStatus] = {}
    for name in plan.tables:
        tools.check()
        try:
            counts, tables[name] = _replay(tools, name, plan)
            results.append(ReplayedTable(name, counts))
        except (LeaseLost, SegmentReplaced):
            raise
        except DblogError as error:
            results.append(ReplayedTable(name, None, str(error)))
        except PySparkException as error:
            results.append(ReplayedTable(name, None, str(error).split("JVM stacktrace")[0].strip()))
        tools.step(f"replayed {name}")
    return Done(ReplayResult(plan.start, plan.end, tuple(results)), tables)


def _replay(tools: Tools, name: str, plan: ReplayPlan) -> tuple[ReplayCounts, TableStatus]:
    status = refold.table_of(tools, name)
    spark = tools.session(name)
    _truncate(tools, name, status, plan)
    counts = ReplayCounts()
    with refold.read_table(tools, name, after=plan.after) as events:
        if events is None:
            return counts, status
        lake = tools.lake.table(spark, events.schema)
        if lake.newest_merge() == tools.number:  # before a crash
            return counts, _status(tools, name, status, lake)
        status = answered_table.answer_others(tools, name, status, lake)
        rows = compute_once(_rows(events, plan, lake))
        lost = rows.where(F.col("op") == WITHHOLD)
        counts = ReplayCounts(withheld=refold.withhold(tools.withheld, name, lost))
        batch = measure_rows(rows, events.schema)
        tools.step(f"read {name}")
        if batch.count:
            if batch.deletes and tools.lake.open_tables is not None:
                deleted_rows.count_marks_as_deletes(lake, tools.number, tools.lake.open_tables)
            written = lake.merge(batch, tools.number, broadcast=False, mending=True)
            changes = {kind: int(written[kind]) for kind in ("inserted", "updated", "deleted")}
            counts = replace(counts, keys=batch.count, **changes)
    return counts, _status(tools, name, status, lake)


def _truncate(tools: Tools, name: str, status: TableStatus, plan: ReplayPlan) -> None:
    """A TRUNCATE of the interval has changed every row that there was."""
    work = refold.work_of(tools.staging, name, status, after=plan.after)
    inside = [m.offset for m in (work.truncates if work else ()) if _holds(plan, m)]
    if work and inside:
        table = tools.lake.table(tools.session(name), tools.staging.schema(work.schema))
        deleted_rows.remove_older(table, max(inside), tools.lake.open_tables)


def _holds(plan: ReplayPlan, mark: LogMark) -> bool:
    low, high = (
        end.value - (mark.offset if end.unit is Unit.OFFSET else mark.commit_time) for end in (plan.start, plan.end)
    )
    return low <= 0 <= high


def _status(tools: Tools, name: str, status: TableStatus, lake: LakeTable) -> TableStatus:
    return answered_table.at_newest_version(status, lake).with_applied_rows(tools.withheld.count(name))


def _rows(events: TableEvents, plan: ReplayPlan, lake: LakeTable) -> DataFrame:
    """The last change of each key of the interval, as it should be in the lake; no change counts as a birth, so that
    what equals the lake's row is left alone."""
    keys = compute_once(events.events.where(_inside(plan)).select("key").distinct())
    rows = refold.fold_events(keys.sparkSession, events, keys)
    if any(f.has_unchanged for f in events.work.files):
        rows = _complete_rows(rows, events, lake)
    if events.lower:
        ended = keys.join(rows, "key", "left_anti").select(
            "key", F.lit(DELETE).alias("op"), F.lit(events.lower).cast("long").alias("offset")
        )
        rows = rows.unionByName(ended, allowMissingColumns=True)
    return rows.withColumn("inserted", F.lit(False))


def _complete_rows(rows: DataFrame, events: TableEvents, lake: LakeTable) -> DataFrame:
    """Values that the log left out are the lake's, if its row is of the same life. Otherwise nobody has them."""
    key = F.struct(*(F.col(quote(name)).alias(name) for name in events.schema.key))
    have = lake.rows().select(key.alias("key"), F.col(OFFSET).alias("_lake"))
    joined = rows.join(refold.births(events), "key", "left").join(have, "key", "left")
    same_life = F.col("_lake").isNotNull() & (F.col("_lake") >= F.coalesce(F.col("born"), F.lit(0)))
    partial = (F.col("op") != DELETE) & F.col("unchanged_toast").isNotNull()
    op = F.when(partial & same_life, F.lit(PUT)).when(partial, F.lit(WITHHOLD)).otherwise(F.col("op"))
    return joined.withColumn("op", op).drop("born", "_lake")


def _inside(plan: ReplayPlan) -> Column:
    """Events of the interval, both ends included: by offset, or by commit time."""
    condition = F.lit(True)
    for end, beyond in ((plan.start, Column.__ge__), (plan.end, Column.__le__)):
        column = F.col("offset") if end.unit is Unit.OFFSET else F.unix_micros("commit_time")
        condition &= beyond(column, F.lit(end.value).cast("long"))
    return condition


# From where on ------------------------------------------------------------------------------------------------------


def _after(staging: Staging, start: IntervalEnd) -> int:
    """The segment after which all of the interval lies. Raises LakeError where retention has removed some of it."""
    head = staging.head()
    if head is None:
        raise LakeError("nothing is staged", where=staging.storage.url(""), fix="run `dblog capture`")
    reach = read_reach(staging)
    if reach is not None:
        reach.check(start, staging.storage.url(""))
    if start.unit is Unit.OFFSET:
        return staging.segment_of(max(start.value, 1), head) - 1
    first = 1 if reach is None else reach.segment
    return max(first - 1, _segment_before(staging, start.value, first, head.segment))


def _segment_before(staging: Staging, time: int, low: int, high: int) -> int:
    """A segment before the first that ends at `time` or later, and one more: a clock may have been set back."""
    low -= 1
    while high - low > 1:
        middle = (low + high) // 2
        ends = staging.manifest(middle).cut(upto=middle).commit_time
        low, high = (middle, high) if ends is not None and ends < time else (low, middle)
    return low - 1
