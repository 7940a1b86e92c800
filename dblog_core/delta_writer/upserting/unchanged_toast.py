"""Unchanged TOAST values, taken from the table's own row: PostgreSQL does not log a large value that stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.changes import Changes
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.order_guard import Flags, Hits, equal_values
from dblog_core.delta_writer.rewriting.older_rows import GoneRows
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.stored_rows import MOST_BYTES, rows_at

Ages = npt.NDArray[np.int64]


def take_unchanged_toast(
    table: OpenTable,
    changes: Changes,
    hits: list[Hits],
    puts: Flags,
    shape: Shape,
    gone: GoneRows,
    most: int = MOST_BYTES,
) -> tuple[pa.Table, Flags]:
    """The changes' rows with the values that they keep, and those for which the table has none. `hits`: the live rows
    of the changes' keys; `puts`: the changes that put a row; `gone`: rows that no longer have values for them. Raises
    ValuesTooLarge where the values take more than `most` bytes."""
    unchanged_toast = {name: mask & puts for name, mask in changes.unchanged_toast.items() if (mask & puts).any()}
    if not unchanged_toast:
        return changes.rows, np.zeros(len(puts), np.bool_)
    ends = None
    if changes.origins is not None:
        ends = _find_ends(changes, changes.origins, table.keys)
        numbers = np.flatnonzero(np.logical_or.reduce(list(unchanged_toast.values())))
        keys = table.key_arrays(changes.origins.take(pa.array(numbers)), shape)
        origins = gone.without(table.hits(keys, shape, distinct=False))
        hits = [Hits(hit.file, numbers[hit.change_numbers], hit.rows) for hit in origins]
    return fill_unchanged_toast(table.files, shape, hits, changes.rows, unchanged_toast, table.order, ends, most)


def _find_ends(changes: Changes, origins: pa.Table, keys: Sequence[str]) -> Ages | None:
    """By change the order below which a row has values for it (`Changes.origins_before`); None: any row has."""
    if changes.origins_before is None:
        return None
    moved = np.logical_or.reduce([~equal_values(origins[name], changes.rows[name]) for name in keys])
    return np.where(moved, changes.origins_before, np.iinfo(np.int64).max)


def fill_unchanged_toast(
    files: TableFiles,
    shape: Shape,
    hits: Sequence[Hits],
    rows: pa.Table,
    unchanged_toast: Mapping[str, Flags],
    order: str,
    ends: Ages | None = None,
    most: int = MOST_BYTES,
) -> tuple[pa.Table, Flags]:
    """The changes' rows with the values that they keep, and which of them keep one that the table does not have.

    `hits`: the live rows to take them from, by the changes' numbers; of several for one change the newest by `order`.
    `ends`: by change the value of `order` that such a row must be below; None: any will do.
    Raises ValuesTooLarge where the values take more than `most` bytes.
    """
    count = len(rows)
    lacks_value = np.logical_or.reduce(list(unchanged_toast.values()))
    names = list(dict.fromkeys([*unchanged_toast, order]))
    chosen = [hit for hit in (hit.of(lacks_value) for hit in hits) if len(hit.rows)]
    parts: list[pa.Table] = []
    for hit in chosen:
        room = most - sum(part.nbytes for part in parts)
        parts.append(rows_at(files, hit.file, shape, names, hit.rows, most=room))
    place = np.full(count, -1, np.int64)
    if parts:
        stored = pa.concat_tables(parts)
        numbers = np.concatenate([hit.change_numbers for hit in chosen])
        ages = np.asarray(pc.fill_null(stored[order], np.iinfo(np.int64).min))
        oldest_first = np.argsort(ages, kind="stable")
        if ends is not None:
            oldest_first = oldest_first[ages[oldest_first] < ends[numbers[oldest_first]]]
        place[numbers[oldest_first]] = oldest_first  # of several for one number the last one stays
        for name, mask in unchanged_toast.items():
            sources = np.where(mask & (place >= 0), count + place, np.arange(count))
            new_values = rows[name].cast(shape[name].type)
            both = pa.chunked_array([*new_values.chunks, *stored[name].chunks], new_values.type)
            rows = rows.set_column(rows.column_names.index(name), name, both.take(pa.array(sources)))
    # Where no row of the table has the value, the row waits for a dump of its key (`withhold`).
    return rows, lacks_value & (place < 0)
