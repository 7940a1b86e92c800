"""Rows that go, whatever their keys are, in a commit of their own."""

from __future__ import annotations

from dblog_core.delta_writer.changes import Upserted
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.older_rows import GoneRows, find_older
from dblog_core.delta_writer.table_log import ATTEMPTS
from dblog_core.delta_writer.upserting.upsert import Draft, commit_draft


def commit_deletes(table: OpenTable, gone: GoneRows, app: str, number: int) -> Upserted | None:
    """Commits that these rows of the snapshot go, as transaction `number` of `app`; None if another's commit came
    first."""
    draft = Draft(Upserted(table.snapshot.version + 1))
    draft.add_gone(gone, table.snapshot.files.values())
    draft.write_old_files(table, {})
    return draft.counts if commit_draft(table, draft, app, number) else None


def remove_older(table: OpenTable, below: int, app: str, number: int) -> Upserted | None:
    """Removes the rows whose order is below a number, as transaction `number` of `app`; None where there are none.
    Again, it removes nothing more.

    Raises as `upsert`.
    """
    for _ in range(ATTEMPTS):
        older = find_older(table, table.refresh(), below)
        if not older.count:
            return None
        if (done := commit_deletes(table, older, app, number)) is not None:
            return done
    raise table.overtaken_error()
