"""What the server says of itself: the end of its log, and who it is."""

from __future__ import annotations

from typing import Any

import pymysql
from pymysql.connections import Connection

from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceRefused
from dblog_core.sources.mysql.position import Gtids, MariadbGtids, MysqlGtids, Position
from dblog_core.sources.mysql.sql.connection import rows, variables, where

LOG_BIN_FIX = "start the server with log_bin = binlog and a server_id"
_LOOKS = 20
_DURABLE = {"innodb_flush_log_at_trx_commit": ("1", "3"), "sync_binlog": ("1",)}
"""With these, tables and log have the same transactions after a crash. The first value is MySQL's, others MariaDB's."""


def present_end(connection: Connection[Any], config: SourceConfig, *, mariadb: bool) -> Position:
    """The present end of the log. Raises SourceRefused where there is no log."""
    status = _status(connection, config)
    gtids: Gtids | None = None
    if mariadb:
        status, gtids = _with_gtids(connection, config, status)
    elif variables(connection, "gtid_mode").get("gtid_mode") == "ON":
        gtids = MysqlGtids.parse(str(status[4]))
    uuid = None if gtids is not None else identity(connection, mariadb=mariadb)
    return Position(str(status[0]), int(status[1]), gtids, uuid)


def _status(connection: Connection[Any], config: SourceConfig) -> tuple[Any, ...]:
    if (status := log_status(connection)) is None:
        raise SourceRefused("the server writes no binary log", where=where(config), fix=LOG_BIN_FIX)
    return status


def _with_gtids(
    connection: Connection[Any], config: SourceConfig, status: tuple[Any, ...]
) -> tuple[tuple[Any, ...], MariadbGtids]:
    """An end of MariaDB's log with the GTIDs of that very place.

    The server writes a GTID's events and takes it into its state under one lock, so an end between two looks that are
    equal is theirs. (`BINLOG_GTID_POS` reads the file from its beginning, and answers nothing at all behind an event
    that is larger than `max_allowed_packet` is now.) Where writers leave no two looks equal, the end is between them:
    GTIDs are what a position is resumed and compared by, and those of the first look are in the log at any such end.
    """
    for _ in range(_LOOKS):
        before = _gtids(connection)
        status = _status(connection, config)
        after = _gtids(connection)
        # Equal looks around the status: no transaction has ended in between.
        if before == after:
            break
    return status, MariadbGtids.parse(before)


def _gtids(connection: Connection[Any]) -> str:
    return str(rows(connection, "SELECT @@GLOBAL.gtid_binlog_pos")[0][0] or "")


def log_status(connection: Connection[Any]) -> tuple[Any, ...] | None:
    """File, offset, do-db, ignore-db, gtids of the log's end; None if there is no log."""
    try:
        status = rows(connection, "SHOW BINARY LOG STATUS")
    except pymysql.err.ProgrammingError as error:
        if error.args[0] != 1064:  # servers before MySQL 8.2, and MariaDB before 11
            raise
        status = rows(connection, "SHOW MASTER STATUS")
    return status[0] if status else None


def version(connection: Connection[Any]) -> tuple[str, tuple[int, ...]]:
    """The server's version as it prints it, and the first two numbers of it."""
    text = str(rows(connection, "SELECT VERSION()")[0][0])
    return text, tuple(int(part) for part in text.split("-")[0].split(".")[:2])


def any_case(connection: Connection[Any]) -> bool:
    """Whether the server does not tell upper and lower case apart in names of schemas and tables."""
    return variables(connection, "lower_case_table_names").get("lower_case_table_names", "0") != "0"


def identity(connection: Connection[Any], *, mariadb: bool) -> str | None:
    """The server's uuid; None on MariaDB, which has none."""
    return None if mariadb else str(rows(connection, "SELECT @@server_uuid")[0][0])


def list_undurable(connection: Connection[Any]) -> dict[str, str]:
    """The settings, with their values, by which a crash may leave tables without changes that the log has, or the log
    without changes that tables have.
    """
    values = variables(connection, *_DURABLE)
    return {name: value for name, value in values.items() if value not in _DURABLE[name]}


def account(connection: Connection[Any]) -> str:
    """Ours as the server has matched it, for a GRANT: one to the same user from another host would not help."""
    user, _, host = str(rows(connection, "SELECT CURRENT_USER()")[0][0]).rpartition("@")
    return f"'{user}'@'{host}'"
