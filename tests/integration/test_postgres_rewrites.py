"""PostgreSQL: an ALTER that rewrites a table hides all its rows from older snapshots. No chunk reads such a one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg2
import pytest

from dblog_core.config import Config
from dblog_core.interfaces import ChunkReader
from dblog_core.schema import TableName
from dblog_core.sources.postgres import chunks
from dblog_core.values import keys_of
from dblog_core.wiring import open_source
from tests.fix_servers import Database

REWRITE = "ALTER TABLE a ALTER v TYPE varchar(20)"  # the same Arrow type, and key: no fingerprint tells of it

pytestmark = pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)


@pytest.fixture
def reader(database: Database, source_config: Config) -> Iterator[ChunkReader]:
    database.execute(
        "CREATE TABLE a (n int PRIMARY KEY, v text)", "INSERT INTO a SELECT i, 'x' FROM generate_series(1, 50) i"
    )
    with closing(open_source(source_config.source).open_reader()) as reader:
        yield reader


def test_no_rewrite_comes_between_the_snapshot_of_a_chunk_and_its_select(
    database: Database, reader: ChunkReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = reader.schema(TableName("public", "a"))
    real, tries = chunks.rows, []

    def rows(connection: Any, query: Any, parameters: Any = None) -> Any:
        found = real(connection, query, parameters)
        if connection.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_INTRANS:
            with closing(database.connect()) as other, other.cursor() as cursor:
                cursor.execute("SET lock_timeout = '200ms'")
                tries.append(REWRITE)
                with pytest.raises(psycopg2.errors.LockNotAvailable):
                    cursor.execute(REWRITE)
        return found

    monkeypatch.setattr(chunks, "rows", rows)
    chunk = reader.read(schema, after=(10,), upto=None, limit=20)
    assert [n for (n,) in keys_of(chunk.rows, schema)] == list(range(11, 31))
    assert reader.last_key(schema) == (50,)
    assert reader.read_keys(schema, [(3,)]).rows.num_rows == 1
    assert len(tries) == 3


def test_nothing_is_locked_between_two_chunks(database: Database, reader: ChunkReader) -> None:
    schema = reader.schema(TableName("public", "a"))
    assert reader.read(schema, after=None, upto=None, limit=20).rows.num_rows == 20
    with closing(database.connect()) as other, other.cursor() as cursor:
        cursor.execute("SET lock_timeout = '10s'")
        cursor.execute(REWRITE)
    assert reader.read(schema, after=(20,), upto=None, limit=100).rows.num_rows == 30
