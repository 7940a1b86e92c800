"""The log stream: events become transactions and batches, in commit order.

It reads from one connection. When an XA transaction commits, whose rows the log has had when it was prepared, a second
connection brings these rows; the first waits meanwhile. A thread of its own is one batch ahead of the reader
(`read_ahead`).
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Iterator
from typing import Protocol

from dblog_core.config.source import SourceConfig
from dblog_core.errors import LogPositionLost, SourceUnavailable
from dblog_core.model.events import LogBatch
from dblog_core.sources.mysql.binlog import events, stream
from dblog_core.sources.mysql.binlog.events import Event
from dblog_core.sources.mysql.binlog.framing import Events
from dblog_core.sources.mysql.binlog.log_state import LogState
from dblog_core.sources.mysql.binlog.read_ahead import Ahead, Demand
from dblog_core.sources.mysql.binlog.stream import EventStream, StreamEnded
from dblog_core.sources.mysql.binlog.xa.prepared_rows import PreparedRows
from dblog_core.sources.mysql.position import MariadbGtids, MysqlGtids, Position, Prepared

_IDLE = 10.0
"""Seconds after which silence is looked at, even if nobody waits."""


class _Events(Protocol):
    def next(self) -> Event | None: ...

    def receive(self, wait: float, *, until: int | None = None) -> bool: ...

    def close(self) -> None: ...


class _Remembered:
    """The events of a prepared transaction that are still in memory. They end with the one that ends the group."""

    def __init__(self, remembered: Iterator[Event]) -> None:
        self._events = remembered

    def next(self) -> Event | None:
        return next(self._events)

    def receive(self, wait: float, *, until: int | None = None) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""


class Reader:
    """Makes batches of what the connection brings."""

    def __init__(self, config: SourceConfig, log: EventStream, state: LogState, *, mariadb: bool) -> None:
        self._config = config
        self._log = log
        self._state = state
        self._mariadb = mariadb
        self._prepared_events: _Events | None = None
        self._stretch: Events | None = None
        self._batch_began: float | None = None

    def gather(self, demand: Demand) -> LogBatch | None:
        """The next batch: a full one; or what there is between two transactions, once somebody waits for it and the
        first of it has waited for others. None once the log is closed."""
        while not demand.over:
            is_taken = self._step()
            if self._state.is_full:
                return self._flush()
            # None: no news, nobody waits, or a transaction is open, which is handed on whole or with a full batch.
            wait = self._patience(demand)
            if wait is not None and wait <= 0:
                return self._flush()
            if not is_taken and not self._receive(_IDLE if wait is None else wait, demand):
                demand.clear_bell()
        return None

    def _patience(self, demand: Demand) -> float | None:
        if not self._state.has_news:
            return None
        now = time.monotonic()
        if self._batch_began is None:
            self._batch_began = now
        return demand.patience(self._batch_began, now) if self._state.is_between_transactions else None

    def _flush(self) -> LogBatch:
        self._batch_began = None
        return self._state.flush()

    def _receive(self, wait: float, demand: Demand) -> bool:
        return (self._prepared_events or self._log).receive(wait, until=demand.fileno())

    def _step(self) -> bool:
        """Takes the next events, if they have arrived, from where they are due."""
        prepared = self._state.prepared_rows
        try:
            if self._state.is_unpacking:
                self._state.take_unpacked()
            elif prepared is None:
                return self._take()
            elif (event := self._next_prepared(prepared)) is None:
                return False
            else:
                self._state.take_prepared(event)
            # The last of the prepared rows was taken with this event.
            if self._state.prepared_rows is None:
                self._close_prepared_events()
        except (ValueError, IndexError, struct.error, zlib.error) as error:
            raise self._state.unknown_error(f"an event cannot be read: {error}", fix=events.FRESH_START) from error
        return True

    def _take(self) -> bool:
        # A stretch lies in the socket's buffer: it must be taken whole before more is received.
        self._stretch = self._stretch or self._log.events()
        if self._stretch is None:
            return False
        if self._state.take_all(self._stretch):
            self._stretch = None
        return True

    def _next_prepared(self, prepared: PreparedRows) -> Event | None:
        try:
            return self._open_prepared_events(prepared).next()
        except LogPositionLost as error:
            raise prepared.lost_error(error.message) from error
        except StreamEnded as error:  # it shuts down; or its log has another end than it had for the first connection
            raise SourceUnavailable(
                f"{error.message} before the rows of XA transaction {prepared.place.xid}, prepared at {prepared.place}",
                where=error.where,
                fix=error.fix,
            ) from error

    def _open_prepared_events(self, prepared: PreparedRows) -> _Events:
        """What brings the prepared rows."""
        if self._prepared_events is None:
            if prepared.remembered is not None:
                self._prepared_events = _Remembered(prepared.remembered)
            else:
                self._prepared_events = stream.connect(
                    self._config,
                    place_again(prepared.place, self._state.position),
                    lambda: self._state.position,
                    mariadb=self._mariadb,
                    identity=second_id(self._config),
                    blocking=False,  # else one that has not got these rows would let us wait forever
                )
        return self._prepared_events

    def _close_prepared_events(self) -> None:
        if self._prepared_events is not None:
            self._prepared_events.close()
            self._prepared_events = None
            self._log.restart_silence()

    def close(self) -> None:
        self._close_prepared_events()
        self._log.close()


class MysqlLog:
    """A LogStream over an open replication connection."""

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader = reader
        self._ahead = Ahead(reader.gather, name)

    def start(self) -> None:
        self._ahead.start()

    def read(self, timeout: float, *, linger: float = 0.0) -> LogBatch | None:
        return self._ahead.read(timeout, linger)

    def acknowledge(self, position: str) -> None:
        """Nothing to do: this server keeps its log by time and size, not by readers."""

    def close(self) -> None:
        self._ahead.close()
        self._reader.close()


def place_again(place: Prepared, position: Position) -> Position:
    """From where to ask for a prepared group: by GTID where the log is followed by GTID, since after a failover the
    files are another server's; then nothing of what we have read comes but the group itself."""
    gtids = position.gtids
    # The server sends what the set it is given lacks: MariaDB all after its numbers, MySQL each transaction not in it.
    if isinstance(gtids, MariadbGtids):
        gtids = MariadbGtids.parse(place.before or "")
    elif isinstance(gtids, MysqlGtids) and place.gtid:
        # What lacks this transaction alone is sent this one alone.
        gtids = gtids.without(place.gtid)
    return Position(place.file, place.start, gtids)


def second_id(config: SourceConfig) -> int:
    """The replica id of the second connection, in a range of its own: with that of the first it would end the first."""
    return 4_001_000_002 + zlib.crc32(f"{config.name} {config.replica_id}".encode()) % 290_000_000


def open_log(config: SourceConfig, position: Position, state: LogState, *, mariadb: bool, identity: int) -> MysqlLog:
    """Connects and asks for the log from `position` on."""
    log = stream.connect(config, position, lambda: state.position, mariadb=mariadb, identity=identity)
    opened = MysqlLog(Reader(config, log, state, mariadb=mariadb), f"log-{config.name}")
    opened.start()
    return opened
