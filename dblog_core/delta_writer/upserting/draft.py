"""The plan of one commit to a table: rows that are removed, files of new rows, and their counts; and the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from dblog_core.delta_writer.bitmaps import Rows, RowSet
from dblog_core.delta_writer.changes import Upserted
from dblog_core.delta_writer.data_file import KeptKeys
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.order_guard import Flags, Hits
from dblog_core.delta_writer.rewriting.change_files import write_changes
from dblog_core.delta_writer.rewriting.copy_on_write import Copies
from dblog_core.delta_writer.rewriting.older_rows import GoneRows
from dblog_core.delta_writer.rewriting.touched_files import OldFiles, OldRows, take_old_rows
from dblog_core.delta_writer.rewriting.unseen_rows import Reading, find_unseen
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.upserting.new_rows import NewFile
from dblog_core.interfaces import Json

_LOOSE_PLACES = 4_000_000
"""Numbers of old rows that wait as they are: eight bytes each."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`rows`: those of the changes, with the values that they keep (`has_unchanged_toast`: some do); `hits`: the
    table's rows that go; `former`: dead rows of the keys of which none is left; `puts`: the rows that come; `updates`:
    those of them whose key has a row; `unknown`: those that would come, and keep a value that nobody has.
    """

    rows: pa.Table
    has_unchanged_toast: bool
    hits: list[Hits]
    former: list[Hits]
    puts: Flags
    updates: Flags
    unknown: Flags
    counts: Upserted


@dataclass(slots=True)
class Draft:
    """The plans of all parts, added up: nothing in it grows with the rows' values."""

    counts: Upserted
    rows: int = 0
    old_rows: dict[str, OldRows] = field(default_factory=dict)
    """By the paths of the files."""
    unknown: list[Rows] = field(default_factory=list)
    """The numbers of changes, counted through all parts."""
    new_files: list[NewFile] = field(default_factory=list)
    kept_keys: KeptKeys = field(default_factory=KeptKeys)
    loose_places: int = 0
    old_files: OldFiles = field(default_factory=lambda: OldFiles([]))
    feed: Sequence[Json] = ()
    """The actions of its change data."""
    before_commit: list[Callable[[], None]] = field(default_factory=list)
    """To be called right before the commit."""

    def add(self, plan: Plan, numbers: Rows) -> None:
        """`numbers`: those of the plan's changes."""
        for hit in plan.hits:
            if len(hit.rows):
                old = self.old_rows_of(hit.file)
                old.parts.append(hit.rows)
                old.updated.append(hit.rows[plan.puts[hit.change_numbers]])
                self.loose_places += len(hit.rows)
        for hit in plan.former:
            if len(hit.rows):
                self.old_rows_of(hit.file).former += len(hit.rows)
        if self.loose_places > _LOOSE_PLACES:
            for old in self.old_rows.values():
                old.pack()
            self.loose_places = 0
        if plan.unknown.any():
            self.unknown.append(numbers[plan.unknown])
        self.rows += len(plan.rows)
        self.counts = self.counts.plus(plan.counts)

    def add_gone(self, gone: GoneRows, files: Iterable[LiveFile]) -> None:
        """`files`: all of the table: nobody looks where former rows of these keys are, and all rows that are dead in
        them now count as deleted."""
        if not gone.count:
            return
        for live, dead in gone.grown.values():
            self.old_rows_of(live).gone = dead
        for live in files:
            if live.replaced_count:
                self.old_rows_of(live).former += live.replaced_count
        self.counts = replace(
            self.counts, deleted=self.counts.deleted + gone.count, emptied=self.counts.emptied + gone.count
        )

    def add_unseen(self, table: OpenTable, shape: Shape, readings: Iterable[Reading]) -> None:
        """Removes the rows that the readings have not seen, of those that the changes leave."""
        for reading in readings:
            unseen, keys = find_unseen(table, shape, reading, partial(self._dead_rows, table))
            self.add_gone(unseen, table.snapshot.files.values())
            self.before_commit.append(partial(reading.tell, keys))

    def _dead_rows(self, table: OpenTable, file: LiveFile) -> RowSet:
        old = self.old_rows.get(file.path)
        return table.dead_rows(file) if old is None else old.dead_rows(table)

    def old_rows_of(self, file: LiveFile) -> OldRows:
        """The rows of this file that go."""
        return self.old_rows.setdefault(file.path, OldRows(file))

    def add_file(self, new: NewFile) -> NewFile:
        """The file as it is kept: without its keys where many are kept already."""
        kept = replace(new, file=self.kept_keys.limit(new.file))
        self.new_files.append(kept)
        return kept

    def write_old_files(self, table: OpenTable, copies: Copies) -> None:
        """Writes what becomes of the files with rows that go, once all plans are there. `copies`: of earlier drafts of
        the same changes, and then of this one."""
        self.old_files = take_old_rows(table, self.old_rows.values(), copies)
        self.feed = write_changes(table, self.old_files, self.new_files)


def commit_draft(table: OpenTable, draft: Draft, app: str, number: int) -> bool:
    """Commits a draft whose old files are written; False if another's commit came first."""
    for call in draft.before_commit:
        call()
    now = table.now_ms()
    old = draft.old_files
    # The merge's number stands in the commit itself: both take effect, or neither does.
    actions: list[Json] = [{"txn": {"appId": app, "version": number, "lastUpdated": now}}]
    actions += old.actions(now)
    new_files = [new.file for new in draft.new_files]
    actions += [{"add": file.addition(now_ms=now, data_change=True)} for file in new_files]
    actions += draft.feed
    shape = table.shape()
    if not table.commit("MERGE" if draft.rows else "DELETE", _metrics(draft), actions):
        return False
    old.note_vectors(table)
    for file in (*old.copies, *new_files):
        table.index_file(file, shape)
    return True


def _metrics(draft: Draft) -> dict[str, int]:
    """By the names that Delta has for them."""
    counts = draft.counts
    old = draft.old_files
    added = len(old.vectors) + len(old.copies) + len(draft.new_files)
    added_bytes = sum(file.size for file in (*(new.file for new in draft.new_files), *old.copies))
    if not draft.rows:
        return {
            "numDeletedRows": counts.deleted,
            "numCopiedRows": sum(file.count for file in old.copies),
            "numAddedFiles": added,
            "numRemovedFiles": len(old.touched),
            "numAddedBytes": added_bytes,
        }
    return {
        "numSourceRows": draft.rows,
        "numTargetRowsInserted": counts.inserted,
        "numTargetRowsUpdated": counts.updated,
        "numTargetRowsDeleted": counts.deleted,
        "numTargetRowsMatchedDeleted": counts.deleted - counts.emptied,
        "numTargetRowsNotMatchedBySourceDeleted": counts.emptied,
        "numTargetRowsCopied": sum(file.count for file in old.copies),
        "numTargetFilesAdded": added,
        "numTargetFilesRemoved": len(old.touched),
        "numTargetBytesAdded": added_bytes,
    }
