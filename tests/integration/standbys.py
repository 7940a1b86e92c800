"""Standbys of PostgreSQL that a test starts, writes beside, and waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import psycopg2

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.local.servers.postgres import PostgresServer
from tests.fix_servers import Database
from tests.integration.test_read_only import ROWS, capturing
from tests.waiting import PATIENCE_SECONDS, wait_until


def standing_by(standby: PostgresServer, primary: PostgresServer) -> Iterator[PostgresServer]:
    """Afterwards nobody follows the primary any more: other tests look at its lag, and at the log that it keeps."""
    standby.start()
    yield standby
    standby.kill()

    def unheard() -> bool:
        with closing(primary.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND active", [standby.slot])
            return int(cursor.fetchone()[0]) == 0

    wait_until(unheard, "the primary has noticed")
    primary.execute(f"SELECT pg_drop_replication_slot('{standby.slot}')")


def fill_quiet(database: Database) -> None:
    database.execute(
        "CREATE TABLE quiet (id int PRIMARY KEY, v int NOT NULL)",
        f"INSERT INTO quiet SELECT n, n % 7 FROM generate_series(0, {ROWS - 1}) n",
    )


def caught_up(primary: Database, standby: PostgresServer) -> None:
    """The standby has replayed what the primary has committed by now."""
    ((end,),) = primary.query("SELECT pg_current_wal_flush_lsn()::text")
    with closing(standby.connect()) as connection, connection.cursor() as cursor:

        def has_replayed() -> bool:
            cursor.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (end,))
            return bool(cursor.fetchone()[0])

        wait_until(has_replayed, "the standby has caught up")


@contextmanager
def telling(primary: Database) -> Iterator[None]:
    """The primary tells its standbys again and again which transactions run: a slot that is made there waits for it."""
    stop = threading.Event()

    def tell() -> None:
        while not stop.wait(0.2):
            primary.execute("SELECT pg_log_standby_snapshot()")

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=PATIENCE_SECONDS)


@contextmanager
def capturing_standby(config: Config, primary: Database) -> Iterator[None]:
    with telling(primary):
        wiring.open_source(config.source).prepare()
    with capturing(config):
        yield


@contextmanager
def writing(primary: Database) -> Iterator[None]:
    """Transactions that touch a row early and commit late, over those of others that are short."""
    stop = threading.Event()
    faults = list[BaseException]()

    def write(number: int) -> None:
        try:
            with closing(primary.connect()) as connection, connection.cursor() as cursor:
                connection.autocommit = False
                turn = 0
                while not stop.is_set():
                    turn += 1
                    key = (turn * 37 + number * 331) % ROWS
                    cursor.execute("UPDATE quiet SET v = v + 10 WHERE id = %s", (key,))
                    if turn % 5 == 0:
                        cursor.execute("DELETE FROM quiet WHERE id = %s", ((key + 1) % ROWS,))
                    if turn % 7 == 0:
                        cursor.execute("INSERT INTO quiet VALUES (%s, 1) ON CONFLICT DO NOTHING", ((key + 3) % ROWS,))
                    stop.wait(0.03 if number else 0)
                    try:
                        connection.commit()
                    except psycopg2.errors.DeadlockDetected:
                        connection.rollback()
        except psycopg2.errors.DeadlockDetected:
            write(number)
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            faults.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=PATIENCE_SECONDS)
    assert not faults, faults


def source_rows(database: Database) -> dict[int, Any]:
    return {key: {"id": key, "v": v} for key, v in database.query("SELECT id, v FROM quiet")}


def scans_of(server: PostgresServer, database: Database) -> int:
    """How often the table was read on the server."""

    ((count,),) = replace(database, server=server).query(
        "SELECT coalesce(sum(idx_scan + seq_scan), 0)::int FROM pg_stat_user_tables WHERE relname = 'quiet'"
    )
    return int(count)
