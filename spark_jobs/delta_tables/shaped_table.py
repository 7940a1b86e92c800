"""A Delta table that is given another shape: by commits of our own, or by statements of Spark where the table has what
only Spark knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from dblog_core.delta_writer.altering.alterations import (
    FIRST,
    AddColumn,
    Change,
    CommentColumn,
    DropColumns,
    RenameColumn,
    SetProperties,
    SupportFeature,
    TableForm,
    UnsetProperties,
    WidenColumn,
    alter_form,
)
from dblog_core.delta_writer.altering.altered_table import AlteredTable
from dblog_core.delta_writer.altering.needed_features import FIRST_PROTOCOL, LOCAL_TIMES
from dblog_core.delta_writer.features import TableRefused
from dblog_core.interfaces import Json
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.storage.location import Location
from spark_jobs.delta_tables import delta_log_checkpoint, log
from spark_jobs.delta_tables.column_types import quote


@dataclass(frozen=True, slots=True)
class Described:
    """A table's columns and properties."""

    shape: StructType
    properties: Mapping[str, str]

    @classmethod
    def of(cls, schema: Json, properties: Mapping[str, str]) -> Described:
        """`schema`: as the table's log has it."""
        return cls(StructType.fromJson(schema), properties)

    def after(self, changes: Iterable[Change]) -> Described:
        """What they make of it. Raises LakeError for a change that the table cannot have."""
        metadata = {"schemaString": self.shape.json(), "configuration": dict(self.properties)}
        altered = alter_form(TableForm(metadata, FIRST_PROTOCOL), changes, "").metadata
        return Described.of(orjson.loads(altered["schemaString"]), altered["configuration"])


Plan = Callable[[Described], Sequence[Change]]
"""What a table still lacks."""


class ShapedTable:
    """One table, used by one thread."""

    def __init__(self, spark: SparkSession, path: Location, check: Callable[[], None]) -> None:
        """`check` raises LeaseLost once another may write: it is asked right before each commit."""
        self._spark = spark
        self._path = path
        self._check = check
        self._table = AlteredTable(path, mark=COMMIT_MARK, check=check)

    def describe(self) -> Described:
        """Its columns and properties now, by its log; by Spark where only that reads it. Raises LakeError."""
        try:
            self._table.look()
        except TableRefused:
            return self._describe_by_spark()
        return self._describe_by_log()

    def describe_writable(self) -> Described:
        """As `describe`. Raises TableRefused for a table whose rows are not written here."""
        self._table.look()
        self._table.snapshot.shape(str(self._path))
        return self._describe_by_log()

    def alter(self, plan: Plan) -> Sequence[Change]:
        """Makes the changes of `plan`, in one commit, and returns them; where Spark makes them, each is a commit.

        Raises LakeError for a change that the table cannot have.
        """
        changes: Sequence[Change] = ()

        def plan_of_now() -> Sequence[Change]:
            nonlocal changes
            changes = plan(self._describe_by_log())
            return changes

        try:
            if self._table.alter(plan_of_now):
                self._note_commit()
        except TableRefused:
            return self._alter_by_spark(plan)
        return changes

    def _describe_by_log(self) -> Described:
        return Described.of(self._table.schema, self._table.properties)

    def _note_commit(self) -> None:
        committed = self._table.snapshot
        log.note_commit(self._path, committed.version, self._table.commit_info, committed.commit)
        if delta_log_checkpoint.is_due(committed.version, self._table.properties):
            delta_log_checkpoint.write(self._spark, self._path)

    def _describe_by_spark(self) -> Described:
        detail = DeltaTable.forPath(self._spark, str(self._path)).detail()
        shape = self._spark.read.format("delta").load(str(self._path)).schema
        return Described(shape, dict(detail.select("properties").collect()[0][0]))

    def _alter_by_spark(self, plan: Plan) -> Sequence[Change]:
        changes = plan(self._describe_by_spark())
        for statement in statements(f"delta.{quote(str(self._path))}", changes):
            self._check()
            self._spark.sql(statement)
        return changes


def statements(table: str, changes: Iterable[Change]) -> Iterator[str]:
    """The changes as Spark makes them, in their order. `table`: its name in SQL."""
    for change in changes:
        match change:
            case AddColumn(name, kind, after, comment):
                yield from _features(table, kind)
                place = "" if after is None else " FIRST" if after == FIRST else f" AFTER {quote(after)}"
                about = "" if comment is None else f" COMMENT {_literal(comment)}"
                yield f"ALTER TABLE {table} ADD COLUMNS ({quote(name)} {_sql_type(kind)}{about}{place})"
            case CommentColumn(name, comment):
                yield f"ALTER TABLE {table} ALTER COLUMN {quote(name)} COMMENT {_literal(comment)}"
            case DropColumns(names):
                yield f"ALTER TABLE {table} DROP COLUMNS ({', '.join(map(quote, names))})"
            case RenameColumn(path, name):
                yield f"ALTER TABLE {table} RENAME COLUMN {_sql_path(path)} TO {quote(name)}"
            case WidenColumn(path, kind):
                yield from _features(table, kind)
                yield f"ALTER TABLE {table} ALTER COLUMN {_sql_path(path)} TYPE {_sql_type(kind)}"
            case SetProperties(values):
                yield _set_properties(table, values)
            case UnsetProperties(names):
                yield f"ALTER TABLE {table} UNSET TBLPROPERTIES ({', '.join(map(_literal, names))})"
            case SupportFeature(name):
                yield _set_properties(table, {f"delta.feature.{name}": "supported"})


def _features(table: str, kind: str | Json) -> Iterator[str]:
    """The statement without which Delta refuses a column of this type."""
    if kind == "timestamp_ntz":
        yield from statements(table, [SupportFeature(LOCAL_TIMES)])


def _set_properties(table: str, properties: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{_literal(name)} = {_literal(value)}" for name, value in properties.items())
    return f"ALTER TABLE {table} SET TBLPROPERTIES ({pairs})"


def _sql_path(path: Iterable[str]) -> str:
    return ".".join(map(quote, path))


def _sql_type(kind: str | Json) -> str:
    field = {"name": "column", "type": kind, "nullable": True, "metadata": {}}
    return StructType.fromJson({"type": "struct", "fields": [field]})["column"].dataType.simpleString()


def _literal(text: str) -> str:
    """A string as SQL has it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
