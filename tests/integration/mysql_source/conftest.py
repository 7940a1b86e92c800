"""The source of MySQL and MariaDB on real servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dblog_core.sources.mysql.source import MysqlSource
from tests.fix_servers import Database


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Any:
    return database.config(tmp_path).source


@pytest.fixture
def source(config: Any) -> MysqlSource:
    source = MysqlSource(config)
    source.prepare()
    return source
