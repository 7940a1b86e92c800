"""The local servers: they come up, keep what was committed through a kill -9, and leave nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dblog_core.errors import LocalError
from dblog_core.local.servers import guard
from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.local.servers.server import DatabaseServer
from dblog_core.local.servers.zookeeper import Ensemble, ZookeeperServer
from tests.fix_servers import Database
from tests.waiting import wait_until

CLASSES = {"mysql": MysqlServer, "mariadb": MariadbServer, "postgres": PostgresServer}
LOG_TOOLS = {"mysql": "mysqlbinlog", "mariadb": "mariadb-binlog", "postgres": "pg_recvlogical"}


@pytest.fixture
def own_server(source_kind: str, server_root: Path, request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    """A server for one test that may do to it what it likes."""
    directory = server_root / f"{source_kind}-{request.node.name.split('[')[0]}"
    server = CLASSES[source_kind](directory)
    yield server
    server.kill()


@pytest.mark.in_turn
def test_what_was_committed_outlives_a_kill(own_server: DatabaseServer) -> None:
    own_server.start()
    port = own_server.port
    own_server.create_database("shop")
    own_server.execute("CREATE TABLE t (i INT PRIMARY KEY)", "INSERT INTO t VALUES (1)", database="shop")
    own_server.kill()
    assert not own_server.ready()
    own_server.start()
    assert own_server.port == port
    assert _rows(own_server, "shop", "SELECT i FROM t") == [(1,)]


@pytest.mark.in_turn
def test_a_stop_leaves_no_process_and_a_start_the_same_data(own_server: DatabaseServer) -> None:
    own_server.start()
    own_server.create_database("shop")
    family = _family(own_server)
    own_server.stop()
    assert not [p for p in family if guard.runs(p)]
    own_server.start()
    own_server.execute("CREATE TABLE t (i INT PRIMARY KEY)", database="shop")


@pytest.mark.in_turn
def test_another_process_can_stop_it_by_its_pid_file(own_server: DatabaseServer) -> None:
    own_server.start()
    family = _family(own_server)
    subprocess.run([sys.executable, "-c", _program(own_server, "server.stop()")], check=True)
    assert not [p for p in family if guard.runs(p)]


@pytest.mark.in_turn
def test_nothing_runs_on_when_the_starter_is_killed(own_server: DatabaseServer) -> None:
    program = _program(own_server, "server.start(); print('up', flush=True); signal.pause()")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "up\n"
        family = _family(own_server)
        starter.send_signal(signal.SIGKILL)
    wait_until(lambda: not [p for p in family if guard.runs(p)], what="the server to end with its starter")


@pytest.mark.in_turn
def test_a_wrong_setting_is_told_with_the_end_of_the_log(source_kind: str, server_root: Path) -> None:
    server = CLASSES[source_kind](server_root / f"{source_kind}-wrong", options={"no_such_setting": "1"})
    with pytest.raises(LocalError, match=r"no.such.setting"):
        server.start()


@pytest.mark.in_turn
def test_a_setting_can_be_chosen(source_kind: str, server_root: Path) -> None:
    name, value, show = {
        "postgres": ("wal_level", "replica", "SHOW wal_level"),
    }.get(source_kind, ("binlog_format", "STATEMENT", "SHOW VARIABLES LIKE 'binlog_format'"))
    server = CLASSES[source_kind](server_root / f"{source_kind}-chosen", options={name: value})
    server.start()
    try:
        assert _rows(server, "", show)[0][-1] == value
    finally:
        server.kill()


def test_a_start_leaves_the_temporary_tables_of_other_servers_alone(
    server_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB removes those that it finds: a bootstrap beside it ended with "No such file or directory"."""
    anothers = [tmp_path / f"#sql-temptable-1a97-1-1d.{kind}" for kind in ("MAI", "MAD")]
    for file in anothers:
        file.touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = CLASSES["mariadb"](server_root / "mariadb-beside")
    server.start()
    server.kill()
    assert all(file.exists() for file in anothers)


def test_the_servers_own_tools_run(source_server: DatabaseServer) -> None:
    tool = source_server.tool(LOG_TOOLS[source_server.kind])
    assert subprocess.run([tool, "--version"], check=True, capture_output=True, text=True).stdout


def test_the_capture_user_reads_what_the_administrator_makes(database: Database) -> None:
    database.execute("CREATE TABLE t (i INT PRIMARY KEY)", "INSERT INTO t VALUES (7)")
    connection = database.server.connect(database.name, account=database.account)
    with connection.cursor() as cursor:
        cursor.execute("SELECT i FROM t")
        assert [tuple(row) for row in cursor.fetchall()] == [(7,)]
    connection.close()


def test_zookeeper_keeps_its_data_through_a_kill(server_root: Path) -> None:
    _survives_kill(ZookeeperServer(server_root / "zookeeper-own"))


def test_an_ensemble_serves_without_its_leader(server_root: Path) -> None:
    ensemble = Ensemble(server_root / "ensemble")
    ensemble.start()
    try:
        leader = next(m for m in ensemble.members if m.mode() == "leader")
        leader.kill()
        others = [m for m in ensemble.members if m is not leader]
        # A member that has not noticed yet serves for a moment, until the election begins.
        wait_until(
            lambda: sorted(m.mode() for m in others) == ["follower", "leader"],
            "a new leader",
            describe=lambda: [(m.name, m.pid, m.mode()) for m in others],
        )
        leader.start()
        wait_until(lambda: leader.mode() == "follower", what="the old leader to follow")
    finally:
        ensemble.kill()


def _survives_kill(server: ZookeeperServer) -> None:
    from kazoo.client import KazooClient

    server.start()
    client = KazooClient(server.address(), timeout=5)
    try:
        client.start()
        client.create("/kept", b"1")
        server.kill()
        server.start()
        assert client.retry(client.get, "/kept")[0] == b"1"
    finally:
        client.stop()
        client.close()
        server.kill()


def _program(server: MysqlServer | PostgresServer, then: str) -> str:
    """A Python program that knows the same server by its directory alone."""
    name = type(server).__name__
    directory = server._dir
    imports = f"import signal\nfrom pathlib import Path\nfrom {type(server).__module__} import {name}"
    return f"{imports}\nserver = {name}(Path({str(directory)!r}))\n{then}"


def _family(server: DatabaseServer) -> list[psutil.Process]:
    process = psutil.Process(server.pid)  # type: ignore[attr-defined]
    return [process, *process.children(recursive=True)]


def _rows(server: DatabaseServer, database: str, statement: str) -> list[tuple[object, ...]]:
    connection = server.connect(database)
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()]
    finally:
        connection.close()
