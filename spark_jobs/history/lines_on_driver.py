"""A small work's lines of a history, made on the driver with Arrow: what `History` makes of larger ones with Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.shape import DeltaColumn, Shape
from dblog_core.lake.merge_plan import Work
from dblog_core.model.events import REFRESH, TRUNCATE
from dblog_core.model.schema import TableSchema
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
from spark_jobs.events import fold_on_driver, schema_policy
from spark_jobs.events.fold_unchanged_toast import mask_unchanged
from spark_jobs.events.portion_fold import list_names
from spark_jobs.history.former_values import Before, fill_events

_META = {OP: "op", OFFSET: "offset", POSITION: "position", COMMIT_TIME: "commit_time", ORIGIN: "origin"}


def fits_driver(work: Work, schema: TableSchema, staging: Staging) -> bool:
    """Whether the lines are made here, unless the rows turn out to be too large: not where keys are equal that have
    other bytes, columns were renamed, or the lake has a narrower one, whose values are looked at one by one."""
    return (
        fold_on_driver.is_small(work)
        and not fold_on_driver.has_float_key(schema)
        and not work.renames
        and not any(schema_policy.is_narrower(shape, schema) for shape in work.shapes(staging.schema))
    )


def make_lines(staging: Staging, work: Work, schema: TableSchema, shape: Shape, before: Before) -> pa.Table | None:
    """The lines by growing offset, in the columns of the history; None where the rows are too large for the driver.

    Raises CorruptSegment for a file that is missing or not the one that the manifest names; TableRefused where the
    lake's rows cannot be read without Spark.
    """
    parts: list[pa.Table] = []
    size = 0
    whole = replace(work, truncates=(), floor=None)  # what vanished again is history all the same
    for part in fold_on_driver.read_events(staging, whole, schema, for_history=True):
        size += part.nbytes
        if size > fold_on_driver.MAX_DECODED:
            return None
        parts.append(part)
    lines = []
    if parts:
        events = pa.concat_tables(parts)
        if schema.key:
            events = fill_events(events, schema, [mark.offset for mark in work.truncates], before)
        lines.append(_lines_of_events(events, schema, shape))
    if work.truncates:
        lines.append(_lines_of_truncates(work.truncates, shape))
    together = pa.concat_tables(lines)
    return together.take(pc.sort_indices(together[OFFSET]))


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
