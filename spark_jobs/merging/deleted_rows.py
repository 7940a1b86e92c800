"""Rows that go without an event of their own: those before a TRUNCATE, and ghosts.

Ghosts are lake rows whose key a finished dump of the table has not seen, and that nothing has touched since: no line of
the log, and no row of another dump, also where that one says what the lake has already.

A dump of a key range says nothing about other keys. It says so only where the lake orders the key as the database does.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dblog_core.delta_writer.changes import Upserted
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.remove_older import remove_older as remove_rows_below
from dblog_core.delta_writer.upsert import count_as_deleted
from dblog_core.errors import LakeError
from dblog_core.lake.merge_plan import Work, chunks_seen
from dblog_core.lake.task_plans import Past
from dblog_core.model.events import DELETE
from dblog_core.model.schema import Column as SourceColumn
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_from_json, to_json
from dblog_core.schema_evolution.renames import Renames
from dblog_core.staging import Staging
from dblog_core.staging.manifest import ChunkRef, LogMark, Manifest
from spark_jobs.delta_tables.column_types import OFFSET, quote, spark_type
from spark_jobs.delta_tables.session import compute_once
from spark_jobs.events import staged_events
from spark_jobs.events.staged_events import chunk_rows
from spark_jobs.history import rebuild_start
from spark_jobs.history.history_table import History
from spark_jobs.merging.lake_table import LakeTable
from spark_jobs.merging.mark_and_append import OpenTables
from spark_jobs.merging.with_spark import mark_by_scan


def remove_ghosts(
    spark: SparkSession,
    staging: Staging,
    lake: LakeTable,
    schema: TableSchema,
    mark: LogMark,
    *,
    last: int,
    history: History | None = None,
    tables: OpenTables | None = None,
) -> int:
    """Removes the ghosts that the dump of `mark` shows, which the history tells first; how many. Again, it removes
    nothing more."""
    if mark.since is None or mark.since_segment is None:
        raise LakeError(
            f"the end of dump {mark.dump} has no `since` offset: an older capture wrote it",
            where=mark.table,
            fix="upgrade the capture, and dump the table again",
        )
    manifests = staging.manifests(after=mark.since_segment - 1, upto=last)
    lake_rows = lake.rows().where(F.col(OFFSET) <= mark.since)
    keys = within(lake_rows, mark, schema).select(*(F.col(quote(name)) for name in schema.key))
    seen = _seen_keys(spark, staging, manifests, mark, schema)
    if seen is not None:
        keys = keys.join(seen, list(schema.key), "left_anti")
    ghosts = compute_once(keys)  # counted and then merged: one scan of the lake's keys
    count = ghosts.count()
    if count:
        if history is not None:
            # Rows of another program that have NULL in the key were never in the history.
            has_key = reduce(Column.__and__, [F.col(quote(name)).isNotNull() for name in schema.key])
            history.append_ghosts([ghosts.where(has_key).toArrow()], mark)
        _remove_keys(spark, lake, ghosts, schema, mark.since, mark.offset, tables)
    return count


def _remove_keys(
    spark: SparkSession,
    lake: LakeTable,
    keys: DataFrame,
    schema: TableSchema,
    upto: int,
    number: int,
    tables: OpenTables | None,
) -> None:
    """Rows of these keys go, up to offset `upto`; `number`: of the mark by which they do."""
    is_older = F.col(OFFSET) <= upto
    # Another program's row may have NULL in the key, which is equal to nothing.
    same = reduce(Column.__and__, [F.col(f"t.{quote(n)}").eqNullSafe(F.col(f"s.{quote(n)}")) for n in schema.key])

    def commit(table: OpenTable, app: str) -> Upserted | None:
        def choose(rows: DataFrame) -> DataFrame:
            return rows.where(is_older).alias("t").join(keys.alias("s"), same, "left_semi")

        return mark_by_scan.remove(spark, table, choose, f"{app}:gone", number)

    def merge(table: DeltaTable) -> None:
        # A key that the lake has twice is a ghost once: MERGE refuses two rows of its source for one of the table.
        table.alias("t").merge(keys.distinct().alias("s"), same).whenMatchedDelete(
            F.col(f"t.{OFFSET}") <= upto
        ).execute()

    _remove(lake, number, tables, commit, merge)


def remove_older(lake: LakeTable, offset: int, tables: OpenTables | None) -> None:
    """TRUNCATE at `offset`: what came before goes."""

    def commit(table: OpenTable, app: str) -> Upserted | None:
        return remove_rows_below(table, offset, f"{app}:truncated", offset)

    _remove(lake, offset, tables, commit, lambda table: table.delete(F.col(OFFSET) < offset))


def _remove(
    lake: LakeTable,
    number: int,
    tables: OpenTables | None,
    commit: Callable[[OpenTable, str], Upserted | None],
    statement: Callable[[DeltaTable], None],
) -> None:
    """Rows go by `commit`, or by the statement, as `number`."""

    def run(table: DeltaTable) -> None:
        if tables is not None:
            count_marks_as_deletes(lake, number, tables)
        statement(table)

    lake.remove(tables, commit, run)


def count_marks_as_deletes(lake: LakeTable, number: int, tables: OpenTables) -> None:
    """Before Spark deletes rows as `number`: their old versions leave the files together with them."""

    def commit(table: OpenTable, app: str) -> Upserted | None:
        return count_as_deleted(table, f"{app}:marks", number)

    # Nobody counts the marks of a table that takes statements alone.
    lake.remove(tables, commit, lambda table: None)


def append_ghosts_before(
    spark: SparkSession, staging: Staging, history: History, schema: TableSchema, work: Work, *, last: int
) -> None:
    """Tells the history which rows the dump that the lake table begins with shows to be gone: what came before that
    dump is in the history alone. `work`: without it. As in a lake, rows with a value that nobody knew do not count."""
    mark = max((m for m in work.finished if m.since == work.floor and _is_full(m)), key=lambda m: m.offset)
    assert mark.since is not None and mark.since_segment is not None
    names = list(schema.key)
    lines = rebuild_start.last_lines(
        history.lines(), schema, Past(rebuild_start.last_truncate(history.lines()), mark.offset)
    )
    whole = (F.col("op") != DELETE) & F.col("unchanged").isNull()
    keys = lines.where(whole & (F.col("offset") <= mark.since)).select("key.*")
    later = (
        [staged_events.read_events(spark, staging, work, schema).select("key.*")] if work.files or work.chunks else []
    )
    manifests = staging.manifests(after=mark.since_segment - 1, upto=last)
    seen = _seen_keys(spark, staging, manifests, mark, schema)
    for others in (*later, *([seen] if seen is not None else [])):
        keys = keys.join(others, names, "left_anti")
    ghosts = compute_once(keys)
    if not ghosts.isEmpty():
        history.append_ghosts([ghosts.toArrow()], mark)


def _is_full(mark: LogMark) -> bool:
    return mark.key_from is None and mark.key_to is None


def within(rows: DataFrame, mark: LogMark, schema: TableSchema) -> DataFrame:
    """The rows, with the key's columns under their own names, that lie in the range that the dump of `mark` was of."""
    for end, beyond in ((mark.key_from, True), (mark.key_to, False)):
        if end is not None:
            rows = rows.where(_from(schema, end) if beyond else _upto(schema, end))
    return rows


def _from(schema: TableSchema, end: Any) -> Column:
    """Keys from `end` on, in key order."""
    return _beyond(schema, end, Column.__gt__)


def _upto(schema: TableSchema, end: Any) -> Column:
    """Keys up to `end`, in key order."""
    return _beyond(schema, end, Column.__lt__)


def _beyond(schema: TableSchema, end: Any, beyond: Callable[[Column, Column], Column]) -> Column:
    """The last column that differs from `end` decides from the left; equal keys are in."""
    condition = F.lit(True)
    for column, part in reversed(list(zip(schema.key_columns, key_from_json(end, schema), strict=True))):
        value = F.col(quote(column.name))
        other = _literal(part, column)
        condition = beyond(value, other) | ((value == other) & condition)
    return condition


def _literal(part: Any, column: SourceColumn) -> Column:
    if isinstance(part, dt.date):  # a datetime too: as text, so that no time zone of Spark's moves it
        return F.lit(to_json(part)).cast(spark_type(column.type))
    return F.lit(part)


def _seen_keys(
    spark: SparkSession, staging: Staging, manifests: Iterable[Manifest], mark: LogMark, schema: TableSchema
) -> DataFrame | None:
    """The keys in chunk files that are no ghosts, by the key's columns of today; evicted rows count too."""
    chunks: list[ChunkRef] = []
    marks: list[LogMark] = []
    for manifest in manifests:  # one after the other: they may hold rows
        chunks += chunks_seen([manifest], mark)
        marks += [m for m in manifest.marks if m.table == mark.table]
    renames = Renames.of(marks)
    alike: dict[tuple[str, Renames], list[ChunkRef]] = {}
    for chunk in chunks:
        alike.setdefault((chunk.schema, renames.after(chunk.first_offset)), []).append(chunk)
    frames = []
    for (fingerprint, later), read_together in alike.items():
        shape = staging.schema(fingerprint)
        then = {later.current_name(c.name): c.name for c in shape.columns}
        rows = chunk_rows(spark, staging, read_together, shape)
        names = [(then.get(name, name), name) for name in schema.key]
        frames.append(rows.select(*(F.col(f"row.{quote(was)}").alias(now) for was, now in names)))
    return reduce(DataFrame.union, frames) if frames else None
