"""Arrow types to Delta's: how a table's columns look in the lake, and which rows fit another shape.

Which Arrow type a source's type becomes stands in `dblog_core/sources/*/values/types`.
"""

from __future__ import annotations

import re

import pyarrow as pa

from dblog_core.delta_writer import delta_types as t
from dblog_core.delta_writer.shape import name_of_type, simple_type
from dblog_core.errors import LakeError
from dblog_core.model.schema import TableSchema
from dblog_core.model.table_names import quote_for_shell
from dblog_core.schema_evolution import compatibility

OFFSET = "_dblog_offset"
POSITION = "_dblog_position"
COMMIT_TIME = "_dblog_commit_time"
ORIGIN = "_dblog_origin"
PROVENANCE = (
    t.StructField(OFFSET, "long"),
    t.StructField(POSITION, "string"),
    t.StructField(COMMIT_TIME, "timestamp"),
    t.StructField(ORIGIN, "string"),
)
OP = "_dblog_op"
TRANSACTION = "_dblog_transaction"
UNCHANGED = "_dblog_unchanged"
MOVED_FROM = "_dblog_moved_from"
"""What a history table has beside the provenance."""
VARIANT = "variant"
"""The type of columns that no source has."""

_NEEDS_MAPPING = re.compile(r"[ ,;{}()\n\t=]")


def quote(name: str) -> str:
    """A column's name as Spark's expressions take it."""
    return "`" + name.replace("`", "``") + "`"


def row_shape(schema: TableSchema) -> t.StructType:
    """A row image."""
    return t.StructType([t.StructField(c.name, name_of_type(c.type)) for c in schema.columns])


def key_shape(schema: TableSchema) -> t.StructType:
    return t.StructType([t.StructField(c.name, name_of_type(c.type)) for c in schema.key_columns])


def lake_shape(schema: TableSchema) -> t.StructType:
    """The lake table: the source's columns, then the provenance."""
    return t.StructType([*row_shape(schema), *PROVENANCE])


def history_shape(schema: TableSchema) -> t.StructType:
    """The history table: the source's columns, then what describes the change."""
    change = [
        t.StructField(OP, "string"),
        *PROVENANCE,
        t.StructField(TRANSACTION, "string"),
        t.StructField(UNCHANGED, {"type": "array", "elementType": "string", "containsNull": True}),
    ]
    moved = (
        [t.StructField(MOVED_FROM, key_shape(schema).json_value())] if schema.key else []
    )  # Parquet has no struct without fields
    return t.StructType([*row_shape(schema), *change, *moved])


def arrow_type(kind: t.DeltaType) -> pa.DataType | None:
    """The Arrow type with the same values as a column of the lake; None for a type that no staged column has."""
    return simple_type(kind) if isinstance(kind, str) and kind != VARIANT else None


def has_ends(kind: pa.DataType) -> bool:
    """Whether Delta keeps the smallest and the largest value of this type for each file, in our order."""
    types = pa.types
    kinds = (types.is_integer, types.is_decimal, types.is_string, types.is_date, types.is_timestamp)
    return any(is_kind(kind) for is_kind in kinds)


def needs_mapping(schema: TableSchema) -> bool:
    """Whether Delta takes these names only with column mapping."""
    return any(is_odd(c.name) for c in schema.columns)


def is_odd(name: str) -> bool:
    """Whether Delta takes this name only with column mapping."""
    return bool(_NEEDS_MAPPING.search(name))


def check_names(schema: TableSchema) -> None:
    """Raises LakeError where the lake could not keep the columns apart."""
    seen: dict[str, str] = {}
    for column in schema.columns:
        if column.name.startswith("_dblog_"):
            raise _refuse_name(schema, f"column {column.name} has a name of our own")
        if (other := seen.setdefault(column.name.lower(), column.name)) != column.name:
            raise _refuse_name(schema, f"columns {other} and {column.name} differ in upper and lower case alone")


def check_name_beside_vectors(schema: TableSchema) -> None:
    """Raises LakeError for a column by whose name Delta 4.4 looks for the place of a row: it cannot read a table that
    has it and deletion vectors."""
    for column in schema.columns:
        if column.name.lower() == "_metadata":
            raise LakeError(
                f"Spark cannot read a table with deletion vectors that has a column {column.name}",
                where=str(schema.table),
                fix="exclude the column in [source.columns], rename it in the source, or set "
                "`[lake] deletion_vectors = false`",
            )


def _refuse_name(schema: TableSchema, what: str) -> LakeError:
    return LakeError(
        what, where=str(schema.table), fix="exclude the column in [source.columns], or rename it in the source"
    )


def check_follows(older: TableSchema, newest: TableSchema) -> None:
    """Raises LakeError unless rows of `older` can be read as rows of `newest`: columns may be added, gone or wider."""
    if faults := compatibility.compare_schemas(older, newest).faults:
        raise refuse_shape(newest, faults)


def refuse_shape(schema: TableSchema, faults: list[str]) -> LakeError:
    """The error of a table whose shape the lake cannot take as it stands."""
    accept = f"`dblog schema accept {quote_for_shell(schema.table)}`"
    reset = f"`dblog reset {quote_for_shell(schema.table)}`"
    return LakeError(
        f"the table's shape changed in a way that the lake does not follow: {'; '.join(faults)}",
        where=str(schema.table),
        fix=f"run {accept}, which says first what it does: the table takes its new shape, and a dump brings what it "
        f"lacks; or {reset}: it is emptied, and dumped again",
    )
