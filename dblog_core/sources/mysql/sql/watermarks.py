"""The watermark table: one row per worker, overwritten for every watermark."""

from __future__ import annotations

from typing import Any

import pymysql
from pymysql.connections import Connection

from dblog_core.config.source import SourceConfig
from dblog_core.errors import NoWatermarkTable, SourceUnavailable
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.sql.connection import LOCKED, connect, quote_identifier, rows, translate_errors, where

_NO_SUCH_TABLE = 1146
_NO_SUCH_COLUMN = 1054
"""Somebody alters the table: the capture makes it right, or says what does."""


def qualify(table: TableName) -> str:
    """SCHEMA.TABLE in SQL, quoted, its `%` doubled as `quote_identifier` does."""
    return f"{quote_identifier(table.schema)}.{quote_identifier(table.name)}"


def create_statement(table: TableName) -> str:
    """The statement that makes the watermark table, which may be there."""
    # InnoDB whatever the server's default: `binlog_order_commits` orders the commits of such engines alone.
    return (
        f"CREATE TABLE IF NOT EXISTS {qualify(table)} "
        "(worker varchar(64) NOT NULL PRIMARY KEY, payload longtext NOT NULL) ENGINE=InnoDB"
        " DEFAULT CHARACTER SET utf8mb4"
    )


class MysqlWatermarks:
    """A WatermarkWriter: autocommit, so the binlog holds the payload when `write` returns."""

    def __init__(self, config: SourceConfig, connection: Connection[Any], worker: str) -> None:
        self._config = config
        self._connection = connection
        self._worker = worker
        table = qualify(TableName.parse(config.watermark_table))
        # One row for each worker, overwritten: the table stays small, and the log keeps every payload as a row event.
        self._statement = f"INSERT INTO {table} (worker, payload) VALUES (%s, %s) ON DUPLICATE KEY UPDATE payload = %s"

    def write(self, payload: str) -> None:
        with translate_errors(self._config, "writing a watermark"):
            try:
                rows(self._connection, self._statement, (self._worker, payload, payload))
            except pymysql.err.MySQLError as error:
                if error.args[0] in LOCKED:  # no fault of the table that the watermark is about
                    raise SourceUnavailable(
                        "somebody has locked the watermark table", where=where(self._config), fix="dblog tries again"
                    ) from error
                if error.args[0] not in (_NO_SUCH_TABLE, _NO_SUCH_COLUMN):
                    raise
                raise NoWatermarkTable(self._config.watermark_table) from error

    def close(self) -> None:
        self._connection.close()


def open_watermarks(config: SourceConfig, worker: str) -> MysqlWatermarks:
    return MysqlWatermarks(config, connect(config), worker)
