"""Reads chunks: one short REPEATABLE READ transaction each, as CSV through COPY, straight into Arrow.

COPY takes no parameters, so bounds become literals made by psycopg2's own quoting, cast to the column's type. Only the
server compares keys.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
from collections.abc import Sequence
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.csv
from psycopg2 import sql

from dblog_core.config import SourceConfig
from dblog_core.errors import RequestError
from dblog_core.interfaces import Chunk
from dblog_core.schema import Column, TableName, TableSchema
from dblog_core.sources.postgres import catalogue
from dblog_core.sources.postgres.connection import Connection, connect, execute, rows, translated, value
from dblog_core.sources.postgres.types import comparable, from_text
from dblog_core.sources.postgres.watermarks import identifier
from dblog_core.values import Key, to_json

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {}SELECT pg_current_snapshot()::text"
# A range in key order is always an index scan: with poor statistics the planner would sort the rest of the table.
_BY_INDEX = "SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off; "
_ESTIMATE = """
    SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint FROM pg_class c
    WHERE c.oid = %s OR c.oid IN (SELECT relid FROM pg_partition_tree(%s::oid::regclass) WHERE isleaf)
"""
_NO_PLACE_LEFT = 2**31 - 1


class PostgresChunkReader:
    """A ChunkReader on one connection, made on first use."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._connection: Connection | None = None
        self._sources: dict[TableName, sql.Composable] = {}

    def schema(self, table: TableName) -> TableSchema:
        with translated(self._config):
            return self._table(table).schema(self._config)

    def estimated_rows(self, table: TableName) -> int:
        with translated(self._config):
            oid = self._table(table).oid
            return int(value(self._open(), _ESTIMATE, (oid, oid)))

    def last_key(self, schema: TableSchema) -> Key | None:
        backwards = sql.SQL(", ").join(sql.SQL("{} DESC").format(sql.Identifier(name)) for name in schema.key)
        chunk = self._chunk(schema, schema.key_columns, sql.SQL("true"), backwards, 1)
        keys = list(zip(*(column.to_pylist() for column in chunk.rows.columns), strict=True))
        return keys[0] if keys else None

    def read(self, schema: TableSchema, *, after: Key | None, upto: Key | None, limit: int) -> Chunk:
        bounds = [
            sql.SQL("{} {} {}").format(_names(schema), sql.SQL(comparison), _literals(schema, key))
            for comparison, key in ((">", after), ("<=", upto))
            if key is not None
        ]
        condition = sql.SQL(" AND ").join(bounds) if bounds else sql.SQL("true")
        return self._chunk(schema, schema.columns, condition, _order(schema), limit)

    def read_keys(self, schema: TableSchema, keys: Sequence[Key]) -> Chunk:
        condition: sql.Composable = sql.SQL("false")
        if keys:
            listed = sql.SQL(", ").join(_literals(schema, key) for key in keys)
            condition = sql.SQL("{} IN (VALUES {})").format(_names(schema), listed)
        return self._chunk(schema, schema.columns, condition, _order(schema), None)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._config)
        return self._connection

    def _table(self, name: TableName) -> catalogue.CatalogueTable:
        return catalogue.table(self._open(), name)

    def _source(self, name: TableName) -> sql.Composable:
        """The FROM item: an inheritance parent without its children, whose rows the log shows under their own names."""
        if name not in self._sources:
            only = "{}" if self._table(name).partitioned else "ONLY {}"
            self._sources[name] = sql.SQL(only).format(identifier(name))
        return self._sources[name]

    def _chunk(
        self,
        schema: TableSchema,
        columns: Sequence[Column],
        condition: sql.Composable,
        order: sql.Composable,
        limit: int | None,
    ) -> Chunk:
        with translated(self._config):
            query = sql.SQL(
                "COPY (SELECT {} FROM {} WHERE {} ORDER BY {}{}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)"
            ).format(
                sql.SQL(", ").join(sql.Identifier(c.name) for c in columns),
                self._source(schema.table),
                condition,
                order,
                sql.SQL("" if limit is None else f" LIMIT {limit:d}"),
            )
            try:
                snapshot, text = self._copy(query, _BEGIN.format(_BY_INDEX if limit is not None else ""))
            except psycopg2.DataError as error:
                raise _bad_key(schema, error) from error
            except psycopg2.errors.UndefinedColumn as error:
                raise _changed(schema) from error
        return Chunk(schema, _rows(text, columns, schema.table), snapshot)

    def _copy(self, query: sql.Composable, begin: str) -> tuple[str, io.BytesIO]:
        """The CSV of a COPY, and the snapshot that it read: both of one transaction."""
        connection, text = self._open(), io.BytesIO()
        try:
            snapshot = str(rows(connection, begin)[0][0])
            with connection.cursor() as cursor:
                cursor.copy_expert(query, text)
        except BaseException:
            self.close()  # whatever state it is in, the next chunk gets a new connection
            raise
        execute(connection, "COMMIT")
        return snapshot, text


def _names(schema: TableSchema) -> sql.Composable:
    return sql.SQL("({})").format(sql.SQL(", ").join(sql.Identifier(name) for name in schema.key))


def _order(schema: TableSchema) -> sql.Composable:
    return sql.SQL(", ").join(sql.Identifier(name) for name in schema.key)


def _literals(schema: TableSchema, key: Key) -> sql.Composable:
    parts = zip(key, schema.key_columns, strict=True)
    return sql.SQL("({})").format(sql.SQL(", ").join(_literal(part, column) for part, column in parts))


def _literal(part: Any, column: Column) -> sql.Composable:
    text = key_text(part)
    if "\0" in text:
        raise RequestError(
            f"a key of column {column.name} holds a zero character", fix="PostgreSQL has no such text: check the key"
        )
    return sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(comparable(column.source_type)))


def key_text(part: Any) -> str:
    """A key part in a text form that the server's type reads back exactly."""
    match part:
        case bool():
            return "t" if part else "f"
        case bytes():
            return rf"\x{part.hex()}"
        case decimal.Decimal():
            return format(part, "f")
        case dt.date() | float():
            return str(to_json(part))
    return str(part)


def _rows(text: io.BytesIO, columns: Sequence[Column], table: TableName) -> pa.RecordBatch:
    fields = pa.schema([pa.field(c.name, c.type) for c in columns])
    size = text.getbuffer().nbytes
    if size == 0:
        return pa.RecordBatch.from_pylist([], schema=fields)
    if size > _NO_PLACE_LEFT:
        raise RequestError(f"a chunk of {table} has {size} bytes", fix="ask for fewer rows with a smaller chunk_size")
    names = [str(number) for number in range(len(columns))]
    parsed = pyarrow.csv.read_csv(
        pa.BufferReader(text.getbuffer()),
        # One block as large as the text: a value may be of any length.
        pyarrow.csv.ReadOptions(column_names=names, block_size=size + 1, use_threads=False),
        pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ).combine_chunks()
    arrays = [from_text(_one(parsed.column(number)), column, table) for number, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=fields)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _bad_key(schema: TableSchema, error: psycopg2.Error) -> RequestError:
    return RequestError(
        " ".join(str(error).split()),
        where=str(schema.table),
        fix=f"its key is ({', '.join(f'{c.name} {c.source_type}' for c in schema.key_columns)})",
    )


def _changed(schema: TableSchema) -> RequestError:
    return RequestError(
        "a column of this shape is gone",
        where=str(schema.table),
        fix="the table was changed meanwhile: read its schema again",
    )
