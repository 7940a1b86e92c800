"""The watermark table: one row per dump worker, overwritten with each watermark; the log keeps every version."""

from __future__ import annotations

import psycopg2
import psycopg2.errors
from psycopg2 import sql

from dblog_core.config.source import SourceConfig
from dblog_core.errors import NoWatermarkTable
from dblog_core.model import watermark
from dblog_core.model.schema import TableName
from dblog_core.model.watermark import Low, Probe
from dblog_core.sources.postgres.position import Lsn
from dblog_core.sources.postgres.sql import standby
from dblog_core.sources.postgres.sql.connection import (
    Connection,
    connect,
    execute,
    rows,
    translate_errors,
    value,
)

_WRITE = sql.SQL(
    "INSERT INTO {} (worker, payload) VALUES (%s, %s) ON CONFLICT (worker) DO UPDATE SET payload = excluded.payload"
)

_SHOWN = sql.SQL("SELECT payload FROM {} WHERE worker = %s")


def identifier(table: TableName) -> sql.Identifier:
    """SCHEMA.TABLE in SQL, quoted."""
    return sql.Identifier(table.schema, table.name)


def in_statement(table: TableName) -> sql.Identifier:
    """The table in a statement that has values: there the driver reads a percent sign as the beginning of one."""
    return sql.Identifier(table.schema.replace("%", "%%"), table.name.replace("%", "%%"))


def creation(table: TableName) -> sql.Composed:
    """The statement that makes the table where it is missing."""
    return sql.SQL("CREATE TABLE IF NOT EXISTS {} (worker text PRIMARY KEY, payload text NOT NULL)").format(
        identifier(table)
    )


def _is_low(payload: str) -> bool:
    mark = watermark.parse(payload)
    return isinstance(mark, Low) or (isinstance(mark, Probe) and not mark.high)


class PostgresWatermarks:
    """One worker's row. Each write is a transaction of its own, flushed here when `write` returns.

    Not left to the server: with `off` a SELECT could be older than a horizon whose place in the log lies before its low
    watermark; with `on` a missing standby would let every dump hang.

    Where chunks are read from a replica, a low watermark is written when that shows it: a SELECT from then on sees
    all that lies before it.
    """

    def __init__(self, config: SourceConfig, worker: str) -> None:
        self._replica = config.replica
        self._shown: Connection | None = None
        self._config = config
        self._worker = worker
        self._statement, self._question = (
            text.format(in_statement(TableName.parse(config.watermark_table))) for text in (_WRITE, _SHOWN)
        )
        self._connection: Connection | None = None

    def write(self, payload: str) -> None:
        """Commits the payload. Raises SourceUnavailable or SourceRefused; the connection is made on first use."""
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._config)
            with translate_errors(self._config):
                execute(self._connection, "SET synchronous_commit = local")
        with translate_errors(self._config):
            try:
                execute(self._connection, self._statement, (self._worker, payload))
            except (psycopg2.errors.UndefinedTable, psycopg2.errors.UndefinedColumn) as error:
                raise NoWatermarkTable(self._config.watermark_table) from error
            if self._replica is None or not _is_low(payload):
                return
            # After the commit, so that it lies behind the payload's own record.
            upto = Lsn.parse(value(self._connection, "SELECT pg_current_wal_flush_lsn()::text"))
        self._await(self._replica, payload, upto)

    def _await(self, replica: SourceConfig, payload: str, upto: Lsn) -> None:
        """Until the replica shows the payload; or has replayed all that was flushed, since another worker may share our
        row, and has overwritten it."""
        with translate_errors(replica):
            if self._shown is None or self._shown.closed:
                self._shown = connect(replica)
                standby.follow(self._shown, replica, self._config)
            replica_connection = self._shown

            def is_shown() -> bool:
                return (
                    rows(replica_connection, self._question, (self._worker,)) == [(payload,)]
                    or standby.replayed_lsn(replica_connection) >= upto
                )

            standby.await_replayed(is_shown, replica_connection, replica, "does not show a low watermark")

    def close(self) -> None:
        for connection in (self._connection, self._shown):
            if connection is not None:
                connection.close()
        self._connection = self._shown = None
