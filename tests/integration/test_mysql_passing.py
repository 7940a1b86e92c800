"""Errors of a server that pass: whoever meets one tries again."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.errors import SourceUnavailable
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.source import MysqlSource
from dblog_core.sources.mysql.sql.chunks import MysqlChunks
from dblog_core.sources.mysql.sql.connection import rows
from tests.fix_servers import Database

LIMITS = {"mysql": ("max_execution_time = 100", 3024), "mariadb": ("max_statement_time = 0.1", 1969)}


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_a_chunk_that_takes_longer_than_statements_may_is_read_again(database: Database, tmp_path: Path) -> None:
    setting, code = LIMITS[database.kind]
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    reader = MysqlSource(database.config(tmp_path).source).open_reader()
    schema = reader.schema(TableName(database.schema, "t"))
    assert isinstance(reader, MysqlChunks)
    rows(reader._connection, f"SET SESSION {setting}")
    with database.connect() as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLES t WRITE")
        with pytest.raises(SourceUnavailable, match=rf"\({code}\)") as raised:
            reader.read(schema, after=None, upto=None, limit=9)
        cursor.execute("UNLOCK TABLES")
    assert raised.value.transient and raised.value.fix
    assert reader.read(schema, after=None, upto=None, limit=9).rows.num_rows == 1
    reader.close()


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_a_watermark_waits_for_room_in_its_table(database: Database, tmp_path: Path) -> None:
    """An engine whose tables hold 64 kB where they are told to be small stands for a disk that is full (1114)."""
    config = database.config(tmp_path).source
    table = config.watermark_table
    database.execute(
        f"CREATE TABLE {table} (worker varchar(64) PRIMARY KEY, payload longtext NOT NULL)"
        " ENGINE = MyISAM MAX_ROWS = 1 AVG_ROW_LENGTH = 1",
        f"INSERT INTO {table} VALUES ('large', REPEAT('x', 60000))",
    )
    writer = MysqlSource(config).open_watermarks("w")
    with pytest.raises(SourceUnavailable, match=r"\(1114\)") as raised:
        writer.write("y" * 9_000)
    assert raised.value.transient and raised.value.fix
    database.execute(f"DELETE FROM {table} WHERE worker = 'large'")
    writer.write("y" * 9_000)
    writer.close()
    assert database.query(f"SELECT worker, LENGTH(payload) FROM {table}") == [("w", 9_000)]
