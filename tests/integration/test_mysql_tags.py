"""Tagged GTIDs, on a server of their own: its set of executed transactions never loses a tag."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dblog_core.config.settings import Config
from dblog_core.local.packages import trees
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.sources.mysql.source import MysqlSource
from tests.fix_servers import Database
from tests.integration.mysql_source.log_rows import batches, changes, execute


@pytest.fixture
def source_server(server_root: Path) -> Iterator[MysqlServer]:
    server = MysqlServer(server_root / "tagged-mysql")
    server.start()
    yield server
    server.kill()


@pytest.mark.skipif(MysqlServer.package is trees.MYSQL_80, reason="tags came with 8.3")
def test_tagged_transactions_are_followed(database: Database, source_config: Config) -> None:
    source = MysqlSource(source_config.source)
    source.prepare()
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    start = source.current_position()
    execute(database, "SET gtid_next = 'AUTOMATIC:nightly'", "INSERT INTO a VALUES (1)", "INSERT INTO a VALUES (2)")
    log_batches = list(batches(source, start))
    assert [row["after"]["id"] for row in changes(log_batches)] == [1, 2]
    assert all(":nightly:" in t.id for b in log_batches for t in b.transactions)
