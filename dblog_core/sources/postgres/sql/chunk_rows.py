"""A chunk's SELECT in its snapshot: the columns that it lists, and how the bytes of its COPY become a record batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import psycopg2
import pyarrow as pa
from psycopg2 import sql

from dblog_core.config.source import ColumnRules, SourceConfig
from dblog_core.errors import RequestError, SourceError
from dblog_core.model import server_messages
from dblog_core.model.filters import Filter
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.rows.arrow_buffers import gather
from dblog_core.rows.value_forms import shape_to_read
from dblog_core.sources.postgres.sql import catalogue, copy_out, copy_rows, standby
from dblog_core.sources.postgres.sql.connection import Connection, execute, rows
from dblog_core.sources.postgres.sql.watermarks import identifier
from dblog_core.sources.postgres.values import binary_values
from dblog_core.sources.postgres.values.types import column, from_text

# Locked as the COPY locks it, but before the snapshot is taken: of a table that an ALTER rewrites between the two, the
# COPY would see no row, and no error would tell. LOCK takes no snapshot itself. From then on types stay as they are.
_BEGIN = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; LOCK TABLE {table} IN ACCESS SHARE MODE; {settings}; "
    "SELECT pg_current_snapshot()::text, pg_is_in_recovery(), "
    "array_agg(attname::text), array_agg(atttypid::bigint), array_agg(atttypmod) "
    "FROM pg_attribute WHERE attrelid = {name}::regclass AND attnum > 0 AND NOT attisdropped"
)

Check = Callable[[pa.RecordBatch, Connection], None]
"""Raises RowsOutOfOrder for the rows of a SELECT, over the connection that has its snapshot."""
Decode = Callable[[Sequence[Column], copy_out.Bytes], pa.RecordBatch]
"""The rows of a COPY of these columns."""


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


@dataclass(frozen=True, slots=True)
class Selection:
    """A SELECT of the table `source` in a snapshot of its own.

    `columns`: what it selects, as they are known; `select` and `decode` get them as they are in the snapshot.
    `settings`: statements for its transaction. `check` looks at the rows while the snapshot lasts.
    """

    schema: TableSchema
    columns: Sequence[Column]
    source: sql.Composable
    settings: str
    select: Callable[[Sequence[Column]], sql.Composable]
    decode: Decode
    check: Check | None = None

    def read(
        self, connection: Connection, config: SourceConfig, *, replays: bool, most: int | None
    ) -> tuple[str | None, pa.RecordBatch, int]:
        """The snapshot (None on a standby), the rows, and the bytes of the COPY. `replays`: whether the server was a
        standby when the connection was made. After an error the connection is in whatever state it is in.

        Raises TooLarge, RequestError, SourceUnavailable, and what `check` raises.
        """
        begin = sql.SQL(_BEGIN).format(
            table=self.source,
            settings=sql.SQL(self.settings),
            name=sql.Literal(identifier(self.schema.table).as_string(connection)),
        )
        ((snapshot, still_replays, names, oids, typmods),) = rows(connection, begin)
        if still_replays != replays:  # a snapshot from before the promotion, or from after it: nobody can tell
            raise standby.promotion_error(config)
        kinds = dict(zip(names or (), zip(oids or (), typmods or (), strict=True), strict=True))
        types = catalogue.type_names(connection, set(kinds.values()))
        now = columns_now(self.schema, self.columns, kinds, types, config.columns)
        copy = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(self.select(now))
        copied = copy_out.receive_copy(connection, copy.as_string(connection), most=most, columns=len(now))
        selected = self.decode(now, copied)
        if self.check is not None:
            self.check(selected, connection)
        # Nothing was written; it ends the snapshot, which would hold back VACUUM.
        execute(connection, "COMMIT")
        return None if replays else str(snapshot), selected, len(copied)


@contextlib.contextmanager
def refusing(schema: TableSchema, filters: Sequence[Filter]) -> Iterator[None]:
    """Turns the server's words on keys, filters and columns into a RequestError."""
    try:
        yield
    except psycopg2.errors.UndefinedColumn as error:
        raise changed_error(schema) from error
    except (psycopg2.DataError, psycopg2.errors.UndefinedFunction) as error:
        compared = [*schema.key, *(f.column for f in filters)]
        columns = ", ".join(f"{c.name} {c.source_type}" for c in schema.columns if c.name in compared)
        raise RequestError(
            f"a key or filter does not fit its column: {server_messages.by_postgres(error)}",
            where=str(schema.table),
            fix=f"give keys and filters values of their columns' types ({columns}), which must have an order",
        ) from error
