"""The rows of the source for the demo's last comparison, by a path of their own: plain SELECTs and the driver's values.

Nothing of the capture's or the dump's decoding is used here, so that a fault in it can not hide itself.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa

from dblog_core.local.demo import shop
from dblog_core.local.servers.server import DatabaseServer
from dblog_core.model.schema import TableSchema

_BATCH = 10_000


def read_rows(server: DatabaseServer, schema: TableSchema) -> pa.Table:
    """All rows of a table of the shop, with the columns of `schema`."""
    batches = []
    with closing(server.connect(shop.DATABASE)) as connection:
        for rows in _batches(connection, server.kind, schema):
            columns = [
                pa.array(values, kind) for values, kind in zip(_columns(rows, schema), schema.arrow.types, strict=True)
            ]
            batches.append(pa.RecordBatch.from_arrays(columns, schema=schema.arrow))
    return pa.Table.from_batches(batches, schema=schema.arrow)


def _columns(rows: list[tuple[Any, ...]], schema: TableSchema) -> Iterator[list[Any]]:
    for index, column in enumerate(schema.columns):
        aware = pa.types.is_timestamp(column.type) and column.type.tz is not None
        yield [_plain(row[index], aware) for row in rows]


def _plain(value: Any, aware: bool) -> Any:
    if isinstance(value, memoryview):
        return bytes(value)
    if aware and isinstance(value, dt.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=dt.UTC)  # MySQL: the session is at UTC
    return value


def _batches(connection: Any, kind: str, schema: TableSchema) -> Iterator[list[tuple[Any, ...]]]:
    with closing(connection.cursor()) as setting:
        # Without it the driver would give instants in the session's own zone.
        setting.execute(shop.dialect(kind).utc)
    with closing(_cursor(connection, kind)) as cursor:
        columns = ", ".join(_select_expression(kind, column.name, column.source_type) for column in schema.columns)
        cursor.execute(f"SELECT {columns} FROM {schema.table}")
        while rows := cursor.fetchmany(_BATCH):
            yield list(rows)


def _cursor(connection: Any, kind: str) -> Any:
    """One that leaves the result with the server, except for a batch."""
    if kind == "postgres":
        # A named cursor of PostgreSQL lives in a transaction.
        connection.autocommit = False
        return connection.cursor("rows")
    from pymysql.cursors import SSCursor

    return connection.cursor(SSCursor)


def _select_expression(kind: str, name: str, source_type: str) -> str:
    """JSON as the server's own text."""
    return f"{name}::text" if kind == "postgres" and source_type.startswith("json") else name
