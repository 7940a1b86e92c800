"""MySQL and MariaDB that encrypt their binlogs: the files are sealed, and a capture reads them as any other log.

Both servers decrypt what they send to replicas, and a capture is one: so there is no key of ours, and no setting.
"""

from __future__ import annotations

import json
import secrets
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dblog_core.capture.run_capture import CaptureOutcome, run_capture
from dblog_core.local.packages import trees
from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.model import position_spec
from dblog_core.sources.mysql.source import MysqlSource
from dblog_core.staging import reader
from dblog_core.wiring import open_staging
from tests.contract.test_starts import end_of, gtids_of
from tests.fix_servers import Database
from tests.integration.mysql_source.log_rows import batches, changes, execute
from tests.integration.test_mysql_failover import caught_up, on, promote

pytestmark = [
    pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True),
    pytest.mark.in_turn,
]
TOLD = "the plain text of a row"


class EncryptedMysql(MysqlServer):
    """MySQL whose keys lie in a file: its component is named beside the program, so the program gets a name of ours."""

    def __init__(self, directory: Path, *, options: dict[str, str | None]) -> None:
        super().__init__(directory, options={"binlog_encryption": "ON", **options})
        self._keys = directory / "keys"

    def _program(self) -> list[str]:
        tree = trees.tree(self.package)
        component = "component_keyring_file"
        if not self._keys.exists():
            self._keys.mkdir(parents=True)
            shutil.copy(tree / "usr/lib/mysql/plugin" / f"{component}.so", self._keys)
            settings = {"path": str(self._keys / "keyring"), "read_only": False}
            (self._keys / f"{component}.cnf").write_text(json.dumps(settings))
            (self._keys / "mysqld.my").write_text(json.dumps({"components": f"file://{component}"}))
        [loader] = (tree / "usr/lib64").glob("ld-linux*")
        libraries = ["--library-path", str(tree / "usr/lib/x86_64-linux-gnu")]
        named = [str(loader), "--argv0", str(self._keys / "mysqld"), *libraries, str(tree / "usr/sbin/mysqld")]
        return [*named, *super()._program()[1:], f"--plugin-dir={self._keys}"]


class EncryptedMariadb(MariadbServer):
    """MariaDB with a plugin that reads its keys from a file."""

    def __init__(self, directory: Path, *, options: dict[str, str | None]) -> None:
        keys = directory / "keys"
        plugin = {"plugin_load_add": "file_key_management.so", "file_key_management_filename": str(keys)}
        super().__init__(directory, options={**plugin, "encrypt_binlog": "ON", **options})
        directory.mkdir(parents=True, exist_ok=True)
        keys.write_text(f"1;{secrets.token_hex(32)}\n")


SERVERS = {"mysql": EncryptedMysql, "mariadb": EncryptedMariadb}


@pytest.fixture(scope="module")
def encrypted_servers(server_root: Path) -> Iterator[dict[str, MysqlServer]]:
    """Servers of these tests alone."""
    servers = {
        kind: server_class(server_root / f"{kind}-sealed", options={"server_id": "21"})
        for kind, server_class in SERVERS.items()
    }
    yield servers
    for server in servers.values():
        server.kill()


@pytest.fixture
def source_server(source_kind: str, encrypted_servers: dict[str, MysqlServer]) -> MysqlServer:
    encrypted_servers[source_kind].start()
    return encrypted_servers[source_kind]


@pytest.fixture
def source(database: Database, tmp_path: Path) -> MysqlSource:
    source = MysqlSource(database.config(tmp_path).source)
    source.prepare()
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, note varchar(40))")
    return source


def insert(database: Database, *keys: int) -> None:
    """Each in a transaction of its own."""
    execute(database, *(f"INSERT INTO a VALUES ({key}, '{TOLD}')" for key in keys))


def ids(rows: list[Any]) -> list[int]:
    return [row["after"]["id"] for row in changes(rows)]


def log_files(database: Database) -> list[Path]:
    """The server's binlogs, oldest first."""
    data = Path(str(database.query("SELECT @@datadir")[0][0]))
    return [data / str(row[0]) for row in database.query("SHOW BINARY LOGS")]


def set_encryption(database: Database, on: bool) -> None:
    """MySQL begins a new file by itself; MariaDB knows it from the start alone."""
    if database.kind == "mysql":
        database.execute(f"SET GLOBAL binlog_encryption = {'ON' if on else 'OFF'}")
        return
    database.server.options = {**database.server.options, "encrypt_binlog": "ON" if on else "OFF"}
    database.server.stop()
    database.server.start()


def test_the_files_are_sealed_and_what_is_read_is_not(database: Database, source: MysqlSource) -> None:
    start = source.current_position()
    insert(database, 1)
    log_batches = list(batches(source, start))
    assert [row["after"] for row in changes(log_batches)] == [{"id": 1, "note": TOLD}]
    assert TOLD.encode() not in log_files(database)[-1].read_bytes()
    set_encryption(database, False)
    insert(database, 2)
    assert TOLD.encode() in log_files(database)[-1].read_bytes(), "the look above would see it"
    set_encryption(database, True)
    insert(database, 3)
    assert ids(list(batches(source, start))) == [1, 2, 3], "sealed files and plain ones in turn"


def test_it_goes_on_from_every_batch_over_files_that_end_between(database: Database, source: MysqlSource) -> None:
    start = source.current_position()
    for key in range(0, 30, 3):
        insert(database, key, key + 1)
        copies = ["INSERT INTO a SELECT id + 1000, note FROM a"] if key == 15 else []
        execute(database, "BEGIN", f"INSERT INTO a VALUES ({key + 2}, '{TOLD}')", *copies, "COMMIT")
        database.execute("FLUSH BINARY LOGS")
        if database.kind == "mysql" and key == 12:
            database.execute("ALTER INSTANCE ROTATE BINLOG MASTER KEY")
    target = source.current_position()
    expected_ids = sorted(key for (key,) in database.query("SELECT id FROM a"))
    assert len(log_files(database)) > 10
    whole = list(batches(source, start, upto=target))
    assert sorted(ids(whole)) == expected_ids
    for number, batch in enumerate(whole[:-1]):
        rest = list(batches(source, batch.position, skip=batch.partial, upto=target))
        assert ids(rest) == ids(whole[number + 1 :])


def test_a_first_capture_begins_where_it_is_told_to(database: Database, source: MysqlSource) -> None:
    """The heads of sealed files, and places inside them."""
    file = log_files(database)[-1].name
    database.execute("FLUSH BINARY LOGS")
    insert(database, 1, 2)
    end = end_of(database)
    gtids = gtids_of(database)
    database.execute("FLUSH BINARY LOGS", "DO SLEEP(1.1)")
    moment = source.time()
    insert(database, 3, 4)
    expected_keys = {
        "earliest": [1, 2, 3, 4],
        f"{file}:4": [1, 2, 3, 4],
        end: [3, 4],
        gtids: [3, 4],
        position_spec.in_words(moment): [3, 4],
    }
    for text, keys in expected_keys.items():
        position = source.begin(position_spec.parse(text, database.kind))
        rows_with_note = [row for row in changes(list(batches(source, position)), "a") if row["after"]["note"] == TOLD]
        assert [row["after"]["id"] for row in rows_with_note] == keys, text


def test_a_capture_that_is_stopped_in_the_middle_and_a_server_that_is_killed_lose_and_repeat_nothing(
    database: Database, source: MysqlSource, tmp_path: Path
) -> None:
    config = database.config(tmp_path)
    staging = open_staging(config)
    stop = threading.Event()
    assert run_capture(config, stop=stop, until_current=True) is CaptureOutcome.CURRENT
    for first in range(1, 40, 10):
        insert(database, *range(first, first + 10))
        if first == 11:
            assert run_capture(config, stop=stop, until_current=True) is CaptureOutcome.CURRENT
            database.server.kill()
            database.server.start()
    assert run_capture(config, stop=stop, until_current=True) is CaptureOutcome.CURRENT
    lines = [line for line in reader.lines(staging) if line["op"] == "c"]
    assert [line["key"]["id"] for line in lines] == list(range(1, 41))


def test_a_promoted_replica_that_seals_its_log_with_another_key_goes_on(
    database: Database, source_server: MysqlServer, source: MysqlSource, tmp_path: Path
) -> None:
    config = database.config(tmp_path).source
    replica = SERVERS[database.kind](tmp_path / "replica", options={"server_id": "22", "log_slave_updates": "ON"})
    start = source.current_position()
    insert(database, 1, 2)
    position = list(batches(source, start))[-1].position
    insert(database, 3)
    try:
        replica.start()
        replica.replica_of(source_server)
        caught_up(database, replica)
        promote(replica)
        insert(Database(replica, database.name, database.account), 4)
        assert ids(list(batches(on(config, replica), position))) == [3, 4]
    finally:
        replica.kill()
