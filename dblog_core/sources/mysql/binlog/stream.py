"""An open replication connection: the server's packets become events, their checksums verified.

mysql-replication connects, registers and asks for the log; packets are then read here, because the package drops event
types that it does not know, reconnects unasked from where it first began, and does not insist on checksums.
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
from dblog_core.errors import SourceError, SourceUnavailable
from dblog_core.model import server_messages
from dblog_core.sources.mysql.binlog import stream_request
from dblog_core.sources.mysql.binlog.events import Event
from dblog_core.sources.mysql.binlog.framing import Events, Framing, NoEvent
from dblog_core.sources.mysql.binlog.purged_log import translate_fatal_error
from dblog_core.sources.mysql.position import MysqlGtids, Position
from dblog_core.sources.mysql.sql import connection

_COM_BINLOG_DUMP = b"\x12"
_HEARTBEAT_SECONDS = 1.0
_SILENCE_SECONDS = 60.0
"""Seconds without even a heartbeat after which the server counts as gone."""
_FATAL = {1236, 4052}
"""The log cannot be sent on; why stands in the text alone. 4052 is MariaDB's, for a second replica of one id."""


class StreamEnded(SourceUnavailable):
    """The server has ended the stream in order: it shuts down, or all that it was asked for is sent."""


class EventStream:
    """The events of one connection, in log order. `place`: how far we have come, for errors."""

    def __init__(self, config: SourceConfig, reader: Any, place: Callable[[], Position]) -> None:
        self._config = config
        self._reader = reader
        self._place = place
        self._socket = reader._stream_connection._sock
        # The waiting is done by `poll`, which another file can end; a read must never wait.
        self._socket.setblocking(False)
        # What comes before the first file's own word is as we have announced, whatever the server writes.
        self._framing = Framing(packets=True, checksums=True)
        self._events: Events | None = None
        self._heard_at = time.monotonic()

    def events(self, *, brief: bool = True) -> Events | None:
        """The events that have arrived, in brief; those of the last call must have been taken.

        Raises SourceError; ValueError where they cannot be read.
        """
        try:
            return self._framing.next(brief=brief)
        except NoEvent as message:
            raise self._packet_error(message.payload) from message

    def next(self) -> Event | None:
        """The next event that has arrived, whatever it says. Raises as `events` does."""
        while (stretch := self._events or self.events(brief=False)) is not None:
            self._events = stretch
            for row in stretch.rest:
                return stretch.event(row[0])
            self._events = None
        return None

    def receive(self, wait: float, *, until: int | None = None) -> bool:
        """Takes in what has come; False if nothing came in `wait` seconds, or before the file `until` had news."""
        if not self._readable(max(0.0, wait), until):
            # The server sends heartbeats when it has nothing else. TCP alone would notice a dead one after hours.
            if time.monotonic() - self._heard_at > _SILENCE_SECONDS:
                raise SourceUnavailable(
                    f"no sign of life for {_SILENCE_SECONDS:.0f} s",
                    where=connection.where(self._config),
                    fix="check the server and the network",
                )
            return False
        with connection.translate_errors(self._config, "reading the log"):
            try:
                count = self._socket.recv_into(self._framing.room())
            except (BlockingIOError, ssl.SSLWantReadError):
                return False  # a part of a TLS record
        # No bytes at the end of a readable socket: the other side has closed it.
        if not count:
            raise SourceUnavailable(
                "the server closed the connection",
                where=connection.where(self._config),
                fix="check that the server runs",
            )
        self._heard_at = time.monotonic()
        self._framing.add_received(count)
        return True

    def _readable(self, wait: float, until: int | None) -> bool:
        """Whether something arrives within `wait` seconds, and before `until`."""
        # TLS has decrypted these bytes already: `poll` looks at the socket below, and would not see them.
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        with connection.translate_errors(self._config, "waiting for the log"):
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if until is not None:
                poll.register(until, select.POLLIN)
            return any(file == self._socket.fileno() for file, _ in poll.poll(wait * 1000))

    def _packet_error(self, packet: bytes) -> Exception:
        """What a packet that is no event means."""
        if packet[:1] == b"\xff":
            return self._refusal(packet)
        # An EOF packet: the end that the non-blocking form of the command asks for, or a server that shuts down.
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
                refused = translate_fatal_error(server_messages.by_mysql(error), self._config, self._place())
            refused.__cause__ = error
            return refused
        raise AssertionError("an error packet raises")

    def restart_silence(self) -> None:
        """Restarts the count of silence: nobody has listened for a while."""
        self._heard_at = time.monotonic()

    def close(self) -> None:
        self._reader.close()


def _correct_length(packet: bytes) -> bytes:
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
            return stream_request.build_packet(position.gtids, identity=identity, blocking=blocking)
        return _correct_length(packet)

    def open_session(**_: Any) -> Any:
        session: Any = connection.connect(config)
        opened.append(session)
        write = session._write_bytes
        session._write_bytes = lambda data: write(asking(data))
        # The package announces checksums only if new files have them, and then cannot read older files that do.
        connection.rows(session, "SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32'")
        return session

    # MySQL's set goes into a packet of our own (`open_session`); the package knows no tags.
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
        slave_heartbeat=_HEARTBEAT_SECONDS,
        # So that SHOW REPLICAS names the capture to people who look for what reads the log.
        report_slave=f"dblog_{config.name}",
        pymysql_wrapper=open_session,
        enable_logging=False,
    )
    try:
        with connection.translate_errors(config, "asking for the log"):
            # The package's own step: `fetchone` would do it too, and then read with its filters.
            reader._BinLogStreamReader__connect_to_stream()
    except SourceError:
        for session in opened:
            session.close()
        raise
    return EventStream(config, reader, place)
