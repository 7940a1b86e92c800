"""Rows below a number of the order column go, in a commit of their own."""

from __future__ import annotations

from dblog_core.delta_writer.changes import Upserted
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.older_rows import find_older
from dblog_core.delta_writer.table_log import ATTEMPTS
from dblog_core.delta_writer.upserting.upsert import commit_deletes


def remove_older(table: OpenTable, below: int, app: str, number: int) -> Upserted | None:
    """Removes the rows whose order is below a number, as transaction `number` of `app`; None where there are none. All
    marks in the table's files count as deletes then. Again, it removes nothing more.

    Raises as `upsert`.
    """
    for _ in range(ATTEMPTS):
        older = find_older(table, table.refresh(), below)
        if not older.grown:
            return None
        if (done := commit_deletes(table, list(older.grown.values()), app, number)) is not None:
            return done
    raise table.overtaken()
