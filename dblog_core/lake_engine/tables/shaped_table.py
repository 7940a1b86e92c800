"""A Delta table that is given another shape: by commits of our own, or by statements of Spark where the table has what
only Spark knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from dblog_core.delta_writer.altering.alterations import (
    Change,
    TableForm,
    alter_form,
)
from dblog_core.delta_writer.altering.altered_table import AlteredTable
from dblog_core.delta_writer.altering.needed_features import FIRST_PROTOCOL
from dblog_core.delta_writer.delta_types import StructType
from dblog_core.interfaces import Json
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.lake_engine.tables import delta_log_checkpoint, log
from dblog_core.storage.location import Location


@dataclass(frozen=True, slots=True)
class Described:
    """A table's columns and properties."""

    shape: StructType
    properties: Mapping[str, str]

    @classmethod
    def of(cls, schema: Json, properties: Mapping[str, str]) -> Described:
        """`schema`: as the table's log has it."""
        return cls(StructType.from_json(schema), properties)

    def after(self, changes: Iterable[Change]) -> Described:
        """What they make of it. Raises LakeError for a change that the table cannot have."""
        metadata = {
            "schemaString": orjson.dumps(self.shape.json_value()).decode(),
            "configuration": dict(self.properties),
        }
        altered = alter_form(TableForm(metadata, FIRST_PROTOCOL), changes, "").metadata
        return Described.of(orjson.loads(altered["schemaString"]), altered["configuration"])


Plan = Callable[[Described], Sequence[Change]]
"""What a table still lacks."""


class ShapedTable:
    """One table, used by one thread."""

    def __init__(self, path: Location, check: Callable[[], None]) -> None:
        """`check` raises LeaseLost once another may write: it is asked right before each commit."""
        self._path = path
        self._check = check
        self._table = AlteredTable(path, mark=COMMIT_MARK, check=check)

    def describe(self) -> Described:
        """Its columns and properties now. Raises LakeError; TableRefused where its log is not read here."""
        self._table.look()
        return self._describe_by_log()

    def describe_writable(self) -> Described:
        """As `describe`. Raises TableRefused for a table whose rows are not written here."""
        self._table.look()
        self._table.snapshot.shape(str(self._path))
        return self._describe_by_log()

    def alter(self, plan: Plan) -> Sequence[Change]:
        """Makes the changes of `plan`, in one commit, and returns them.

        Raises LakeError for a change that the table cannot have; TableRefused for a table that is not written here.
        """
        changes: Sequence[Change] = ()

        def plan_of_now() -> Sequence[Change]:
            nonlocal changes
            changes = plan(self._describe_by_log())
            return changes

        if self._table.alter(plan_of_now):
            self._note_commit()
        return changes

    def _describe_by_log(self) -> Described:
        return Described.of(self._table.schema, self._table.properties)

    def _note_commit(self) -> None:
        committed = self._table.snapshot
        log.note_commit(self._path, committed.version, self._table.commit_info, committed.commit)
        if delta_log_checkpoint.is_due(committed.version, self._table.properties):
            delta_log_checkpoint.write(self._path)
