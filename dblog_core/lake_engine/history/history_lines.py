"""The lines of a history that a work's events are: all at once, or in parts where memory has no room for all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.shape import DeltaColumn, Shape
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events.fold import ONE_AT_A_TIME
from dblog_core.lake_engine.events.key_buckets import read_small_bucket, staged_buckets
from dblog_core.lake_engine.events.staged_events import read_events
from dblog_core.lake_engine.events.unchanged_values import list_names
from dblog_core.lake_engine.history.former_values import FormerValues, LakeBefore
from dblog_core.lake_engine.tables.column_types import (
    COMMIT_TIME,
    MOVED_FROM,
    OFFSET,
    OP,
    ORIGIN,
    POSITION,
    TRANSACTION,
    UNCHANGED,
)
from dblog_core.model.events import DELETE, REFRESH, TRUNCATE
from dblog_core.model.schema import Column, TableSchema
from dblog_core.rows.chunked_columns import join_up_to, mask_named
from dblog_core.rows.disk_spool import SpooledTables
from dblog_core.schema_evolution.renames import describe_stale, is_stale
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark

_TOGETHER_BYTES = 48 << 20
"""Decoded bytes of events in the order of the log whose lines are made at a time."""

Lines: TypeAlias = pa.Table | SpooledTables

_META = {OP: "op", OFFSET: "offset", POSITION: "position", COMMIT_TIME: "commit_time", ORIGIN: "origin"}


def make_lines(
    staging: Staging, work: Work, schema: TableSchema, gone: Sequence[Column], shape: Shape, before: LakeBefore
) -> Lines:
    """The work's lines in the columns of the history: all at once by growing offset, or in parts. `gone`: columns of
    the rows that the table no longer has, under their names in the rows (`renames`).

    Raises CorruptSegment for a file that is missing or not the one that the manifest names; LakeError where the local
    disk has no room; TableRefused where the lake's rows cannot be read.
    """
    whole = replace(work, truncates=(), floor=None)  # what vanished again is history all the same
    plan = _LinePlan(schema, gone, shape, [mark.offset for mark in work.truncates], before)
    if (lines := _make_at_once(staging, whole, plan)) is None:
        lines = _make_in_parts(staging, whole, plan)
    if not work.truncates:
        return lines
    told_truncates = _lines_of_truncates(work.truncates, shape)
    if isinstance(lines, SpooledTables):
        lines.append(told_truncates)
        return lines
    return pa.concat_tables([lines, told_truncates]).sort_by(OFFSET)


def make_ghosts(keys: Iterable[pa.Table], mark: LogMark, schema: TableSchema, shape: Shape) -> SpooledTables:
    """A line for each key that the dump of `mark` shows to be gone. `keys`: some at a time, by the columns' names."""
    lines = SpooledTables()
    unchanged = [[c.name for c in schema.columns if c.name not in schema.key] or None]
    for part in keys:
        count = len(part)
        fields = _fields_of_marks([mark] * count, DELETE, "dump")
        fields[UNCHANGED] = pa.array(unchanged * count, pa.list_(pa.string()))
        lines.append(_in_shape({**fields, **{name: part[name] for name in schema.key}}, count, shape))
    return lines


@dataclass(frozen=True, slots=True)
class _LinePlan:
    """What lines are made of beside the events: the shape of the table, and of its history; columns that the table no
    longer has; the offsets of TRUNCATEs; and the lake before."""

    schema: TableSchema
    gone: Sequence[Column]
    shape: Shape
    truncates: Sequence[int]
    before: LakeBefore

    @property
    def read_schema(self) -> TableSchema:
        """The shape that events are read in: the columns that are gone follow the others."""
        return TableSchema(self.schema.table, (*self.schema.columns, *self.gone), self.schema.key)

    @property
    def gone_names(self) -> dict[str, str]:
        """What the history calls the columns that are gone, by their names in the rows."""
        names = {name.lower(): name for name in self.shape.names}
        return {column.name: names[name_of_gone(column).lower()] for column in self.gone}

    def lines_of_keys(self, portions: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """The lines of all events of some keys, by growing offset in each portion of them."""
        former = FormerValues(self.schema, self.truncates, self.before, gone=[column.name for column in self.gone])
        waiting: pa.Table | None = None
        for portion in portions:
            if not len(portion):
                continue
            if waiting is not None:
                yield self.lines_of_events(former.fill(waiting, is_last=False))
            waiting = portion
        if waiting is not None:
            yield self.lines_of_events(former.fill(waiting) if self.schema.key else waiting)

    def lines_of_events(self, events: pa.Table) -> pa.Table:
        return _lines_of_events(events, self).sort_by(OFFSET)


def name_of_gone(column: Column) -> str:
    """What a history calls a column that the table no longer has: by its own name, unless another has taken that."""
    return describe_stale(column.name) if is_stale(column.name) else column.name


def _make_at_once(staging: Staging, work: Work, plan: _LinePlan) -> pa.Table | None:
    """None where memory has no room for the events."""
    bucket = read_small_bucket(staging, work, plan.read_schema, for_history=True)
    if bucket is None:
        return None
    return pa.concat_tables([_in_shape({}, 0, plan.shape), *plan.lines_of_keys(bucket.portions())])


def _make_in_parts(staging: Staging, work: Work, plan: _LinePlan) -> SpooledTables:
    """Parts in the order of the log where no event needs to know another one of its key; else parts of some keys."""
    with ONE_AT_A_TIME:
        lines = SpooledTables()
        every = read_events(staging, work, plan.read_schema, for_history=True)
        for events in join_up_to(_TOGETHER_BYTES, every):
            if plan.schema.key and _needs_former_values(events):
                break
            lines.append(plan.lines_of_events(events))
        else:
            return lines
        lines = SpooledTables()
        for bucket in staged_buckets(staging, work, plan.read_schema, for_history=True):
            for part in plan.lines_of_keys(bucket.portions()):
                lines.append(part)
        return lines


def _needs_former_values(events: pa.Table) -> bool:
    """Whether some come from a dump, or leave values out."""
    dumped = pc.equal(events["origin"], "dump")
    return bool(pc.any(pc.or_(dumped, events["unchanged"].is_valid())).as_py())


def _lines_of_events(events: pa.Table, plan: _LinePlan) -> pa.Table:
    schema = plan.schema
    key_only = events["key_only"]
    columns: dict[str, pa.Array | pa.ChunkedArray] = {name: events[column] for name, column in _META.items()}
    refreshed = pc.equal(events["op"], REFRESH)
    columns[TRANSACTION] = pc.if_else(refreshed, pa.scalar(None, pa.string()), events["transaction"])
    columns[UNCHANGED] = _unchanged_names(events, plan)
    if schema.key:
        columns[MOVED_FROM] = _old_keys(events, schema, plan.shape[MOVED_FROM])
    gone_names = plan.gone_names
    for i, column in enumerate(plan.read_schema.columns):
        name = gone_names.get(column.name, column.name)
        if name in schema.key:
            columns[name] = events[f"k{schema.key.index(name)}"]
        else:
            columns[name] = pc.if_else(key_only, pa.scalar(None, column.type), events[f"v{i}"])
    return _in_shape(columns, len(events), plan.shape)


def _unchanged_names(events: pa.Table, plan: _LinePlan) -> pa.Array:
    """The columns of each event whose value is not known; of a deleted row of which there is the key alone, all
    others."""
    key_only = np.asarray(events["key_only"])
    schema = plan.schema
    names = [c.name for c in schema.columns if c.name not in schema.key]  # whose values are in the key
    masks = {name: key_only | mask_named(events["unchanged"], name) for name in names}
    gone = {now: mask_named(events["unchanged"], name) for name, now in plan.gone_names.items()}
    return list_names(masks | gone, len(events))


def _old_keys(events: pa.Table, schema: TableSchema, column: DeltaColumn) -> pa.Array:
    """The key before a change of it. Its parts have the names that the history's files have for them."""
    parts = [events[f"m{i}"].combine_chunks() for i in range(len(schema.key))]
    fields = [column.type.field(i) for i in range(column.type.num_fields)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=pc.invert(events["moved"].combine_chunks()))


def _lines_of_truncates(marks: Sequence[LogMark], shape: Shape) -> pa.Table:
    transactions = pa.array([mark.transaction for mark in marks], pa.string())
    fields = {**_fields_of_marks(marks, TRUNCATE, "log"), TRANSACTION: transactions}
    return _in_shape(fields, len(marks), shape)


def _fields_of_marks(marks: Sequence[LogMark], op: str, origin: str) -> dict[str, pa.Array]:
    times = pa.array([mark.commit_time for mark in marks], pa.int64())
    return {
        OP: pa.repeat(op, len(marks)),
        OFFSET: pa.array([mark.offset for mark in marks], pa.int64()),
        POSITION: pa.array([mark.position for mark in marks], pa.string()),
        COMMIT_TIME: times.cast(pa.timestamp("us", tz="UTC")),
        ORIGIN: pa.repeat(origin, len(marks)),
    }


def _in_shape(columns: Mapping[str, pa.Array | pa.ChunkedArray], count: int, shape: Shape) -> pa.Table:
    """The columns of the history, in their types; NULL where nothing is said."""
    values = [columns.get(column.name, pa.nulls(count, column.type)) for column in shape]
    cast = [value.cast(column.type) for value, column in zip(values, shape, strict=True)]
    return pa.table(cast, names=shape.names)
