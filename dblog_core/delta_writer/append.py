"""Rows appended to a table in which nothing is looked up: no index, and no vectors.

  newest version -> the rows beyond the newest transaction -> a file for each part of them -> `txn` and `add` as the
  next version, created if absent

A transaction's version is the highest order of the rows that it was made of, so that the table itself says which rows
it has. Another writer's commit in between makes ours fail: it is read, and may have brought some of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.data_file import StoredFile, store_rows
from dblog_core.delta_writer.features import BatchRefused
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.table_log import ATTEMPTS, Options, TableLog
from dblog_core.interfaces import Json
from dblog_core.storage.location import Location


@dataclass(frozen=True, slots=True)
class Appended:
    """The version that has the rows; `rows`: how many this call has added; `already`: an earlier one had them all."""

    version: int
    rows: int = 0
    already: bool = False


class AppendedTable(TableLog):
    """A table that rows are appended to. It keeps what its log says, without its files."""

    def __init__(self, table: Location, *, order: str, **options: Unpack[Options]) -> None:
        """`order`: the column that grows from one transaction to the next; the others: as for `TableLog`."""
        super().__init__(table, **options)
        self._order = order

    def look(self) -> None:
        """As of `TableLog`. Nothing is asked of the files, and a history may have many."""
        super().look()
        self.snapshot = replace(self.snapshot, files={})

    def refresh(self) -> Shape:
        """Reads what others have committed; the table's shape now. Raises TableRefused."""
        self.look()
        return self.shape()

    def shape(self) -> Shape:
        """That of the last look. Raises TableRefused."""
        return self.snapshot.shape(str(self.files), only_grows=True)

    def newest_order(self, app: str) -> int:
        """The order up to which the transactions of `app` have brought all rows, as of the last look; 0: none is
        known."""
        return self.snapshot.txns.get(app, 0)

    def append(self, rows: pa.Table | Iterable[pa.Table], app: str, number: int) -> Appended:
        """Commits the rows beyond the newest transaction of `app`, as transaction `number`: the highest order up to
        which they are complete. They have the columns of the shape that the last look showed, and may come in several
        parts, which can be gone through again.

        Raises BatchRefused where somebody has altered the table since, and StagingError with storage's own faults: then
        a later call finds out what became of the commit.
        """
        parts = [rows] if isinstance(rows, pa.Table) else rows
        metadata = self.snapshot.metadata
        done = self.newest_order(app)
        files: list[StoredFile] | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                self.refresh()
            if self.snapshot.metadata != metadata:
                raise BatchRefused("the table was altered meanwhile", where=str(self.files), fix="it is tried again")
            # Another merge has brought some of the rows, or all: of those that are left other files are made.
            if (newest := self.newest_order(app)) != done:
                done = newest
                files = None
            if done >= number:
                return Appended(self.snapshot.version, already=True)
            if files is None or not all(self.files.exists(file.name) for file in files):
                files = self._write(parts, done)
            if self._commit(files, app, number):
                return Appended(self.snapshot.version, sum(file.count for file in files))
        raise self.overtaken_error()

    def _write(self, parts: Iterable[pa.Table], done: int) -> list[StoredFile]:
        """A file for the rows of each part, and of each partition, that are beyond `done`."""
        shape = self.shape()
        files: list[StoredFile] = []
        for part in parts:
            if len(rows := part.filter(pc.greater(part[self._order], done))):
                stored = store_rows(self.files, rows, shape, self.snapshot.configuration, self.new_id)
                files += [file for file, _ in stored]
        return files

    def _commit(self, files: Sequence[StoredFile], app: str, number: int) -> bool:
        now = self.now_ms()
        metrics = {
            "numFiles": len(files),
            "numOutputRows": sum(file.count for file in files),
            "numOutputBytes": sum(file.size for file in files),
        }
        # Rows and number take effect together, or neither does.
        actions: list[Json] = [{"txn": {"appId": app, "version": number, "lastUpdated": now}}]
        actions += [{"add": file.addition(now_ms=now, data_change=True)} for file in files]
        if not self.commit("WRITE", metrics, actions, is_blind=True):
            return False
        self.snapshot = replace(self.snapshot, files={})
        return True
