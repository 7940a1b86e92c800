"""Hot standbys: what their SELECTs see, where their log ends for them, and what a capture needs to decode there.

A standby shows commits in the order of the log, since one process replays them one by one, and decodes only what it has
replayed. Its `pg_current_snapshot()` is of no use: it names no running transactions, so that those which it has begun
to replay would count as seen. So a chunk of a standby has no snapshot, and what it sees follows the log's order
(theory in `dblog_core/algorithm/window.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing

from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceRefused, SourceUnavailable
from dblog_core.retry import wait_for
from dblog_core.sources.postgres import timelines
from dblog_core.sources.postgres.position import Lsn
from dblog_core.sources.postgres.sql.connection import (
    Connection,
    connect,
    rows,
    session,
    translate_errors,
    value,
)

DECODES = 160_000
"""The first version whose standbys decode."""

log = logging.getLogger(__name__)

_SYSTEM = "SELECT system_identifier::text FROM pg_control_system()"
_PAUSES = (0.001, 0.02)  # seconds between two looks at what is replayed, least and most
# Seconds in which replay is to move on: where there is another end to name, and where there is none.
_SOON_SECONDS = 1.0
_LATEST_SECONDS = 20.0
SAID = 2.0
PATIENCE = 20.0
"""Seconds after which a wait for a standby to come as far as its primary was is reported, and is over."""


def recovering(connection: Connection) -> bool:
    """Whether the server is a standby."""
    return bool(value(connection, "SELECT pg_is_in_recovery()"))


def end(connection: Connection) -> Lsn:
    """The end of the log that can be read: flushed, or on a standby replayed."""
    # A standby decodes what it has replayed; a primary what it has flushed.
    query = "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END"
    return Lsn.parse(value(connection, f"{query}::text"))


def replayed_lsn(connection: Connection) -> Lsn:
    """A SELECT from now on sees every commit whose record ends here, or before."""
    return Lsn.parse(value(connection, "SELECT pg_last_wal_replay_lsn()::text"))


def seen_lsn(connection: Connection, config: SourceConfig) -> Lsn:
    """A place after every commit that a SELECT before this call can have seen. Raises SourceUnavailable.

    A commit shows while its record is being replayed, and `pg_last_wal_replay_lsn()` moves when that is done. One
    record at most is being replayed. So the next place that replay comes to is one. Where replay stands still, nothing
    is being replayed if all that was received is; for what is received by a stream is replayed up to there, and a
    standby that replays from an archive has no WAL receiver. Whether there is one is asked first, and what is replayed
    last: a record that came from an archive before the receiver was started is done by then.
    """
    first = replayed_lsn(connection)
    began = time.monotonic()

    def look() -> Lsn | None:
        receiving = bool(rows(connection, "SELECT pid FROM pg_stat_wal_receiver WHERE pid IS NOT NULL"))
        received = value(connection, "SELECT pg_last_wal_receive_lsn()::text")
        upto = Lsn.parse(received) if receiving and received else None
        now = replayed_lsn(connection)
        if now != first or (upto is not None and upto <= now):
            return now
        if not recovering(connection):
            raise promotion_error(config)
        waited = time.monotonic() - began
        if upto is not None and waited >= _SOON_SECONDS:
            return upto
        if waited >= _LATEST_SECONDS:
            raise SourceUnavailable(
                f"the standby has no WAL receiver, and has stood at {now} for {_LATEST_SECONDS:.0f} s: where the log"
                " ends that a SELECT has seen, nobody can tell",
                where=_where(config),
                fix="let it stream from its primary (primary_conninfo), or wait until its archive has more; it is tried"
                " again",
            )
        return None

    lsn = wait_for(look, until=lambda seen: seen is not None, waits=_PAUSES)
    assert lsn is not None  # the wait has no other end
    return lsn


def follow(connection: Connection, replica: SourceConfig, primary: SourceConfig) -> None:
    """Returns once the replica has replayed what its primary has flushed so far. Raises as `require_same_system`, and
    SourceUnavailable for one that does not come so far."""
    upto = require_same_system(connection, replica, primary)
    await_replayed(lambda: replayed_lsn(connection) >= upto, connection, replica, f"has not replayed up to {upto}")


def require_same_system(connection: Connection, replica: SourceConfig, primary: SourceConfig) -> Lsn:
    """Up to where the primary has flushed its log. Raises SourceRefused for a server that is no hot standby of it, and
    SourceUnavailable for one on another timeline."""
    with session(primary) as other:
        if not recovering(connection):
            raise SourceRefused(
                "the server that read_replica names is no standby",
                where=_where(replica),
                fix="name a hot standby of the server that host names, or remove read_replica",
            )
        replica_system = value(connection, _SYSTEM)
        primary_system = value(other, _SYSTEM)
        upto = end(other)
    if replica_system != primary_system:
        raise SourceRefused(
            f"the server that read_replica names is of database system {replica_system}, and its primary"
            f" of {primary_system}",
            where=_where(replica),
            fix="name a hot standby of the server that host names, or remove read_replica",
        )
    # Asked over replication connections: SQL does not tell it of a standby.
    replica_timeline = _timeline(replica)
    primary_timeline = _timeline(primary)
    if replica_timeline != primary_timeline:
        raise SourceUnavailable(
            f"the standby is on timeline {replica_timeline}, and its primary on {primary_timeline}",
            where=_where(replica),
            fix="let it follow the server that host names (primary_conninfo); it is tried again",
        )
    return upto


def await_replayed(is_met: Callable[[], bool], connection: Connection, replica: SourceConfig, what: str) -> None:
    """Waits for what the standby is to show. Raises SourceUnavailable where it does not, with `what`."""
    waiting = Waiting(connection, replica, what)

    def look() -> bool:
        if is_met():
            return True
        waiting.look()
        return False

    wait_for(look, waits=_PAUSES)


class Waiting:
    """A wait for a standby: reported once it is long, and ended."""

    def __init__(self, connection: Connection, config: SourceConfig, what: str) -> None:
        """`what` the standby does not do, as people read it."""
        self._connection = connection
        self._config = config
        self._what = what
        self._began = time.monotonic()
        self._is_told = False

    def look(self) -> None:
        """Raises SourceUnavailable once it has taken PATIENCE."""
        waited = time.monotonic() - self._began
        if waited >= PATIENCE:
            raise SourceUnavailable(
                f"the standby {self._what} within {PATIENCE:.0f} s: it stands at {replayed_lsn(self._connection)}",
                where=_where(self._config),
                fix="it is tried again; whether it receives and replays tells pg_stat_replication on the primary",
            )
        if waited >= SAID and not self._is_told:
            self._is_told = True
            now = replayed_lsn(self._connection)
            log.warning("%s: the standby %s yet: it stands at %s", _where(self._config), self._what, now)


def _timeline(config: SourceConfig) -> int:
    with closing(connect(config, replication=True)) as replication, translate_errors(config):
        return timelines.current(replication)


def promotion_error(config: SourceConfig) -> SourceUnavailable:
    """The error that ends whatever went by a standby's rules."""
    return SourceUnavailable(
        "the standby was promoted: what it shows no longer follows the log's order",
        where=_where(config),
    )


def refusal(connection: Connection, config: SourceConfig) -> tuple[str, str] | None:
    """Why a capture cannot read this standby's log, with the fix; None if it can."""
    if not config.read_only:
        return (
            "the server is a standby and cannot be written",
            "set read_only = true in [source], or name the primary in host",
        )
    if connection.server_version < DECODES:
        return (
            f"the server is a standby of version {connection.server_version // 10000}, which cannot send its log:"
            " version 16 is the first that can",
            "name the primary in host, and the standby in read_replica: then chunks are read there",
        )
    return None


def require(connection: Connection, config: SourceConfig) -> None:
    """Raises SourceRefused for a standby that a capture cannot read."""
    if recovering(connection) and (why_refused := refusal(connection, config)) is not None:
        raise SourceRefused(why_refused[0], where=_where(config), fix=why_refused[1])


def _where(config: SourceConfig) -> str:
    return f"source {config.name} ({config.host}:{config.port})"
