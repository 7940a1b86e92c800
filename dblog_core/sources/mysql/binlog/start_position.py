"""Where a first capture begins that is told to begin elsewhere than at the log's present end.

The server keeps its log as files; the head of each says when it was made and which transactions lie before it. So the
file is found by its head, and the place in it by reading on from there. What the server has purged is refused, with
what it still has. A place inside a transaction becomes that transaction's beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from dblog_core.config.source import SourceConfig
from dblog_core.errors import LogPositionLost, SourceRefused
from dblog_core.model import position_spec
from dblog_core.model.position_spec import Form, Place
from dblog_core.sources.mysql.binlog import scan
from dblog_core.sources.mysql.binlog.events import GTIDS, Event, Type
from dblog_core.sources.mysql.binlog.scan import Scan
from dblog_core.sources.mysql.binlog.xa import prepared_at_start
from dblog_core.sources.mysql.position import Gtids, MariadbGtids, MysqlGtids, Position
from dblog_core.sources.mysql.sql import server
from dblog_core.sources.mysql.sql.connection import rows, variables, where

log = logging.getLogger(__name__)

_FIRST_EVENT = 4
"""Offset of the first event of every binlog file."""
_APART = 60
"""Seconds by which a file's head must be older than a time that is looked for behind it: servers' clocks differ, and a
transaction has the time of the server where it was first committed."""
_SECOND = 1_000_000
_HEADS = ("PREVIOUS_GTIDS", "GTID_LIST")


@dataclass(frozen=True, slots=True)
class _Log:
    """The files that the server has, oldest first, with their sizes; `gtids`: whether its transactions have any."""

    connection: Connection[Any]
    config: SourceConfig
    mariadb: bool
    gtids: bool
    server: str | None
    files: Sequence[tuple[str, int]]

    def refused(self, what: str) -> SourceRefused:
        first, last = self.files[0][0], self.files[-1]
        return SourceRefused(
            f"the capture cannot begin there: {what}. The server has {first}:{_FIRST_EVENT} to {last[0]}:{last[1]}",
            where=where(self.config),
            fix='[source] start = "earliest" begins with the oldest that there is, "latest" at the present end; '
            "a dump of all tables brings what came before",
        )

    def head(self, file: str) -> Position:
        """The beginning of a file, with the transactions that lie before it."""
        return Position(file, _FIRST_EVENT, self._before(file) if self.gtids else None, self.server)

    def _before(self, file: str) -> Gtids:
        statement = f"SHOW BINLOG EVENTS IN {self.connection.escape(file)} LIMIT 3"
        found = [row for row in rows(self.connection, statement.replace("%", "%%")) if _is_head(str(row[2]))]
        text = str(found[0][5]) if found else ""
        return MariadbGtids.parse(text.strip("[]")) if self.mariadb else MysqlGtids.parse(text)

    def created(self, file: str) -> int:
        """When the file was made, in seconds."""
        found = Scan(Position(file, _FIRST_EVENT, None))
        scan.read(self.config, found, until=lambda _: found.created is not None, mariadb=self.mariadb)
        return found.created or 0

    def read(self, file: str, until: Callable[[Scan, Event], bool]) -> Scan:
        """Reads from the beginning of a file up to the first event of which `until` holds, or to the log's end."""
        found = Scan(
            self.head(file), mariadb=self.mariadb, server=server.identity(self.connection, mariadb=self.mariadb)
        )
        scan.read(self.config, found, until=lambda event: until(found, event), mariadb=self.mariadb)
        return found


def _is_head(name: str) -> bool:
    return name.upper() in _HEADS


def begin(connection: Connection[Any], config: SourceConfig, place: Place, *, mariadb: bool) -> Position:
    """The place between two transactions that `place` means. Raises SourceRefused where the log does not have it."""
    gtids = mariadb or variables(connection, "gtid_mode").get("gtid_mode") == "ON"
    files = [(str(row[0]), int(row[1])) for row in rows(connection, "SHOW BINARY LOGS")]
    identity = None if gtids else server.identity(connection, mariadb=mariadb)
    known = _Log(connection, config, mariadb, gtids, identity, files)
    found = _FINDERS[place.form](known, place)
    found = found.moved(prepared=prepared_at_start.with_gtids(connection, found.prepared, mariadb=mariadb))
    _try(known, found)
    return found


def bound(connection: Connection[Any], config: SourceConfig, place: Place, *, mariadb: bool) -> Position:
    """A position that is reached once everything up to `place`, a FILE or GTIDS, has been read."""
    end = server.present_end(connection, config, mariadb=mariadb)
    if place.form is Form.GTIDS:
        if end.gtids is None:
            raise _without_gtids(config)
        return Position(end.file, end.offset, _parsed(place, mariadb))
    file, offset = place.file
    if file.rpartition(".")[0] != end.file.rpartition(".")[0]:
        raise SourceRefused(
            f"the server's log has no file named {file}: its present one is {end.file}",
            where=where(config),
            fix="give a file of this server, as SHOW BINARY LOGS tells them",
        )
    return Position(file, offset, None)


def time(connection: Connection[Any]) -> int:
    """The server's clock, in microseconds."""
    return int(rows(connection, "SELECT UNIX_TIMESTAMP(NOW(6)) * 1000000")[0][0])


def _earliest(known: _Log, place: Place) -> Position:
    return known.head(known.files[0][0])


def _at_time(known: _Log, place: Place) -> Position:
    if place.time > (now := time(known.connection)):
        raise known.refused(f"{place} has not come yet: the server's clock is at {position_spec.in_words(now)}")
    # MariaDB logs whole seconds: a transaction of the same second may have been committed after that time.
    wanted = place.time // _SECOND * _SECOND if known.mariadb else place.time
    names = [name for name, _ in known.files]
    first = _last(names, lambda name: known.created(name) <= place.time // _SECOND - _APART)
    if first is None:
        first = names[0]
        if (oldest := known.created(first)) > place.time // _SECOND:
            raise known.refused(f"{place} lies before the oldest log, of {position_spec.in_words(oldest * _SECOND)}")

    def is_late(_: Scan, event: Event) -> bool:
        if event.type not in GTIDS or event.artificial:
            return False
        return (GTIDS[event.type](event).commit_time or event.timestamp * _SECOND) >= wanted

    return known.read(first, is_late).position


def _at_offset(known: _Log, place: Place) -> Position:
    file, offset = place.file
    size = dict(known.files).get(file)
    if size is None:
        raise known.refused(f"{file} has been purged, or is of another server")
    if offset > size:
        raise known.refused(f"{file} ends at {size}, before {offset}")
    if offset <= _FIRST_EVENT:
        return known.head(file)
    found = known.read(file, lambda found, event: _passes(found.moved(event), file, offset, found.place))
    if found.open or found.place.offset < offset:
        log.warning("%s lies inside a transaction: the capture begins with it, at %s", place, found.position)
    return found.position


def _passes(after: Position, file: str, offset: int, before: Position) -> bool:
    """Whether an event goes beyond the offset, or whether what is before it has come so far."""
    return after.file != file or after.offset > offset or before.offset >= offset


def _after_gtids(known: _Log, place: Place) -> Position:
    """After the transactions of a set: those that are not in it come, wherever they lie."""
    if not known.gtids:
        raise _without_gtids(known.config)
    wanted = _parsed(place, known.mariadb)
    purged, executed = _kept(known)
    if not wanted.contains(purged):
        raise known.refused(f"what comes after {place} has been purged in part; the log begins after {purged}")
    if not executed.contains(wanted):
        raise known.refused(f"the server has executed {executed}, which does not hold all of {place}")
    names = [name for name, _ in known.files]
    first = _last(names, lambda name: wanted.contains(known.head(name).gtids or purged)) or names[0]

    def is_new(_: Scan, event: Event) -> bool:
        if event.type not in GTIDS or event.artificial:
            return False
        gtid = GTIDS[event.type](event).gtid
        return gtid is None or not wanted.contains(_empty(known.mariadb).with_transaction(gtid))

    found = known.read(first, is_new).position
    return found.moved(gtids=wanted, server=None)


def _kept(known: _Log) -> tuple[Gtids, Gtids]:
    """What lies before the oldest file, and what the server has executed in all."""
    if known.mariadb:
        end = server.present_end(known.connection, known.config, mariadb=True).gtids
        return known.head(known.files[0][0]).gtids or MariadbGtids({}), end or MariadbGtids({})
    purged, executed = rows(known.connection, "SELECT @@GLOBAL.gtid_purged, @@GLOBAL.gtid_executed")[0]
    return MysqlGtids.parse(str(purged)), MysqlGtids.parse(str(executed))


def _parsed(place: Place, mariadb: bool) -> Gtids:
    return MariadbGtids.parse(place.text) if mariadb else MysqlGtids.parse(place.text)


def _empty(mariadb: bool) -> Gtids:
    return MariadbGtids({}) if mariadb else MysqlGtids({})


def _without_gtids(config: SourceConfig) -> SourceRefused:
    return SourceRefused(
        "the server's transactions have no GTIDs: gtid_mode is not ON",
        where=where(config),
        fix="give a file and an offset, such as binlog.000012:4567, or a time",
    )


def _last(names: Sequence[str], holds: Callable[[str], bool]) -> str | None:
    """The last of the names of which `holds` is true, as it is of all before it; None if it is of none."""
    low, high = 0, len(names)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if holds(names[middle]) else (low, middle)
    return names[low - 1] if low else None


def _try(known: _Log, position: Position) -> None:
    """Asks for the log from there: what the server refuses must be known before the place is recorded."""
    found = Scan(position, mariadb=known.mariadb)
    try:
        scan.read(
            known.config,
            found,
            until=lambda event: event.type not in (Type.ROTATE, Type.FORMAT_DESCRIPTION),
            mariadb=known.mariadb,
            position=position,
        )
    except LogPositionLost as error:
        raise known.refused(error.message) from error


_FINDERS: dict[Form, Callable[[_Log, Place], Position]] = {
    Form.EARLIEST: _earliest,
    Form.TIME: _at_time,
    Form.FILE: _at_offset,
    Form.GTIDS: _after_gtids,
}
