"""What MariaDB logs otherwise from version 11 on: an update leaves generated columns out."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.local.servers.mariadb import NewestMariadbServer
from dblog_core.sources.mysql.source import MysqlSource
from tests.fix_servers import Database
from tests.integration.mysql_source.log_rows import check
from tests.integration.test_stopped_tables import SHAPE, newcomers, stop_reasons
from tests.integration.test_swapped_tables import capturing, source_rows
from tests.waiting import wait_until

__all__ = ["newcomers"]
pytestmark = [pytest.mark.usefixtures("newcomers")]
TABLES = (
    'CREATE TABLE t (id int PRIMARY KEY, v varchar(20), s int AS (id * 2) STORED, `h"i` int AS (id * 3) VIRTUAL)',
    f"CREATE TABLE u {SHAPE}",
)


@pytest.fixture
def source_server(newest_mariadb: NewestMariadbServer) -> NewestMariadbServer:
    return newest_mariadb


def test_a_table_with_generated_columns_stops_alone_until_they_are_excluded(database: Database, tmp_path: Path) -> None:
    config = database.config(tmp_path)
    database.execute(*TABLES)
    entry = f'[source.columns."{database.name}.t"] exclude = ["s", "h\\"i"]'

    warning = check(MysqlSource(config.source))
    assert 'log updates without generated columns (s, h"i): the first one stops the table' in warning
    assert entry in warning

    with capturing(config) as wait:
        database.execute("INSERT INTO t (id, v) VALUES (1, 'a'), (2, 'b')", "INSERT INTO u VALUES (1, 'other')")
        wait(source_rows(database, "t", "u"))
    with capturing(config) as wait:
        database.execute("UPDATE t SET v = 'new' WHERE id = 1", "UPDATE u SET v = 'new'")
        wait_until(lambda: bool(stop_reasons(config)), "the table is stopped")
        wait({**source_rows(database, "u"), "t": {1: "a", 2: "b"}})
        assert 'it lacks s, h"i' in stop_reasons(config)["t"] and entry in stop_reasons(config)["t"]

    excluding = {**config.source.model_dump(), "columns": {f"{database.name}.t": {"exclude": ["s", 'h"i']}}}
    config = database.config(tmp_path, source=excluding)
    assert check(MysqlSource(config.source)) == ""
    with capturing(config) as wait:
        wait(source_rows(database, "t", "u"))
        database.execute(
            "UPDATE t SET v = 'newer'", "DELETE FROM t WHERE id = 2", "INSERT INTO t (id, v) VALUES (3, 'c')"
        )
        wait(source_rows(database, "t", "u"))
    assert stop_reasons(config) == {}
