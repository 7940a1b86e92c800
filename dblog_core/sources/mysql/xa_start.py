"""Where a first capture begins while XA transactions are prepared: their rows are in the log before that place.

They are found by reading the log back from there, file by file, until every transaction that the server calls prepared
has been seen. Only their places are remembered.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pymysql
from pymysql.connections import Connection

from dblog_core.config import SourceConfig
from dblog_core.errors import UnknownLogEvent
from dblog_core.sources.mysql import events, server, stream, xa
from dblog_core.sources.mysql.compressed import unpacked
from dblog_core.sources.mysql.connection import rows
from dblog_core.sources.mysql.events import GTIDS, Event, Type
from dblog_core.sources.mysql.log import second_id
from dblog_core.sources.mysql.position import Position, Prepared, file_number

LOOK_BACK = 2 << 30
"""Bytes of log that are read at most; a transaction that changed no row is prepared, and never in the log."""
MAY_NOT = {1227, 1401}
"""Errors that say that a grant is missing."""
_FIRST_EVENT = 4
"""Offset of the first event of every binlog file."""


def start(connection: Connection[Any], config: SourceConfig, *, mariadb: bool) -> Position:
    """The present end of the log, with the XA transactions that are prepared there.

    What is not found, and all if the account may not see them, stops the capture if it commits (`LogState`).
    """
    before = server.present_end(connection, config, mariadb=mariadb)
    # Prepared at the end is what is prepared now and does not end before, and what the log prepares from here to there.
    wanted = prepared(connection, mariadb=mariadb)
    end = server.present_end(connection, config, mariadb=mariadb)
    if not wanted and (before.file, before.offset) == (end.file, end.offset):
        return end
    budget = LOOK_BACK
    files = [(str(row[0]), int(row[1])) for row in rows(connection, "SHOW BINARY LOGS")]
    files = [entry for entry in files if file_number(entry[0]) <= file_number(before.file)]
    begin = before.offset if not wanted else _FIRST_EVENT
    while True:
        file, size = files.pop()
        found = _read(config, Position(file, begin, None), end, mariadb=mariadb)
        budget -= size
        if wanted <= found.seen or not files or budget < files[-1][1]:
            break
    return end.moved(prepared=tuple(_with_gtids(connection, place, mariadb) for place in found.prepared.values()))


def prepared(connection: Connection[Any], *, mariadb: bool) -> set[str]:
    """Ids of the XA transactions that are prepared now; none where the account may not see them."""
    try:
        found = rows(connection, "XA RECOVER" if mariadb else "XA RECOVER CONVERT XID")
    except pymysql.err.MySQLError as error:
        if error.args[0] not in MAY_NOT:
            raise
        return set()
    return {_xid(*row) for row in found}


def _xid(form: int, gtrid: int, bqual: int, data: str | bytes) -> str:
    raw = bytes.fromhex(data[2:]) if isinstance(data, str) else data  # MySQL: as 0x…; MariaDB: bytes
    return xa.text(raw[:gtrid], raw[gtrid : gtrid + bqual], form)


def _with_gtids(connection: Connection[Any], place: Prepared, mariadb: bool) -> Prepared:
    if not mariadb:
        return place
    before = rows(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (place.file, place.start))[0][0]
    return Prepared(place.xid, place.file, place.start, place.gtid, str(before or ""))


class _Scan:
    """What a stretch of log prepares and does not finish. `seen`: all XA transactions that it prepares."""

    def __init__(self, begin: Position) -> None:
        self.place = begin
        self.prepared: dict[str, Prepared] = {}
        self.seen: set[str] = set()
        self._start = begin.offset
        self._gtid: str | None = None

    def take(self, event: Event) -> None:
        """Raises ValueError where it cannot be read."""
        if event.type == Type.ROTATE:
            file = event.body[8:].rstrip(b"\0").decode()
            self.place = self.place.moved(file=file, offset=int.from_bytes(event.body[:8], "little"))
        elif event.end and not event.artificial and event.type not in (Type.HEARTBEAT, Type.HEARTBEAT_V2):
            self.place = self.place.moved(offset=self.place.offset + ((event.end - self.place.offset) & 0xFFFFFFFF))
        if event.type in GTIDS:
            self._start, self._gtid = self.place.offset - event.size, GTIDS[event.type](event).gtid
        self._look(event)

    def _look(self, event: Event) -> None:
        if event.type == Type.TRANSACTION_PAYLOAD:
            for inner in unpacked(event.body):
                for row in inner.rest:
                    self._look(inner.event(row[0]))
        elif event.type == Type.XA_PREPARE:
            one_phase, xid = xa.of_event(event.body)
            if not one_phase:
                self.seen.add(xid)
                self.prepared[xid] = Prepared(xid, self.place.file, self._start, self._gtid, None)
        elif event.type in (Type.QUERY, Type.QUERY_COMPRESSED):
            body = event.body if event.type == Type.QUERY else events.uncompressed_query(event.body)
            sql = events.query(body)[1]
            if sql[:9].upper() == "XA COMMIT" or sql[:11].upper() == "XA ROLLBACK":
                self.prepared.pop(xa.of_statement(sql), None)


def _read(config: SourceConfig, begin: Position, end: Position, *, mariadb: bool) -> _Scan:
    """Reads the log from `begin` to `end`."""
    scan = _Scan(begin)
    log = stream.connect(config, begin, lambda: scan.place, mariadb=mariadb, identity=second_id(config))
    try:
        while not scan.place.reached(end.moved(gtids=None)):
            event = log.next()
            if event is None:
                log.receive(1.0)
            else:
                scan.take(event)
    except (ValueError, IndexError, struct.error, zlib.error) as error:
        raise UnknownLogEvent(
            f"an event cannot be read: {error}", where=f"binlog {scan.place}", fix=events.FRESH_START
        ) from error
    finally:
        log.close()
    return scan
