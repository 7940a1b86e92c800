"""Where a first capture begins whose configuration names another place than the log's present end.

The server keeps its log for a slot from where that is confirmed, and nothing older can be read by it. So there must be
a slot, and a publication that showed the tables then: neither is made for the past.
"""

from __future__ import annotations

from collections.abc import Callable

from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceRefused
from dblog_core.interfaces import LogStream
from dblog_core.model import position_spec
from dblog_core.model.position_spec import Form, Place
from dblog_core.retry import wait_for
from dblog_core.sources.postgres.position import Lsn, Point
from dblog_core.sources.postgres.sql import catalogue, publication, slots, standby
from dblog_core.sources.postgres.sql.connection import Connection, session, value
from dblog_core.sources.postgres.sql.replica_identity import usable

_PATIENCE_SECONDS = 5.0
_LOOK_SECONDS = 0.05
"""Seconds in which the server notices that we have left the slot, and between two looks."""

OpenLog = Callable[[str], LogStream]


def begin(config: SourceConfig, place: Place, open_log: OpenLog) -> Lsn:
    """The LSN from which on all is sent that `place` means. Raises SourceRefused where the slot does not have it."""
    with session(config) as connection:
        first = _confirmed_lsn(connection, config)
        _require_published(connection, config)
        # After the slot was looked at: its log cannot end before it.
        last = standby.end(connection)
        now = time(connection)
    if place.form is Form.EARLIEST:
        return first
    if place.form is Form.TIME:
        if place.time > now:
            raise _no_start_error(
                config, f"{place} has not come yet: the server's clock is at {position_spec.in_words(now)}"
            )
        return _at_time(config, place, first, last, open_log)
    # Asked for an older place, a slot begins at its confirmed one without an error: so it is compared here.
    lsn = Lsn.parse(place.text)
    if not first <= lsn <= last:
        raise _no_start_error(config, f"slot {config.slot} has the log from {first} to {last}, not {place}")
    return lsn


def time(connection: Connection) -> int:
    """The server's clock, in microseconds."""
    return int(value(connection, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"))


def _confirmed_lsn(connection: Connection, config: SourceConfig) -> Lsn:
    slot = slots.find_slot(connection, config.slot)
    if slot is None:
        make = f"SELECT pg_create_logical_replication_slot('{config.slot}', '{config.plugin}')"
        raise SourceRefused(
            f"the capture cannot begin there: slot {config.slot} is not there, and the server keeps no log without one",
            where=f"source {config.name}",
            fix=f'[source] start = "latest", which makes it; to keep log before a first capture: {make}',
        )
    confirmed = slots.fitting(slot, config).confirmed
    if confirmed is None:
        raise _no_start_error(config, f"{config.slot} is no slot of logical decoding")
    return confirmed


def _require_published(connection: Connection, config: SourceConfig) -> None:
    """Refuses tables that the publication does not show: what the slot has of them would be passed over."""
    if config.plugin != "pgoutput":
        return
    tables = usable(connection, config)
    state = publication.find_publication(connection, config, tables)
    missing = [str(name) for name in state.missing if name != catalogue.watermark_table(config)]
    if missing or not state.exists:
        some_tables = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise _no_start_error(
            config, f"publication {config.publication} does not show {some_tables}, so the slot has nothing of it"
        )


def _at_time(config: SourceConfig, place: Place, first: Lsn, last: Lsn, open_log: OpenLog) -> Lsn:
    """The first commit at or after the time. Nothing is confirmed by looking."""
    stream = open_log(str(first))
    older = False
    try:
        while True:
            batch = stream.read(1.0)
            if batch is None:
                continue
            for transaction in batch.transactions:
                if transaction.commit_time >= place.time:
                    return _require_older(config, place, Lsn.parse(transaction.position), older)
                older = True
            # A capture cannot begin within a transaction.
            if not batch.partial and (reached := Point.parse(batch.position).lsn) >= last:
                return _require_older(config, place, reached, older)
    finally:
        stream.close()
        # The capture itself opens the slot next, and the server lets one at a time read it.
        _await_release(config)


def _require_older(config: SourceConfig, place: Place, lsn: Lsn, older: bool) -> Lsn:
    """Where nothing older is in the slot's log, what came after the time may have been confirmed, and be gone."""
    if not older:
        raise _no_start_error(
            config, f"slot {config.slot} has no change from before {place}, so it may lack some from after it"
        )
    return lsn


def _await_release(config: SourceConfig) -> None:
    """Waits until the server has noticed that we are gone: the slot serves one at a time. For a few seconds at most."""

    def is_free() -> bool:
        with session(config) as connection:
            slot = slots.find_slot(connection, config.slot)
        return slot is None or slot.active_pid is None

    wait_for(is_free, waits=(_LOOK_SECONDS, _LOOK_SECONDS), give_up_after=_PATIENCE_SECONDS)


def _no_start_error(config: SourceConfig, what: str) -> SourceRefused:
    return SourceRefused(
        f"the capture cannot begin there: {what}",
        where=f"source {config.name}",
        fix='[source] start = "earliest" begins with all that the slot has; a dump of all tables brings the rest',
    )
