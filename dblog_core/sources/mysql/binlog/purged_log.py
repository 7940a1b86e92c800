"""How we learn that the server has purged the log: its refusals to send the binlog (error 1236), as our errors."""

from __future__ import annotations

from dblog_core.config.source import SourceConfig
from dblog_core.errors import LogPositionLost, SourceError, SourceUnavailable
from dblog_core.sources.mysql.binlog import events
from dblog_core.sources.mysql.position import Position
from dblog_core.sources.mysql.sql import connection


def translate_fatal_error(text: str, config: SourceConfig, position: Position) -> SourceError:
    """What a server means by error 1236."""
    # The code is the same for all of them; servers differ in the text alone.
    lower = text.lower()
    if "same server_" in lower or "same server-" in lower or "same server id" in lower:
        return SourceUnavailable(
            f"another replica with our id has taken the connection over: {text}",
            where=connection.where(config),
            fix="if no other capture of this source runs, give this one an id of its own: source.server_id",
        )
    if "exceeds max_allowed_packet" in lower or "max_allowed_packet" in lower:
        return SourceError(
            f"an event is larger than the server sends: {text}",
            where=connection.where(config),
            fix="raise max_allowed_packet",
        )
    return LogPositionLost(
        f"the server no longer has the log from {position} on: {text}. What it has deleted of it is lost",
        where=connection.where(config),
        fix=f"{events.FRESH_START}; and keep logs longer (binlog_expire_logs_seconds)",
    )
