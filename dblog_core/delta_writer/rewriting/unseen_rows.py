"""Rows whose keys are not among others: the index of keys says which rows were seen, and the rest is read by file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.bitmaps import Rows, RowSet
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.order_guard import Flags
from dblog_core.delta_writer.rewriting.older_rows import GoneRows
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.stored_rows import row_stretches, stored_count
from dblog_core.rows.disk_spool import SpooledTables, spooled_array


@dataclass(frozen=True, slots=True)
class Reading:
    """Keys that a reader of the source has seen: an older row of another key is removed."""

    seen: Callable[[], Iterable[pa.Table]]
    """Reads the keys, some at a time, by the names of the table's key columns."""
    upto: int
    """The highest order of a row that is removed."""
    is_wanted: Callable[[pa.Table], Flags]
    """Says of rows, with the key columns, which of them the reader was to see."""
    tell: Callable[[SpooledTables], None]
    """Gets the keys of the removed rows, before the commit."""


def find_unseen(
    table: OpenTable, shape: Shape, reading: Reading, dead_rows: Callable[[LiveFile], RowSet]
) -> tuple[GoneRows, SpooledTables]:
    """The rows of the table's snapshot that the reading removes, and their keys. `dead_rows`: the rows of a file that
    are dead already.

    Memory holds the rows that were not seen of one file; what was seen is a byte a row, on the local disk where the
    table is large.
    """
    files = {path: live for path, live in table.snapshot.files.items() if not _is_newer(table, live, shape, reading)}
    grown: dict[str, tuple[LiveFile, RowSet]] = {}
    keys = SpooledTables()
    count = 0
    if not files:
        return GoneRows(), keys
    counts = [stored_count(table.files, live, table.dead_rows(live)) for live in files.values()]
    begins = dict(zip(files, np.cumsum([0, *counts]).tolist(), strict=False))
    is_seen = spooled_array(sum(counts), np.bool_)
    for seen in reading.seen():
        for hit in table.hits(table.key_arrays(seen, shape), shape, distinct=False):
            if (begin := begins.get(hit.file.path)) is not None:
                is_seen[begin + hit.rows] = True
    for path, live in files.items():
        dead = dead_rows(live)
        gone = _unseen_rows(keys, table, live, shape, reading, is_seen[begins[path] :], dead)
        if len(gone):
            grown[path] = live, dead.with_rows(gone)
            count += len(gone)
    return GoneRows(grown, count), keys


def _is_newer(table: OpenTable, live: LiveFile, shape: Shape, reading: Reading) -> bool:
    """Whether all rows of a file are newer, by its statistics."""
    lowest = live.stated_values(shape[table.order].physical).lowest
    return lowest is not None and lowest > reading.upto


def _unseen_rows(
    unseen: SpooledTables,
    table: OpenTable,
    live: LiveFile,
    shape: Shape,
    reading: Reading,
    is_seen: Flags,
    dead: RowSet,
) -> Rows:
    """The rows of a file that go; `unseen` gets their keys. `is_seen`: by its rows, and those of files behind it."""
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
        is_old = np.asarray(pc.fill_null(pc.less_equal(rows[table.order], reading.upto), False))
        chosen = is_old & ~is_seen[first : first + len(rows)] & ~dead.contains(places)
        if not chosen.any():
            continue
        places = places[chosen]
        keys = rows.select(list(table.keys)).filter(pa.array(chosen))
        is_wanted = reading.is_wanted(keys)
        numbers.append(places[is_wanted])
        unseen.append(keys.filter(pa.array(is_wanted)))
    return np.concatenate(numbers)
