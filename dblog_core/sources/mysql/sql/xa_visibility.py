"""Some servers log an XA COMMIT first and make it visible a moment later, outside the order that they keep for others:
MariaDB, and MySQL before 8.0.30 (`minor_releases`).

So a SELECT may miss the rows of an XA COMMIT that is logged before its low watermark: measured on MariaDB, up to one in
forty. MySQL 9.7 (measured too, no case) commits XA transactions in the log's order. Nothing is locked here: we wait
until all sessions that were inside an XA COMMIT are out of it.
"""

from __future__ import annotations

from typing import Any

import pymysql
from pymysql.connections import Connection

from dblog_core.config.source import SourceConfig
from dblog_core.errors import ServerNotSafe, SourceUnavailable
from dblog_core.retry import wait_for
from dblog_core.sources import minor_releases
from dblog_core.sources.mysql.sql.connection import rows, where

_PATIENCE = 60.0
"""Seconds that an XA COMMIT may take."""
_PAUSES = (0.001, 0.05)  # seconds between two looks, least and most
# Sessions that run no statement of their own. One that was killed still ends its commit.
_IDLE = ("Sleep", "Daemon", "Binlog Dump", "Binlog Dump GTID", "Slave_IO")
_NO_ACCESS = (1227, 1401)
_STATEMENT = {"mariadb": "QUERY_ID", "mysql": "0"}
"""What tells two statements of one session apart; MySQL shows nothing alike, so that the wait is for the session."""


def await_xa_commits(connection: Connection[Any], config: SourceConfig) -> None:
    """Returns when every XA COMMIT that was logged before the call is visible to a SELECT after it.

    A transaction is in XA RECOVER until its commit is visible. So there is no wait where that is empty, which needs no
    grant. Otherwise the SELECT waits for those sessions that may be committing one of its transactions. Raises
    ServerNotSafe where they cannot be seen, SourceUnavailable after a minute.
    """
    if not may_commit_late(connection, config):
        return
    prepared: set[tuple[Any, ...]] | None = None
    busy: set[tuple[int, int]] | None = None

    def list_committing() -> set[tuple[int, int]]:
        """Those of the first look that may still be committing one of its transactions."""
        nonlocal prepared, busy
        # What comes later does not count: it was logged after the call.
        listed = _list_prepared(connection, config)
        prepared = listed if prepared is None else prepared & listed
        if not prepared:
            return set()
        committing = _committing(connection, config)
        busy = committing if busy is None else busy & committing
        return busy

    sessions = wait_for(
        list_committing,
        until=lambda sessions: not sessions,
        waits=_PAUSES,
        give_up_after=_PATIENCE,
    )
    if sessions:
        raise SourceUnavailable(
            f"sessions {sorted(session for session, _ in sessions)} have been committing XA transactions for"
            f" {_PATIENCE:.0f} s, and nobody knows which rows a chunk would see",
            where=where(config),
            fix="look at them with SHOW PROCESSLIST",
        )


def may_commit_late(connection: Connection[Any], config: SourceConfig) -> bool:
    """Whether the server may make an XA COMMIT visible after it is logged."""
    version = minor_releases.parse(str(connection.get_server_info()))  # type: ignore[no-untyped-call]
    # A version that cannot be read may be any.
    return config.kind == "mariadb" or not version or minor_releases.LATE_XA_COMMIT.concerns("mysql", version)


def _list_prepared(connection: Connection[Any], config: SourceConfig) -> set[tuple[Any, ...]]:
    try:
        return set(rows(connection, "XA RECOVER"))
    except pymysql.err.MySQLError as error:
        if error.args[0] not in _NO_ACCESS:
            raise
        raise _unseen(config, "XA_RECOVER_ADMIN") from error


def _committing(connection: Connection[Any], config: SourceConfig) -> set[tuple[int, int]]:
    """Number of session and statement for all that may be inside an XA COMMIT, by the text of the statement.

    A text that cannot be read just now, a procedure and a statement from a variable may be anything.
    """
    try:
        # Without the grant the list below would hold our own sessions alone, and say nothing of it; this does.
        rows(connection, "SELECT 1 FROM information_schema.INNODB_TRX LIMIT 1")
    except pymysql.err.MySQLError as error:
        if error.args[0] not in _NO_ACCESS:
            raise
        raise _unseen(config, "PROCESS") from error
    # All sessions but our own and those that wait for a command.
    sessions = rows(
        connection,
        f"SELECT ID, {_STATEMENT[config.kind]}, INFO FROM information_schema.PROCESSLIST"
        f" WHERE COMMAND NOT IN ({', '.join(['%s'] * len(_IDLE))}) AND ID <> CONNECTION_ID()",
        _IDLE,
    )
    return {(int(session), int(query)) for session, query, info in sessions if _may_commit(info)}


def _unseen(config: SourceConfig, missing: str) -> ServerNotSafe:
    return ServerNotSafe(
        f"whether an XA transaction is just committing cannot be seen: {missing} is missing. This server logs an XA"
        " COMMIT before it is visible, so a chunk could miss it",
        where=where(config),
        fix="`dblog check` prints the GRANT statement",
    )


def _may_commit(statement: str | None) -> bool:
    text = (statement or "").upper()
    return not text or any(word in text for word in ("XA", "CALL", "EXECUTE"))
