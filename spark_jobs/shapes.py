"""Shapes: how a table's Arrow columns look in Spark and in the lake, and which change of shape the lake can follow."""

from __future__ import annotations

import re

import pyarrow as pa
from pyspark.sql import types as t

from dblog_core.errors import LakeError
from dblog_core.schema import TableSchema

OFFSET, POSITION, COMMIT_TIME, ORIGIN = "_dblog_offset", "_dblog_position", "_dblog_commit_time", "_dblog_origin"
PROVENANCE = (
    t.StructField(OFFSET, t.LongType()),
    t.StructField(POSITION, t.StringType()),
    t.StructField(COMMIT_TIME, t.TimestampType()),
    t.StructField(ORIGIN, t.StringType()),
)
OP, TRANSACTION, UNCHANGED, MOVED_FROM = "_dblog_op", "_dblog_transaction", "_dblog_unchanged", "_dblog_moved_from"
"""What a history table has beside the provenance."""

_SIMPLE: dict[pa.DataType, t.DataType] = {
    pa.bool_(): t.BooleanType(),
    pa.int8(): t.ByteType(),
    pa.int16(): t.ShortType(),
    pa.int32(): t.IntegerType(),
    pa.int64(): t.LongType(),
    pa.float32(): t.FloatType(),
    pa.float64(): t.DoubleType(),
    pa.string(): t.StringType(),
    pa.binary(): t.BinaryType(),
    pa.date32(): t.DateType(),
    pa.timestamp("us"): t.TimestampNTZType(),
    pa.timestamp("us", tz="UTC"): t.TimestampType(),
}
_NEEDS_MAPPING = re.compile(r"[ ,;{}()\n\t=]")


def quoted(name: str) -> str:
    """A column's name as Spark's expressions take it."""
    return "`" + name.replace("`", "``") + "`"


def spark_type(kind: pa.DataType) -> t.DataType:
    """The Spark type with the same values as a staged Arrow type."""
    if pa.types.is_decimal(kind):
        return t.DecimalType(kind.precision, kind.scale)
    return _SIMPLE[kind]


def row_shape(schema: TableSchema) -> t.StructType:
    """A row image."""
    return t.StructType([t.StructField(c.name, spark_type(c.type)) for c in schema.columns])


def key_shape(schema: TableSchema) -> t.StructType:
    return t.StructType([t.StructField(c.name, spark_type(c.type)) for c in schema.key_columns])


def lake_shape(schema: TableSchema) -> t.StructType:
    """The lake table: the source's columns, then the provenance."""
    return t.StructType([*row_shape(schema), *PROVENANCE])


def history_shape(schema: TableSchema) -> t.StructType:
    """The history table: the source's columns, then what is told of the change."""
    told = [
        t.StructField(OP, t.StringType()),
        *PROVENANCE,
        t.StructField(TRANSACTION, t.StringType()),
        t.StructField(UNCHANGED, t.ArrayType(t.StringType())),
    ]
    moved = [t.StructField(MOVED_FROM, key_shape(schema))] if schema.key else []  # Parquet has no struct without fields
    return t.StructType([*row_shape(schema), *told, *moved])


def log_shape(schema: TableSchema) -> t.StructType:
    """What the merge reads of a log file (see `dblog_core.staging.manifest`)."""
    moved = [t.StructField("moved_from", key_shape(schema))] if schema.key else []
    return t.StructType(
        [
            t.StructField("offset", t.LongType()),
            t.StructField("op", t.StringType()),
            t.StructField("origin", t.StringType()),
            t.StructField("transaction", t.StringType()),
            t.StructField("position", t.StringType()),
            t.StructField("commit_time", t.TimestampType()),
            t.StructField("key_only", t.BooleanType()),
            t.StructField("unchanged", t.ArrayType(t.StringType())),
            *moved,
            t.StructField("before", row_shape(schema)),
            t.StructField("after", row_shape(schema)),
        ]
    )


def needs_mapping(schema: TableSchema) -> bool:
    """Whether Delta takes these names only with column mapping."""
    return any(_NEEDS_MAPPING.search(c.name) for c in schema.columns)


def check_names(schema: TableSchema) -> None:
    """Raises LakeError where the lake could not keep the columns apart."""
    seen: dict[str, str] = {}
    for column in schema.columns:
        if column.name.startswith("_dblog_"):
            raise _unfit(schema, f"column {column.name} has a name of our own")
        if (other := seen.setdefault(column.name.lower(), column.name)) != column.name:
            raise _unfit(schema, f"columns {other} and {column.name} differ in upper and lower case alone")


def _unfit(schema: TableSchema, what: str) -> LakeError:
    return LakeError(
        what, where=str(schema.table), fix="exclude the column in [source.columns], or rename it in the source"
    )


def check_follows(older: TableSchema, newest: TableSchema) -> None:
    """Raises LakeError unless `newest` is `older` with nothing but columns added."""
    types = {c.name: c.type for c in newest.columns}
    gone = [c.name for c in older.columns if c.name not in types]
    changed = [c.name for c in older.columns if c.name in types and types[c.name] != c.type]
    _refuse(newest, gone, changed, older.key != newest.key)


def added_columns(lake: t.StructType, key: list[str], schema: TableSchema) -> list[tuple[t.StructField, str | None]]:
    """Columns that the lake table lacks, each with the one before it. Raises LakeError for any other difference."""
    have = {f.name: f.dataType for f in lake if not f.name.startswith("_dblog_")}
    want = {f.name: f.dataType for f in row_shape(schema)}
    gone = [name for name in have if name not in want]
    changed = [name for name in have if name in want and want[name] != have[name]]
    _refuse(schema, gone, changed, key != list(schema.key))
    names = [c.name for c in schema.columns]
    shape = row_shape(schema)
    return [(shape[n], names[i - 1] if i else None) for i, n in enumerate(names) if n not in have]


def _refuse(schema: TableSchema, gone: list[str], changed: list[str], key: bool) -> None:
    faults = [f"column {name} is gone" for name in gone] + [f"column {name} has another type" for name in changed]
    if key:
        faults.append("the key is another one")
    if faults:
        raise LakeError(
            f"the table's shape changed in a way that the lake does not follow: {'; '.join(faults)}",
            where=str(schema.table),
            fix=f"run `dblog reset {schema.table}`: the table takes its new shape, and is dumped anew",
        )
