"""Whether a server can continue from our position: it must have had every transaction that we have read.

GTIDs alone do not tell that. A server that was put back to an earlier state numbers what is committed then as it has
numbered before: once it has come as far as we were, it has all the GTIDs, and what some of them name is not what we
have read. So the last transaction that we have read is looked up in its log, and must be of the same time.
"""

from __future__ import annotations

import logging
from typing import Any

from pymysql.connections import Connection

from dblog_core.config.source import SourceConfig
from dblog_core.errors import LogPositionLost, SourceError, SourceUnavailable, UnknownLogEvent
from dblog_core.model import position_spec
from dblog_core.sources.mysql.binlog import events, scan
from dblog_core.sources.mysql.binlog.events import GTIDS, Event, Type
from dblog_core.sources.mysql.binlog.log import place_again
from dblog_core.sources.mysql.binlog.scan import Scan
from dblog_core.sources.mysql.position import MariadbGtids, MysqlGtids, Newest, Position, Prepared
from dblog_core.sources.mysql.sql.connection import rows, where

log = logging.getLogger(__name__)

_LOOKED_THROUGH = 1_000
"""Transactions among which the last one that we have read is looked for: it comes first, but where another server has
committed others before it."""


def compare(connection: Connection[Any], config: SourceConfig, start: Position, identity: str | None) -> bool:
    """Raises LogPositionLost for a server that was reset, restored to an earlier time, or is another one, and names
    what it lacks. `identity`: the server's uuid.

    Returns whether the server certainly has the position's file, with the last transaction that we have read in it.
    """
    if isinstance(start.gtids, MysqlGtids):
        executed = MysqlGtids.parse(str(rows(connection, "SELECT @@GLOBAL.gtid_executed")[0][0]))
        # Beyond what it has executed, a server would send nothing, and number other transactions so later on.
        if missing := start.gtids.beyond(executed):
            raise _other_server(config, f"has not executed {missing}, which we have read: it has {executed}")
    elif isinstance(start.gtids, MariadbGtids):
        _compare_domains(connection, config, start.gtids)
    # File names alone say nothing: another server has files of the same names.
    elif start.server != identity:
        raise _other_server(config, f"is {identity}, and the position is a file's of {start.server}")
    if start.newest is None or not _is_its_own(connection, start.newest, identity):
        return False
    is_there = _compare_newest(config, start, start.newest, mariadb=identity is None)
    return is_there and start.file == start.newest.file


def is_file_cut(config: SourceConfig, start: Position, *, mariadb: bool) -> bool:
    """Whether the position's file ends right there, and the server did not end it: it crashed. The server must have
    that file.
    """
    is_cut = False

    def look(event: Event) -> bool:
        nonlocal is_cut
        if event.type == Type.ROTATE:
            is_cut = event.artificial and events.next_file(event) != start.file
            return is_cut or not event.artificial
        return event.type == Type.STOP or event.type in GTIDS

    scan.read(config, Scan(Position(start.file, start.offset, None), mariadb=mariadb), until=look, mariadb=mariadb)
    return is_cut


def _compare_domains(connection: Connection[Any], config: SourceConfig, read_gtids: MariadbGtids) -> None:
    """MariaDB itself takes a domain that its log knows nothing of for another server's business, and sends from the
    beginning of its log: so a server that was reset would go unnoticed."""
    state = str(rows(connection, "SELECT @@GLOBAL.gtid_binlog_state")[0][0] or "")
    if missing := read_gtids.beyond(state):
        raise _other_server(config, f"has not {missing} in its log, which we have read: it has {state or 'nothing'}")


def _is_its_own(connection: Connection[Any], newest: Newest, identity: str | None) -> bool:
    """Whether the server itself has numbered the transaction. MariaDB logs the time of an event, of which a replica
    may make another one."""
    if identity is not None:
        return True
    return newest.gtid.split("-")[1] == str(rows(connection, "SELECT @@GLOBAL.server_id")[0][0])


def _compare_newest(config: SourceConfig, start: Position, newest: Newest, *, mariadb: bool) -> bool:
    """First where it was on the server that we have read from, at once; then by its GTID, for which the server may have
    to read a file from its beginning. Returns whether it is where it was."""
    try:
        server_time_us = _time_of(newest, config, Position(newest.file, newest.start, None), among=1, mariadb=mariadb)
    except SourceUnavailable:
        raise
    except (SourceError, UnknownLogEvent) as error:
        log.debug("%s:%d is another server's: %s", newest.file, newest.start, error)
        server_time_us = None
    # The usual case after a restart: the same server, and the file is still there.
    if server_time_us == newest.time:
        return True
    # Its file may be another one here, or be gone: by GTID the server finds it whichever file it is in.
    place = place_again(Prepared("", newest.file, newest.start, newest.gtid, newest.before), start)
    try:
        server_time_us = _time_of(newest, config, place, among=_LOOKED_THROUGH, mariadb=mariadb)
    except LogPositionLost as error:  # it has purged up to our very place
        log.info("transaction %s is no longer in the log to be compared: %s", newest.gtid, error.message)
        return False
    # Not found at all says nothing: others may have been committed before it, more than are looked through.
    if server_time_us and server_time_us != newest.time:
        our_time = position_spec.in_words(newest.time)
        server_time = position_spec.in_words(server_time_us)
        raise _other_server(
            config, f"calls a transaction of {server_time} {newest.gtid}, and we have read one of {our_time}"
        )
    return False


def _time_of(newest: Newest, config: SourceConfig, place: Position, *, among: int, mariadb: bool) -> int | None:
    """The time of the transaction with that GTID among so many from a place on; None if it is not there."""
    transactions = 0
    commit_time_us: int | None = None

    def look(event: Event) -> bool:
        nonlocal transactions, commit_time_us
        if event.type not in GTIDS or event.artificial:
            return False
        gtid = GTIDS[event.type](event)
        if gtid.gtid == newest.gtid:
            commit_time_us = gtid.commit_time
        transactions += 1
        return commit_time_us is not None or transactions == among

    scan.read(config, Scan(place, mariadb=mariadb), until=look, mariadb=mariadb, position=place)
    return commit_time_us


def _other_server(config: SourceConfig, what: str) -> LogPositionLost:
    return LogPositionLost(
        f"the server {what}. It was reset, restored, or is another one, and cannot continue from our position",
        where=where(config),
        fix=f"connect to a server that has it, or {events.FRESH_START}",
    )
