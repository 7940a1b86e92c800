"""MySQL and MariaDB when the server is another one: a promoted replica, a new uuid, a reset, a restored backup."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dblog_core.errors import LogPositionLost
from dblog_core.local.packages import trees
from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.sources.mysql.binlog import scan
from dblog_core.sources.mysql.position import Position
from dblog_core.sources.mysql.source import MysqlSource
from tests.fix_servers import Database, new
from tests.integration.mysql_source.log_rows import batches, changes, execute
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [
    pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True),
]
SERVERS = {"mysql": MysqlServer, "mariadb": MariadbServer}
SEMI_SYNCHRONOUS = {
    "mysql": {
        "plugin_load_add": "semisync_source.so",
        "rpl_semi_sync_source_enabled": "ON",
        "rpl_semi_sync_source_timeout": "10",
    },
    "mariadb": {"rpl_semi_sync_master_enabled": "ON", "rpl_semi_sync_master_timeout": "10"},
}
"""The first servers ask their replicas for acknowledgements; we give none, and are asked for none."""


@pytest.fixture(scope="module")
def firsts(server_root: Path) -> Iterator[dict[str, MysqlServer]]:
    """Servers of these tests alone: replicas read their logs from the first transaction on."""
    servers = {
        kind: server_class(server_root / f"{kind}-first", options={"server_id": "11", **SEMI_SYNCHRONOUS[kind]})
        for kind, server_class in SERVERS.items()
    }
    yield servers
    for server in servers.values():
        server.kill()


@pytest.fixture
def source_server(source_kind: str, firsts: dict[str, MysqlServer]) -> MysqlServer:
    firsts[source_kind].start()
    return firsts[source_kind]


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Any:
    return database.config(tmp_path).source


@pytest.fixture
def source(config: Any, database: Database) -> MysqlSource:
    source = MysqlSource(config)
    source.prepare()
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, v int)")
    return source


@pytest.fixture
def replica(source_kind: str, source_server: MysqlServer, tmp_path: Path) -> Iterator[MysqlServer]:
    """A replica of the server; its log has other files."""
    options = {"server_id": "12", "log_slave_updates": "ON"}
    server = SERVERS[source_kind](tmp_path / "replica", options=options)
    server.start()
    server.replica_of(source_server)
    server.execute(*["FLUSH BINARY LOGS"] * 3)
    yield server
    server.kill()


def caught_up(database: Database, replica: MysqlServer) -> None:
    """Returns when the replica has all that its source has now."""
    mysql = database.kind == "mysql"
    done = database.query(f"SELECT @@GLOBAL.{'gtid_executed' if mysql else 'gtid_binlog_pos'}")[0][0]
    wait = f"{'WAIT_FOR_EXECUTED_GTID_SET' if mysql else 'MASTER_GTID_WAIT'}(%s, {PATIENCE_SECONDS:.0f})"
    with replica.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {wait}", [done])
        assert cursor.fetchall() == ((0,),)


def promote(replica: MysqlServer) -> None:
    word = "REPLICA" if replica.kind == "mysql" else "SLAVE"
    replica.execute(f"STOP {word}", f"RESET {word} ALL")


def on(config: Any, server: MysqlServer) -> MysqlSource:
    return MysqlSource(config.model_copy(update={"port": server.port}))


def kinds_of_gtid(database: Database) -> list[str]:
    """Settings under which a server gives its transactions GTIDs of more than one kind."""
    if database.kind == "mysql":
        tagged = "AUTOMATIC" if MysqlServer.package is trees.MYSQL_80 else "AUTOMATIC:nightly"
        return ["gtid_next = 'AUTOMATIC'", f"gtid_next = '{tagged}'"]
    return ["SESSION gtid_domain_id = 0", "SESSION gtid_domain_id = 7"]


def insert(database: Database, *ids: int) -> None:
    """Each in a transaction of its own, with a GTID of the one kind and the other in turn."""
    for number in ids:
        setting = kinds_of_gtid(database)[number % 2]
        execute(database, f"SET {setting}", f"INSERT INTO a VALUES ({number}, 0)")


def ids(rows: list[Any]) -> list[int]:
    return [row["after"]["id"] for row in changes(rows)]


def test_a_promoted_replica_goes_on_if_it_has_all_that_we_have_read_and_otherwise_what_it_lacks_is_named(
    database: Database, source: MysqlSource, config: Any, replica: MysqlServer
) -> None:
    start = source.current_position()
    insert(database, 1, 2, 3)
    position = list(batches(source, start))[-1].position
    insert(database, 4, 5)
    caught_up(database, replica)
    promote(replica)
    insert(database, 9)
    ahead = list(batches(source, position))[-1]
    insert(Database(replica, database.name, database.account), 6, 8, 7)  # its own numbers are as high
    promoted = on(config, replica)
    assert ids(list(batches(promoted, position))) == [4, 5, 6, 8, 7]
    with pytest.raises(LogPositionLost) as raised:
        list(batches(promoted, ahead.position))
    assert ahead.transactions[-1].id in str(raised.value) and "--fresh-start" in raised.value.fix
    replica.execute(replica.reset_statement)
    with pytest.raises(LogPositionLost, match="has not"):
        list(batches(promoted, position))


def test_a_new_server_uuid_changes_nothing_with_gtids(database: Database, source: MysqlSource) -> None:
    if database.kind == "mariadb":
        return  # it has none
    start = source.current_position()
    insert(database, 1)
    position = list(batches(source, start))[-1].position
    before = database.query("SELECT @@server_uuid")
    data = data_of(database)
    database.server.stop()
    (data / "auto.cnf").unlink()
    database.server.start()
    insert(database, 2, 3)
    assert database.query("SELECT @@server_uuid") != before
    assert ids(list(batches(source, position))) == [2, 3]


def data_of(database: Database) -> Path:
    return Path(str(database.query("SELECT @@datadir")[0][0]))


def test_the_last_transaction_is_found_again_where_it_was_and_on_another_server_by_its_gtid(
    database: Database, source: MysqlSource, config: Any, replica: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions: list[Position] = []
    read = scan.read

    def record_position(*arguments: Any, position: Position, **more: Any) -> bool:
        positions.append(position)
        return read(*arguments, position=position, **more)

    monkeypatch.setattr(scan, "read", record_position)
    start = source.current_position()
    insert(database, 1, 2, 3)
    position = list(batches(source, start))[-1].position
    execute(database, "FLUSH BINARY LOGS")
    insert(database, 4)
    assert ids(list(batches(source, position))) == [4]
    assert [place.gtids for place in positions] == [None], "at once, also where the file has ended"
    caught_up(database, replica)
    promote(replica)
    positions.clear()
    assert ids(list(batches(on(config, replica), position))) == [4]
    assert [place.gtids is None for place in positions] == ([] if database.kind == "mariadb" else [True, False])


@pytest.mark.one_of(4)
def test_a_backup_that_was_put_back_and_has_given_our_numbers_to_other_transactions_is_told(
    source_kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = SERVERS[source_kind](tmp_path / "server", options={"server_id": "13"})
    server.start()
    try:
        database = new(server, "bank")
        source = MysqlSource(database.config(tmp_path).source)
        source.prepare()
        execute(database, "CREATE TABLE a (id int PRIMARY KEY, v int)")
        start = source.current_position()
        insert(database, 1, 2)
        before = list(batches(source, start))[-1].position
        data = data_of(database)
        backup = tmp_path / "backup"
        server.stop()
        shutil.copytree(data, backup)
        server.start()
        insert(database, 3, 4)
        last_batch = list(batches(source, before))[-1]
        assert ids(list(batches(source, before))) == [3, 4]

        server.stop()
        shutil.rmtree(data)
        shutil.copytree(backup, data)
        server.start()
        with pytest.raises(LogPositionLost, match="has not"):
            source.open_log(last_batch.position)
        time.sleep(1)  # MariaDB logs seconds
        insert(database, 13, 14, 15)
        assert last_batch.transactions[-1].id in _gtids(source, before), "else this tests what the one above does"
        with pytest.raises(LogPositionLost, match="calls a transaction of") as raised:
            source.open_log(last_batch.position)
        assert last_batch.transactions[-1].id in str(raised.value) and "--fresh-start" in raised.value.fix
        assert ids(list(batches(source, before))) == [13, 14, 15]

        last = list(batches(source, before))[-1].position
        execute(database, "FLUSH BINARY LOGS")
        newest = database.query("SHOW BINARY LOGS")[-1][0]

        def purge_logs() -> bool:
            execute(database, f"PURGE BINARY LOGS TO '{newest}'")  # not what a connection still reads
            return bool(database.query("SHOW BINARY LOGS")[0][0] == newest)

        wait_until(purge_logs, what="the files to be purged")
        insert(database, 16)
        with caplog.at_level(logging.INFO):
            assert ids(list(batches(source, last))) == [16], "what is purged cannot be compared, and is not needed"
        assert "no longer in the log to be compared" in caplog.text
    finally:
        server.kill()


def _gtids(source: MysqlSource, position: str) -> list[str]:
    return [t.id for batch in batches(source, position) for t in batch.transactions]
