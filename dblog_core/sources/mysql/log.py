"""The log stream: the server's packets become events, transactions and batches, in commit order.

mysql-replication connects, registers and asks for the log; packets are then read here, because the package drops event
types that it does not know, reconnects by itself from where it first began, and does not insist on checksums.
"""

from __future__ import annotations

import select
import ssl
import struct
import time
import zlib
from typing import Any

import pymysql
from pymysqlreplication import BinLogStreamReader

from dblog_core.config import SourceConfig
from dblog_core.errors import LogPositionLost, SourceError, SourceUnavailable
from dblog_core.events import LogBatch
from dblog_core.sources.mysql import connection, events
from dblog_core.sources.mysql.packets import Packets
from dblog_core.sources.mysql.position import Position
from dblog_core.sources.mysql.transactions import LogState

_RECEIVE = 256 << 10
_HEARTBEAT = 1.0
_SILENCE = 60.0
"""Seconds without even a heartbeat after which the server counts as gone."""
_LINGER = 0.05
"""Seconds for which small transactions are collected into one batch while more of them keep coming."""
_FATAL = {1236, 4052}
"""The log cannot be sent on; why stands in the text alone. 4052 is MariaDB's, for a second replica of one id."""


class MysqlLog:
    """A LogStream over an open replication connection."""

    def __init__(self, config: SourceConfig, reader: Any, state: LogState, *, checksums: bool) -> None:
        self._config = config
        self._reader = reader
        self._socket = reader._stream_connection._sock
        self._packets = Packets()
        self._state = state
        self._checksums = checksums
        self._heard = time.monotonic()
        self._socket.settimeout(_SILENCE)

    def read(self, timeout: float) -> LogBatch | None:
        deadline = time.monotonic() + timeout
        flush_at: float | None = None
        while True:
            packet = self._packets.next()
            now = time.monotonic()
            if packet is not None:
                self._heard = now
                self._take(packet)
                if flush_at is None:
                    flush_at = now + _LINGER
                if self._state.full or (now > flush_at and self._state.between and self._state.has_news):
                    return self._state.flush()
            elif self._state.between and self._state.has_news and not self._readable(0):
                return self._state.flush()
            elif not self._receive(deadline - now):
                return None

    def _receive(self, wait: float) -> bool:
        """Feeds what has come; False if nothing came in `wait` seconds."""
        if not self._readable(max(0.0, wait)):
            if time.monotonic() - self._heard > _SILENCE:
                raise SourceUnavailable(
                    f"no sign of life for {_SILENCE:.0f} s",
                    where=connection.where(self._config),
                    fix="check the server and the network",
                )
            return False
        with connection.translated(self._config, "reading the log"):
            data = self._socket.recv(_RECEIVE)
        if not data:
            raise SourceUnavailable(
                "the server closed the connection",
                where=connection.where(self._config),
                fix="check that the server runs",
            )
        self._packets.feed(data)
        return True

    def _readable(self, wait: float) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        with connection.translated(self._config, "waiting for the log"):
            return bool(select.select([self._socket], [], [], wait)[0])

    def _take(self, packet: bytes) -> None:
        first = packet[0]
        if first == 0xFF:
            raise self._refusal(packet)
        if first == 0xFE:
            raise SourceUnavailable(
                "the server ended the log stream",
                where=connection.where(self._config),
                fix="check that the server runs",
            )
        try:
            # The description of a file's format carries a checksum field always, and says itself whether it is used.
            described = packet[5] == events.Type.FORMAT_DESCRIPTION
            if described:
                self._checksums = events.has_checksums(packet)
            event = events.parse(packet, 1, self._checksums)
            self._state.take(event)
        except (ValueError, IndexError, struct.error, zlib.error) as error:
            raise self._state.unknown(f"an event cannot be read: {error}", fix=events.FRESH_START) from error

    def _refusal(self, packet: bytes) -> SourceError:
        try:
            pymysql.err.raise_mysql_exception(packet)
        except pymysql.err.MySQLError as error:
            if error.args[0] not in _FATAL:
                refused = connection.translate(error, self._config, "reading the log")
            else:
                refused = lost(str(error.args[1]), self._config, self._state.position)
            refused.__cause__ = error
            return refused
        raise AssertionError("an error packet raises")

    def acknowledge(self, position: str) -> None:
        """Nothing to do: this server keeps its log by time and size, whoever reads it."""

    def close(self) -> None:
        self._reader.close()


def lost(text: str, config: SourceConfig, position: Position) -> SourceError:
    """What a server means by error 1236."""
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


def server_id(config: SourceConfig) -> int:
    """Our replica id. By default the same for every capture of a source, from its name: when a new leader connects,
    the server then ends the connection of the old one itself, should that one still hang on it."""
    return config.server_id or 1_000_001 + zlib.crc32(config.name.encode()) % 4_000_000_000


def open_log(config: SourceConfig, position: Position, state: LogState, *, mariadb: bool, identity: int) -> MysqlLog:
    """Connects and asks for the log from `position` on."""

    opened: list[Any] = []

    def connected(**_: Any) -> Any:
        session = connection.connect(config)
        opened.append(session)
        # The package announces checksums only if new files have them, and then cannot read older files that do.
        connection.rows(session, "SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32'")
        return session

    by_gtid = position.gtids is not None and not getattr(position.gtids, "tagged", False)
    reader = BinLogStreamReader(
        connection_settings={},
        server_id=identity,
        blocking=True,  # the server waits for news instead of ending the stream
        resume_stream=True,
        log_file=position.file,
        log_pos=position.offset,
        auto_position=str(position.gtids) if by_gtid else None,
        is_mariadb=mariadb and by_gtid,
        slave_heartbeat=_HEARTBEAT,
        report_slave=f"dblog_{config.name}",
        pymysql_wrapper=connected,
        enable_logging=False,
    )
    try:
        with connection.translated(config, "asking for the log"):
            # The package's own step: `fetchone` would do it too, and then read with its filters.
            reader._BinLogStreamReader__connect_to_stream()
    except SourceError:
        for session in opened:
            session.close()
        raise
    return MysqlLog(config, reader, state, checksums=reader._BinLogStreamReader__use_checksum)
