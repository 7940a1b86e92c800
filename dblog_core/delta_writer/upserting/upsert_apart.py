"""Changes that several processes plan, each those of keys of its own, and one process commits, as `upsert` does.

A plan names new files that are written, and rows that go by their places, in the version that it was made of: so it is
worth nothing for another version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dblog_core.delta_writer.bitmaps import Rows, RowSet
from dblog_core.delta_writer.changes import Changes, Upserted
from dblog_core.delta_writer.data_file import StoredFile
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.older_rows import GoneRows, find_older
from dblog_core.delta_writer.rewriting.unseen_rows import Reading
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.upserting.draft import Draft, commit_draft
from dblog_core.delta_writer.upserting.new_rows import NewFile
from dblog_core.delta_writer.upserting.upsert import plan_parts


@dataclass(frozen=True, slots=True)
class RowsThatGo:
    """Rows of a file that go, and those of them that have a new row of their key: their numbers, as a vector encodes
    them; and how many rows of keys that go were dead before."""

    path: str
    numbers: bytes
    updated: bytes
    former: int


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file without its keys, and which of its rows replace an older one: a bit for each."""

    file: StoredFile
    is_update: bytes


@dataclass(frozen=True, slots=True)
class PlannedKeys:
    """The plan of the changes of some keys. `rows`: how many changes they are; `files`: those of their new rows."""

    counts: Upserted
    rows: int
    going: tuple[RowsThatGo, ...]
    files: tuple[WrittenFile, ...]


def plan_keys(table: OpenTable, changes: Changes, shape: Shape) -> tuple[PlannedKeys, list[Rows]]:
    """The plan of these changes in the table's snapshot, and the numbers of those whose row has a value that nobody
    knows. Writes the new rows. Raises as `upsert`."""
    draft = plan_parts(table, [changes], shape, {}, None)
    for old in draft.old_rows.values():
        old.pack()
    going = tuple(
        RowsThatGo(path, old.packed.encode(), old.packed_updated.encode(), old.former)
        for path, old in draft.old_rows.items()
    )
    files = tuple(
        WrittenFile(replace(new.file, keys=None), np.packbits(new.is_update).tobytes()) for new in draft.new_files
    )
    return PlannedKeys(draft.counts, draft.rows, going, files), draft.unknown


def commit_planned(
    table: OpenTable,
    planned: Iterable[PlannedKeys],
    app: str,
    number: int,
    *,
    below: int | None = None,
    readings: Sequence[Reading] = (),
) -> Upserted | None:
    """Commits the plans of all keys as transaction `number` of `app`; None if another's commit came first. `below` and
    `readings`: as for `upsert`; the plans were made without the rows of `below`."""
    draft = Draft(Upserted(table.snapshot.version + 1))
    older = GoneRows() if below is None else find_older(table, table.shape(), below)
    draft.add_gone(older, table.snapshot.files.values())
    for plan in planned:
        draft.rows += plan.rows
        draft.counts = draft.counts.plus(plan.counts)
        for written in plan.files:
            bits = np.frombuffer(written.is_update, np.uint8)
            is_update = np.unpackbits(bits, count=written.file.count).astype(np.bool_)
            draft.add_file(NewFile(b"", written.file, is_update))
        for going in plan.going:
            old = draft.old_rows_of(table.snapshot.files[going.path])
            old.packed = old.packed.with_rows(RowSet.decode(going.numbers).rows())
            old.packed_updated = old.packed_updated.with_rows(RowSet.decode(going.updated).rows())
            old.former += going.former
    draft.add_unseen(table, table.shape(), readings)
    draft.write_old_files(table, {})
    return draft.counts if commit_draft(table, draft, app, number) else None
