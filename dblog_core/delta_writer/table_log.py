"""The log of one table: its newest version, and commits that make the next one."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Required, TypedDict

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.commit import commit_data, commit_info, create_commit
from dblog_core.delta_writer.due_actions import complete_actions
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.snapshot import Snapshot
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json
from dblog_core.storage.location import Location

ATTEMPTS = 20
"""At a commit to a table that others write meanwhile."""


class Overtaken(LakeError):
    """Others commit to the table all the time."""

    transient = True


class Options(TypedDict, total=False):
    """Options of a `TableLog` that those which build on it hand on."""

    mark: Required[str]
    check: Callable[[], None]
    now_ms: Callable[[], int]
    new_id: Callable[[], uuid.UUID]
    committed: Callable[[TableLog], None]


class TableLog:
    """One table, used by one thread. What it keeps in memory are caches that the table's log rules."""

    def __init__(
        self,
        table: Location,
        *,
        mark: str,
        check: Callable[[], None] = lambda: None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
        committed: Callable[[TableLog], None] = lambda table: None,
    ) -> None:
        """`mark`: what our commits carry; `check` raises LeaseLost once another may write: it is asked right before
        each commit; `committed` is called right behind each."""
        self.location = table
        self.files = TableFiles.at(table)
        self.check = check
        self.now_ms = now_ms
        self.new_id = new_id
        self.snapshot = Snapshot()
        self.commit_info: Json = {}
        """The provenance of our last commit."""
        self._mark = mark
        self._committed = committed

    def is_as_left(self) -> bool:
        """Whether the table still has the commit that the snapshot ends with (`snapshot.is_there`): one request. What
        others have committed since then makes our next commit fail."""
        return snapshot.is_there(self.files, self.snapshot)

    def look(self) -> None:
        """Reads what others have committed, whatever shape it has. Raises TableRefused where its log is not read."""
        self.snapshot = snapshot.newest(self.files, self.snapshot)

    def commit(
        self, operation: str, metrics: Mapping[str, int], actions: Sequence[Json], *, is_blind: bool = False
    ) -> bool:
        """Makes the actions the snapshot's next version, and moves to it; False if somebody else was faster.
        `is_blind`: as for `commit_info`."""
        info = commit_info(
            operation,
            metrics,
            read_version=self.snapshot.version,
            mark=self._mark,
            now_ms=self.now_ms(),
            txn_id=self.new_id(),
            is_blind=is_blind,
        )
        completed = complete_actions(self.files, self.snapshot, [info, *actions])
        data = commit_data(completed)
        # As late as possible: the lease may have ended while files were written.
        self.check()
        if not create_commit(self.files, self.snapshot.version + 1, data):
            return False
        # From the bytes that were written: nothing can stand between the two versions.
        self.snapshot = snapshot.apply_commit(self.snapshot, data, str(self.files))
        self.commit_info = completed[0]["commitInfo"]
        self._committed(self)
        return True

    def overtaken_error(self, times: int = ATTEMPTS) -> Overtaken:
        """The error of a commit that others were faster than so many times."""
        return Overtaken(
            f"others have committed {times} times while one commit was made",
            where=str(self.files),
            fix="see who writes this table: nobody but the merge should; it is tried again",
        )
