"""Columns whose values lie in chunks: as one array, or in another order."""

from __future__ import annotations

import pyarrow as pa


def join_chunks(column: pa.ChunkedArray) -> pa.Array:
    """The column's values in one array: that of a single chunk itself, which Arrow's `combine_chunks` would copy."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def take_rows(parts: list[pa.Table], places: pa.Array) -> pa.Table:
    """The rows at these places of all parts, which are one table, in this order. Empties `parts`, and gives back one
    column after the other, so that the memory never holds both copies of all columns."""
    rows = pa.concat_tables(parts)
    parts.clear()
    columns = {}
    for name in rows.column_names:
        columns[name] = rows[name].take(places)
        rows = rows.drop_columns([name])
    return pa.table(columns)
