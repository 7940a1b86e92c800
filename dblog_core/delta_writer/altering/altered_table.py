"""A table whose columns and properties are changed by commits of our own.

  newest version -> what is still to be changed -> `metaData` and `protocol` as the next version, created if absent

Another writer's commit in between makes ours fail: then it is decided again. What is done already is no commit, so that
a change that died anywhere is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from dblog_core.delta_writer.altering.alterations import Change, TableForm, alter_form
from dblog_core.delta_writer.altering.column_mapping import all_fields
from dblog_core.delta_writer.altering.needed_features import FIRST_PROTOCOL
from dblog_core.delta_writer.delta_types import StructType
from dblog_core.delta_writer.features import check_appendable, check_column
from dblog_core.delta_writer.shape import PHYSICAL_NAME
from dblog_core.delta_writer.table_log import ATTEMPTS, TableLog
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json


@dataclass(frozen=True, slots=True)
class Described:
    """A table's columns and properties."""

    shape: StructType
    properties: Mapping[str, str]

    @classmethod
    def of(cls, metadata: Json) -> Described:
        """Those of a `metaData` action."""
        return cls(StructType.of(orjson.loads(metadata["schemaString"])), metadata.get("configuration") or {})

    def after(self, changes: Iterable[Change]) -> Described:
        """What they make of it. Raises LakeError for a change that the table cannot have."""
        schema = orjson.dumps(self.shape.json_value()).decode()
        metadata = {"schemaString": schema, "configuration": dict(self.properties)}
        return Described.of(alter_form(TableForm(metadata, FIRST_PROTOCOL), changes, "").metadata)


class AlteredTable(TableLog):
    """A table whose columns and properties are changed."""

    def describe(self) -> Described:
        """Its columns and properties now. Raises LakeError; TableRefused for a table that is not altered here."""
        self.look()
        where = str(self.files)
        check_appendable(self.snapshot.protocol, self.snapshot.metadata, where)
        for field in all_fields(_fields(self.snapshot.metadata)):
            check_column(field["name"], field.get("metadata") or {}, where)
        return Described.of(self.snapshot.metadata)

    def describe_writable(self) -> Described:
        """As `describe`. Raises TableRefused for a table whose rows are not written here."""
        described = self.describe()
        self.snapshot.shape(str(self.files))
        return described

    def alter(self, plan: Callable[[Described], Sequence[Change]]) -> bool:
        """Commits the changes of `plan`, which is asked after each look at the table; False where they change nothing.

        Raises TableRefused for a table that is not altered here, LakeError for a change that it cannot have, Overtaken
        where others leave no room, and StagingError with storage's own faults: then the same call later finds out what
        became of the commit.
        """
        for _ in range(ATTEMPTS):
            changes = plan(self.describe())
            before = TableForm(self.snapshot.metadata, self.snapshot.protocol)
            after = alter_form(before, changes, str(self.files), self.new_id)
            if after is before:
                return False
            self._check_clustering(after)
            if self._commit(before, after):
                return True
        raise self.overtaken_error()

    def _check_clustering(self, after: TableForm) -> None:
        left = {_physical_name(field) for field in _fields(after.metadata)}
        names = {_physical_name(field): field["name"] for field in _fields(self.snapshot.metadata)}
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


def _fields(metadata: Json) -> list[Json]:
    fields: list[Json] = orjson.loads(metadata["schemaString"])["fields"]
    return fields


def _physical_name(field: Json) -> str:
    return str((field.get("metadata") or {}).get(PHYSICAL_NAME, field["name"]))
