"""Rows that go without an event of their own: those before a TRUNCATE, and ghosts.

Ghosts are lake rows whose key a finished dump of the table has not seen, and that nothing has touched since: no line of
the log, and no row of another dump, also where that one says what the lake has already.

A dump of a key range says nothing about other keys. It says so only where the lake orders the key as the database does.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dblog_core.delta_writer.changes import Upserted
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.order_guard import Flags
from dblog_core.delta_writer.rewriting.remove_older import remove_older as remove_rows_below
from dblog_core.delta_writer.rewriting.unseen_rows import find_unseen
from dblog_core.delta_writer.upsert import commit_deletes, count_as_deleted, overtaken_error
from dblog_core.errors import LakeError
from dblog_core.lake.merge_plan import Work, chunks_seen
from dblog_core.lake.task_plans import Past
from dblog_core.model.events import DELETE
from dblog_core.model.schema import Column as SourceColumn
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_from_json, to_json
from dblog_core.schema_evolution.renames import Renames
from dblog_core.staging import Staging, parquet
from dblog_core.staging.manifest import ChunkRef, LogMark, Manifest
from spark_jobs.delta_tables.column_types import quote, spark_type
from spark_jobs.delta_tables.session import compute_once
from spark_jobs.events import staged_events
from spark_jobs.events.event_buckets import join_up_to
from spark_jobs.events.staged_events import chunk_rows
from spark_jobs.history import rebuild_start
from spark_jobs.history.history_table import History
from spark_jobs.merging.lake_table import LakeTable
from spark_jobs.merging.mark_and_append import OpenTables

_ATTEMPTS = 20  # at a table that others write meanwhile
_LOOKED_UP_BYTES = 4 << 20
"""Of keys that are looked up at once."""


def remove_ghosts(
    spark: SparkSession,
    staging: Staging,
    lake: LakeTable,
    schema: TableSchema,
    mark: LogMark,
    *,
    last: int,
    tables: OpenTables,
    history: History | None = None,
) -> int:
    """Removes the ghosts that the dump of `mark` shows, which the history tells first; how many. Again, it removes
    nothing more. `last`: the segment up to which chunks count."""
    if mark.since is None or mark.since_segment is None:
        raise LakeError(
            f"the end of dump {mark.dump} has no `since` offset: an older capture wrote it",
            where=mark.table,
            fix="upgrade the capture, and dump the table again",
        )
    since = mark.since
    chunks, renames = _find_seen_chunks(staging.manifests(after=mark.since_segment - 1, upto=last), mark)

    def commit(table: OpenTable, app: str) -> Upserted | None:
        for _ in range(_ATTEMPTS):
            shape = table.refresh()
            seen = join_up_to(_LOOKED_UP_BYTES, _read_keys(staging, chunks, renames, schema))
            ghosts = find_unseen(table, shape, seen, upto=since, is_wanted=lambda rows: _is_within(rows, mark, schema))
            if not ghosts.grown:
                return None
            if history is not None:
                _append_to_history(history, ghosts.keys, mark)
            if (done := commit_deletes(table, ghosts.grown, f"{app}:gone", mark.offset)) is not None:
                return done
        raise overtaken_error(table, _ATTEMPTS)

    done = lake.remove(tables, commit)
    return 0 if done is None else done.deleted


def _append_to_history(history: History, keys: Iterable[pa.Table], mark: LogMark) -> None:
    every = pa.concat_tables(keys)
    # Rows of another program that have NULL in the key were never in the history, and a key may have several rows.
    distinct = every.group_by(every.column_names).aggregate([]).drop_null()
    if len(distinct):
        history.append_ghosts([distinct], mark)


def _is_within(rows: pa.Table, mark: LogMark, schema: TableSchema) -> Flags:
    """Whether the key of a row lies in the range that the dump of `mark` was of."""
    within = np.ones(len(rows), np.bool_)
    for end, compare in ((mark.key_from, pc.greater), (mark.key_to, pc.less)):
        if end is not None:
            within &= _is_beyond(rows, schema, end, compare)
    return within


def _is_beyond(rows: pa.Table, schema: TableSchema, end: Any, compare: Callable[..., pa.ChunkedArray]) -> Flags:
    """Whether the key of a row is equal to `end`, or beyond it: the first column that differs decides."""
    inside = np.ones(len(rows), np.bool_)
    for column, part in reversed(list(zip(schema.key_columns, key_from_json(end, schema), strict=True))):
        values = rows[column.name]
        bound = pa.scalar(part, values.type)
        is_beyond, is_equal = (np.asarray(pc.fill_null(test(values, bound), False)) for test in (compare, pc.equal))
        inside = is_beyond | (is_equal & inside)
    return inside


def remove_older(lake: LakeTable, offset: int, tables: OpenTables) -> None:
    """TRUNCATE at `offset`: what came before goes."""
    lake.remove(tables, lambda table, app: remove_rows_below(table, offset, f"{app}:truncated", offset))


def count_marks_as_deletes(lake: LakeTable, number: int, tables: OpenTables) -> None:
    """Before Spark deletes rows as `number`: their old versions leave the files together with them."""
    lake.remove(tables, lambda table, app: count_as_deleted(table, f"{app}:marks", number))


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


def _find_seen_chunks(manifests: Iterable[Manifest], mark: LogMark) -> tuple[list[ChunkRef], Renames]:
    """The chunks whose keys are no ghosts, and the table's renames since the first of the manifests."""
    chunks: list[ChunkRef] = []
    marks: list[LogMark] = []
    for manifest in manifests:  # one after the other: they may hold rows
        chunks += chunks_seen([manifest], mark)
        marks += [m for m in manifest.marks if m.table == mark.table]
    return chunks, Renames.of(marks)


def _read_keys(
    staging: Staging, chunks: Sequence[ChunkRef], renames: Renames, schema: TableSchema
) -> Iterator[pa.Table]:
    """The keys in the files of chunks, by the key's columns of today; of evicted rows too."""
    for chunk in chunks:
        later = renames.after(chunk.first_offset)
        then = {later.current_name(c.name): c.name for c in staging.schema(chunk.schema).columns}
        names = [then.get(name, name) for name in schema.key]
        where = staging.storage.url(chunk.path)
        with staging.open_file(chunk) as opened:
            for rows in parquet.batches(opened, where=where, columns=names):
                yield pa.table([rows.column(name) for name in names], names=list(schema.key))


def _seen_keys(
    spark: SparkSession, staging: Staging, manifests: Iterable[Manifest], mark: LogMark, schema: TableSchema
) -> DataFrame | None:
    """The keys in chunk files that are no ghosts, by the key's columns of today; evicted rows count too."""
    chunks, renames = _find_seen_chunks(manifests, mark)
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
