"""What lies around rows in a stretch of log: where its transactions end, and which XA transactions it prepares."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator

from dblog_core.config.source import SourceConfig
from dblog_core.errors import UnknownLogEvent
from dblog_core.sources.mysql.binlog import events, headers, stream
from dblog_core.sources.mysql.binlog.compressed import unpack_events
from dblog_core.sources.mysql.binlog.events import GTIDS, Event, GtidEvent, Type
from dblog_core.sources.mysql.binlog.log import second_id
from dblog_core.sources.mysql.binlog.progress import Progress
from dblog_core.sources.mysql.binlog.stream import EventStream, StreamEnded
from dblog_core.sources.mysql.binlog.xa import ids
from dblog_core.sources.mysql.ddl.statements import Means, classify
from dblog_core.sources.mysql.position import Position, Prepared

_QUERIES = (Type.QUERY, Type.QUERY_COMPRESSED)
_ENDS = {Means.COMMIT, Means.ROLLBACK, Means.XA_COMMIT, Means.XA_ROLLBACK}
_GATHERED = 10_000
"""Transactions after which the GTIDs seen so far become a set."""


class Scan:
    """Takes the events of a stretch of log in order.

    `place`: right after the last event. `prepared`: what the stretch prepares and does not finish; `seen`: all XA
    transactions that it prepares. `creation_seconds`: the time in the last file's head.
    """

    def __init__(self, begin: Position, *, mariadb: bool = False, server: str | None = None) -> None:
        self.place = begin.with_changes(gtids=None)
        self.prepared: dict[str, Prepared] = {}
        self.seen: set[str] = set()
        self.creation_seconds: int | None = None
        self.open = False
        self._mariadb = mariadb
        self._server = server
        self._progress = Progress(begin)
        self._gathered = 0
        self._begun = False
        self._start = begin.offset
        self._gtid: str | None = None

    @property
    def position(self) -> Position:
        """Right after the last whole transaction, with what is prepared there."""
        return self._progress.position.with_changes(prepared=tuple(self.prepared.values()))

    def place_after(self, event: Event) -> Position:
        """Where the log continues after the event."""
        if event.type == Type.ROTATE:
            file = events.next_file(event)
            return self.place.with_changes(file=file, offset=int.from_bytes(event.body[:8], "little"))
        # Offsets are logged with 32 bits: the difference is what counts in a file beyond 4 GiB.
        if event.end and not event.artificial and event.type not in (Type.HEARTBEAT, Type.HEARTBEAT_V2):
            return self.place.with_changes(offset=self.place.offset + ((event.end - self.place.offset) & 0xFFFFFFFF))
        return self.place

    def take(self, event: Event) -> None:
        """Raises ValueError where it cannot be read."""
        self.place = self.place_after(event)
        if event.type == Type.FORMAT_DESCRIPTION and event.timestamp:
            self.creation_seconds = event.timestamp
        elif event.type == Type.ROTATE:
            self._progress.move(file=self.place.file, offset=self.place.offset)
        elif event.type in GTIDS:
            self._begin(event, GTIDS[event.type](event))
        self._look(event)
        if self.open and self._is_end(event):
            self._end()

    def _begin(self, event: Event, gtid: GtidEvent) -> None:
        self._start = self.place.offset - event.size
        self._gtid = gtid.gtid
        self.open = True
        self._begun = self._mariadb and not gtid.standalone

    def _end(self) -> None:
        self.open = False
        self._gathered += 1
        if self._gathered % _GATHERED == 0:
            _ = self._progress.position  # which makes a set of them
        if not self._progress.end_transaction(self.place.file, self.place.offset, self._gtid):
            # As for a capture: an anonymous transaction is in no set, from here on only the place tells.
            self._progress.move(
                file=self.place.file, offset=self.place.offset, gtids=None, server=self._server, newest=None
            )

    def _is_end(self, event: Event) -> bool:
        # A prepared XA transaction ends its group without a COMMIT; a compressed one is a single event with its COMMIT
        # inside.
        if event.type in (Type.XID, Type.XA_PREPARE, Type.TRANSACTION_PAYLOAD):
            return True
        if event.type not in _QUERIES:
            return False
        schema, sql = _query(event)
        means = classify(sql, schema).means
        if means in (Means.BEGIN, Means.XA_START):
            self._begun = True
            return False
        # Outside of BEGIN … COMMIT each statement is a transaction of its own: DDL.
        return means in _ENDS or not self._begun

    def _look(self, event: Event) -> None:
        if event.type == Type.TRANSACTION_PAYLOAD:
            for inner in unpack_events(event.body):
                for row in inner.rest:
                    if row[1] == headers.OTHER:
                        self._look(inner.event(row[0]))
        elif event.type == Type.XA_PREPARE:
            one_phase, xid = ids.parse_prepare_event(event.body)
            # XA COMMIT … ONE PHASE is logged as a prepare event too, and leaves nothing prepared.
            if not one_phase:
                self.seen.add(xid)
                self.prepared[xid] = Prepared(xid, self.place.file, self._start, self._gtid, None)
        elif event.type in _QUERIES:
            sql = _query(event)[1]
            if sql[:9].upper() == "XA COMMIT" or sql[:11].upper() == "XA ROLLBACK":
                self.prepared.pop(ids.parse_statement(sql), None)


def _query(event: Event) -> tuple[str, str]:
    return events.query(event.body if event.type == Type.QUERY else events.uncompressed_query(event.body))


def read(
    config: SourceConfig, scan: Scan, *, until: Callable[[Event], bool], mariadb: bool, position: Position | None = None
) -> bool:
    """Reads the log on from the scan's place, up to an event for which `until` holds, which is not taken; False where
    the log ends before. `position`: another place to ask the server for."""
    # The capture's own stream may be open beside this one: under its id the server would end it. And at the log's end
    # the server has to end the stream instead of waiting for news.
    log = stream.connect(
        config,
        position or scan.place,
        lambda: scan.place,
        mariadb=mariadb,
        identity=second_id(config),
        blocking=False,
    )
    try:
        for event in _events(log):
            if until(event):
                return True
            scan.take(event)
    except StreamEnded:
        return False
    except (ValueError, IndexError, struct.error, zlib.error) as error:
        raise UnknownLogEvent(
            f"an event cannot be read: {error}", where=f"binlog {scan.place}", fix=events.FRESH_START
        ) from error
    finally:
        log.close()
    return False


def _events(log: EventStream) -> Iterator[Event]:
    while True:
        event = log.next()
        if event is None:
            log.receive(1.0)
        else:
            yield event
