"""The suite of sources on the newest PostgreSQL too, and what only that has: slots that standbys keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.sources.postgres.source import PostgresSource
from tests.contract import test_source
from tests.fix_servers import Database

globals().update({name: test for name, test in vars(test_source).items() if name.startswith("test_")})


@pytest.fixture
def source_kind() -> str:
    return "postgres"


@pytest.fixture
def source_server(newest_postgres: PostgresServer) -> PostgresServer:
    return newest_postgres


@pytest.fixture
def preparation() -> dict[str, list[str]]:
    return {}  # it is built without ICU


def test_its_slot_is_one_that_standbys_keep(database: Database, tmp_path: Path) -> None:
    """Nothing is copied, and nobody waits, unless the servers are set up for it."""
    assert database.query("SELECT current_setting('server_version_num')::int >= 180000") == [(True,)]
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    config = database.config(tmp_path).source
    PostgresSource(config).prepare()
    slot = f"SELECT failover, two_phase, temporary FROM pg_replication_slots WHERE slot_name = '{config.slot}'"
    assert database.query(slot) == [(True, False, False)]
    assert PostgresSource(config).check() == []
