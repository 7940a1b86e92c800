"""What the server suffers from now: its own replication lag, statements at work, and the log that it keeps.

And who keeps a table locked.
"""

from __future__ import annotations

from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import DictCursor

from dblog_core.config.source import SourceConfig
from dblog_core.interfaces import Strain
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.sql.connection import connect, is_mariadb, rows, translate_errors

_NOT_GRANTED = {1227, 1044, 1142}
_NO_LOG = 1381


# LOCK TABLES … WRITE has the second mode. MariaDB tells it where the plugin METADATA_LOCK_INFO is installed.
_HOLDERS = """SELECT t.PROCESSLIST_ID, t.PROCESSLIST_USER, t.PROCESSLIST_HOST
FROM performance_schema.metadata_locks l JOIN performance_schema.threads t ON t.THREAD_ID = l.OWNER_THREAD_ID
WHERE l.OBJECT_TYPE = 'TABLE' AND l.OBJECT_SCHEMA = %s AND l.OBJECT_NAME = %s
  AND l.LOCK_TYPE IN ('EXCLUSIVE', 'SHARED_NO_READ_WRITE') ORDER BY l.LOCK_STATUS <> 'GRANTED' LIMIT 1"""
_MARIADB_HOLDERS = """SELECT p.ID, p.USER, p.HOST FROM information_schema.METADATA_LOCK_INFO l
JOIN information_schema.PROCESSLIST p ON p.ID = l.THREAD_ID WHERE l.TABLE_SCHEMA = %s AND l.TABLE_NAME = %s
  AND l.LOCK_MODE IN ('MDL_EXCLUSIVE', 'MDL_SHARED_NO_READ_WRITE') LIMIT 1"""


def find_lock_holder(config: SourceConfig, table: TableName) -> str | None:
    """Who keeps others from reading the table; one look, over one short connection. None where we may not see that."""
    connection = connect(config)
    question = _MARIADB_HOLDERS if is_mariadb(connection) else _HOLDERS
    with translate_errors(config, f"looking for who has locked {table}"), connection:
        try:
            holders = rows(connection, question, (table.schema, table.name))
        except (pymysql.err.OperationalError, pymysql.err.ProgrammingError):
            return None
    return None if not holders else f"connection {holders[0][0]} ({holders[0][1]}@{holders[0][2]})"


def strain(config: SourceConfig) -> Strain:
    """One look, over one short connection."""
    connection = connect(config)
    with translate_errors(config, "looking at the server's load"), connection:
        return Strain(_lag(connection), _running(connection), _log_bytes(connection))


def _lag(connection: Connection[Any]) -> float | None:
    """How far the server is behind its own source. A primary cannot know how far its replicas are behind it."""
    replicas = _rows_if_granted(connection, "SHOW REPLICA STATUS") or []
    # MariaDB keeps the old name; NULL is a replica that stands still or is not connected.
    behind = [row.get("Seconds_Behind_Source", row.get("Seconds_Behind_Master")) for row in replicas]
    return max((float(seconds) for seconds in behind if seconds is not None), default=None)


def _running(connection: Connection[Any]) -> int:
    """Threads at work without our own, and without those that send the log to a replica or to us."""
    total = int(rows(connection, "SHOW GLOBAL STATUS LIKE 'Threads_running'")[0][1])
    user = str(rows(connection, "SELECT CURRENT_USER()")[0][0]).rpartition("@")[0]
    listed = rows(connection, "SHOW PROCESSLIST")
    own_commands = [
        str(command) for _, who, _, _, command, *_ in listed if who == user or str(command).startswith("Binlog Dump")
    ]
    return max(0, total - sum(command != "Sleep" for command in own_commands))


def _log_bytes(connection: Connection[Any]) -> int | None:
    files = _rows_if_granted(connection, "SHOW BINARY LOGS")
    return None if files is None else sum(int(file["File_size"]) for file in files)


def _rows_if_granted(connection: Connection[Any], statement: str) -> list[dict[str, Any]] | None:
    """The rows of a SHOW; None where we may not see them, or where there is no log."""
    try:
        with connection.cursor(DictCursor) as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())
    except pymysql.err.MySQLError as error:
        if error.args[0] in {*_NOT_GRANTED, _NO_LOG}:
            return None
        raise
