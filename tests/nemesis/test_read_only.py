"""Seeded runs over a source that is never written: captures and workers are killed under a live workload, dumps of
every kind go on, and the user may SELECT and read the log, nothing else."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.local.servers.mysql import MysqlServer
from tests.fix_servers import Database, new
from tests.nemesis import oracles
from tests.nemesis.dumps import Dumps
from tests.nemesis.processes import Dblog, kill
from tests.nemesis.test_kills import Chaos, judge_log, log_start, wait_until_filed
from tests.nemesis.workload import Writers, create_tables
from tests.read_only import forget, reader_of
from tests.waiting import PATIENCE_SECONDS, wait_until

CHAOS = 8.0  # seconds of kills, at least


@pytest.mark.in_turn
@pytest.mark.one_of(4)
def test_dumps_that_write_nothing_lose_nothing_and_bring_nothing_old(
    database: Database, soak_seed: int, zookeeper_url: str, tmp_path: Path
) -> None:
    create_tables(database)
    reader = reader_of(database)
    state = {"url": zookeeper_url if soak_seed % 2 else f"sqlite:///{tmp_path / 'state.db'}", "ttl": 4.0}
    try:
        _run(reader, database, soak_seed, tmp_path, state)
    finally:
        forget(reader)


@pytest.mark.in_turn
@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"])
@pytest.mark.one_of(4)
def test_a_replica_is_dumped_under_the_writes_of_its_primary_and_its_own(
    source_kind: str, soak_seed: int, server_root: Path, tmp_path: Path
) -> None:
    """Transactions of two servers, on MariaDB of two domains, in every window; the replica is killed, too."""
    with _pair(source_kind, server_root) as (primary, server):
        database = new(primary, f"t_{secrets.token_hex(4)}")
        create_tables(database)
        reader = replace(reader_of(database), server=server)
        replica = replace(database, server=server)
        _caught_up(database, replica)
        state = {"url": f"sqlite:///{tmp_path / 'state.db'}", "ttl": 4.0}
        with _own_writes(replica):
            _run(reader, database, soak_seed, tmp_path, state)


def _run(reader: Database, written: Database, seed: int, path: Path, state: dict[str, Any]) -> None:
    """Kills, writes and dumps, then the judges. `reader`: where we read; `written`: where the workload writes."""
    read = replace(written, server=reader.server)
    start = oracles.source_rows(read)
    config = reader.config(path, state=state, dump={"chunk_size": 100, "workers": 2, "delay": 0.1})
    config = config.model_copy(update={"source": config.source.model_copy(update={"read_only": True})})
    dblog = Dblog(config, path)
    chaos = Chaos(dblog, read, seed, ["capture", "work"])
    dumps = Dumps(config, read, seed)
    try:
        reference = log_start(read)
        dblog.run("capture", "--until-current")
        with Writers(written, seed=seed) as writers:
            first = dblog.start("dump", "--all")
            wait_until_filed(config, first)
            with dumps:
                chaos.run(CHAOS)
            kill(first)
        chaos.stop()
        assert not (writers.faults or dumps.faults), (writers.faults, dumps.faults)
        print(f"kills: {chaos.kills}, transactions: {writers.transactions}, dumps: {sorted(dumps.filed.values())}")
        _caught_up(written, read)
        dumps.let_go()
        capture = dblog.start("capture")
        dblog.run("work", "--once")
        dblog.run("capture", "--until-current")
        kill(capture)
        dumps.check()
        judge_log(config, read, start, reference())
    except BaseException:
        print(dblog.output())
        raise
    finally:
        dblog.close()


@contextmanager
def _pair(kind: str, root: Path) -> Iterator[tuple[MysqlServer, MysqlServer]]:
    """A primary and a replica of it, with data of their own."""
    directory = root / f"pair-{kind}-{secrets.token_hex(4)}"
    server = MysqlServer if kind == "mysql" else MariadbServer
    more: dict[str, str | None] = {
        "server_id": "2",
        "relay_log_recovery": "ON",
        "sync_binlog": "0",
        "innodb_flush_log_at_trx_commit": "2",  # enough for a kill, and it keeps pace
    }
    if kind == "mariadb":
        more |= {"log_slave_updates": "ON", "gtid_domain_id": "2"}
    primary = server(directory / "primary")
    replica = server(directory / "replica", options=more, name=f"{kind}-replica")
    primary.start()
    try:
        replica.start()
        try:
            replica.replica_of(primary)
            yield primary, replica
        finally:
            replica.kill()
    finally:
        primary.kill()


def _caught_up(primary: Database, replica: Database) -> None:
    """The replica has all that the primary has logged by now; on a single server at once."""
    if primary.server is replica.server:
        return
    ((position,),) = primary.query(_LOGGED[primary.kind])
    wait_until(lambda: _has(replica, str(position)), f"the replica reaches {position}")


_LOGGED = {"mysql": "SELECT @@GLOBAL.gtid_executed", "mariadb": "SELECT @@GLOBAL.gtid_binlog_pos"}
_HAS = {
    "mysql": "SELECT GTID_SUBSET('{wanted}', @@GLOBAL.gtid_executed)",
    "mariadb": "SELECT MASTER_GTID_WAIT('{wanted}', 0.05) = 0",
}


def _has(replica: Database, position: str) -> bool:
    with closing(replica.server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(_HAS[replica.kind].format(wanted=position))
        return bool(cursor.fetchone()[0])


@contextmanager
def _own_writes(replica: Database) -> Iterator[None]:
    """Transactions that the replica itself logs, under its own id, on a table of its own."""
    replica.server.execute("CREATE DATABASE apart", "CREATE TABLE apart.own (id int PRIMARY KEY, v int NOT NULL)")
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.wait(0.02):
            number += 1
            try:
                replica.server.execute(f"REPLACE INTO apart.own VALUES ({number % 7}, {number})")
            except pymysql.err.MySQLError:
                continue  # it is being killed

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join(timeout=PATIENCE_SECONDS)
