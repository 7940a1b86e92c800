"""Rows whose keys are not among others: the index of keys says which rows were seen, and the rest is read by file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.bitmaps import RowSet
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.order_guard import Flags
from dblog_core.delta_writer.rewriting.older_rows import GoneRows
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.stored_rows import row_stretches, stored_count
from dblog_core.rows.disk_spool import SpooledTables, spooled_array


@dataclass(frozen=True, slots=True)
class UnseenRows:
    """Rows of one version, and their key columns."""

    gone: GoneRows
    keys: SpooledTables


def find_unseen(
    table: OpenTable,
    shape: Shape,
    seen: Iterable[pa.Table],
    *,
    upto: int,
    is_wanted: Callable[[pa.Table], Flags],
) -> UnseenRows:
    """The living rows of the table's snapshot with an order of at most `upto` whose key is in no table of `seen`, which
    have the key columns. `is_wanted`: says of rows, with the key columns, which of them count.

    Memory holds the rows that were not seen of one file; what was seen is a byte a row, on the local disk where the
    table is large.
    """
    files = {path: live for path, live in table.snapshot.files.items() if not _is_newer(table, live, shape, upto)}
    counts = [stored_count(table.files, live, table.dead_rows(live)) for live in files.values()]
    begins = dict(zip(files, np.cumsum([0, *counts]).tolist(), strict=False))
    is_seen = spooled_array(sum(counts), np.bool_)
    for keys in seen:
        for hit in table.hits(table.key_arrays(keys, shape), shape, distinct=False):
            if (begin := begins.get(hit.file.path)) is not None:
                is_seen[begin + hit.rows] = True
    keys_of_unseen = SpooledTables()
    grown = (
        (live, _with_unseen(keys_of_unseen, table, live, shape, is_seen[begins[path] :], upto, is_wanted))
        for path, live in files.items()
    )
    gone = GoneRows.of(table, ((live, dead) for live, dead in grown if dead is not None))
    return UnseenRows(gone, keys_of_unseen)


def _is_newer(table: OpenTable, live: LiveFile, shape: Shape, upto: int) -> bool:
    """Whether all rows of a file are newer, by its statistics."""
    lowest = live.stated_values(shape[table.order].physical).lowest
    return lowest is not None and lowest > upto


def _with_unseen(
    keys_of_unseen: SpooledTables,
    table: OpenTable,
    live: LiveFile,
    shape: Shape,
    is_seen: Flags,
    upto: int,
    is_wanted: Callable[[pa.Table], Flags],
) -> RowSet | None:
    """The dead rows of a file with those that were not seen, whose keys are added to the others; None where that is
    none more. `is_seen`: by its rows, and those of files behind it."""
    dead = table.dead_rows(live)
    numbers = [np.empty(0, np.int64)]
    stretches = row_stretches(
        table.files,
        live,
        shape,
        [*table.keys, table.order],
        is_wanted=lambda first, end: not is_seen[first:end].all(),
    )
    for first, rows in stretches:
        places = np.arange(first, first + len(rows))
        is_old = np.asarray(pc.fill_null(pc.less_equal(rows[table.order], upto), False))
        chosen = is_old & ~is_seen[first : first + len(rows)] & ~dead.contains(places)
        if not chosen.any():
            continue
        places = places[chosen]
        keys = rows.select(list(table.keys)).filter(pa.array(chosen))
        in_range = is_wanted(keys)
        numbers.append(places[in_range])
        keys_of_unseen.append(keys.filter(pa.array(in_range)))
    unseen = np.concatenate(numbers)
    return dead.with_rows(unseen) if len(unseen) else None
