"""Rows appended to a table in which nothing is looked up: no index, and no vectors.

  newest version -> the rows beyond the newest transaction -> a file for each part of them -> `txn` and `add` as the
  next version, created if absent

A transaction's version is the highest order of the rows that it was made of, so that the table itself says which rows
it has. Another writer's commit in between makes ours fail: it is read, and may have brought some of the rows.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.commit import commit_data, commit_info, create_commit
from dblog_core.delta_writer.data_file import StoredFile, data_file
from dblog_core.delta_writer.due_actions import complete_actions
from dblog_core.delta_writer.features import BatchRefused, check_appendable
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.partitions import split_rows
from dblog_core.delta_writer.shape import Shape, shape_of
from dblog_core.delta_writer.snapshot import Snapshot
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json
from dblog_core.storage.location import Location

_ATTEMPTS = 20  # at a table that others write meanwhile


@dataclass(frozen=True, slots=True)
class Appended:
    """The version that has the rows; `rows`: how many this call has added; `already`: an earlier one had them all."""

    version: int
    rows: int = 0
    already: bool = False


class AppendedTable:
    """One table that rows are appended to, used by one thread. It keeps what its log says, without its files."""

    def __init__(
        self,
        table: Location,
        *,
        order: str,
        mark: str,
        check: Callable[[], None] = lambda: None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        """`order`: the column that grows from one transaction to the next; `mark`: what our commits carry; `check`
        raises LeaseLost once another may write: it is asked right before each commit."""
        self.files = TableFiles.at(table)
        self.check = check
        self.snapshot = Snapshot()
        self._order = order
        self._mark = mark
        self._now_ms = now_ms
        self._new_id = new_id

    def refresh(self) -> Shape:
        """Reads what others have committed; the table's shape now. Raises TableRefused."""
        newest = snapshot.newest(self.files, self.snapshot)
        # Nothing is asked of the files, and a history may have many.
        self.snapshot = replace(newest, files={})
        return self.shape()

    def is_as_left(self) -> bool:
        """Whether the table still has the commit that the snapshot ends with (`snapshot.is_there`): one request. What
        others have committed since is found by the next commit."""
        return snapshot.is_there(self.files, self.snapshot)

    def shape(self) -> Shape:
        """That of the last look. Raises TableRefused."""
        where = str(self.files)
        check_appendable(self.snapshot.protocol, self.snapshot.metadata, where)
        return shape_of(self.snapshot.metadata, where)

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
        for attempt in range(_ATTEMPTS):
            if attempt:
                self.refresh()
            if self.snapshot.metadata != metadata:
                raise BatchRefused("the table was altered meanwhile", where=str(self.files), fix="Spark writes it")
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
        raise LakeError(
            f"others have committed {_ATTEMPTS} times while one commit was made",
            where=str(self.files),
            fix="see who writes this table: nobody but the merge should; it is tried again",
        )

    def _write(self, parts: Iterable[pa.Table], done: int) -> list[StoredFile]:
        """A file for the rows of each part, and of each partition, that are beyond `done`."""
        where = str(self.files)
        shape = self.shape()
        configuration = self.snapshot.metadata.get("configuration") or {}
        files = []
        for part in parts:
            if not len(rows := part.filter(pc.greater(part[self._order], done))):
                continue
            for partition, numbers in split_rows(rows, shape.partitions, where):
                of_partition = rows.take(numbers) if partition else rows
                file = data_file(of_partition, shape, configuration, self._new_id(), where=where, partition=partition)
                self.files.create_new(file.name, file.data)
                # What is kept does not grow with the rows.
                files.append(replace(file.stored, keys=None))
        return files

    def _commit(self, files: Sequence[StoredFile], app: str, number: int) -> bool:
        now = self._now_ms()
        metrics = {
            "numFiles": len(files),
            "numOutputRows": sum(file.count for file in files),
            "numOutputBytes": sum(file.size for file in files),
        }
        info = commit_info(
            "WRITE",
            metrics,
            read_version=self.snapshot.version,
            mark=self._mark,
            now_ms=now,
            txn_id=self._new_id(),
            is_blind=True,
        )
        # Rows and number take effect together, or neither does.
        actions: list[Json] = [info, {"txn": {"appId": app, "version": number, "lastUpdated": now}}]
        actions += [{"add": file.addition(now_ms=now, data_change=True)} for file in files]
        data = commit_data(complete_actions(self.files, self.snapshot, actions))
        # As late as possible: the lease may have ended while the file was written.
        self.check()
        if not create_commit(self.files, self.snapshot.version + 1, data):
            return False
        newest = snapshot.apply_commit(self.snapshot, data, str(self.files))
        self.snapshot = replace(newest, files={})
        return True
