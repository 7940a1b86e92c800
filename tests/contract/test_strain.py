"""Strain: what a source can tell of its load."""

from __future__ import annotations

import select
import threading
import time
from contextlib import closing
from typing import Any

import psycopg2
import pytest
from psycopg2.extras import PhysicalReplicationConnection

from dblog_core.config.settings import Config
from dblog_core.interfaces import Source
from tests.contract.keyed import (
    MYSQL_KINDS,
)
from tests.contract.test_source import run
from tests.fix_servers import Database
from tests.waiting import PATIENCE_SECONDS

LATE = 0.1  # seconds after which a standby of the tests replays what it has received
END = PATIENCE_SECONDS
"""Seconds within which a server must show what a test waits for."""


def test_strain_tells_of_running_statements_and_retained_log(database: Database, source: Source) -> None:
    """Without our own statements, also while a capture reads the log."""
    run(database, "CREATE TABLE a (n int PRIMARY KEY, t varchar(2000))")
    if database.kind == "postgres":
        assert source.strain().running is None  # others' statements are hidden from whom may not see them
        database.execute(f"GRANT pg_read_all_stats TO {database.account.user}")
    with closing(source.open_log(source.start_position())) as stream:
        stream.read(0.1)
        before = source.strain()
        assert before.replication_lag is None and before.running is not None and before.retained_bytes is not None
        run(database, "INSERT INTO a VALUES (1, '" + "x" * 2000 + "')")
        assert (source.strain().retained_bytes or 0) >= before.retained_bytes + 2000
    with closing(database.connect()) as holder, closing(database.connect()) as waiter:
        with holder.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("UPDATE a SET t = 'held'")
        blocked = threading.Thread(target=_update, args=(waiter,))
        blocked.start()
        deadline = time.monotonic() + END
        while (source.strain().running or 0) < before.running + 1:
            assert time.monotonic() < deadline, "the statement that waits is not counted"
        with holder.cursor() as cursor:
            cursor.execute("ROLLBACK")
        blocked.join(END)
        assert not blocked.is_alive()


def _update(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE a SET t = 'waited'")


@pytest.mark.parametrize("source_kind", MYSQL_KINDS, indirect=True)
def test_strain_leaves_out_what_is_not_granted(database: Database, source_config: Config, source: Source) -> None:
    right = "REPLICATION CLIENT" if database.kind == "mysql" else "BINLOG MONITOR"
    database.execute(f"REVOKE {right} ON *.* FROM '{database.account.user}'@'{database.server.host}'")
    strain = source.strain()
    assert strain.retained_bytes is None and strain.replication_lag is None and strain.running is not None


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_strain_tells_of_the_slowest_standby(database: Database, source: Source) -> None:
    """A standby that receives at once and replays late. Logical walsenders have a lag too, and are none."""
    database.execute(f"GRANT pg_read_all_stats TO {database.account.user}", "CREATE TABLE a (n int)")
    admin = database.server.admin
    assert source.strain().replication_lag is None
    with closing(
        psycopg2.connect(
            host=database.server.host,
            port=database.server.port,
            user=admin.user,
            password=admin.password,
            connection_factory=PhysicalReplicationConnection,
        )
    ) as standby:
        cursor = standby.cursor()
        (begins,) = database.query("SELECT pg_current_wal_flush_lsn()::text")[0]
        cursor.start_replication(start_lsn=begins)
        deadline = time.monotonic() + END
        while (lag := source.strain().replication_lag) is None or lag < LATE:
            assert time.monotonic() < deadline, "the standby's lag is not told"
            database.execute("INSERT INTO a VALUES (1)")
            (ends,) = database.query("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint")[0]
            written = time.monotonic()
            while time.monotonic() < written + 2 * LATE:  # received in this time, and not replayed
                if cursor.read_message() is None and not any(select.select([cursor], [], [], LATE / 5)):
                    cursor.send_feedback(write_lsn=int(ends), flush_lsn=int(ends), force=True)
            cursor.send_feedback(write_lsn=int(ends), flush_lsn=int(ends), apply_lsn=int(ends), force=True)
        assert lag < END
