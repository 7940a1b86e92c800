"""Ghosts among the events of a span: rows that a dump which ends there has not seen, and that no later event touches.

A key that the dump has seen has an event after the dump's `since`: the row of its chunk, or the event that evicted this
row. So in a span that has the whole dump, a key whose last event is not after `since` is a ghost, and its chunks need
not be read. A row that the lake has from an earlier span is another matter: where the chunk has the same values, the
lake's row keeps its older offset. Those ghosts are found by the chunks' keys (`merging.deleted_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events.unchanged_values import Flags
from dblog_core.model.events import DELETE
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_from_json
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.staging.manifest import LogMark

SHOWN_BY = "shown_by"
"""A column of folded rows: the offset of the mark whose dump shows the row to be a ghost."""


def dumps_within(work: Work) -> list[LogMark]:
    """The ends of dumps that began after a row of the work: all of their chunks are in the work too."""
    return [mark for mark in work.finished if mark.since is not None and work.reaches_below(mark.since)]


def delete_ghosts(rows: pa.Table, ends: Sequence[LogMark], schema: TableSchema) -> pa.Table:
    """The folded rows with a DELETE in place of each ghost, and with the column `SHOWN_BY`. `ends`: those of dumps in
    the span of the rows, in their order."""
    if not ends or not len(rows):
        return rows
    keys = key_columns(rows)
    is_row = np.asarray(pc.not_equal(rows["op"], DELETE))
    offsets = np.asarray(rows["offset"])
    shown_by = np.zeros(len(rows), np.int64)
    for mark in ends:
        assert mark.since is not None, "the end of a dump in the span says where the dump began"
        is_ghost = is_row & (shown_by == 0) & (offsets <= mark.since)
        shown_by[is_ghost & are_within(keys, mark, schema)] = mark.offset
    ghosts = pa.array(shown_by != 0)
    replaced = {
        "op": pc.if_else(ghosts, DELETE, rows["op"]),
        "inserted": pc.and_not(rows["inserted"], ghosts),
        "unchanged_toast": pc.if_else(ghosts, pa.scalar(None, rows["unchanged_toast"].type), rows["unchanged_toast"]),
    }
    for name, values in replaced.items():
        rows = rows.set_column(rows.column_names.index(name), name, values)
    return rows.append_column(SHOWN_BY, pa.array(shown_by, mask=shown_by == 0))


def keys_of_ghosts(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """The keys of the ghosts among folded rows, by the names of their columns, with the column `SHOWN_BY`."""
    if SHOWN_BY not in rows.column_names:
        return pa.table({})
    ghosts = rows.filter(rows[SHOWN_BY].is_valid())
    return pa.table([*key_columns(ghosts), ghosts[SHOWN_BY]], names=[*schema.key, SHOWN_BY])


def key_columns(rows: pa.Table) -> list[pa.ChunkedArray]:
    """The columns of the keys of folded rows."""
    key = join_chunks(rows["key"])
    return [pa.chunked_array([pc.struct_field(key, i)], field.type) for i, field in enumerate(key.type)]


def are_within(keys: Sequence[pa.ChunkedArray], mark: LogMark, schema: TableSchema) -> Flags:
    """Which keys lie in the range that the dump of `mark` was of, both ends included. A key that lacks a value, which
    is another program's, lies in no range that has an end."""
    inside = np.ones(len(keys[0]), np.bool_)
    if mark.key_from is not None:
        inside &= _compare(keys, mark.key_from, schema) >= 0
    if mark.key_to is not None:
        inside &= _compare(keys, mark.key_to, schema) <= 0
    if mark.key_from is not None or mark.key_to is not None:
        inside &= np.logical_and.reduce([np.asarray(values.is_valid()) for values in keys])
    return inside


def _compare(keys: Sequence[pa.ChunkedArray], end: Any, schema: TableSchema) -> npt.NDArray[np.int8]:
    """By key -1, 0 or 1: whether it is before, at or behind `end` (JSON), in key order. NaN is behind all numbers."""
    signs = np.zeros(len(keys[0]), np.int8)
    for values, part in zip(keys, key_from_json(end, schema), strict=True):
        bound = pa.scalar(part, values.type)
        is_behind, is_before = (np.asarray(pc.fill_null(test(values, bound), False)) for test in (pc.greater, pc.less))
        part_signs = is_behind.astype(np.int8) - is_before.astype(np.int8)
        if pa.types.is_floating(values.type):
            is_nan = np.asarray(pc.fill_null(pc.is_nan(values), False)).astype(np.int8)
            part_signs = np.where(np.isnan(part), is_nan - 1, np.where(is_nan, 1, part_signs))
        signs = np.where(signs == 0, part_signs, signs).astype(np.int8)
    return signs
