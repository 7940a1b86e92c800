"""The PostgreSQL source on a real server, with both plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dblog_core.config.source import SourceConfig
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.model.events import LogBatch
from dblog_core.sources.postgres.source import PostgresSource
from tests.fix_servers import Database
from tests.integration.postgres_source.log_rows import read_to


@pytest.fixture(params=["pgoutput", "wal2json"])
def plugin(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lab(postgres: PostgresServer, new_database: Callable[..., Database]) -> Database:
    return new_database(postgres)


@pytest.fixture
def configure(lab: Database, tmp_path: Path) -> Callable[..., SourceConfig]:
    return lambda **options: lab.config(tmp_path, source={**lab.config(tmp_path).source.model_dump(), **options}).source


@pytest.fixture
def source(configure: Callable[..., SourceConfig], plugin: str) -> PostgresSource:
    return PostgresSource(configure(plugin=plugin))


@pytest.fixture
def exact(configure: Callable[..., SourceConfig]) -> PostgresSource:
    """With pgoutput, for what does not depend on the plugin."""
    return PostgresSource(configure())


@pytest.fixture
def read_log(lab: Database) -> Iterator[Callable[..., list[LogBatch]]]:
    """Reads all that is committed by now, from a position on."""
    opened = []

    def read(source: PostgresSource, position: str, *, skip: int = 0, acknowledge: bool = False) -> list[LogBatch]:
        target = source.current_position()
        log = source.open_log(position, skip=skip)
        opened.append(log)
        batches = read_to(source, log, target)
        if acknowledge:
            log.acknowledge(batches[-1].position)
        log.close()
        return batches

    yield read
    for log in opened:
        log.close()
