"""Where a first capture begins while XA transactions are prepared: their rows are in the log before that place.

They are found by reading the log back from there, file by file, until every transaction that the server calls prepared
has been seen. Only their places are remembered.
"""

from __future__ import annotations

from typing import Any

import pymysql
from pymysql.connections import Connection

from dblog_core.config.source import SourceConfig
from dblog_core.sources.mysql.binlog import scan
from dblog_core.sources.mysql.binlog.scan import Scan
from dblog_core.sources.mysql.binlog.xa import ids
from dblog_core.sources.mysql.position import Position, Prepared, file_number
from dblog_core.sources.mysql.sql import server
from dblog_core.sources.mysql.sql.connection import rows

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
    prepared_now = list_prepared(connection, mariadb=mariadb)
    end = server.present_end(connection, config, mariadb=mariadb)
    if not prepared_now and (before.file, before.offset) == (end.file, end.offset):
        return end
    budget = LOOK_BACK
    files = [(str(row[0]), int(row[1])) for row in rows(connection, "SHOW BINARY LOGS")]
    files = [entry for entry in files if file_number(entry[0]) <= file_number(before.file)]
    begin = before.offset if not prepared_now else _FIRST_EVENT
    while True:
        file, size = files.pop()
        stretch = _read(config, Position(file, begin, None), end, mariadb=mariadb)
        # What is read is bounded, since a transaction without row changes is prepared, and never found.
        budget -= size
        if prepared_now <= stretch.seen or not files or budget < files[-1][1]:
            break
    return end.with_changes(prepared=with_gtids(connection, tuple(stretch.prepared.values()), mariadb=mariadb))


def list_prepared(connection: Connection[Any], *, mariadb: bool) -> set[str]:
    """Ids of the XA transactions that are prepared now; none where the account may not see them."""
    try:
        recovered = rows(connection, "XA RECOVER" if mariadb else "XA RECOVER CONVERT XID")
    except pymysql.err.MySQLError as error:
        if error.args[0] not in MAY_NOT:
            raise
        return set()
    return {_xid(*row) for row in recovered}


def _xid(form: int, gtrid: int, bqual: int, data: str | bytes) -> str:
    raw = bytes.fromhex(data[2:]) if isinstance(data, str) else data  # MySQL: as 0x…; MariaDB: bytes
    return ids.format_xid(raw[:gtrid], raw[gtrid : gtrid + bqual], form)


def with_gtids(connection: Connection[Any], places: tuple[Prepared, ...], *, mariadb: bool) -> tuple[Prepared, ...]:
    """The places with what MariaDB needs to find them again."""
    return tuple(_with_gtids(connection, place) for place in places) if mariadb else places


def _with_gtids(connection: Connection[Any], place: Prepared) -> Prepared:
    before = rows(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (place.file, place.start))[0][0]
    return Prepared(place.xid, place.file, place.start, place.gtid, str(before or ""))


def _read(config: SourceConfig, begin: Position, end: Position, *, mariadb: bool) -> Scan:
    """Reads the log from `begin` to `end`."""
    stretch = Scan(begin, mariadb=mariadb)
    target = end.with_changes(gtids=None)
    scan.read(config, stretch, until=lambda _: stretch.place.has_reached(target), mariadb=mariadb)
    return stretch
