"""Changes of a table's shape as statements of Spark, with which its own ALTER is compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

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
    UnsetProperties,
    WidenColumn,
)
from dblog_core.delta_writer.altering.needed_features import LOCAL_TIMES
from dblog_core.interfaces import Json
from dblog_core.lake_engine.tables.column_types import quote


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
