"""What the suites of sources share: a prepared source over a database without tables, and a chunk reader of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dblog_core.config import Config
from dblog_core.interfaces import ChunkReader, Source
from dblog_core.wiring import open_source
from tests.contract.keyed import TYPES
from tests.fix_servers import Database


@pytest.fixture
def preparation() -> dict[str, list[str]]:
    """Statements by kind of database, for the types and collations that tests use."""
    return {"postgres": list(TYPES)}


@pytest.fixture
def source(database: Database, source_config: Config, preparation: dict[str, list[str]]) -> Source:
    """Prepared, over a database that has no tables yet but the watermark table."""
    database.execute(*preparation.get(database.kind, []))
    source = open_source(source_config.source)
    source.prepare()
    return source


@pytest.fixture
def reader(source: Source) -> Iterator[ChunkReader]:
    reader = source.open_reader()
    yield reader
    reader.close()
