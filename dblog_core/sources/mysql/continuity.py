"""Whether a server can go on from our position: it must have had every transaction that we have read."""

from __future__ import annotations

from typing import Any

from pymysql.connections import Connection

from dblog_core.config import SourceConfig
from dblog_core.errors import LogPositionLost
from dblog_core.sources.mysql import events
from dblog_core.sources.mysql.connection import rows, where
from dblog_core.sources.mysql.position import MariadbGtids, MysqlGtids, Position


def compare(connection: Connection[Any], config: SourceConfig, start: Position, identity: str | None) -> None:
    """Raises LogPositionLost for a server that was reset, restored to an earlier time, or is another one, and names
    what it lacks. `identity`: the server's uuid."""
    if isinstance(start.gtids, MysqlGtids):
        executed = MysqlGtids.parse(str(rows(connection, "SELECT @@GLOBAL.gtid_executed")[0][0]))
        if missing := start.gtids.beyond(executed):
            raise _other_server(config, f"has not executed {missing}, which we have read: it has {executed}")
    elif isinstance(start.gtids, MariadbGtids):
        _compare_domains(connection, config, start.gtids)
    elif start.server != identity:
        raise _other_server(config, f"is {identity}, and the position is a file's of {start.server}")


def _compare_domains(connection: Connection[Any], config: SourceConfig, ours: MariadbGtids) -> None:
    """MariaDB itself takes a domain that its log knows nothing of for another server's business, and sends from the
    beginning of its log: so a server that was reset would go unnoticed."""
    state = str(rows(connection, "SELECT @@GLOBAL.gtid_binlog_state")[0][0] or "")
    if missing := ours.beyond(state):
        raise _other_server(config, f"has not {missing} in its log, which we have read: it has {state or 'nothing'}")


def _other_server(config: SourceConfig, what: str) -> LogPositionLost:
    return LogPositionLost(
        f"the server {what}. It was reset, restored, or is another one, and cannot go on from our position",
        where=where(config),
        fix=f"connect to a server that has it, or {events.FRESH_START}",
    )
