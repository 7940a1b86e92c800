"""A table whose columns and properties are changed by commits of our own.

  newest version -> what is still to be changed -> `metaData` and `protocol` as the next version, created if absent

Another writer's commit in between makes ours fail: then it is decided again. What is done already is no commit, so that
a change that died anywhere is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from dblog_core.delta_writer.altering.alterations import Change, TableForm, alter_form
from dblog_core.delta_writer.altering.column_mapping import all_fields
from dblog_core.delta_writer.features import check_appendable, check_column
from dblog_core.delta_writer.shape import PHYSICAL_NAME
from dblog_core.delta_writer.table_log import ATTEMPTS, TableLog
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json


class AlteredTable(TableLog):
    """A table whose columns and properties are changed."""

    def look(self) -> None:
        """Reads what others have committed. Raises TableRefused for a table that Spark must alter."""
        super().look()
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
        for _ in range(ATTEMPTS):
            self.look()
            before = TableForm(self.snapshot.metadata, self.snapshot.protocol)
            after = alter_form(before, plan(), str(self.files), self.new_id)
            if after is before:
                return False
            self._check_clustering(after)
            if self._commit(before, after):
                return True
        raise self.overtaken()

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
        operation = "UPDATE SCHEMA" if is_reshaped else "SET TBLPROPERTIES"
        protocol = [{"protocol": after.protocol}] if after.protocol != before.protocol else []
        return self.commit(operation, {}, [*protocol, {"metaData": after.metadata}], is_blind=True)


def _physical_name(field: Json) -> str:
    return str((field.get("metadata") or {}).get(PHYSICAL_NAME, field["name"]))
