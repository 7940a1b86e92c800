"""The compiled decoder on a real server's log: against the server's own text, and against mysql-replication."""

# ruff: noqa: E501, DTZ001  (a row of values reads better in one block; DATETIME has no zone)
from __future__ import annotations

import datetime as dt
import decimal
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from dblog_core.sources.mysql.source import MysqlSource
from tests.fix_servers import Database
from tests.unit.mysql_rows import json_value
from tests.waiting import PATIENCE_SECONDS

END = PATIENCE_SECONDS
"""Seconds within which the log must have delivered what a test waits for."""


def images(source: MysqlSource, start: str) -> list[tuple[str, Any, Any]]:
    """Op, before and after of all row changes from `start` to the present end."""
    target = source.current_position()
    stream = source.open_log(start)
    rows_read = []
    deadline = time.monotonic() + END
    try:
        while time.monotonic() < deadline:
            batch = stream.read(0.5)
            if batch is not None:
                rows_read += [row for table in batch.changes for row in table.batch.to_pylist()]
                if not batch.partial and source.has_reached(batch.position, target):
                    return [(row["op"], row["before"], row["after"]) for row in rows_read]
    finally:
        stream.close()
    raise AssertionError("the log did not reach its end in time")


def prepare_source(database: Database, directory: Path) -> tuple[MysqlSource, str]:
    source = MysqlSource(database.config(directory).source)
    source.prepare()
    return source, source.current_position()


FUNCTIONS = (
    "JSON_ARRAY(CAST('2024-02-29' AS DATE), CAST('0000-00-00' AS DATE), CAST('9999-12-31' AS DATE))",
    "JSON_ARRAY(CAST('2024-02-29 23:59:59.999999' AS DATETIME(6)), TIMESTAMP('0001-01-01'), CAST(0 AS DATETIME))",
    "JSON_ARRAY(CAST('838:59:59' AS TIME), CAST('-838:59:59' AS TIME), CAST('-00:00:00.000001' AS TIME(6)))",
    "JSON_OBJECT('d', CAST('-0.5' AS DECIMAL(65,30)), 'e', 12345678901234567890.5, 'f', 1 / 3, 'g', -0.00)",
    "JSON_ARRAY(CAST('99999999999999999999999999999999999999999999999999999999999999999' AS DECIMAL(65,0)), 100.0)",
    "JSON_ARRAY(x'00ff', b'101', CAST('x' AS BINARY(3)), ST_GeomFromText('POINT(1 2)'))",
    "JSON_ARRAY(18446744073709551615, -9223372036854775808, 1e15, 1e-14, 0.1e0 + 0.2e0, -0e0, true, null)",
    "JSON_OBJECT('k', JSON_ARRAY(JSON_OBJECT('deep', JSON_ARRAY())), 'long', REPEAT('é\\n', 40000))",
)  # fmt: skip


@pytest.mark.parametrize("source_kind", ["mysql"], indirect=True)
def test_documents_are_printed_as_the_server_casts_them(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE j (id int PRIMARY KEY AUTO_INCREMENT, j json)")
    source, start = prepare_source(database, tmp_path)
    r = random.Random(11)
    plain = []
    while len(plain) < 600:
        value = json_value(r, 4)
        if "Opaque" not in repr(value):
            plain.append((json.dumps(value, ensure_ascii=r.random() < 0.5),))
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.executemany("INSERT INTO j (j) VALUES (%s)", plain)
        for expression in FUNCTIONS:
            cursor.execute(f"INSERT INTO j (j) VALUES ({expression})")
        cursor.execute("UPDATE j SET j = JSON_SET(j, '$[0]', 7.25) WHERE id % 3 = 0")
    printed_by_id = dict(database.query("SELECT id, CAST(j AS CHAR) FROM j"))
    logged = {after["id"]: after["j"] for _, _, after in images(source, start)}
    assert len(logged) == 600 + len(FUNCTIONS)
    assert [k for k in logged if logged[k] != printed_by_id[k]] == []


COLUMNS = {
    "id": "int PRIMARY KEY",
    "i1": "tinyint", "u2": "smallint unsigned", "i3": "mediumint", "u4": "int unsigned", "i8": "bigint", "u8": "bigint unsigned",
    "d12": "decimal(12,2)", "d38": "decimal(38,10)", "g": "double", "f": "float",
    "c": "char(20)", "v": "varchar(300)", "t": "text", "b": "varbinary(40)", "bl": "blob",
    "da": "date", "d6": "datetime(6)", "d0": "datetime", "y": "year", "e": "enum('a','bé','c')",
}  # fmt: skip
"""Types that mysql-replication decodes exactly."""


def row(r: random.Random, identity: int) -> tuple[object, ...]:
    text = "".join(r.choice("aé日😀 '\\") for _ in range(r.randrange(12))) + "."
    moment = dt.datetime(1, 1, 1) + dt.timedelta(
        days=r.randrange(1, 3_600_000), microseconds=r.randrange(86_400_000_000)
    )
    values = (
        r.randrange(-128, 128), r.randrange(2**16), r.randrange(-(2**23), 2**23), r.randrange(2**32),
        r.randrange(-(2**63), 2**63), r.randrange(2**64), decimal.Decimal(r.randrange(-(10**12), 10**12)).scaleb(-2),
        decimal.Context(50).scaleb(decimal.Decimal(r.randrange(-(10**38) + 1, 10**38)), -10), r.uniform(-1e9, 1e9), r.randrange(-999, 999) / 8,
        text, text * 9, text * 200, b"\0\1" + r.randbytes(20), r.randbytes(300),
        moment.date(), moment, moment.replace(microsecond=0), r.randrange(1901, 2156), r.choice(("a", "bé", "c")),
    )  # fmt: skip
    return (identity, *(None if r.random() < 0.1 else value for value in values))


def replicate_images(database: Database, rows: int) -> list[tuple[str, Any, Any]]:
    """The same, by mysql-replication, from the log's beginning on."""
    account = database.server.admin
    settings = {
        "host": database.server.host,
        "port": database.server.port,
        "user": account.user,
        "password": account.password,
    }
    stream = BinLogStreamReader(
        connection_settings=settings,
        server_id=4_200_000_001,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_schemas=[database.name],
    )
    images_read: list[tuple[str, Any, Any]] = []
    try:
        for event in stream:
            for change in event.rows:
                if isinstance(event, WriteRowsEvent):
                    images_read.append(("c", None, change["values"]))
                elif isinstance(event, UpdateRowsEvent):
                    images_read.append(("u", change["before_values"], change["after_values"]))
                else:
                    images_read.append(("d", change["values"], None))
            if len(images_read) == rows:
                break
    finally:
        stream.close()
    return images_read


def differences(own_images: list[tuple[str, Any, Any]], reference_images: list[tuple[str, Any, Any]]) -> list[object]:
    """Where two lists of changes differ: number, column and both values."""
    differing: list[object] = []
    for number, (own_image, other) in enumerate(zip(own_images, reference_images, strict=True)):
        differing += [(number, own_image[0], other[0])] if own_image[0] != other[0] else []
        for left, right in zip(own_image[1:], other[1:], strict=True):
            names = {*(left or ()), *(right or ())}
            differing += [
                (number, n, (left or {}).get(n), (right or {}).get(n))
                for n in names
                if (left or {}).get(n) != (right or {}).get(n)
            ]
    return differing


@pytest.mark.filterwarnings("ignore:.*is deprecated, use:DeprecationWarning")  # how the package calls its driver
@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_rows_are_those_that_were_written_and_those_of_mysql_replication(database: Database, tmp_path: Path) -> None:
    database.execute(f"CREATE TABLE t ({', '.join(f'{c} {t}' for c, t in COLUMNS.items())}) CHARACTER SET utf8mb4")
    source, start = prepare_source(database, tmp_path)
    r = random.Random(4)
    with database.connect() as connection, connection.cursor() as cursor:
        marks = ", ".join(["%s"] * len(COLUMNS))
        cursor.execute("BEGIN")
        cursor.executemany(f"INSERT INTO t VALUES ({marks})", [row(r, i) for i in range(300)])
        cursor.execute("UPDATE t SET i1 = NULL, v = 'x' WHERE id % 2 = 0")
        cursor.execute("DELETE FROM t WHERE id % 5 = 0")
        cursor.execute("COMMIT")
    own_images = images(source, start)
    assert len(own_images) == 300 + 150 + 60
    r = random.Random(4)
    assert [after for _, _, after in own_images[:300]] == [
        dict(zip(COLUMNS, row(r, i), strict=True)) for i in range(300)
    ]
    if database.kind == "mariadb":
        return  # after the first event of rows, the package connects anew there and begins at its first place
    reference_images = replicate_images(database, len(own_images))
    assert len(reference_images) == len(own_images) and differences(own_images, reference_images) == []
