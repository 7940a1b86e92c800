"""Databases that are reached over TLS: certificates on both sides, a server that dies, and settings that do not fit."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.output import OutputConfig
from dblog_core.config.settings import Config
from dblog_core.errors import OutputRefused, OutputUnavailable, SourceRefused, SourceUnavailable
from dblog_core.local.servers import ports
from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.local.servers.server import DatabaseServer
from dblog_core.outputs.relay import run_relay
from tests.certificates import Authority, authority
from tests.fix_servers import Database
from tests.nemesis import oracles
from tests.nemesis.processes import Dblog, kill
from tests.nemesis.test_kills import judge_log, log_start
from tests.nemesis.workload import Writers, create_tables
from tests.versions import makes_a_certificate
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.in_turn]

HELLO = 200  # bytes: what comes before is shorter
NewDatabase = Callable[[DatabaseServer], Database]
_HBA = """hostssl all,replication postgres 127.0.0.1/32 scram-sha-256
hostnossl all postgres 127.0.0.1/32 scram-sha-256
hostssl all,replication all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca
hostssl replication all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca
"""


@pytest.fixture(scope="module")
def our_authority(server_root: Path) -> Authority:
    return authority(server_root / "authority", "ours")


@pytest.fixture(scope="module")
def servers(server_root: Path, our_authority: Authority) -> Iterator[Callable[[str], DatabaseServer]]:
    """Servers with a certificate for 127.0.0.1, started when first asked for."""
    started: dict[str, DatabaseServer] = {}

    def server(kind: str) -> DatabaseServer:
        if kind not in started:
            started[kind] = _with_tls(kind, server_root / f"tls-{kind}", our_authority)
            started[kind].start()
        return started[kind]

    yield server
    for each in started.values():
        each.kill()


def _with_tls(kind: str, directory: Path, own_authority: Authority) -> DatabaseServer:
    certificate, key = own_authority.sign(f"server-{kind}", ports.HOST)
    if kind == "postgres":
        directory.mkdir()
        for name, text in (("ca.pem", own_authority.file), ("cert.pem", certificate), ("key.pem", key)):
            shutil.copy(text, directory / name)
            (directory / name).chmod(0o600)
        (directory / "hba.conf").write_text(_HBA)
        if os.geteuid() == 0:  # the server runs as another user
            user_names = {entry.pw_name for entry in pwd.getpwall()}
            for file in directory.iterdir():
                shutil.chown(file, "postgres" if "postgres" in user_names else "nobody")
        named = {
            "ssl_ca_file": "ca.pem",
            "ssl_cert_file": "cert.pem",
            "ssl_key_file": "key.pem",
            "hba_file": "hba.conf",
        }
        options = {setting: str(directory / name) for setting, name in named.items()}
        return PostgresServer(directory, options={**options, "ssl": "on"})
    server_class = MysqlServer if kind == "mysql" else MariadbServer
    return server_class(directory, options={"ssl_ca": own_authority.file, "ssl_cert": certificate, "ssl_key": key})


@pytest.fixture
def secured_database(source_kind: str, servers: Callable[[str], DatabaseServer], new_database: NewDatabase) -> Database:
    """A database whose capture user is let in with a certificate alone."""
    database = new_database(servers(source_kind))
    if database.kind != "postgres":
        database.execute(f"ALTER USER '{database.account.user}'@'{ports.HOST}' REQUIRE X509")
    create_tables(database)
    return database


def tls_config(database: Database, root: Path, **source: Any) -> Config:
    config = database.config(root, dump={"chunk_size": 100, "workers": 2})
    source_settings = {**config.source.model_dump(mode="json"), "password": database.account.password, **source}
    return Config.model_validate({**config.model_dump(mode="json", exclude={"source"}), "source": source_settings})


@pytest.mark.one_of(4)
def test_log_and_dumps_come_over_tls_and_outlive_the_server(
    secured_database: Database, our_authority: Authority, tmp_path: Path
) -> None:
    certificate, key = our_authority.sign("client")
    config = tls_config(
        secured_database, tmp_path, tls="verify-full", tls_ca=our_authority.file, tls_cert=certificate, tls_key=key
    )
    dblog = Dblog(config, tmp_path)
    start = oracles.source_rows(secured_database)
    reference = log_start(secured_database)
    try:
        dblog.run("check")
        dblog.run("capture", "--until-current")
        capture = dblog.start("capture")
        with Writers(secured_database, seed=1) as writers:
            dblog.run("dump", "--all", "--wait")
            secured_database.server.kill()
            secured_database.server.start()
            _many_records(secured_database)
            dblog.run("dump", "--all", "--wait")
        assert not writers.faults, writers.faults
        assert capture.poll() is None, "a server that went and came back is no reason to end"
        kill(capture)
        dblog.run("capture", "--until-current")
        judge_log(config, secured_database, start, reference())
    except BaseException:
        print(dblog.output())
        raise
    finally:
        dblog.close()


def _many_records(database: Database) -> None:
    """A row that takes more than a hundred records of TLS."""
    database.execute(f"INSERT INTO accounts (id, op, amount, note) VALUES (1000000007, 1, 1, '{'x' * 3_000_000}')")


def test_settings_that_do_not_fit_are_refused_with_the_way_on(
    secured_database: Database, our_authority: Authority, tmp_path: Path
) -> None:
    other = authority(tmp_path / "other", "another")
    certificate, key = our_authority.sign("client")
    fits = {"tls": "verify-full", "tls_ca": our_authority.file, "tls_cert": certificate, "tls_key": key}
    for wrong, message in (
        ({"tls_ca": other.file}, "certificate verify failed"),
        ({"host": "localhost"}, "match|IP address mismatch|Hostname mismatch|not valid for"),
        ({"tls_cert": None, "tls_key": None}, "denied|certificate"),
    ):
        config = tls_config(secured_database, tmp_path, **{**fits, **wrong})
        with pytest.raises(SourceRefused, match=message) as refused:
            wiring.open_source(config.source).tables()
        assert refused.value.fix and secured_database.account.password not in str(refused.value), wrong
    for loose in ({"tls": "verify-ca", "host": "localhost"}, {"tls": "require", "tls_ca": None}):
        config = tls_config(secured_database, tmp_path, **{**fits, **loose})
        assert len(wiring.open_source(config.source).tables()) == 4, loose


def test_a_server_without_tls_is_refused(database: Database, tmp_path: Path) -> None:
    """MySQL makes itself a certificate, which nobody has signed; so does MariaDB from 11.4 on."""
    message = "self-signed" if makes_a_certificate(database.server) else "does not support SSL|does not offer TLS"
    with pytest.raises(SourceRefused, match=message) as refused:
        wiring.open_source(tls_config(database, tmp_path, tls="verify-full").source).tables()
    assert "tls" in refused.value.fix


def test_a_connection_that_breaks_while_it_is_secured_is_made_again(
    secured_database: Database, our_authority: Authority, tmp_path: Path
) -> None:
    certificate, key = our_authority.sign("client")
    fits = {"tls": "verify-full", "tls_ca": our_authority.file, "tls_cert": certificate, "tls_key": key}
    with _dying(secured_database.server.port) as port:
        config = tls_config(secured_database, tmp_path, **fits, port=port)
        source = wiring.open_source(config.source)
        table = wiring.open_output(_with_output(config, secured_database), "copy")
        for _ in range(3):
            with pytest.raises(SourceUnavailable):
                source.tables()
            with pytest.raises(OutputUnavailable):
                table.open(1)


def test_lines_go_into_a_table_over_tls(secured_database: Database, our_authority: Authority, tmp_path: Path) -> None:
    certificate, key = our_authority.sign("client")
    fits = {"tls": "verify-full", "tls_ca": our_authority.file, "tls_cert": certificate, "tls_key": key}
    config = _with_output(tls_config(secured_database, tmp_path, **fits), secured_database)
    if secured_database.kind != "postgres":
        secured_database.execute(
            f"GRANT ALL ON `{secured_database.name}`.* TO '{secured_database.account.user}'@'{ports.HOST}'"
        )
    stop = threading.Event()
    run_capture(config, stop=stop, until_current=True)
    secured_database.execute("UPDATE accounts SET op = op + 1 WHERE id < 10")
    run_capture(config, stop=stop, until_current=True)
    assert run_relay(config, "copy", stop=stop, once=True)
    assert secured_database.query("SELECT count(*) FROM copied WHERE op = 'u'") == secured_database.query(
        "SELECT count(*) FROM accounts WHERE id < 10"
    )
    loose = config.output["copy"].model_copy(update={"tls": "off", "tls_ca": None, "tls_cert": None, "tls_key": None})
    with pytest.raises(OutputRefused):
        wiring.open_output(config.model_copy(update={"output": {"copy": loose}}), "copy").open(9)


def _with_output(config: Config, database: Database) -> Config:
    """With the output `copy` into a table beside the captured one, reached as the source is."""
    source = config.source
    same = ("host", "port", "user", "database", "tls", "tls_ca", "tls_cert", "tls_key")
    kind = "postgres" if source.kind == "postgres" else "mysql"
    table = {"kind": kind, "table": "copied", "start": "earliest", "password": database.account.password}
    output = OutputConfig.model_validate({**table, **{name: getattr(source, name) for name in same}})
    captured = source.model_copy(update={"tables": (f"{database.schema}.accounts",)})
    return config.model_copy(update={"source": captured, "output": {"copy": output}})


@contextlib.contextmanager
def _dying(port: int) -> Iterator[int]:
    """A way to the server on which it dies when TLS's first message has come."""
    listening = socket.create_server((ports.HOST, 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                with client, socket.create_connection((ports.HOST, port), timeout=PATIENCE_SECONDS) as server:
                    pump = threading.Thread(target=_pump, args=(server, client))
                    pump.start()
                    while (data := client.recv(65_536)) and len(data) < HELLO:
                        server.sendall(data)
                    server.shutdown(socket.SHUT_RDWR)
                    pump.join()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(timeout=PATIENCE_SECONDS)


def _pump(server: socket.socket, client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := server.recv(65_536):
            client.sendall(data)
