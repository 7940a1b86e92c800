"""A source with two tables, XA transactions of one test, and whether their rows may lie in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dblog_core.sources.mysql.binlog.xa import row_memory
from dblog_core.sources.mysql.source import MysqlSource
from tests.fix_servers import Database
from tests.integration.mysql_source.log_rows import execute
from tests.integration.mysql_xa.transactions import Ids


@pytest.fixture(params=["in memory", "read again"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether prepared rows may be kept in memory; without, every XA COMMIT reads them from the server again."""
    if request.param == "read again":
        monkeypatch.setattr(row_memory, "TRANSACTION_BYTES", 0)
    return str(request.param)


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Any:
    return database.config(tmp_path).source


@pytest.fixture
def source(config: Any, database: Database) -> MysqlSource:
    source = MysqlSource(config)
    source.prepare()
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, v int)", "CREATE TABLE b (id int PRIMARY KEY)")
    return source


@pytest.fixture
def ids(database: Database) -> Ids:
    return Ids(database)
