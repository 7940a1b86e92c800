"""The columns of a chunk: how its SELECT lists them, and how the bytes of its COPY become a record batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from psycopg2 import sql

from dblog_core.config.source import ColumnRules
from dblog_core.errors import RequestError, SourceError
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.rows.arrow_buffers import gather
from dblog_core.rows.value_forms import shape_to_read
from dblog_core.sources.postgres.sql import catalogue, copy_out, copy_rows
from dblog_core.sources.postgres.values import binary_values
from dblog_core.sources.postgres.values.types import column, from_text


def columns_now(
    schema: TableSchema,
    columns: Sequence[Column],
    kinds: dict[str, catalogue.Kind],
    names: dict[catalogue.Kind, str],
    rules: Mapping[str, ColumnRules],
) -> list[Column]:
    """The columns with their types now: bytes of another type of the same length would be read as wrong values.

    `kinds`: the types of the table's columns in the snapshot, `names`: what these are called. Raises RequestError where
    a column is gone or its Arrow type is another one.
    """
    present = tuple(column(c.name, names[kinds[c.name]]) for c in columns if c.name in kinds)
    now = list(shape_to_read(TableSchema(schema.table, present, schema.key), rules).columns)
    # Their own types may differ, where Arrow's are the same: varchar(5) became varchar(9).
    # Decoding by the types of before would give other values, or none.
    if [c.type for c in now] != [c.type for c in columns]:
        raise changed_error(schema)
    return now


def name_column(column: Column) -> sql.Composable:
    """The column by its name in the chunk's table, which every SELECT here calls `t`."""
    return sql.SQL("t.{}").format(sql.Identifier(column.name))


def select_column(column: Column) -> sql.Composable:
    """What the SELECT lists for a column: where its binary form is not supported, its text form.

    By `format`, which knows that form alone: a cast to text may be another one (of boolean, inet, character), or a
    function of the type's maker. It makes an empty text of NULL; and IS NULL holds for a row of NULLs too.
    """
    name = name_column(column)
    if binary_values.is_supported(column.source_type):
        return name
    return sql.SQL("CASE WHEN {0} IS NOT DISTINCT FROM NULL THEN NULL ELSE format('%s', {0}) END").format(name)


def decode_rows(copied: copy_out.Bytes, columns: Sequence[Column], table: TableName) -> pa.RecordBatch:
    """The rows of a COPY, of columns that `select_column` listed. Raises SourceError where they are no such rows."""
    try:
        placed = copy_rows.parse(copied, len(columns))
    except ValueError as error:
        raise SourceError(
            f"the server's COPY cannot be read: {error}", where=str(table), fix="upgrade dblog"
        ) from error
    arrays = [
        binary_values.to_arrow(placed.raw, starts, lengths, column, table)
        if binary_values.is_supported(column.source_type)
        else from_text(gather(placed.raw, starts, lengths), column, table)
        for starts, lengths, column in zip(placed.starts, placed.lengths, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([pa.field(c.name, c.type) for c in columns]))


def changed_error(schema: TableSchema) -> RequestError:
    """The error for a table that was altered between the schema's reading and the chunk's."""
    return RequestError(
        "a column of this shape is gone, or has another type",
        where=str(schema.table),
        fix="the table was changed meanwhile: read its schema again",
    )
