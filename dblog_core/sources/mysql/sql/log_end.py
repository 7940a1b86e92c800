"""Places in the log for announced windows (`algorithm.window`): where it ends, and what a connection sees of it.

A SELECT shows a commit after the log has it. Which commits one sees:

- MySQL takes a transaction into `gtid_executed` after its commit shows.
- MariaDB's `gtid_binlog_pos` has it before. But START TRANSACTION WITH CONSISTENT SNAPSHOT tells the place in the log
  that its snapshot is of, exactly.

A file and an offset say where the log ends: the log holds a transaction before its commit shows, and `gtid_executed`
takes it in later. So gaps in sets of GTIDs, tags, domains and other servers' ids need no thought; but both connections,
the one to the log and the one that SELECTs, must be to one server.
"""

from __future__ import annotations

from typing import Any

import orjson
from pymysql.connections import Connection

from dblog_core.config.source import SourceConfig
from dblog_core.errors import ServerNotSafe, SourceRefused, SourceUnavailable
from dblog_core.sources.mysql.position import MysqlGtids, Position, file_number
from dblog_core.sources.mysql.sql.connection import rows, where
from dblog_core.sources.mysql.sql.server import LOG_BIN_FIX, log_status

GTIDS_FIX = "start the server with gtid_mode = ON and enforce_gtid_consistency = ON"
_SERVER = {"mysql": "SELECT @@server_uuid", "mariadb": "SELECT CONCAT_WS(':', @@hostname, @@port, @@server_id)"}


def server(connection: Connection[Any], config: SourceConfig) -> str:
    """Who the server is, among those that a name may lead to."""
    return str(rows(connection, _SERVER[config.kind])[0][0])


def encode(position: str, of: str) -> str:
    """A place in the log of server `of`, for `Sight.sees`."""
    return orjson.dumps({"server": of, "position": position}).decode()


def has_passed(position: Position, end: str, of: str) -> bool:
    """Whether the log of server `of` was read up to `end`."""
    data = orjson.loads(end)
    read_up_to = file_number(position.file), position.offset
    # Files and offsets of another server say nothing of this one.
    return data["server"] == of and read_up_to >= (file_number(data["file"]), data["offset"])


class Sight:
    """What one connection sees."""

    def __init__(self, config: SourceConfig, connection: Connection[Any]) -> None:
        self._config = config
        self._connection = connection
        self._server = server(connection, config)
        self._awaited: tuple[str, tuple[int, int]] | None = None

    def sees(self, place: str) -> bool:
        """Whether every SELECT from now on sees all that is before `place`. Raises ServerNotSafe, SourceUnavailable."""
        data = orjson.loads(place)
        if data["server"] != self._server:
            raise SourceUnavailable(
                f"this is server {self._server}, and the capture reads the log of {data['server']}",
                where=where(self._config),
                fix="let host name one server alone: with read_only = true rows and log must come from the same",
            )
        if self._config.kind == "mariadb":
            # MariaDB tells which place in the log a snapshot is of; MySQL does not, and has GTIDs instead.
            return self._snapshot() >= self._end_at(place)
        read_gtids = Position.decode(data["position"], mariadb=False).gtids
        if read_gtids is None:
            raise ServerNotSafe(
                "transactions without GTIDs: which of them are visible, the server does not tell",
                where=where(self._config),
                fix=GTIDS_FIX,
            )
        # Read before the SELECT: what is in it was committed visibly before.
        executed = MysqlGtids.parse(str(rows(self._connection, "SELECT @@GLOBAL.gtid_executed")[0][0]))
        return executed.contains(read_gtids)

    def end(self) -> str:
        """Where the log ends."""
        file, offset = self._end()
        return orjson.dumps({"server": self._server, "file": file, "offset": offset}).decode()

    def _end(self) -> tuple[str, int]:
        if (status := log_status(self._connection)) is None:
            raise SourceRefused("the server writes no binary log", where=where(self._config), fix=LOG_BIN_FIX)
        return str(status[0]), int(status[1])

    def _end_at(self, place: str) -> tuple[int, int]:
        """Where the log ended at the first look for `place`: no capture had read further when it announced it."""
        if self._awaited is None or self._awaited[0] != place:
            file, offset = self._end()
            self._awaited = place, (file_number(file), offset)
        return self._awaited[1]

    def _snapshot(self) -> tuple[int, int]:
        """The place in the log that a snapshot taken now is of."""
        rows(self._connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        try:
            status = dict(rows(self._connection, "SHOW STATUS LIKE 'binlog_snapshot_%%'"))
        finally:
            # At once: a snapshot that stays open keeps InnoDB from purging old versions of rows.
            rows(self._connection, "ROLLBACK")
        return file_number(str(status["Binlog_snapshot_file"])), int(status["Binlog_snapshot_position"])
