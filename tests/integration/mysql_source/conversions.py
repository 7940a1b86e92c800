"""ALTER statements over tables with telling values, and what they make of these values by the server's own word."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pymysql

from dblog_core.errors import RequestError
from dblog_core.model.events import Altered, Rewritten
from dblog_core.model.schema import TableName
from dblog_core.model.values import to_json
from dblog_core.sources.mysql.source import MysqlSource
from tests.fix_servers import Database
from tests.integration.mysql_source.log_rows import until

STRICT = "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION"
LENIENT = ""

INTEGERS = (
    "0",
    "1",
    "-1",
    "9",
    "100",
    "127",
    "128",
    "255",
    "256",
    "40000",
    "-40000",
    "2147483647",
    "4294967295",
    "'9'",
)
NUMBERS = (*INTEGERS, "1.5", "2.3456789", "-0.005", "0.5", "1e10", "99999999.99", "NULL")
TEXTS = (
    "''",
    "'abc'",
    "'abc  '",
    "'  abc '",
    "'a'",
    "'A'",
    "'b'",
    "'b,a'",
    "'12'",
    "'1.50'",
    "'ä'",
    "'é日😀'",
    "NULL",
    "'2024-02-29'",
    "'2024-02-29 12:34:56.789'",
    "REPEAT('x', 300)",
    "CONCAT(REPEAT('y', 250), '       ')",
    "'{\"a\": 1}'",
)
BYTES = ("''", "'ab'", "x'00ff'", "x'6100'", "'abc  '", "x'00000000'", "NULL")
DATES = ("'2024-02-29'", "'2024-12-31'", "'1970-01-02'", "NULL")
MOMENTS = ("'2024-02-29 12:34:56.789'", "'2024-02-29 23:59:59.999999'", "'1999-12-31 00:00:00'", "NULL")
TIMES = ("'12:34:56.789'", "'-00:00:01.5'", "'838:59:59'", "'00:00:00'", "NULL")

TYPES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(
        (
            "TINYINT",
            "SMALLINT",
            "MEDIUMINT",
            "INT",
            "BIGINT",
            "TINYINT UNSIGNED",
            "SMALLINT UNSIGNED",
            "INT UNSIGNED",
            "BIGINT UNSIGNED",
            "INT(5) ZEROFILL",
            "YEAR",
            "BIT(4)",
            "BIT(16)",
            "BOOL",
        ),
        INTEGERS,
    ),
    **dict.fromkeys(
        (
            "DECIMAL(10,2)",
            "DECIMAL(12,2)",
            "DECIMAL(12,4)",
            "DECIMAL(10,2) UNSIGNED",
            "DECIMAL(5)",
            "DECIMAL(38,10)",
            "DECIMAL(50,10)",
            "DECIMAL(50,2)",
            "DECIMAL(60,10)",
            "FLOAT",
            "FLOAT(7,2)",
            "FLOAT(10,4)",
            "DOUBLE",
            "DOUBLE(9,1)",
            "FLOAT UNSIGNED",
            "FLOAT(30)",
        ),
        NUMBERS,
    ),
    **dict.fromkeys(
        (
            "CHAR(5)",
            "CHAR(30)",
            "VARCHAR(5)",
            "VARCHAR(20)",
            "VARCHAR(400)",
            "TINYTEXT",
            "TEXT",
            "MEDIUMTEXT",
            "LONGTEXT",
            "VARCHAR(20) CHARACTER SET latin1",
            "VARCHAR(20) CHARACTER SET utf8mb3",
            "VARCHAR(20) CHARACTER SET utf16",
            "VARCHAR(400) COLLATE utf8mb4_bin",
            "TEXT CHARACTER SET latin1",
            "CHAR(30) CHARACTER SET utf8mb3",
            "VARCHAR(400) CHARACTER SET ascii",
            "ENUM('a','b')",
            "ENUM('a','b','c')",
            "ENUM('b','a')",
            "ENUM('a','c','b')",
            "ENUM('A','b')",
            "ENUM('b')",
            "SET('a','b')",
            "SET('a','b','c')",
            "SET('b','a')",
            "SET('c','a','b')",
            "JSON",
            "ENUM('a','b') CHARACTER SET utf8mb3",
        ),
        TEXTS,
    ),
    **dict.fromkeys(("BINARY(3)", "BINARY(6)", "VARBINARY(3)", "VARBINARY(20)", "BLOB", "TINYBLOB", "LONGBLOB"), BYTES),
    "DATE": DATES,
    **dict.fromkeys(
        ("DATETIME", "DATETIME(3)", "DATETIME(6)", "TIMESTAMP NULL", "TIMESTAMP(3) NULL", "TIMESTAMP(6) NULL"), MOMENTS
    ),
    **dict.fromkeys(("TIME", "TIME(3)", "TIME(6)"), TIMES),
}
"""Column types, and values that such a column may take, where the server takes them."""


@dataclass(frozen=True, slots=True)
class Case:
    """`columns` come after `id INT NOT NULL`; `values`: of the columns that are named in `into`; `alter`: what stands
    behind the table's name; `sql_mode` and `settings` of the session that alters."""

    columns: str
    values: Sequence[str]
    alter: str
    into: str = "c"
    sql_mode: str = STRICT
    options: str = ""
    settings: str = ""
    head: str = "ALTER TABLE {t} "
    key: str = "PRIMARY KEY (id)"


def make(database: Database, cases: Sequence[Case]) -> None:
    """A table for each case, t0, t1, …, with its rows."""
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET NAMES utf8mb4")
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        for number, case in enumerate(cases):
            key = f", {case.key}" if case.key else ""
            cursor.execute(f"CREATE TABLE t{number} (id INT NOT NULL, {case.columns}{key}) {case.options}")
            for row, value in enumerate(case.values):
                with contextlib.suppress(pymysql.err.MySQLError):  # no value of the type
                    cursor.execute(f"INSERT INTO t{number} (id, {case.into}) VALUES ({row + 1}, {value})")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case has come to. `same`: whether each value that is still there under its name, or its new one, is the
    same; `owed`: whether the capture is told that a dump is needed; `error`: the server's, which has done nothing."""

    case: Case
    same: bool
    owed: bool
    error: str = ""


def run(database: Database, source: MysqlSource, cases: Sequence[Case], *, printed: bool = False) -> list[Outcome]:
    """Alters each table while the log is followed. `printed`: values count as the same by their text alone."""
    make(database, cases)
    start = source.current_position()
    stream = source.open_log(start)  # the catalogue is asked here, and not later
    with closing(stream), closing(source.open_reader()) as reader:

        def read(number: int) -> list[dict[str, Any]]:
            table = TableName(database.schema, f"t{number}")
            try:
                schema = reader.schema(table)
                rows: list[dict[str, Any]] = reader.read(schema, after=None, upto=None, limit=10_000).rows.to_pylist()
            except RequestError:  # a table that keeps no rows
                return []
            return rows

        before = [read(number) for number in range(len(cases))]
        errors = [_alter(database, number, case) for number, case in enumerate(cases)]
        after = [read(number) for number in range(len(cases))]
        target = source.current_position()
        signals = [signal for batch in until(source, stream, target) for signal in batch.signals]
    owed = {signal.table.name for signal in signals if isinstance(signal, Rewritten)}
    # As the capture does it: another column has the name of one that a copy has.
    owed |= {signal.table.name for signal in signals if isinstance(signal, Altered) and _takes_a_name(signal, before)}
    return [
        Outcome(case, _are_same(before[number], after[number], printed=printed), f"t{number}" in owed, errors[number])
        for number, case in enumerate(cases)
    ]


def _takes_a_name(signal: Altered, before: list[list[dict[str, Any]]]) -> bool:
    rows = before[int(signal.table.name[1:])]
    return signal.step is not None and any(signal.step.takes(name) for row in rows for name in row)


def _alter(database: Database, number: int, case: Case) -> str:
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET NAMES utf8mb4")
        cursor.execute(f"SET sql_mode = '{case.sql_mode}'")
        if case.settings:
            cursor.execute(f"SET {case.settings}")
        try:
            cursor.execute(case.head.format(t=f"t{number}") + case.alter.format(t=f"t{number}"))
        except pymysql.err.MySQLError as error:
            return str(error)
    return ""


def _are_same(before: list[dict[str, Any]], after: list[dict[str, Any]], *, printed: bool) -> bool:
    """Of the columns that are there under the same name before and after."""
    names = [name for name in (before[0] if before else {}) if after and name in after[0]]
    form = (lambda value: str(to_json(value))) if printed else _plain
    return [[form(row[name]) for name in names] for row in before] == [
        [form(row[name]) for name in names] for row in after
    ] and len(before) == len(after)


def _plain(value: Any) -> Any:
    """Equal for what the lake takes for equal when it widens a type: not for texts and numbers, nor 1.50 and 1.5 as
    texts."""
    if isinstance(value, bool | int | float | Decimal):
        return ("number", value)
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return ("moment", dt.datetime.combine(value, dt.time()))
    if isinstance(value, dt.datetime):
        return ("zoned" if value.tzinfo else "moment", value)
    return (type(value).__name__, value)


def pairs() -> Iterator[Case]:
    """Each type to each other type, and to itself NOT NULL."""
    for old, values in TYPES.items():
        for new in TYPES:
            yield Case(f"c {old}", values, f"MODIFY c {new}")
            yield Case(f"c {old}", values, f"MODIFY c {new}", sql_mode=LENIENT)
        bare = old.removesuffix(" NULL")
        for mode in (STRICT, LENIENT):
            yield Case(f"c {old}", values, f"MODIFY c {bare} NOT NULL", sql_mode=mode)
            yield Case(f"c {old}", values, f"CHANGE c c {bare} NOT NULL COMMENT 'x'", sql_mode=mode)
