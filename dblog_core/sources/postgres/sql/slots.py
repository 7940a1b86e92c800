"""The replication slot: made, looked at, and held against the position that we want to read from."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import psycopg2.errors

from dblog_core.config.source import SourceConfig
from dblog_core.errors import LogPositionLost, SourceRefused, SourceUnavailable
from dblog_core.model import server_messages
from dblog_core.retry import wait_for
from dblog_core.sources.postgres.position import Lsn
from dblog_core.sources.postgres.sql import standby
from dblog_core.sources.postgres.sql.catalogue import FRESH_START
from dblog_core.sources.postgres.sql.connection import Connection, execute, rows

log = logging.getLogger(__name__)

# Columns that only newer servers have are found by name in the row as JSON; without the column there is no value.
_SLOT = """
    SELECT plugin, database, active_pid, confirmed_flush_lsn::text, coalesce(wal_status, 'lost'), two_phase,
           coalesce(newer->>'invalidation_reason', CASE WHEN newer->>'conflicting' = 'true' THEN 'conflict' END, ''),
           coalesce(newer->>'synced' = 'true' AND pg_is_in_recovery(), false)
    FROM pg_replication_slots s CROSS JOIN LATERAL to_jsonb(s) AS newer WHERE slot_name = %s
"""
_TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND application_name = %s"
_CREATION_LIMIT = "30s"
_WORD = "run SELECT pg_log_standby_snapshot() on the primary"
_KEPT = "rows that it needed were removed: set hot_standby_feedback = on and a primary_slot_name on the standby"
_REASONS = {
    "rows_removed": _KEPT,
    "conflict": f"its recovery had to; where {_KEPT}",
    "wal_level_insufficient": "the primary's wal_level is no longer logical",
    "wal_removed": "it needed more log than max_slot_wal_keep_size lets the server keep",
    "idle_timeout": "nobody read it for idle_replication_slot_timeout",
}
_RELEASE_SECONDS = 5.0
_LOOK_SECONDS = 0.05
_FAILOVER_SLOTS = 170_000


@dataclass(frozen=True, slots=True)
class Line:
    """The name that we read the log under, and those of leaders before us, whose connections we may end."""

    name: str = ""
    before: frozenset[str] = frozenset()


FIRST = Line()


@dataclass(frozen=True, slots=True)
class Slot:
    """A row of pg_replication_slots; `confirmed` is None for a physical slot. `invalid`: why the server has invalidated
    it, where it tells; `synced`: it follows that of the primary, and this server is a standby."""

    plugin: str | None
    database: str | None
    active_pid: int | None
    confirmed: Lsn | None
    wal_status: str
    two_phase: bool
    invalid: str = ""
    synced: bool = False

    @property
    def has_lost_log(self) -> bool:
        """Whether the server has removed log that the slot needed."""
        return self.wal_status == "lost"


def find_slot(connection: Connection, name: str) -> Slot | None:
    """The slot as the server shows it now; None if there is none."""
    slots = rows(connection, _SLOT, (name,))
    if not slots:
        return None
    plugin, database, pid, confirmed, *rest = slots[0]
    return Slot(plugin, database, pid, Lsn.parse(confirmed) if confirmed else None, *rest)


def ensure_slot(connection: Connection, config: SourceConfig) -> Slot:
    """The slot, made where missing. Raises SourceUnavailable while older transactions keep it from being made."""
    slot = find_slot(connection, config.slot)
    if slot is None:
        # A second capture of this source may make it at this moment: so it is looked for again in any case.
        _create(connection, config)
        slot = find_slot(connection, config.slot)
        if slot is None:
            raise SourceUnavailable(
                f"slot {config.slot} vanished right after it was made", where=_where(config), fix="run it again"
            )
    return fitting(slot, config)


def await_promotion(connection: Connection, config: SourceConfig) -> None:
    """Raises SourceUnavailable on a standby that keeps our slot for the time when it is promoted."""
    if (slot := find_slot(connection, config.slot)) is not None:
        _refuse_kept(slot, config)


def _refuse_kept(slot: Slot, config: SourceConfig) -> None:
    if slot.synced:
        raise SourceUnavailable(
            f"slot {config.slot} is kept in step with that of the primary, and cannot be read before this standby is"
            " promoted",
            where=_where(config),
            fix="wait for the promotion: it is tried again; until then name the primary in host; to read a standby with"
            " read_only = true, give it another slot",
        )


def slot_at(connection: Connection, config: SourceConfig, position: Lsn, line: Line = FIRST) -> Slot:
    """The slot, able to send everything from `position` on. Raises LogPositionLost where it cannot, SourceUnavailable
    while a client has it that is no predecessor of this capture."""
    slot = find_slot(connection, config.slot)
    if slot is None:
        raise _lost_error(config, f"replication slot {config.slot} does not exist", f"every change after {position}")
    slot = fitting(slot, config)
    confirmed = slot.confirmed
    # The slot sends nothing before what was confirmed, and says nothing of what it leaves out.
    if confirmed is None or confirmed > position:
        what = f"slot {config.slot} is confirmed up to {confirmed} and our last durable position is {position}"
        raise _lost_error(config, what, f"the changes between {position} and {confirmed}")
    end = standby.end(connection)
    # On a standby the log may come yet; on a primary what we have read is gone.
    if end < position and standby.recovering(connection):
        raise SourceUnavailable(
            f"the standby has replayed up to {end}, and our position is {position}",
            where=_where(config),
            fix="wait until it has caught up with its primary; it is tried again",
        )
    if end < position:
        what = f"the server's log ends at {end}, before our position {position}: it was restored or failed over"
        raise _lost_error(config, what, "the changes since it took that turn")
    if slot.active_pid is not None and not _release(connection, config, slot.active_pid, line):
        raise active(config, slot.active_pid)
    return slot


def _release(connection: Connection, config: SourceConfig, pid: int, line: Line) -> bool:
    """Whether the slot is free, after we have ended the connection of a leader before us that holds it."""
    named = rows(connection, "SELECT application_name FROM pg_stat_activity WHERE pid = %s", (pid,))
    # Only leaders of this capture, whose lease we have taken over, may lose their connection.
    if named and line.before.isdisjoint(str(named[0][0]).split()):
        return False
    # By the name again: in between the process may have ended, and its number be another's.
    execute(connection, _TERMINATE, (pid, named[0][0] if named else ""))
    slot = wait_for(
        lambda: find_slot(connection, config.slot),
        until=lambda seen: seen is None or seen.active_pid != pid,
        waits=(_LOOK_SECONDS, _LOOK_SECONDS),
        give_up_after=_RELEASE_SECONDS,
    )
    return slot is None or slot.active_pid is None


def active(config: SourceConfig, pid: int | None) -> SourceUnavailable:
    """The error for a slot that another walsender holds: often the last leader's, until the server notices its end."""
    return SourceUnavailable(
        f"slot {config.slot} is in use by the server's process {pid}",
        where=_where(config),
        fix="a capture with another state store reads it, or the server has not noticed yet that one died: it is tried "
        "again",
    )


def _create(connection: Connection, config: SourceConfig) -> None:
    # A new slot begins where no older transaction runs: one that never ends would let us wait forever.
    execute(connection, f"SET statement_timeout = '{_CREATION_LIMIT}'")
    replays = standby.recovering(connection)
    if replays:
        log.warning("slot %s is made on a standby, which waits for a record of its primary: %s", config.slot, _WORD)
    try:
        execute(connection, _creation(connection, replays=replays), (config.slot, config.plugin))
    except psycopg2.errors.DuplicateObject:
        return  # a standby was faster
    except psycopg2.errors.QueryCanceled as error:
        if replays:
            raise SourceUnavailable(
                f"slot {config.slot} could not be made within {_CREATION_LIMIT}: the standby's primary has not yet "
                "said which transactions run, or older ones still run",
                where=_where(config),
                fix=f"dblog tries again. To help, {_WORD}, and end its oldest transactions",
            ) from error
        raise SourceUnavailable(
            f"slot {config.slot} could not be made within {_CREATION_LIMIT}: transactions that are older run still",
            where=_where(config),
            fix="dblog tries again. To help, end the oldest of SELECT pid, xact_start, query FROM pg_stat_activity "
            "WHERE backend_xid IS NOT NULL ORDER BY xact_start. Then commit or roll back what SELECT gid, prepared "
            "FROM pg_prepared_xacts shows",
        ) from error
    except psycopg2.errors.ObjectNotInPrerequisiteState as error:
        raise SourceRefused(
            f"slot {config.slot} cannot be made: {server_messages.by_postgres(error)}",
            where=_where(config),
            fix="ALTER SYSTEM SET wal_level = 'logical' on the server, on a standby's primary as well; then restart",
        ) from error
    except psycopg2.errors.UndefinedFile as error:
        raise SourceRefused(
            f"the server has no output plugin {config.plugin}", where=_where(config), fix=plugin_fix(connection)
        ) from error
    finally:
        execute(connection, "RESET statement_timeout")


def _creation(connection: Connection, *, replays: bool) -> str:
    """A slot that standbys keep, where the server can: for a failover, if its standbys are set up to. What is made on
    a standby, no other one keeps."""
    failover = ", failover => true" if connection.server_version >= _FAILOVER_SLOTS and not replays else ""
    return f"SELECT pg_create_logical_replication_slot(%s, %s{failover})"


def plugin_fix(connection: Connection) -> str:
    """How wal2json comes to a server."""
    major = connection.server_version // 10000
    return (
        f'on the server: apt-get install postgresql-{major}-wal2json (no restart is needed), or set plugin = "pgoutput"'
    )


def fitting(slot: Slot, config: SourceConfig) -> Slot:
    """The slot, if the log can be read from it. Raises LogPositionLost and SourceRefused."""
    if slot.plugin != config.plugin or slot.database != config.database:
        raise _lost_error(
            config,
            f"slot {config.slot} is of plugin {slot.plugin} in database {slot.database}, "
            f"not of {config.plugin} in {config.database}",
            "what another plugin would have sent since the last durable position",
        )
    if slot.has_lost_log:
        message = f"the server has invalidated slot {config.slot}"
        why = _REASONS.get(slot.invalid, slot.invalid)
        raise _lost_error(
            config, f"{message} ({why})" if why else message, "every change since the last durable position"
        )
    _refuse_kept(slot, config)
    if slot.two_phase:
        raise SourceRefused(
            f"slot {config.slot} was made with two_phase: it sends prepared rows, which may be rolled back",
            where=_where(config),
            fix=f"SELECT pg_drop_replication_slot('{config.slot}'): a first capture then makes its own; a later one: "
            + FRESH_START,
        )
    return slot


def _lost_error(config: SourceConfig, message: str, lost: str) -> LogPositionLost:
    drop = f"SELECT pg_drop_replication_slot('{config.slot}')"
    return LogPositionLost(f"{message}; lost: {lost}", where=_where(config), fix=f"{FRESH_START} (drop: {drop})")


def _where(config: SourceConfig) -> str:
    return f"source {config.name}"
