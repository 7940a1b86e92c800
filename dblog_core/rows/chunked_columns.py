"""Columns whose values are in chunks: as one array, in another order, joined to larger tables, or apart by number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


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


def mask_named(lists: pa.Array | pa.ChunkedArray, name: str) -> npt.NDArray[np.bool_]:
    """The rows whose list of names has that name; a list may be NULL."""
    mask = np.zeros(len(lists), np.bool_)
    if lists.null_count < len(lists):
        joined = join_chunks(lists) if isinstance(lists, pa.ChunkedArray) else lists
        is_named = pc.equal(pc.list_flatten(joined), name)
        mask[np.asarray(pc.list_parent_indices(joined).filter(is_named))] = True
    return mask


def join_up_to(size: int, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows of all tables in their order, so many bytes at a time."""
    waiting: list[pa.Table] = []
    waiting_bytes = 0
    for table in tables:
        if not len(table):
            continue
        waiting.append(table)
        waiting_bytes += table.nbytes
        if waiting_bytes >= size:
            yield _join(waiting)
            waiting_bytes = 0
    if waiting:
        yield _join(waiting)


def _join(tables: list[pa.Table]) -> pa.Table:
    """One table of all. Empties the list, so that memory has no second copy while the table is used."""
    joined = pa.concat_tables(tables).combine_chunks()
    tables.clear()
    return joined


def split_by_number(rows: pa.Table, numbers: npt.NDArray[np.int64], count: int) -> list[pa.Table]:
    """The rows of each bucket, in the order that they have now. `numbers`: by row its bucket's."""
    if len(numbers) and (numbers[1:] >= numbers[:-1]).all():
        ordered = rows  # a chunk of a dump, in the order of its key
    else:
        by_bucket = np.argsort(numbers, kind="stable")
        ordered = rows.take(pa.array(by_bucket))
        numbers = numbers[by_bucket]
    edges = np.searchsorted(numbers, np.arange(count + 1)).tolist()
    return [ordered.slice(begin, end - begin) for begin, end in pairwise(edges)]
