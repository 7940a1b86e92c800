"""An open replication connection: the server's packets become events, their checksums verified.

mysql-replication connects, registers and asks for the log; packets are then read here, because the package drops event
types that it does not know, reconnects by itself from where it first began, and does not insist on checksums.
"""

from __future__ import annotations

import select
import ssl
import time
from collections.abc import Callable
from typing import Any

import pymysql
from pymysqlreplication import BinLogStreamReader

from dblog_core.config.source import SourceConfig
from dblog_core.errors import LogPositionLost, SourceError, SourceUnavailable
from dblog_core.sources.mysql.binlog import dump_command, events
from dblog_core.sources.mysql.binlog.events import Event
from dblog_core.sources.mysql.binlog.framing import Events, Framing, NoEvent
from dblog_core.sources.mysql.position import MysqlGtids, Position
from dblog_core.sources.mysql.sql import connection

_COM_BINLOG_DUMP = b"\x12"
_HEARTBEAT = 1.0
_SILENCE = 60.0
"""Seconds without even a heartbeat after which the server counts as gone."""
_FATAL = {1236, 4052}
"""The log cannot be sent on; why stands in the text alone. 4052 is MariaDB's, for a second replica of one id."""


class StreamEnded(SourceUnavailable):
    """The server has ended the stream in order: it shuts down, or all that it was asked for is sent."""


class EventStream:
    """The events of one connection, in log order. `place`: how far we have come, for errors."""

    def __init__(self, config: SourceConfig, reader: Any, place: Callable[[], Position]) -> None:
        self._config, self._reader, self._place = config, reader, place
        self._socket = reader._stream_connection._sock
        self._socket.setblocking(False)
        # What comes before the first file's own word is as we have announced, whatever the server writes.
        self._framing = Framing(packets=True, checksums=True)
        self._events: Events | None = None
        self._heard = time.monotonic()

    def events(self, *, brief: bool = True) -> Events | None:
        """The events that have arrived, in brief; those of the last call must have been taken.

        Raises SourceError; ValueError where they cannot be read.
        """
        try:
            return self._framing.next(brief=brief)
        except NoEvent as message:
            raise self._told(message.payload) from message

    def next(self) -> Event | None:
        """The next event that has arrived, whatever it says. Raises as `events` does."""
        while (found := self._events or self.events(brief=False)) is not None:
            self._events = found
            for row in found.rest:
                return found.event(row[0])
            self._events = None
        return None

    def receive(self, wait: float, *, until: int | None = None) -> bool:
        """Takes in what has come; False if nothing came in `wait` seconds, or before the file `until` had news."""
        if not self._readable(max(0.0, wait), until):
            if time.monotonic() - self._heard > _SILENCE:
                raise SourceUnavailable(
                    f"no sign of life for {_SILENCE:.0f} s",
                    where=connection.where(self._config),
                    fix="check the server and the network",
                )
            return False
        with connection.translated(self._config, "reading the log"):
            try:
                count = self._socket.recv_into(self._framing.room())
            except (BlockingIOError, ssl.SSLWantReadError):
                return False  # a part of a TLS record
        if not count:
            raise SourceUnavailable(
                "the server closed the connection",
                where=connection.where(self._config),
                fix="check that the server runs",
            )
        self._heard = time.monotonic()
        self._framing.received(count)
        return True

    def _readable(self, wait: float, until: int | None) -> bool:
        """Whether something arrives within `wait` seconds, and before `until`."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        with connection.translated(self._config, "waiting for the log"):
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if until is not None:
                poll.register(until, select.POLLIN)
            return any(file == self._socket.fileno() for file, _ in poll.poll(wait * 1000))

    def _told(self, packet: bytes) -> Exception:
        """What a packet that is no event means."""
        if packet[:1] == b"\xff":
            return self._refusal(packet)
        if packet[:1] == b"\xfe":
            return StreamEnded(
                "the server ended the log stream",
                where=connection.where(self._config),
                fix="check that the server runs",
            )
        return ValueError(f"a packet of {len(packet)} bytes that begins with {packet[:1]!r} is no event")

    def _refusal(self, packet: bytes) -> SourceError:
        try:
            pymysql.err.raise_mysql_exception(packet)
        except pymysql.err.MySQLError as error:
            if error.args[0] not in _FATAL:
                refused = connection.translate(error, self._config, "reading the log")
            else:
                refused = lost(str(error.args[1]), self._config, self._place())
            refused.__cause__ = error
            return refused
        raise AssertionError("an error packet raises")

    def listened(self) -> None:
        """Counts the silence anew: nobody has listened for a while."""
        self._heard = time.monotonic()

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


def _counted(packet: bytes) -> bytes:
    """For MariaDB the package counts a byte less than it sends. The server does not read that byte; when it then closes
    the connection in order, the reset that follows throws away what we have not read yet."""
    if packet[4:5] != _COM_BINLOG_DUMP:
        return packet
    return (len(packet) - 4).to_bytes(3, "little") + packet[3:]


def connect(
    config: SourceConfig,
    position: Position,
    place: Callable[[], Position],
    *,
    mariadb: bool,
    identity: int,
    blocking: bool = True,
) -> EventStream:
    """Connects and asks for the log from `position` on. `blocking`: to wait for news at its end instead of ending."""

    opened: list[Any] = []

    def asking(packet: bytes) -> bytes:
        if packet[4:5] == _COM_BINLOG_DUMP and isinstance(position.gtids, MysqlGtids):
            return dump_command.packet(position.gtids, identity=identity, blocking=blocking)
        return _counted(packet)

    def connected(**_: Any) -> Any:
        session: Any = connection.connect(config)
        opened.append(session)
        write = session._write_bytes
        session._write_bytes = lambda data: write(asking(data))
        # The package announces checksums only if new files have them, and then cannot read older files that do.
        connection.rows(session, "SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32'")
        return session

    by_mariadb_gtid = mariadb and position.gtids is not None
    reader = BinLogStreamReader(
        connection_settings={},
        server_id=identity,
        blocking=blocking,
        resume_stream=True,
        log_file=position.file,
        log_pos=position.offset,
        auto_position=str(position.gtids) if by_mariadb_gtid else None,
        is_mariadb=by_mariadb_gtid,
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
    return EventStream(config, reader, place)
