"""A column whose values lie in chunks, as one array."""

from __future__ import annotations

import pyarrow as pa


def join_chunks(column: pa.ChunkedArray) -> pa.Array:
    """The column's values in one array: that of a single chunk itself, which Arrow's `combine_chunks` would copy."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
