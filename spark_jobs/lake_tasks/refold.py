"""What staging now says about a table that was merged long ago: its events folded again, up to what the lake has; where
that is wanted after what the history says about the time before (`past`).

A row lives if its key has an event after everything that ends rows at once (a TRUNCATE, a full dump, whose living keys
all have an event after its `since`, a reset) and no such event says that it is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dblog_core.errors import LakeError
from dblog_core.lake import merge_plan
from dblog_core.lake.lake_status import State, TableStatus
from dblog_core.lake.merge_plan import Work
from dblog_core.lake.task_plans import Past
from dblog_core.model.events import CREATE, DELETE
from dblog_core.model.schema import TableSchema
from dblog_core.model.table_names import quote_for_shell
from dblog_core.staging import Staging
from dblog_core.staging.spilled_rows import remove_spilled
from spark_jobs.delta_tables.column_types import quote
from spark_jobs.events import fold, moved_unchanged_toast, staged_events
from spark_jobs.history import rebuild_start
from spark_jobs.lake_tasks.context import Tools
from spark_jobs.merging import deleted_rows
from spark_jobs.merging.withheld_keys import Withheld


@dataclass(frozen=True, slots=True)
class TableEvents:
    """Events of one table, `lower` being the last offset that ends rows; `schema`: the shape of its lake table."""

    work: Work
    schema: TableSchema
    events: DataFrame
    lower: int
    partial: bool
    """Whether an event may leave values out."""

    @property
    def living(self) -> DataFrame:
        return self.events.where(F.col("offset") > self.lower) if self.lower else self.events


@contextmanager
def read_table(
    tools: Tools, table: str, *, after: int, before: Past | None = None, shape: TableSchema | None = None
) -> Iterator[TableEvents | None]:
    """The table's events after segment `after`, for the time of the block; None where there are none.

    `before`: what the history tells comes before them, as one event a key; staged ones of its time do not count.
    `shape`: what they are read in, if not in that of the lake's last merge.
    """
    status = table_of(tools, table)
    work = work_of(tools.staging, table, status, after=after)
    if before is not None:
        work = _later(work or Work(table, status.schema or ""), before.upto)
    elif work is None or not (work.files or work.chunks):
        yield None
        return
    schema = shape or tools.lake.shape_in_lake(tools.session(table), tools.staging.schema(work.schema))
    work = tools.lake.work_to_merge(work, schema)
    lower = max(lower_of(work, status), before.lower if before else 0)
    work = _followable(tools, work, schema, lower)
    staged_events.check_files(tools.session(table), tools.staging, work)
    try:
        events = _events(tools, work, schema, before)
        yield TableEvents(work, schema, events, lower, before is not None or any(f.has_unchanged for f in work.files))
    finally:
        remove_spilled(tools.staging, work.files)


def _later(work: Work, offset: int) -> Work:
    """What the work has after `offset`."""
    return replace(
        work,
        files=tuple(f for f in work.files if f.last_offset > offset),
        chunks=tuple(c for c in work.chunks if c.first_offset + c.rows - 1 > offset),
        truncates=tuple(m for m in work.truncates if m.offset > offset),
        finished=tuple(m for m in work.finished if m.offset > offset),
    )


def _events(tools: Tools, work: Work, schema: TableSchema, before: Past | None) -> DataFrame:
    spark = tools.session(str(schema.table))
    frames = []
    if before is not None:
        history = tools.lake.open_history(spark, schema)
        frames.append(rebuild_start.last_lines(history.lines(work.renames), schema, before))
    if work.files or work.chunks:
        staged = replace(work, truncates=(), floor=before.upto if before else None)
        frames.append(staged_events.read_events(spark, tools.staging, staged, schema))
    return reduce(DataFrame.unionByName, frames)


def table_of(tools: Tools, table: str) -> TableStatus:
    """The table as the lake has it. Raises LakeError where it has none that may be worked on."""
    status = tools.status.tables.get(table)
    if status is None or status.version is None or status.schema is None:
        raise LakeError("the lake has no such table", where=table, fix="`dblog status` names those that it has")
    if status.state is State.STOPPED:
        raise LakeError(
            f"the table is stopped: {status.error}",
            where=table,
            fix=f"repair that first, or run `dblog reset {quote_for_shell(table)}`",
        )
    return status


def work_of(staging: Staging, table: str, status: TableStatus, *, after: int) -> Work | None:
    """All that segments from `after` on have of the table, up to what the lake has of it, in the lake's shape."""
    manifests = staging.manifests(after=after, upto=status.segment)
    work = merge_plan.plan_works(manifests, lambda name: after if name == table else status.segment).get(table)
    return work and replace(work, schema=status.schema or work.schema)


def lower_of(work: Work, status: TableStatus) -> int:
    """The last offset that ends rows, whichever way; 0: none does."""
    full = [m.since for m in work.finished if m.since is not None and m.key_from is None and m.key_to is None]
    return max([work.last_truncate or 0, status.reset_at or 0, *full])


def _followable(tools: Tools, work: Work, schema: TableSchema, lower: int) -> Work:
    """Without the files whose shape led to another table, all of which lie before what ended its rows.

    Raises LakeError where rows that count have such a shape.
    """

    renames = work.renames

    def counts(fingerprint: str, last: int) -> bool:
        try:
            tools.lake.check_follows(renames.after(last).rename_columns(tools.staging.schema(fingerprint)), schema)
        except LakeError:
            if last > lower:
                raise
            return False
        return True

    return replace(
        work,
        files=tuple(f for f in work.files if counts(f.schema, f.last_offset)),
        chunks=tuple(c for c in work.chunks if counts(c.schema, c.first_offset + c.rows - 1)),
    )


def fold_events(spark: SparkSession, of: TableEvents, keys: DataFrame | None = None) -> DataFrame:
    """One row a key (`fold`), of these keys alone where given; a DELETE where a dump of a range has shown a ghost."""
    events = of.living
    if of.partial:
        if any(f.has_moves for f in of.work.files):
            events = moved_unchanged_toast.resolve(
                spark, events, None, of.schema
            )  # the lake's old row is of a later time
        rows = fold.column_by_column(_only(events, keys), of.schema)
    else:
        rows = fold.last_rows(_only(events, keys))
    return _without_ghosts(rows, of)


def _only(events: DataFrame, keys: DataFrame | None) -> DataFrame:
    return events if keys is None else events.join(keys, "key", "left_semi")


def _without_ghosts(rows: DataFrame, of: TableEvents) -> DataFrame:
    for mark in of.work.finished:
        if mark.since is None or (mark.key_from is None and mark.key_to is None):
            continue
        parts = rows.where((F.col("op") != DELETE) & (F.col("offset") <= mark.since)).select("key.*")
        ghosts = deleted_rows.within(parts, mark, of.schema)
        key = F.struct(*(F.col(quote(name)).alias(name) for name in of.schema.key))
        marked = ghosts.select(key.alias("key"), F.lit(True).alias("_gone"))
        ghost = F.coalesce(F.col("_gone"), F.lit(False))
        op = F.when(ghost, F.lit(DELETE)).otherwise(F.col("op"))
        unchanged_toast = F.when(~ghost, F.col("unchanged_toast"))
        rows = (
            rows.join(marked, "key", "left")
            .withColumn("op", op)
            .withColumn("unchanged_toast", unchanged_toast)
            .drop("_gone")
        )
    return rows


def births(of: TableEvents) -> DataFrame:
    """Where each key's present life begins, as far as these events tell: `key` and `born`."""
    return of.living.where(F.col("op") == CREATE).groupBy("key").agg(F.max("offset").alias("born"))


def withhold(withheld: Withheld, table: str, lost: DataFrame) -> int:
    """Records the keys of rows with a value that nobody has, so that a dump is requested for them; how many."""
    keys = [moved_unchanged_toast.as_key(row.key) for row in lost.select("key").collect()]
    withheld.add(table, keys)
    return len(keys)
