"""Staged rows as events with their images, in the columns and types of the shape that is compared.

Renamed columns have their names of now, columns that were added hold what rows are known to hold, and values have the
types of now. A value that such a type does not have is equal to none.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.model.events import CREATE, DELETE
from dblog_core.model.schema import TableSchema
from dblog_core.rows.chunked_columns import join_chunks, mask_named
from dblog_core.schema_evolution.renames import Renames
from dblog_core.staging.manifest import ChunkRef
from dblog_core.verify.judge.exact_values import MISFITS, fit_columns
from dblog_core.verify.judge.hashed_rows import EVENT_FLAGS, NAMES, OLD_KEY, key_columns, key_schema

IMAGE = "value "
"""The beginning of the names of an image's columns."""


def log_rows(lines: pa.RecordBatch, shape: TableSchema, schema: TableSchema, later: Renames) -> pa.Table:
    """Lines of the log, staged in `shape`; `later`: the renames behind them."""
    before = _image(lines.column("before"), shape, later)
    after = _image(lines.column("after"), shape, later)
    moved_from = lines.column("moved_from")
    deleted = pc.equal(lines.column("op"), DELETE)
    unchanged = _names_of_now(lines.column("unchanged").cast(NAMES), shape, schema, later)
    whole = pc.equal(pc.fill_null(pc.list_value_length(unchanged), 0), 0)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        "offset": lines.column("offset"),
        "lives": pc.invert(deleted),
        "born": pc.equal(lines.column("op"), CREATE),
        "logged": pc.equal(lines.column("origin"), "log"),
        "whole": whole,
        "moved": pc.and_not(moved_from.is_valid(), whole),
        "unchanged": unchanged,
    }
    key_shape = TableSchema(shape.table, shape.key_columns, shape.key)
    old_keys = _image(moved_from, key_shape, later)
    nothing = pa.nulls(len(lines), pa.null())
    keys = []
    for name in schema.key:
        # A key so large that the log leaves it out of `after` is in `before`.
        in_before = pc.or_(deleted, pa.array(mask_named(unchanged, name)))
        keys.append(pc.if_else(in_before, before.get(name, nothing), after.get(name, nothing)))
    return _with_values(columns, keys, [old_keys.get(name, nothing) for name in schema.key], after, schema, later)


def chunk_rows(rows: pa.Table, chunk: ChunkRef, shape: TableSchema, schema: TableSchema, later: Renames) -> pa.Table:
    """The rows of a dump's chunk that count."""
    numbers = np.setdiff1d(np.arange(len(rows)), np.array(chunk.evicted, np.int64))
    rows = rows.take(pa.array(numbers))
    yes = np.ones(len(rows), np.bool_)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        "offset": pa.array(chunk.first_offset + numbers),
        **{name: pa.array(yes if name in ("lives", "whole") else ~yes) for name in EVENT_FLAGS},
        "unchanged": pa.nulls(len(rows), NAMES),
    }
    image = {later.current_name(column.name): join_chunks(rows[column.name]) for column in shape.columns}
    nothing = pa.nulls(len(rows), pa.null())
    keys = [image.get(name, nothing) for name in schema.key]
    return _with_values(columns, keys, [nothing for _ in schema.key], image, schema, later)


def _with_values(
    columns: dict[str, pa.Array | pa.ChunkedArray],
    keys: list[pa.Array],
    old_keys: list[pa.Array],
    image: Mapping[str, pa.Array],
    schema: TableSchema,
    later: Renames,
) -> pa.Table:
    key = key_schema(schema)
    values, misfits = fit_columns(image, schema, columns["offset"], later.constants)
    named = {IMAGE + name: array for name, array in values.items()}
    return pa.table(
        {
            **columns,
            **key_columns(keys, key),
            **key_columns(old_keys, key, OLD_KEY),
            **named,
            MISFITS: pa.array(misfits),
        }
    )


def _image(images: pa.Array, shape: TableSchema, later: Renames) -> dict[str, pa.Array]:
    """The columns of images by their names of now, NULL where the image is."""
    if not pa.types.is_struct(images.type):
        return {}  # of a table without a key: its rows have no key before
    at = images.type.get_field_index
    return {later.current_name(c.name): pc.struct_field(images, at(c.name)) for c in shape.columns}


def _names_of_now(unchanged: pa.Array, shape: TableSchema, schema: TableSchema, later: Renames) -> pa.Array:
    """The columns that are left out, by their names of now: those that the shape still has."""
    compared = {column.name for column in schema.columns}
    now = {column.name: later.current_name(column.name) for column in shape.columns}
    is_same = not later and compared.issuperset(now)
    if is_same or unchanged.null_count == len(unchanged):
        return unchanged
    lists = [
        None if names is None else [now[name] for name in names if now.get(name) in compared]
        for names in unchanged.to_pylist()
    ]
    return pa.array(lists, NAMES)
