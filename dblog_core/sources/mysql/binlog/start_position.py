"""Where a first capture begins whose configuration names another place than the log's present end.

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
_APART_SECONDS = 60
"""Seconds by which a file's head must be older than a time that is looked for behind it: servers' clocks differ, and a
transaction has the time of the server where it was first committed."""
_SECOND_US = 1_000_000
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

    def no_start_error(self, what: str) -> SourceRefused:
        first = self.files[0][0]
        last = self.files[-1]
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
        # The list of earlier transactions is among the first events, behind the file's description.
        statement = f"SHOW BINLOG EVENTS IN {self.connection.escape(file)} LIMIT 3"
        heads = [row for row in rows(self.connection, statement.replace("%", "%%")) if _is_head(str(row[2]))]
        text = str(heads[0][5]) if heads else ""
        return MariadbGtids.parse(text.strip("[]")) if self.mariadb else MysqlGtids.parse(text)

    def creation_seconds(self, file: str) -> int:
        """When the file was made, in seconds."""
        head = Scan(Position(file, _FIRST_EVENT, None))
        scan.read(self.config, head, until=lambda _: head.creation_seconds is not None, mariadb=self.mariadb)
        return head.creation_seconds or 0

    def read(self, file: str, until: Callable[[Scan, Event], bool]) -> Scan:
        """Reads from the beginning of a file up to the first event of which `until` holds, or to the log's end."""
        stretch = Scan(
            self.head(file), mariadb=self.mariadb, server=server.identity(self.connection, mariadb=self.mariadb)
        )
        scan.read(self.config, stretch, until=lambda event: until(stretch, event), mariadb=self.mariadb)
        return stretch


def _is_head(name: str) -> bool:
    return name.upper() in _HEADS


def begin(connection: Connection[Any], config: SourceConfig, place: Place, *, mariadb: bool) -> Position:
    """The place between two transactions that `place` means. Raises SourceRefused where the log does not have it."""
    gtids = mariadb or variables(connection, "gtid_mode").get("gtid_mode") == "ON"
    files = [(str(row[0]), int(row[1])) for row in rows(connection, "SHOW BINARY LOGS")]
    identity = None if gtids else server.identity(connection, mariadb=mariadb)
    server_log = _Log(connection, config, mariadb, gtids, identity, files)
    position = _FINDERS[place.form](server_log, place)
    prepared = prepared_at_start.with_gtids(connection, position.prepared, mariadb=mariadb)
    position = position.with_changes(prepared=prepared)
    # Files may be purged between the look at them and this; a place that was recorded must be readable.
    _try_log_from(server_log, position)
    return position


def find_target(connection: Connection[Any], config: SourceConfig, place: Place, *, mariadb: bool) -> Position:
    """A position that is reached once everything up to `place`, a FILE or GTIDS, has been read."""
    end = server.present_end(connection, config, mariadb=mariadb)
    if place.form is Form.GTIDS:
        if end.gtids is None:
            raise _without_gtids(config)
        return Position(end.file, end.offset, _parse_gtids(place, mariadb))
    file, offset = place.file
    # A server's files differ in their number alone.
    if file.rpartition(".")[0] != end.file.rpartition(".")[0]:
        raise SourceRefused(
            f"the server's log has no file named {file}: its present one is {end.file}",
            where=where(config),
            fix="give a file of this server, as SHOW BINARY LOGS tells them",
        )
    return Position(file, offset, None)


def time(connection: Connection[Any]) -> int:
    """The server's clock, in microseconds."""
    return int(rows(connection, "SELECT UNIX_TIMESTAMP(SYSDATE(6)) * 1000000")[0][0])


def _earliest(server_log: _Log, place: Place) -> Position:
    return server_log.head(server_log.files[0][0])


def _at_time(server_log: _Log, place: Place) -> Position:
    if place.time > (now_us := time(server_log.connection)):
        now = position_spec.in_words(now_us)
        raise server_log.no_start_error(f"{place} has not come yet: the server's clock is at {now}")
    # MariaDB logs whole seconds: a transaction of the same second may have been committed after that time.
    from_us = place.time // _SECOND_US * _SECOND_US if server_log.mariadb else place.time
    names = [name for name, _ in server_log.files]
    place_seconds = place.time // _SECOND_US
    first = _find_last(names, lambda name: server_log.creation_seconds(name) <= place_seconds - _APART_SECONDS)
    if first is None:
        first = names[0]
        # No file is older by the minute that clocks may differ: then the oldest one itself has to be.
        if (oldest_seconds := server_log.creation_seconds(first)) > place_seconds:
            oldest = position_spec.in_words(oldest_seconds * _SECOND_US)
            raise server_log.no_start_error(f"{place} lies before the oldest log, of {oldest}")

    def is_late(_: Scan, event: Event) -> bool:
        if event.type not in GTIDS or event.artificial:
            return False
        return (GTIDS[event.type](event).commit_time or event.timestamp * _SECOND_US) >= from_us

    return server_log.read(first, is_late).position


def _at_offset(server_log: _Log, place: Place) -> Position:
    file, offset = place.file
    size = dict(server_log.files).get(file)
    if size is None:
        raise server_log.no_start_error(f"{file} has been purged, or is of another server")
    if offset > size:
        raise server_log.no_start_error(f"{file} ends at {size}, before {offset}")
    if offset <= _FIRST_EVENT:
        return server_log.head(file)

    def passes(stretch: Scan, event: Event) -> bool:
        return _passes(stretch.place_after(event), file, offset, stretch.place)

    stretch = server_log.read(file, passes)
    # A capture that began within a transaction would have some of its rows, and no beginning of it.
    if stretch.open or stretch.place.offset < offset:
        log.warning("%s lies inside a transaction: the capture begins with it, at %s", place, stretch.position)
    return stretch.position


def _passes(after: Position, file: str, offset: int, before: Position) -> bool:
    """Whether an event goes beyond the offset, or whether what is before it has come so far."""
    return after.file != file or after.offset > offset or before.offset >= offset


def _after_gtids(server_log: _Log, place: Place) -> Position:
    """After the transactions of a set: those that are not in it come, wherever they lie."""
    if not server_log.gtids:
        raise _without_gtids(server_log.config)
    gtids_before = _parse_gtids(place, server_log.mariadb)
    purged, executed = _purged_and_executed(server_log)
    if not gtids_before.contains(purged):
        raise server_log.no_start_error(
            f"what comes after {place} has been purged in part; the log begins after {purged}"
        )
    if not executed.contains(gtids_before):
        raise server_log.no_start_error(f"the server has executed {executed}, which does not hold all of {place}")
    names = [name for name, _ in server_log.files]
    first = _find_last(names, lambda name: gtids_before.contains(server_log.head(name).gtids or purged)) or names[0]

    def is_new(_: Scan, event: Event) -> bool:
        if event.type not in GTIDS or event.artificial:
            return False
        gtid = GTIDS[event.type](event).gtid
        return gtid is None or not gtids_before.contains(_empty(server_log.mariadb).with_transaction(gtid))

    # The file is the last one whose beginning lies in the set: what is new comes behind it, or in it.
    position = server_log.read(first, is_new).position
    return position.with_changes(gtids=gtids_before, server=None)


def _purged_and_executed(server_log: _Log) -> tuple[Gtids, Gtids]:
    """What lies before the oldest file, and what the server has executed in all."""
    # MariaDB has no gtid_purged: the list at the head of its oldest file says the same.
    if server_log.mariadb:
        end = server.present_end(server_log.connection, server_log.config, mariadb=True).gtids
        return server_log.head(server_log.files[0][0]).gtids or MariadbGtids({}), end or MariadbGtids({})
    purged, executed = rows(server_log.connection, "SELECT @@GLOBAL.gtid_purged, @@GLOBAL.gtid_executed")[0]
    return MysqlGtids.parse(str(purged)), MysqlGtids.parse(str(executed))


def _parse_gtids(place: Place, mariadb: bool) -> Gtids:
    return MariadbGtids.parse(place.text) if mariadb else MysqlGtids.parse(place.text)


def _empty(mariadb: bool) -> Gtids:
    return MariadbGtids({}) if mariadb else MysqlGtids({})


def _without_gtids(config: SourceConfig) -> SourceRefused:
    return SourceRefused(
        "the server's transactions have no GTIDs: gtid_mode is not ON",
        where=where(config),
        fix="give a file and an offset, such as binlog.000012:4567, or a time",
    )


def _find_last(names: Sequence[str], holds: Callable[[str], bool]) -> str | None:
    """The last of the names of which `holds` is true, as it is of all before it; None if it is of none."""
    low = 0
    high = len(names)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if holds(names[middle]) else (low, middle)
    return names[low - 1] if low else None


def _try_log_from(server_log: _Log, position: Position) -> None:
    """Asks for the log from there: what the server refuses must be known before the place is recorded."""
    stretch = Scan(position, mariadb=server_log.mariadb)
    try:
        scan.read(
            server_log.config,
            stretch,
            until=lambda event: event.type not in (Type.ROTATE, Type.FORMAT_DESCRIPTION),
            mariadb=server_log.mariadb,
            position=position,
        )
    except LogPositionLost as error:
        raise server_log.no_start_error(error.message) from error


_FINDERS: dict[Form, Callable[[_Log, Place], Position]] = {
    Form.EARLIEST: _earliest,
    Form.TIME: _at_time,
    Form.FILE: _at_offset,
    Form.GTIDS: _after_gtids,
}
