"""A replica of MySQL or MariaDB as the source, whose workers apply its primary's transactions side by side."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.local.servers.server import DatabaseServer
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.integration.test_read_only import ROWS, capturing, config_of, rows_of, run_dump
from tests.read_only import reader_of
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)]

WRITERS = 4
PARALLEL: dict[str, dict[str, str | None]] = {
    "mysql": {"replica_parallel_workers": "4", "replica_preserve_commit_order": "OFF"},
    "mariadb": {"slave_parallel_threads": "4", "slave_parallel_mode": "optimistic", "log_slave_updates": "ON"},
}
LAZY: dict[str, str | None] = {"sync_binlog": "0", "innodb_flush_log_at_trx_commit": "2"}
"""A replica that need not outlive a kill keeps pace."""
SERVERS = {"mysql": MysqlServer, "mariadb": MariadbServer}
_EXECUTED = {"mysql": "SELECT @@GLOBAL.gtid_executed", "mariadb": "SELECT @@GLOBAL.gtid_binlog_pos"}
_HAS = {
    "mysql": "SELECT GTID_SUBSET('{gtids}', @@GLOBAL.gtid_executed)",
    "mariadb": "SELECT MASTER_GTID_WAIT('{gtids}', 0.05) = 0",
}


@dataclass(frozen=True, slots=True)
class Pair:
    """A database on the primary, which is written, and the same on the replica, by a user who may only read."""

    primary: Database
    replica: Database

    def catch_up(self) -> None:
        """Returns when the replica has all that the primary has committed by now."""
        kind = self.primary.kind
        ((gtids,),) = self.primary.query(_EXECUTED[kind])
        question = _HAS[kind].format(gtids=gtids)
        wait_until(lambda: self._ask(question) == 1, f"the replica has {gtids}")

    def _ask(self, question: str) -> int:
        with closing(self.replica.server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(question)
            return int(cursor.fetchone()[0])


@pytest.fixture
def pair(
    source_kind: str,
    source_server: DatabaseServer,
    new_database: Callable[[DatabaseServer], Database],
    server_root: Path,
) -> Iterator[Pair]:
    """The primary is the server of all tests: its replica begins at the present end of its log."""
    assert isinstance(source_server, MysqlServer)
    directory = server_root / f"replica-{source_kind}-{secrets.token_hex(4)}"
    server = SERVERS[source_kind](directory, options={"server_id": "21", **LAZY, **PARALLEL[source_kind]})
    server.start()
    try:
        server.execute(*_following(source_server))
        database = new_database(source_server)
        database.execute(
            "CREATE TABLE quiet (id int PRIMARY KEY, v int NOT NULL)",
            f"INSERT INTO quiet VALUES {', '.join(f'({n}, {n % 7})' for n in range(ROWS))}",
        )
        pair = Pair(database, replace(reader_of(database), server=server))
        pair.catch_up()
        yield pair
    finally:
        server.kill()
        source_server.execute(f"DROP USER IF EXISTS 'ro_{database.name}'@'{source_server.host}'")


def _following(primary: MysqlServer) -> list[str]:
    """What makes a new server a replica from the primary's present end on."""
    with closing(primary.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(_EXECUTED[primary.kind])
        gtids = cursor.fetchone()[0]
    who = primary.admin
    if primary.kind == "mariadb":
        place = f"MASTER_HOST = '{primary.host}', MASTER_PORT = {primary.port}, MASTER_USE_GTID = slave_pos"
        change = f"CHANGE MASTER TO {place}, MASTER_USER = '{who.user}', MASTER_PASSWORD = '{who.password}'"
        return [primary.reset_statement, f"SET GLOBAL gtid_slave_pos = '{gtids}'", change, "START SLAVE"]
    place = f"SOURCE_HOST = '{primary.host}', SOURCE_PORT = {primary.port}, SOURCE_AUTO_POSITION = 1"
    account = f"SOURCE_USER = '{who.user}', SOURCE_PASSWORD = '{who.password}', GET_SOURCE_PUBLIC_KEY = 1"
    change = f"CHANGE REPLICATION SOURCE TO {place}, {account}"
    return [primary.reset_statement, f"SET GLOBAL gtid_purged = '{gtids}'", change, "START REPLICA"]


@contextmanager
def parallel_writes(database: Database) -> Iterator[None]:
    """Writers of keys of their own, so that the primary commits in groups whose members may be applied side by side."""
    stop = threading.Event()
    faults = list[BaseException]()

    def write(writer: int) -> None:
        try:
            with closing(database.connect()) as connection, connection.cursor() as cursor:
                turn = 0
                while not stop.wait(0.005):  # a pace that the replica keeps
                    turn += 1
                    key = (turn * WRITERS + writer) % ROWS
                    cursor.execute(f"UPDATE quiet SET v = v + 10 WHERE id = {key}")
                    if turn % 5 == 0:
                        cursor.execute(f"DELETE FROM quiet WHERE id = {key}")
                    if turn % 7 == 0:
                        cursor.execute(f"REPLACE INTO quiet VALUES ({key}, {turn})")
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            faults.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=PATIENCE_SECONDS)
    assert not faults, faults


def test_a_replica_with_parallel_workers_is_captured_in_its_primarys_order_or_refused(
    pair: Pair, tmp_path: Path
) -> None:
    config = config_of(pair.replica, tmp_path)
    table = f"{pair.primary.schema}.quiet"
    source = wiring.open_source(config.source)
    if pair.primary.kind == "mysql":
        (problem,) = [problem for problem in source.check() if problem.fatal]
        assert "replica_preserve_commit_order is OFF with replica_parallel_workers = 4" in problem.what
        pair.replica.server.execute(*problem.fix.split("; "))
    assert [problem for problem in source.check() if problem.fatal] == []
    with capturing(config):
        with parallel_writes(pair.primary):
            status = run_dump(config, tables=(table,), chunk_size=20, workers=2)
        pair.catch_up()
        rows = dict(pair.primary.query("SELECT id, v FROM quiet"))

        def is_staged() -> bool:
            return {key: row["v"] for key, row in rows_of(config, table).items()} == rows

        wait_until(is_staged, "staging has the rows of the primary")
    assert status.chunks >= 20, "a dump of many windows beside the writes"
    numbers = [
        int(line["transaction"].replace("-", ":").split(":")[-1])
        for line in lines(wiring.open_staging(config))
        if line["origin"] == "log" and line["transaction"]
    ]
    assert len(set(numbers)) > WRITERS and numbers == sorted(numbers), "the order in which the primary has committed"
