"""Changes that several processes plan, each those of keys of its own, and one process commits, as `upsert` does.

A plan names new files that are written, and rows that go by their places, in the version that it was made of: so it is
worth nothing for another version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dblog_core.delta_writer.bitmaps import Rows, RowSet
from dblog_core.delta_writer.changes import Changes, Upserted
from dblog_core.delta_writer.new_rows import NewFile
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.older_rows import OlderRows, find_older
from dblog_core.delta_writer.rewriting.touched_files import take_old_rows
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.upsert import Draft, commit_draft, plan_parts
from dblog_core.interfaces import Json


@dataclass(frozen=True, slots=True)
class RowsThatGo:
    """Rows of a file that go: their numbers, as a vector encodes them; how many of them have a new row of their key;
    and how many rows of keys that go were dead before."""

    path: str
    numbers: bytes
    replaced: int
    former: int


@dataclass(frozen=True, slots=True)
class PlannedKeys:
    """The plan of the changes of some keys. `rows`: how many changes they are; `additions`: the `add` actions of the
    files that their new rows are in."""

    counts: Upserted
    rows: int
    going: tuple[RowsThatGo, ...]
    additions: tuple[Json, ...]


def plan_keys(table: OpenTable, changes: Changes, shape: Shape) -> tuple[PlannedKeys, list[Rows]]:
    """The plan of these changes in the table's snapshot, and the numbers of those whose row has a value that nobody
    knows. Writes the new rows. Raises as `upsert`."""
    draft = plan_parts(table, [changes], shape, {}, None)
    going = [
        RowsThatGo(path, RowSet().with_rows(_joined(old.parts)).encode(), old.replaced, old.former)
        for path, old in draft.old_rows.items()
    ]
    additions = tuple(file.addition for file in draft.new_files)
    return PlannedKeys(draft.counts, draft.rows, tuple(going), additions), draft.unknown


def commit_planned(
    table: OpenTable, planned: Iterable[PlannedKeys], app: str, number: int, *, below: int | None = None
) -> Upserted | None:
    """Commits the plans of all keys as transaction `number` of `app`; None if another's commit came first. `below`:
    as for `upsert`: the plans were made without these rows."""
    draft = Draft(Upserted(table.snapshot.version + 1))
    older = OlderRows() if below is None else find_older(table, table.shape(), below)
    draft.add_older(older, table.snapshot.files.values())
    for plan in planned:
        draft.rows += plan.rows
        draft.counts = draft.counts.plus(plan.counts)
        for addition in plan.additions:
            draft.add_file(NewFile(b"", str(addition["path"]), int(addition["size"]), addition, keys=None))
        for going in plan.going:
            old = draft.old_rows_of(table.snapshot.files[going.path])
            rows = RowSet.decode(going.numbers).rows()
            old.parts += [rows] if len(rows) else []
            old.replaced += going.replaced
            old.former += going.former
    old_files = take_old_rows(table, draft.old_rows.values(), {})
    return draft.counts if commit_draft(table, draft, old_files, app, number) else None


def _joined(parts: list[Rows]) -> Rows:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
