"""A table whose columns and properties are changed by commits of our own.

  newest version -> what is still to be changed -> `metaData` and `protocol` as the next version, created if absent

Another writer's commit in between makes ours fail: then it is decided again. What is done already is no commit, so that
a change that died anywhere is made once.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.altering.alterations import Change, TableForm, alter_form
from dblog_core.delta_writer.altering.column_mapping import all_fields
from dblog_core.delta_writer.commit import commit_data, commit_info, create_commit
from dblog_core.delta_writer.due_actions import complete_actions
from dblog_core.delta_writer.features import check_appendable, check_column
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.shape import PHYSICAL_NAME
from dblog_core.delta_writer.snapshot import Snapshot
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json
from dblog_core.storage.location import Location

_ATTEMPTS = 20  # at a table that others write meanwhile


class AlteredTable:
    """One table, used by one thread. It keeps what the log says."""

    def __init__(
        self,
        table: Location,
        *,
        mark: str,
        check: Callable[[], None] = lambda: None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        """`mark`: what our commits carry; `check` raises LeaseLost once another may write: it is asked right before
        each commit."""
        self.files = TableFiles.at(table)
        self.snapshot = Snapshot()
        self.commit_info: Json = {}
        """The provenance of our last commit."""
        self._mark = mark
        self._check = check
        self._now_ms = now_ms
        self._new_id = new_id

    def look(self) -> None:
        """Reads what others have committed. Raises TableRefused for a table that Spark must alter."""
        self.snapshot = snapshot.newest(self.files, self.snapshot)
        where = str(self.files)
        check_appendable(self.snapshot.protocol, self.snapshot.metadata, where)
        for field in all_fields(self.schema["fields"]):
            check_column(field["name"], field.get("metadata") or {}, where)

    @property
    def schema(self) -> Json:
        """The columns as of the last look, as the log has them."""
        schema: Json = orjson.loads(self.snapshot.metadata["schemaString"])
        return schema

    @property
    def properties(self) -> dict[str, Any]:
        """As of the last look."""
        return dict(self.snapshot.metadata.get("configuration") or {})

    def alter(self, plan: Callable[[], Sequence[Change]]) -> bool:
        """Commits the changes of `plan`, which is asked after each look at the table; False where they change nothing.

        Raises TableRefused for a table that Spark must alter, LakeError for a change that it cannot have, or where
        others leave no room, and StagingError with storage's own faults: then the same call later finds out what became
        of the commit.
        """
        for _ in range(_ATTEMPTS):
            self.look()
            before = TableForm(self.snapshot.metadata, self.snapshot.protocol)
            after = alter_form(before, plan(), str(self.files), self._new_id)
            if after is before:
                return False
            self._check_clustering(after)
            if self._commit(before, after):
                return True
        raise LakeError(
            f"others have committed {_ATTEMPTS} times while one commit was made",
            where=str(self.files),
            fix="see who writes this table: nobody but the merge should; it is tried again",
        )

    def _check_clustering(self, after: TableForm) -> None:
        left = {_physical_name(field) for field in orjson.loads(after.metadata["schemaString"])["fields"]}
        names = {_physical_name(field): field["name"] for field in self.schema["fields"]}
        if lost := [names[physical] for physical in self.snapshot.clustered_by if physical not in left]:
            raise LakeError(
                f"the table is clustered by {', '.join(lost)}, which cannot be dropped",
                where=str(self.files),
                fix="run ALTER TABLE … CLUSTER BY NONE, or with other columns, in Spark",
            )

    def _commit(self, before: TableForm, after: TableForm) -> bool:
        is_reshaped = before.metadata["schemaString"] != after.metadata["schemaString"]
        info = commit_info(
            "UPDATE SCHEMA" if is_reshaped else "SET TBLPROPERTIES",
            {},
            read_version=self.snapshot.version,
            mark=self._mark,
            now_ms=self._now_ms(),
            txn_id=self._new_id(),
            is_blind=True,
        )
        protocol = [{"protocol": after.protocol}] if after.protocol != before.protocol else []
        actions = [info, *protocol, {"metaData": after.metadata}]
        completed = complete_actions(self.files, self.snapshot, actions)
        data = commit_data(completed)
        # As late as possible: the lease may have ended while the log was read.
        self._check()
        if not create_commit(self.files, self.snapshot.version + 1, data):
            return False
        self.snapshot = snapshot.apply_commit(self.snapshot, data, str(self.files))
        self.commit_info = completed[0]["commitInfo"]
        return True


def _physical_name(field: Json) -> str:
    return str((field.get("metadata") or {}).get(PHYSICAL_NAME, field["name"]))
