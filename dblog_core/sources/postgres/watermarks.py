"""The watermark table: one row per dump worker, overwritten with each watermark; the log keeps every version."""

from __future__ import annotations

import psycopg2
import psycopg2.errors
from psycopg2 import sql

from dblog_core.config import SourceConfig
from dblog_core.errors import NoWatermarkTable
from dblog_core.schema import TableName
from dblog_core.sources.postgres.connection import Connection, connect, execute, translated

_WRITE = sql.SQL(
    "INSERT INTO {} (worker, payload) VALUES (%s, %s) ON CONFLICT (worker) DO UPDATE SET payload = excluded.payload"
)


def identifier(table: TableName) -> sql.Identifier:
    return sql.Identifier(table.schema, table.name)


def creation(table: TableName) -> sql.Composed:
    """The statement that makes the table where it is missing."""
    return sql.SQL("CREATE TABLE IF NOT EXISTS {} (worker text PRIMARY KEY, payload text NOT NULL)").format(
        identifier(table)
    )


class PostgresWatermarks:
    """One worker's row. Each write is a transaction of its own, flushed here when `write` returns.

    Not left to the server: with `off` a SELECT could be older than a horizon whose place in the log lies before its low
    watermark; with `on` a missing standby would let every dump hang.
    """

    def __init__(self, config: SourceConfig, worker: str) -> None:
        self._config = config
        self._worker = worker
        self._statement = _WRITE.format(identifier(TableName.parse(config.watermark_table)))
        self._connection: Connection | None = None

    def write(self, payload: str) -> None:
        """Commits the payload. Raises SourceUnavailable or SourceRefused; the connection is made on first use."""
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._config)
            with translated(self._config):
                execute(self._connection, "SET synchronous_commit = local")
        with translated(self._config):
            try:
                execute(self._connection, self._statement, (self._worker, payload))
            except psycopg2.errors.UndefinedTable as error:
                raise NoWatermarkTable(self._config.watermark_table) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
