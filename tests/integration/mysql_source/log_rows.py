"""The log of MySQL and MariaDB as tests read it: to an end, and as rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from dblog_core.interfaces import LogStream
from dblog_core.model.events import LogBatch
from dblog_core.sources.mysql.source import MysqlSource
from tests.fix_servers import Database
from tests.integration import mysql_types
from tests.waiting import PATIENCE_SECONDS

END = PATIENCE_SECONDS
"""Seconds within which the log must have delivered what a test waits for."""


def batches(source: MysqlSource, position: str, *, skip: int = 0, upto: str | None = None) -> Iterator[LogBatch]:
    """Batches from `position` to `upto` (default: the present end)."""
    target = upto or source.current_position()
    stream = source.open_log(position, skip=skip)
    try:
        yield from until(source, stream, target)
    finally:
        stream.close()


def until(source: MysqlSource, stream: LogStream, target: str) -> Iterator[LogBatch]:
    deadline = time.monotonic() + END
    while time.monotonic() < deadline:
        batch = stream.read(0.5)
        if batch is not None:
            yield batch
            if not batch.partial and source.has_reached(batch.position, target):
                return
    raise AssertionError("the log did not reach its end in time")


def changes(log_batches: list[LogBatch], table: str = "") -> list[dict[str, Any]]:
    """All row changes in log order, over all tables; `table` leaves the others out."""
    rows = []
    for batch in log_batches:
        of_batch = [r for c in batch.changes if not table or c.schema.table.name == table for r in c.batch.to_pylist()]
        rows += sorted(of_batch, key=lambda row: row["sequence"])
    return rows


def execute(database: Database, *statements: str) -> None:
    """In one session and without strict mode, so that values at the ends of types get in."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        for statement in statements:
            cursor.execute(statement)


def insert_all_types(database: Database, name: str) -> None:
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        for statement, values in mysql_types.inserts(database.kind, name):
            cursor.execute(statement, values)


def check(source: MysqlSource) -> str:
    return "\n".join(f"{p.what} | {p.fix} | {p.fatal}" for p in source.check())
