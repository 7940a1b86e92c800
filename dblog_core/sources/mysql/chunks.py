"""Chunks: rows in key order by one SELECT. The database compares keys, values are bound, columns become Arrow."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pymysql
from pymysql.connections import Connection, MySQLResult

from dblog_core.config import SourceConfig
from dblog_core.errors import RequestError, SourceUnavailable, ValueOutOfRange
from dblog_core.interfaces import Chunk
from dblog_core.schema import Column, TableName, TableSchema
from dblog_core.sources.mysql import catalogue, text_values
from dblog_core.sources.mysql.binary_values import ValueFault
from dblog_core.sources.mysql.connection import connect, quoted, rows, translated, where
from dblog_core.sources.mysql.packets import Packets, read_rows
from dblog_core.sources.mysql.types import is_labelled
from dblog_core.sources.mysql.watermarks import qualified
from dblog_core.values import Key, keys_of

_RECEIVE = 256 << 10


class MysqlChunks:
    """A ChunkReader over one connection in autocommit: every SELECT is a new snapshot."""

    def __init__(self, config: SourceConfig, connection: Connection[Any]) -> None:
        self._config, self._connection = config, connection
        self._keys: Mapping[str, Sequence[str]] = config.keys

    def schema(self, table: TableName) -> TableSchema:
        with translated(self._config, f"reading the shape of {table}"):
            described = catalogue.describe(self._connection, table, self._keys)
        if described is None:
            raise RequestError(
                f"table {table} does not exist", where=where(self._config), fix="name an existing SCHEMA.TABLE"
            )
        if described.schema is None:
            raise RequestError(
                f"table {table}: {'; '.join(described.faults)}", where=where(self._config), fix="see `dblog check`"
            )
        return described.schema

    def last_key(self, schema: TableSchema) -> Key | None:
        found = self._select(schema, schema.key_columns, "", [], "DESC", 1)
        keys = keys_of(found, schema)
        return keys[0] if keys else None

    def estimated_rows(self, table: TableName) -> int:
        sql = "SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        with translated(self._config, f"estimating {table}"):
            found = rows(self._connection, sql, (table.schema, table.name))
        return int(found[0][0] or 0) if found else 0

    def read(self, schema: TableSchema, *, after: Key | None, upto: Key | None, limit: int) -> Chunk:
        conditions, values = [], []
        for key, beyond, equal in ((after, ">", False), (upto, "<", True)):
            if key is not None:
                condition, bound = _bound(schema, key, beyond, equal)
                conditions.append(condition)
                values += bound
        return Chunk(schema, self._select(schema, schema.columns, " AND ".join(conditions), values, "ASC", limit), None)

    def read_keys(self, schema: TableSchema, keys: Sequence[Key]) -> Chunk:
        if not keys:
            return Chunk(schema, _no_rows(schema), None)
        columns = schema.key_columns
        values = [_value(part, column) for key in keys for part, column in zip(key, columns, strict=True)]
        if len(columns) == 1:
            condition = f"{quoted(columns[0].name)} IN ({', '.join(['%s'] * len(keys))})"
        else:
            # MariaDB turns a long IN of rows into a join; this form uses the key's index on both servers.
            one = "(" + " AND ".join(f"{quoted(c.name)} = %s" for c in columns) + ")"
            condition = "(" + " OR ".join([one] * len(keys)) + ")"
        return Chunk(schema, self._select(schema, schema.columns, condition, values, "ASC", None), None)

    def close(self) -> None:
        self._connection.close()

    def _select(
        self,
        schema: TableSchema,
        columns: Sequence[Column],
        condition: str,
        values: list[Any],
        direction: str,
        limit: int | None,
    ) -> pa.RecordBatch:
        if not schema.key:
            raise RequestError(
                f"table {schema.table} has no key to read it by",
                fix="give it a primary key, or an entry in [source.keys]",
            )
        sql = f"SELECT {', '.join(map(_selected, columns))} FROM {qualified(schema.table)}"
        sql += f" WHERE {condition}" if condition else ""
        sql += " ORDER BY " + ", ".join(f"{_ordered(column)} {direction}" for column in schema.key_columns)
        sql += f" LIMIT {int(limit)}" if limit is not None else ""
        with translated(self._config, f"reading {schema.table}"):
            found = self._run(sql, values, len(columns))
        return self._batch(schema, columns, found)

    def _run(self, sql: str, values: list[Any], width: int) -> list[list[bytes | None]]:
        """Runs a SELECT and splits its rows from the socket itself: the driver makes an object of every value."""
        connection: Any = self._connection
        with connection.cursor() as cursor:
            text = cursor.mogrify(sql, tuple(values))  # also without values: the names have their % doubled
        connection._execute_command(3, text)  # COM_QUERY
        result: Any = MySQLResult(connection)
        result.init_unbuffered_query()
        result.unbuffered_active = False  # from here on the rows are ours, and the driver must not wait for them
        received: Any = connection._rfile

        def receive() -> bytes:
            data: bytes = received.read1(_RECEIVE)
            if not data:
                raise SourceUnavailable(
                    "the server closed the connection", where=where(self._config), fix="check that the server runs"
                )
            return data

        found = read_rows(Packets(connection._next_seq_id), receive, width)
        if isinstance(found, bytes):
            pymysql.err.raise_mysql_exception(found)
        return found

    def _batch(self, schema: TableSchema, columns: Sequence[Column], found: list[list[bytes | None]]) -> pa.RecordBatch:
        arrays = []
        for column, values in zip(columns, found, strict=True):
            try:
                arrays.append(text_values.to_arrow(column, values, zero_dates=self._config.zero_dates))
            except ValueFault as fault:
                raise ValueOutOfRange(
                    f"column {column.name}: a value {fault.why}", where=str(schema.table), fix=fault.fix
                ) from fault
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([pa.field(c.name, c.type) for c in columns]))


def _no_rows(schema: TableSchema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema.arrow)


def _selected(column: Column) -> str:
    # A FLOAT is printed with six digits; as a double it is printed exactly.
    return f"CAST({quoted(column.name)} AS DOUBLE)" if pa.types.is_float32(column.type) else quoted(column.name)


def _ordered(column: Column) -> str:
    """What key order goes by. ENUM and SET sort by their number but compare as text, so both go by their text."""
    if is_labelled(column.source_type):
        return f"CONVERT({quoted(column.name)} USING utf8mb4) COLLATE utf8mb4_bin"
    return quoted(column.name)


def _bound(schema: TableSchema, key: Key, beyond: str, equal: bool) -> tuple[str, list[Any]]:
    """`key beyond (or equal)` column by column: row comparisons would not use the index.

    (a, b) > (1, 2) is `a >= 1 AND (a > 1 OR (a = 1 AND b > 2))`, whose first part alone gives the range its start.
    """
    columns = schema.key_columns
    names = [_ordered(column) for column in columns]
    values = [_value(part, column) for part, column in zip(key, columns, strict=True)]
    if len(columns) == 1:
        return f"{names[0]} {beyond}{'=' if equal else ''} %s", values
    alternatives, bound = [], [values[0]]
    for i in range(len(columns)):
        last = i == len(columns) - 1
        steps = [f"{name} = %s" for name in names[:i]] + [f"{names[i]} {beyond}{'=' if equal and last else ''} %s"]
        alternatives.append("(" + " AND ".join(steps) + ")")
        bound += values[: i + 1]
    return f"{names[0]} {beyond}= %s AND ({' OR '.join(alternatives)})", bound


def _value(part: Any, column: Column) -> Any:
    """A key part as the driver is to bind it. Text stays text: the column's own collation wins over a literal's."""
    if isinstance(part, bytes) and column.source_type.startswith("bit"):
        return int.from_bytes(part, "big")
    if isinstance(part, dt.datetime):
        return part.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return part


def open_reader(config: SourceConfig) -> MysqlChunks:
    connection = connect(config)
    with translated(config, "preparing to read chunks"):
        # MySQL keeps its estimates for a day otherwise; MariaDB has no such setting and no such delay.
        if rows(connection, "SHOW VARIABLES LIKE 'information_schema_stats_expiry'"):
            rows(connection, "SET SESSION information_schema_stats_expiry = 0")
    return MysqlChunks(config, connection)
