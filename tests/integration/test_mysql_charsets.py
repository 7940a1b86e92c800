"""Text of every character set of the servers: the log's bytes become the characters that a SELECT gives."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.model.events import Unreadable
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.source import MysqlSource
from dblog_core.sources.mysql.values import charsets, multibyte
from tests.fix_servers import Database
from tests.integration.test_mysql_decode import images, prepare_source
from tests.integration.test_mysql_failover import batches

CODES = {name: [code for _, code in multibyte.codes(form)] for name, form in multibyte.FORMS.items()}
AT_ONCE = 2_000  # codes in a row


def every(database: Database) -> list[str]:
    """The character sets of a server."""
    return [str(row[0]) for row in database.query("SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS")]


def known_charsets(database: Database) -> list[str]:
    """Those of several bytes, but for Unicode's."""
    return [name for name in every(database) if name in multibyte.FORMS]


def select_rows(source: MysqlSource, table: TableName) -> dict[int, Any]:
    """The rows of a chunk by their id."""
    reader = source.open_reader()
    try:
        record_batch: pa.RecordBatch = reader.read(reader.schema(table), after=None, upto=None, limit=100_000).rows
    finally:
        reader.close()
    return {row["id"]: row for row in record_batch.to_pylist()}


def read_logged_rows(source: MysqlSource, start: str) -> dict[int, Any]:
    return {after["id"]: after for _, _, after in images(source, start)}


def read_unreadable(source: MysqlSource, start: str) -> list[Unreadable]:
    signals = [signal for batch in batches(source, start) for signal in batch.signals]
    return [signal for signal in signals if isinstance(signal, Unreadable)]


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_no_character_set_of_a_server_is_left_out(database: Database) -> None:
    assert [name for name in every(database) if name != "binary" and not charsets.is_supported(name)] == []


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_every_code_reads_as_the_server_converts_it(database: Database, tmp_path: Path) -> None:
    """One statement a character set writes all of its codes; those of four bytes too that stand for nothing yet."""
    names = known_charsets(database)
    columns = ", ".join(f"{name} mediumtext CHARACTER SET {name}" for name in names)
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    source, start = prepare_source(database, tmp_path)
    first = itertools.count(1)
    written = 0
    for name in names:
        codes = CODES[name] if name != "gb18030" else [*CODES[name], *map(multibyte.four, range(39_420, 1_587_600))]
        step = AT_ONCE if name != "gb18030" else 100_000
        texts = [b"".join(codes[at : at + step]).hex() for at in range(0, len(codes), step)]
        values = ", ".join(f"({next(first)}, CONVERT(x'{text}' USING {name}))" for text in texts)
        database.execute(f"INSERT INTO t (id, {name}) VALUES {values}")
        written += len(codes)
    log_batches = read_logged_rows(source, start)
    assert log_batches == select_rows(source, TableName(database.schema, "t"))
    assert sum(len(text) for row in log_batches.values() for text in list(row.values())[1:] if text) == written
    assert written > 120_000


@pytest.mark.in_turn("source_kind", "charset")
@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
@pytest.mark.parametrize("charset", sorted(multibyte.FORMS))
def test_no_bytes_that_the_server_takes_are_left_out(database: Database, tmp_path: Path, charset: str) -> None:
    """All pairs of bytes, and threes that begin as in Japanese, one in a row, as far as the server takes them. But for
    8EA0, which MySQL takes and prints as two question marks: to us it is no code, as in its own definition."""
    if charset not in known_charsets(database):
        return
    database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, v varchar(9) CHARACTER SET {charset})",
        "CREATE TABLE n (n int PRIMARY KEY)",
        f"INSERT INTO n VALUES {', '.join(f'({n})' for n in range(256))}",
    )
    source, start = prepare_source(database, tmp_path)
    pair = "a.n * 256 + b.n"
    digits = "LPAD(HEX(a.n * 256 + b.n), 4, '0')"
    database.execute(
        "SET SESSION sql_mode = ''",
        f"INSERT IGNORE INTO t SELECT {pair}, CONVERT(UNHEX({digits}) USING {charset}) FROM n a, n b"
        f" WHERE {pair} <> 0x8EA0",
        f"INSERT IGNORE INTO t SELECT 65536 + {pair}, CONVERT(UNHEX(CONCAT('8F', {digits})) USING {charset})"
        " FROM n a, n b WHERE a.n > 158 AND b.n > 158",
    )
    log_batches = read_logged_rows(source, start)
    assert len(log_batches) > 65_534 and log_batches == select_rows(source, TableName(database.schema, "t"))


@pytest.mark.in_turn
@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_labels_and_keys_of_such_sets_are_read_and_asked_for(database: Database, tmp_path: Path) -> None:
    source, start = prepare_source(database, tmp_path)  # the log meets the character sets while it is read
    database.execute(
        "CREATE TABLE t (k varchar(9) CHARACTER SET gbk, id int, e enum('ソ', '表') CHARACTER SET cp932,"
        " s set('한', '글') CHARACTER SET euckr, PRIMARY KEY (k, e))",
        "INSERT INTO t VALUES ('汉字', 1, '表', '한,글'), ('国', 2, 'ソ', ''), ('誠', 3, 'ソ', '글')",
        "UPDATE t SET k = '構' WHERE id = 2",
    )
    table = TableName(database.schema, "t")
    rows = read_logged_rows(source, start)
    assert rows == select_rows(source, table) and rows[1] == {"k": "汉字", "id": 1, "e": "表", "s": "한,글"}
    reader = source.open_reader()
    schema = reader.schema(table)
    assert reader.read_keys(schema, [("構", "ソ")]).rows.to_pylist() == [rows[2]]
    keys = list(reader.boundaries(schema, after=None, upto=None, every=1))
    parts = [reader.read(schema, after=key, upto=None, limit=9).rows.num_rows for key in keys]
    assert parts == [2, 1, 0]
    reader.close()


@pytest.mark.in_turn
@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_which_sets_have_two_codes_for_a_character(database: Database) -> None:
    with closing(database.connect()) as connection:
        for name in known_charsets(database):
            tables = multibyte.ask(connection, name)
            texts = [text for text in map(tables, CODES[name]) if text != "?"]
            assert tables.has_twins == (len(set(texts)) < len(texts)), name


@pytest.mark.in_turn
@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_text_with_two_codes_for_a_character_is_no_key_before_somebody_says_so(
    database: Database, tmp_path: Path
) -> None:
    """Two rows of the source would be one in the lake; `t` is altered while the log is read."""
    table = TableName(database.schema, "t")
    other = TableName(database.schema, "other")
    binary = "CHARACTER SET cp932 COLLATE cp932_bin"
    database.execute(
        "CREATE TABLE t (k varchar(9) CHARACTER SET utf8mb4 PRIMARY KEY, id int)",
        f"CREATE TABLE other (k varchar(9) {binary} PRIMARY KEY, id int)",
        f"CREATE TABLE usual (k varchar(9) {binary}, id int PRIMARY KEY)",
    )
    source, start = prepare_source(database, tmp_path)
    assert [str(schema.table) for schema in source.tables()] == [str(table), f"{database.schema}.usual"]
    (problem,) = source.list_refusals()
    assert problem.table == str(other) and "two keys may print alike" in problem.what
    database.execute(
        f"ALTER TABLE t MODIFY k varchar(9) {binary}",
        "INSERT INTO t VALUES (CONVERT(x'81E0' USING cp932), 1), (CONVERT(x'8790' USING cp932), 2)",
    )
    assert database.query("SELECT count(DISTINCT k), count(DISTINCT CONVERT(k USING utf8mb4)) FROM t") == [(2, 1)]
    (unreadable,) = read_unreadable(source, start)
    assert unreadable.table == table and "two keys may print alike" in unreadable.why
    config = database.config(tmp_path).source
    named = MysqlSource(config.model_copy(update={"keys": {str(table): ["k"], str(other): ["k"]}}))
    assert {schema.table for schema in named.tables()} >= {table, other}
    assert [row["id"] for row in read_logged_rows(named, start).values()] == [1, 2]
