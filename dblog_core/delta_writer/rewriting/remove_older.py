"""Rows below a number of the order column go: whole files by their statistics, others by their vectors."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from dblog_core.delta_writer.bitmaps import RowSet
from dblog_core.delta_writer.changes import Upserted
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.statistics import load_json
from dblog_core.delta_writer.stored_rows import column_batches
from dblog_core.delta_writer.upsert import commit_deletes, overtaken_error

_ATTEMPTS = 20  # at a table that others write meanwhile


def remove_older(table: OpenTable, below: int, app: str, number: int) -> Upserted | None:
    """Removes the rows whose order is below a number, as transaction `number` of `app`; None where there are none. All
    marks in the table's files count as deletes then. Again, it removes nothing more.

    Raises as `upsert`.
    """
    for _ in range(_ATTEMPTS):
        shape = table.refresh()
        files = table.snapshot.files.values()
        grown = [(live, dead) for live in files if (dead := _with_older(table, live, shape, below)) is not None]
        if not grown:
            return None
        if (done := commit_deletes(table, grown, app, number)) is not None:
            return done
    raise overtaken_error(table, _ATTEMPTS)


def _with_older(table: OpenTable, live: LiveFile, shape: Shape, below: int) -> RowSet | None:
    """The file's dead rows with those whose order is below a number; None where that is none more."""
    statistics = load_json(live.add.get("stats"))
    column = shape[table.order].physical
    lowest = statistics.get("minValues", {}).get(column)
    highest = statistics.get("maxValues", {}).get(column)
    if lowest is not None and lowest >= below:
        return None
    dead = table.dead_rows(live)
    if highest is not None and highest < below and statistics.get("nullCount", {}).get(column) == 0 and live.rows:
        return dead.with_rows(np.arange(live.rows))
    grown = dead
    for first, rows in column_batches(table.files, live, shape, [table.order]):
        is_older = pc.fill_null(pc.less(rows.column(0), below), False)
        grown = grown.with_rows(first + np.flatnonzero(np.asarray(is_older)))
    return grown if len(grown) > len(dead) else None
