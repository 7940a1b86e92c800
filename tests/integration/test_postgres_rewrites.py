"""PostgreSQL: an ALTER that rewrites a table hides all its rows from older snapshots. No chunk reads such a one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import orjson
import psycopg2
import pytest

from dblog_core.capture.healing.unlogged_rewrites import mixed_up
from dblog_core.config.settings import Config
from dblog_core.interfaces import ChunkReader
from dblog_core.model.schema import TableName
from dblog_core.model.table_stamp import TableStamp
from dblog_core.model.values import keys_of
from dblog_core.sources.postgres.sql import chunk_rows, connection
from dblog_core.wiring import open_source
from tests.fix_servers import Database

REWRITE = "ALTER TABLE a ALTER v TYPE varchar(20)"  # the same Arrow type, and key: no fingerprint tells of it

# As pg_repack does it: a copy of the table, and then both change places in the catalogue.
REPACK = (
    "CREATE TABLE copy AS TABLE a; SET allow_system_table_mods = on; "
    "UPDATE pg_class c SET relfilenode = o.relfilenode, reltoastrelid = o.reltoastrelid FROM pg_class o "
    "WHERE c.relname IN ('a', 'copy') AND o.relname IN ('a', 'copy') AND c.oid <> o.oid; "
    "UPDATE pg_class SET relname = relname WHERE oid = (SELECT reltoastrelid FROM pg_class WHERE relname = 'a')"
)

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
    real = connection.rows
    tries = []

    def rows(connection: Any, query: Any, parameters: Any = None) -> Any:
        result = real(connection, query, parameters)
        if connection.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_INTRANS:
            with closing(database.connect()) as other, other.cursor() as cursor:
                cursor.execute("SET lock_timeout = '200ms'")
                tries.append(REWRITE)
                with pytest.raises(psycopg2.errors.LockNotAvailable):
                    cursor.execute(REWRITE)
        return result

    monkeypatch.setattr(chunk_rows, "rows", rows)
    chunk = reader.read(schema, after=(10,), upto=None, limit=20)
    assert [n for (n,) in keys_of(chunk.rows, schema)] == list(range(11, 31))
    assert reader.last_key(schema) == (50,)
    assert reader.read_keys(schema, [(3,)]).rows.num_rows == 1
    assert len(tries) == 3


@pytest.mark.parametrize("plan", ["plain", "partitioned"])
def test_stamps_tell_what_no_log_tells(database: Database, source_config: Config, plan: str) -> None:
    source = open_source(source_config.source)
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    told_statements = (
        "ALTER TABLE a ALTER v TYPE varchar(4) USING left(v, 4)",
        "ALTER TABLE a ALTER t TYPE timestamp(0)",
        "ALTER TABLE a ALTER v TYPE text USING upper(v)",
        "ALTER TABLE a DROP v, ADD v varchar(20) DEFAULT 'new'",
        "ALTER TABLE a RENAME v TO x; ALTER TABLE a RENAME w TO v; ALTER TABLE a RENAME x TO w",
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
    )
    untold = (
        "ALTER TABLE a ADD n int DEFAULT 5",
        "ALTER TABLE a ADD r double precision DEFAULT random()",
        "ALTER TABLE a DROP w",
        "ALTER TABLE a RENAME w TO x",
        "ALTER TABLE a ALTER w SET NOT NULL",
        "ALTER TABLE a ALTER v TYPE text",
        "ALTER TYPE mood ADD VALUE 'mad'",
        "INSERT INTO a VALUES (1, 'x', 'y')",
        "TRUNCATE a",
        "VACUUM FULL a",
        "ANALYZE a",
    )
    written_anew = (  # a partition's new file may be that of a TRUNCATE of it alone, which is in no log
        "ALTER TABLE a ADD r double precision DEFAULT random()",
        "TRUNCATE a",
        "VACUUM FULL a",
    )
    if plan == "partitioned":
        told_statements += written_anew
    else:  # a table of partitions has no rows of its own to be logged
        told_statements += (
            "ALTER TABLE a SET UNLOGGED; INSERT INTO a VALUES (1, 'lost', 'y'); ALTER TABLE a SET LOGGED",
            "ALTER TABLE a SET UNLOGGED; ALTER TABLE a SET LOGGED; VACUUM FREEZE a; ANALYZE a",
        )
        untold += ("CLUSTER a USING a_pkey", "REINDEX TABLE a", "ALTER TABLE a ALTER l SET STORAGE EXTERNAL", REPACK)
    for statement in dict.fromkeys((*told_statements, *untold)):
        parts = "PARTITION BY RANGE (id)" if plan == "partitioned" else ""
        database.execute(
            "DROP TABLE IF EXISTS a, copy",
            f"CREATE TABLE a (id int PRIMARY KEY, v varchar(20), w varchar(20), t timestamp, m mood, l text) {parts}",
            *["CREATE TABLE a1 PARTITION OF a FOR VALUES FROM (0) TO (9)"] * bool(parts),
        )
        before = source.stamps()
        database.execute(*statement.split("; "))
        after = source.stamps()
        assert before is not None and after is not None
        before_as_stored = TableStamp.from_json(orjson.loads(orjson.dumps(before["public.a"].to_json())))
        assert mixed_up(before_as_stored, after["public.a"]) is (statement in told_statements), statement


def test_nothing_is_locked_between_two_chunks(database: Database, reader: ChunkReader) -> None:
    schema = reader.schema(TableName("public", "a"))
    assert reader.read(schema, after=None, upto=None, limit=20).rows.num_rows == 20
    with closing(database.connect()) as other, other.cursor() as cursor:
        cursor.execute("SET lock_timeout = '10s'")
        cursor.execute(REWRITE)
    assert reader.read(schema, after=(20,), upto=None, limit=100).rows.num_rows == 30
