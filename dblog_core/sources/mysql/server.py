"""What the server says of itself: the end of its log, and who it is."""

from __future__ import annotations

from typing import Any

import pymysql
from pymysql.connections import Connection

from dblog_core.config import SourceConfig
from dblog_core.errors import SourceRefused
from dblog_core.sources.mysql.connection import rows, variables, where
from dblog_core.sources.mysql.position import Gtids, MariadbGtids, MysqlGtids, Position

LOG_BIN_FIX = "start the server with log_bin = binlog and a server_id"


def present_end(connection: Connection[Any], config: SourceConfig, *, mariadb: bool) -> Position:
    """The present end of the log. Raises SourceRefused where there is no log."""
    status = log_status(connection)
    if status is None:
        raise SourceRefused("the server writes no binary log", where=where(config), fix=LOG_BIN_FIX)
    file, offset = str(status[0]), int(status[1])
    gtids: Gtids | None = None
    if mariadb:
        # The GTIDs of that very place: other variables may have moved on meanwhile.
        found = rows(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))[0][0]
        gtids = MariadbGtids.parse(str(found or ""))
    elif variables(connection, "gtid_mode").get("gtid_mode") == "ON":
        gtids = MysqlGtids.parse(str(status[4]))
    return Position(file, offset, gtids, None if gtids is not None else identity(connection, mariadb=mariadb))


def log_status(connection: Connection[Any]) -> tuple[Any, ...] | None:
    """File, offset, do-db, ignore-db, gtids of the log's end; None if there is no log."""
    try:
        found = rows(connection, "SHOW BINARY LOG STATUS")
    except pymysql.err.ProgrammingError as error:
        if error.args[0] != 1064:  # servers before MySQL 8.2, and MariaDB before 11
            raise
        found = rows(connection, "SHOW MASTER STATUS")
    return found[0] if found else None


def identity(connection: Connection[Any], *, mariadb: bool) -> str | None:
    return None if mariadb else str(rows(connection, "SELECT @@server_uuid")[0][0])
