"""What the server suffers from now: replication lag, statements at work, and the log that it keeps for our slot.

And who keeps a table locked.
"""

from __future__ import annotations

from dblog_core.config.source import SourceConfig
from dblog_core.interfaces import Strain
from dblog_core.model.schema import TableName
from dblog_core.sources.postgres.sql import catalogue
from dblog_core.sources.postgres.sql.connection import Connection, rows, session

# A standby's lag is NULL while nothing happens, and all but its pid is NULL for whom may not look (pg_read_all_stats).
# Who replays nothing is no standby (pg_receivewal, pg_basebackup); logical walsenders are captures, ours among them.
_STANDBYS = """
    SELECT max(extract(epoch FROM coalesce(r.replay_lag, '0'::interval)))::float8
    FROM pg_stat_replication r
    WHERE r.replay_lsn IS NOT NULL
      AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')
"""
# Of a standby itself: what it has received and not replayed is as old as the last commit that it has replayed.
_OWN_LAG = """
    SELECT CASE WHEN pg_last_wal_receive_lsn() <= pg_last_wal_replay_lsn() THEN 0
                ELSE extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) END::float8
    WHERE pg_is_in_recovery()
"""
_RUNNING = """
    SELECT count(*) FILTER (WHERE state = 'active' AND backend_type = 'client backend' AND usename <> current_user)
    FROM pg_stat_activity HAVING pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
"""
_RETAINED = """
    SELECT greatest(pg_wal_lsn_diff(
               CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())
                    ELSE pg_current_wal_lsn() END, restart_lsn), 0)::bigint
    FROM pg_replication_slots WHERE slot_name = %s AND restart_lsn IS NOT NULL
"""
# Only this mode keeps a SELECT waiting, also while somebody waits for it. A prepared transaction has no process.
_HOLDERS = f"""
    WITH RECURSIVE {catalogue.TREE}
    SELECT a.pid, a.usename, a.application_name, l.granted
    FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.relation IN (SELECT relid FROM tree)
    ORDER BY l.granted DESC, l.waitstart LIMIT 1
"""


def find_lock_holder(config: SourceConfig, name: TableName) -> str | None:
    """Who keeps others from reading the table or one of its partitions; one look, over one short connection."""
    with session(config) as connection:
        table = catalogue.find_table(connection, name)
        holders = rows(connection, _HOLDERS, ([table.oid],)) if table is not None else []
    if not holders:
        return None
    pid, user, application, is_granted = holders[0]
    if pid is None:
        return "a prepared transaction"
    # On a standby it may be the process that replays the log, which is no user's.
    facts = [f"user {user}" if user else "", application, "" if is_granted else "which waits for a lock itself"]
    return f"process {pid} ({', '.join(filter(None, facts))})" if any(facts) else f"process {pid}"


def strain(config: SourceConfig) -> Strain:
    """One look, over one short connection."""
    with session(config) as connection:
        running = rows(connection, _RUNNING)
        retained = rows(connection, _RETAINED, (config.slot,))
        return Strain(
            replication_lag=_lag(connection),
            running=int(running[0][0]) if running else None,
            retained_bytes=int(retained[0][0]) if retained else None,
        )


def _lag(connection: Connection) -> float | None:
    """Seconds of the slowest standby, or of this server where it is one itself."""
    lags = rows(connection, _STANDBYS) + rows(connection, _OWN_LAG)
    return max((float(seconds) for (seconds,) in lags if seconds is not None), default=None)
