"""What becomes of the files that have rows of changed keys: vectors grow, or what is left of them is written again.

A file stays as it is where all its rows of these keys are dead already: old versions of rows that are deleted now. Its
tag counts them as deleted from then on, so that maintenance removes them together with the row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dblog_core.delta_writer.bitmaps import Rows, RowSet
from dblog_core.delta_writer.commit import removal
from dblog_core.delta_writer.data_file import StoredFile
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.copy_on_write import Copies, copy_files
from dblog_core.delta_writer.rewriting.rewrite import Source
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.statistics import loosen_bounds
from dblog_core.delta_writer.stored_rows import stored_count
from dblog_core.delta_writer.vectors import tag_replaced, unique_id
from dblog_core.interfaces import Json


@dataclass(slots=True)
class OldRows:
    """The rows of a file that go. `updated`: those of them that have a new row of their key; `former`: so many rows of
    keys that go were dead before; `gone`: the file's dead rows with those that go whatever their key is, where there
    are some."""

    file: LiveFile
    parts: list[Rows] = field(default_factory=list)
    updated: list[Rows] = field(default_factory=list)
    packed: RowSet = field(default_factory=RowSet)
    packed_updated: RowSet = field(default_factory=RowSet)
    """The rows of earlier parts, which take a bit or two bytes each in place of eight."""
    gone: RowSet | None = None
    former: int = 0

    @property
    def is_touched(self) -> bool:
        """Whether a row of it goes."""
        return bool(self.parts or len(self.packed)) or self.gone is not None

    def dead_rows(self, table: OpenTable) -> RowSet:
        """All rows of the file that are dead when these are gone."""
        self.pack()
        dead = table.dead_rows(self.file) if self.gone is None else self.gone
        return dead.with_rows(self.packed.rows()) if len(self.packed) else dead

    def pack(self) -> None:
        """Has the rows take less memory."""
        if self.parts:
            self.packed = self.packed.with_rows(np.concatenate(self.parts))
            self.parts = []
        if self.updated:
            self.packed_updated = self.packed_updated.with_rows(np.concatenate(self.updated))
            self.updated = []

    @property
    def all_replaced(self) -> int:
        """How many of the file's dead rows are replaced ones then. One that was deleted before, and not replaced, may
        be among the former ones: too few are safe, they are purged too soon."""
        return max(self.file.replaced_count + len(self.packed_updated) + sum(map(len, self.updated)) - self.former, 0)


@dataclass(frozen=True, slots=True)
class TouchedFile:
    """A file with rows that go: how many it has, all those that are dead then, and how many of these were replaced;
    `updated`: the rows that go now and have a new row of their key."""

    file: LiveFile
    rows: int
    dead: RowSet
    replaced: int
    updated: RowSet = field(default_factory=RowSet)

    @property
    def has_left(self) -> bool:
        return len(self.dead) < self.rows


@dataclass(frozen=True, slots=True)
class OldFiles:
    """What becomes of the touched files. `vectors`: by path, of those that stay with a vector; `copies`: what stands in
    place of those that go. One without a living row only goes. `tagged`: the actions of those that get a tag alone."""

    touched: list[TouchedFile]
    vectors: Mapping[str, Json] = field(default_factory=dict)
    copies: Sequence[StoredFile] = ()
    tagged: Sequence[Json] = ()

    def actions(self, now_ms: int) -> list[Json]:
        """Those of the commit."""
        actions: list[Json] = [removal(old.file, now_ms=now_ms, data_change=True) for old in self.touched]
        # To Delta a file with another vector is another file: it is removed as it was, and added with the grown vector.
        # Its minima and maxima may be those of dead rows now.
        for old in self.touched:
            if (vector := self.vectors.get(old.file.path)) is not None:
                addition = {**old.file.add, "dataChange": True, "deletionVector": vector}
                addition["stats"] = loosen_bounds(old.file.add.get("stats"), old.rows)
                tag_replaced(addition, old.replaced)
                actions.append({"add": addition})
        actions += [{"add": file.addition(now_ms=now_ms, data_change=True)} for file in self.copies]
        actions += [{"add": addition} for addition in self.tagged]
        return actions

    def note_vectors(self, table: OpenTable) -> None:
        """Has the table know the vectors that were committed."""
        for old in self.touched:
            if (vector := self.vectors.get(old.file.path)) is not None:
                table.vectors[old.file.path] = unique_id(vector), old.dead


def take_old_rows(table: OpenTable, old_rows: Collection[OldRows], copies: Copies) -> OldFiles:
    """Grows the vectors of the touched files, and writes them in one file; or copies the files without these rows."""
    touched = [_touch(table, old) for old in old_rows if old.is_touched]
    tagged = [_tag(old) for old in old_rows if not old.is_touched and old.all_replaced < old.file.replaced_count]
    left = [old for old in touched if old.has_left]
    if not left:
        return OldFiles(touched, tagged=tagged)
    if not table.snapshot.takes_vectors:
        files = copy_files(table, [Source(old.file, old.dead) for old in left], copies)
        table.rewritten_bytes += sum(file.size for file in files)
        return OldFiles(touched, copies=files, tagged=tagged)
    vectors, size = table.store_vectors({old.file.path: old.dead for old in left})
    table.rewritten_bytes += size
    return OldFiles(touched, vectors, tagged=tagged)


def _touch(table: OpenTable, old: OldRows) -> TouchedFile:
    dead = old.dead_rows(table)
    return TouchedFile(old.file, stored_count(table.files, old.file, dead), dead, old.all_replaced, old.packed_updated)


def _tag(old: OldRows) -> Json:
    """Of two actions that add the same file with the same vector the later one counts (PROTOCOL.md, "Action
    Reconciliation"); as no data changes, streams that read the table pass it over."""
    addition = {**old.file.add, "dataChange": False}
    tag_replaced(addition, old.all_replaced)
    return addition
