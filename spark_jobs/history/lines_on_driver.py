"""A small work's lines of a history, made on the driver with Arrow: what `History` makes of larger ones with Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.shape import DeltaColumn, Shape
from dblog_core.lake.merge_plan import Work
from dblog_core.model.events import REFRESH, TRUNCATE
from dblog_core.model.schema import TableSchema
from dblog_core.rows.table_spool import SpooledTables
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark
from spark_jobs.delta_tables.column_types import (
    COMMIT_TIME,
    MOVED_FROM,
    OFFSET,
    OP,
    ORIGIN,
    POSITION,
    TRANSACTION,
    UNCHANGED,
)
from spark_jobs.events import fold_in_parts, fold_on_driver
from spark_jobs.events.event_buckets import GROUP_BYTES, EventBuckets, TooManyChanges, join_up_to
from spark_jobs.events.fold_unchanged_toast import mask_unchanged
from spark_jobs.events.portion_fold import list_names
from spark_jobs.history.former_values import Before, fill_events

Lines: TypeAlias = pa.Table | SpooledTables
"""All at once, or in parts where memory has no room for all."""

_META = {OP: "op", OFFSET: "offset", POSITION: "position", COMMIT_TIME: "commit_time", ORIGIN: "origin"}


def fits_driver(work: Work) -> bool:
    """Whether the lines are made here, unless keys that belong together have no room: not over a rename of columns."""
    return work.rows <= fold_in_parts.MOST_EVENTS and fold_in_parts.have_room(work) and not work.renames


def make_lines(staging: Staging, work: Work, schema: TableSchema, shape: Shape, before: Before) -> Lines | None:
    """The lines in the columns of the history: all at once by growing offset, or in parts; None where keys that belong
    together have no room in memory.

    Raises CorruptSegment for a file that is missing or not the one that the manifest names; TableRefused where the
    lake's rows cannot be read without Spark.
    """
    whole = replace(work, truncates=(), floor=None)  # what vanished again is history all the same
    truncates = [mark.offset for mark in work.truncates]
    if (lines := _make_at_once(staging, whole, schema, shape, before, truncates)) is None:
        lines = _make_in_parts(staging, whole, schema, shape, before, truncates)
    if lines is None or not work.truncates:
        return lines
    told_truncates = _lines_of_truncates(work.truncates, shape)
    if isinstance(lines, SpooledTables):
        lines.append(told_truncates)
        return lines
    together = pa.concat_tables([lines, told_truncates])
    return together.take(pc.sort_indices(together[OFFSET]))


def _make_at_once(
    staging: Staging, work: Work, schema: TableSchema, shape: Shape, before: Before, truncates: Sequence[int]
) -> pa.Table | None:
    """None where the rows are too many, or too large."""
    if not fold_on_driver.is_small(work):
        return None
    parts: list[pa.Table] = []
    size = 0
    for part in fold_on_driver.read_events(staging, work, schema, for_history=True):
        size += part.nbytes
        if size > fold_on_driver.MAX_DECODED:
            return None
        parts.append(part)
    if not parts:
        return _in_shape({}, 0, shape)
    return _lines_of_keys(pa.concat_tables(parts), schema, shape, before, truncates)


def _make_in_parts(
    staging: Staging, work: Work, schema: TableSchema, shape: Shape, before: Before, truncates: Sequence[int]
) -> SpooledTables | None:
    """Parts in the order of the log where no event needs to know another one of its key; else parts of some keys."""
    with fold_in_parts.ONE_AT_A_TIME:
        lines = SpooledTables()
        for events in join_up_to(GROUP_BYTES, fold_on_driver.read_events(staging, work, schema, for_history=True)):
            if schema.key and _needs_former_values(events):
                break
            lines.append(_lines_of_events(events, schema, shape).sort_by(OFFSET))
        else:
            return lines
        lines = SpooledTables()
        try:
            buckets = EventBuckets(staging, work, schema, for_history=True)
        except TooManyChanges:
            return None
        for group in buckets.groups():
            if sum(events.spooled.nbytes for events in group) > fold_on_driver.MAX_DECODED:
                return None
            events = pa.concat_tables(map(buckets.read, group))
            lines.append(_lines_of_keys(events, schema, shape, before, truncates))
        return lines


def _needs_former_values(events: pa.Table) -> bool:
    """Whether some come from a dump, or leave values out."""
    dumped = pc.equal(events["origin"], "dump")
    return bool(pc.any(pc.or_(dumped, events["unchanged"].is_valid())).as_py())


def _lines_of_keys(
    events: pa.Table, schema: TableSchema, shape: Shape, before: Before, truncates: Sequence[int]
) -> pa.Table:
    """The lines of all events of some keys, by growing offset."""
    if schema.key:
        events = fill_events(events, schema, truncates, before)
    lines = _lines_of_events(events, schema, shape)
    return lines.take(pc.sort_indices(lines[OFFSET]))


def _lines_of_events(events: pa.Table, schema: TableSchema, shape: Shape) -> pa.Table:
    key_only = events["key_only"]
    columns: dict[str, pa.Array | pa.ChunkedArray] = {name: events[column] for name, column in _META.items()}
    refreshed = pc.equal(events["op"], REFRESH)
    columns[TRANSACTION] = pc.if_else(refreshed, pa.scalar(None, pa.string()), events["transaction"])
    columns[UNCHANGED] = _unchanged_names(events, schema)
    if schema.key:
        columns[MOVED_FROM] = _old_keys(events, schema, shape[MOVED_FROM])
    for i, column in enumerate(schema.columns):
        if column.name in schema.key:
            columns[column.name] = events[f"k{schema.key.index(column.name)}"]
        else:
            columns[column.name] = pc.if_else(key_only, pa.scalar(None, column.type), events[f"v{i}"])
    return _in_shape(columns, len(events), shape)


def _unchanged_names(events: pa.Table, schema: TableSchema) -> pa.Array:
    """The columns of each event whose value is not known; of a deleted row of which there is the key alone, all
    others."""
    key_only = np.asarray(events["key_only"])
    masks = {}
    for column in schema.columns:
        mask = mask_unchanged(events["unchanged"], column.name)
        masks[column.name] = np.where(key_only, column.name not in schema.key, mask)
    return list_names(masks, len(events))


def _old_keys(events: pa.Table, schema: TableSchema, column: DeltaColumn) -> pa.Array:
    """The key before a change of it. Its parts have the names that the history's files have for them."""
    parts = [events[f"m{i}"].combine_chunks() for i in range(len(schema.key))]
    fields = [column.type.field(i) for i in range(column.type.num_fields)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=pc.invert(events["moved"].combine_chunks()))


def _lines_of_truncates(marks: Sequence[LogMark], shape: Shape) -> pa.Table:
    times = pa.array([mark.commit_time for mark in marks], pa.int64())
    columns = {
        OP: pa.repeat(TRUNCATE, len(marks)),
        OFFSET: pa.array([mark.offset for mark in marks], pa.int64()),
        POSITION: pa.array([mark.position for mark in marks], pa.string()),
        COMMIT_TIME: times.cast(pa.timestamp("us", tz="UTC")),
        ORIGIN: pa.repeat("log", len(marks)),
        TRANSACTION: pa.array([mark.transaction for mark in marks], pa.string()),
    }
    return _in_shape(columns, len(marks), shape)


def _in_shape(columns: dict[str, pa.Array | pa.ChunkedArray], count: int, shape: Shape) -> pa.Table:
    """The columns of the history, in their types; NULL where nothing is said."""
    values = [columns.get(column.name, pa.nulls(count, column.type)) for column in shape]
    cast = [value.cast(column.type) for value, column in zip(values, shape, strict=True)]
    return pa.table(cast, names=shape.names)
