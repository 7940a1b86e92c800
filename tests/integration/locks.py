"""Locks that keep a table from being read, as people and their tools take them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pymysql

from tests.fix_servers import Database
from tests.waiting import PATIENCE_SECONDS, wait_until


@contextmanager
def locked(database: Database, table: str) -> Iterator[Any]:
    """Nobody else can read the table: LOCK TABLES … WRITE; in PostgreSQL as an ALTER in an open transaction does.
    Gives the cursor of who holds the lock."""
    postgres = ("BEGIN", f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"), "COMMIT"
    begin, end = postgres if database.kind == "postgres" else ((f"LOCK TABLES {table} WRITE",), "UNLOCK TABLES")
    with closing(database.connect()) as holder, holder.cursor() as cursor:
        for statement in begin:
            cursor.execute(statement)
        yield cursor
        cursor.execute(end)


@contextmanager
def renaming(database: Database, table: str) -> Iterator[None]:
    """In MySQL and MariaDB, nobody else can even look at the table's definition: a RENAME of two tables has it, and
    waits for the other one, `z`, which a transaction has read. At the end the RENAME is given up."""
    other = "z"
    with closing(database.connect()) as reader, closing(database.connect()) as renamer, reader.cursor() as cursor:
        cursor.execute("START TRANSACTION")
        cursor.execute(f"SELECT * FROM {other}")
        number = renamer.thread_id()

        def rename() -> None:
            with suppress(pymysql.err.MySQLError), renamer.cursor() as statements:  # it is killed
                statements.execute(f"RENAME TABLE `{table}` TO `{table}_away`, {other} TO {other}_away")

        thread = threading.Thread(target=rename)
        thread.start()
        waits = f"SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = {number} AND STATE LIKE 'Waiting for table%'"
        wait_until(lambda: database.query(waits), "the RENAME waits")
        try:
            yield
        finally:
            database.execute(f"KILL QUERY {number}")
            thread.join(timeout=PATIENCE_SECONDS)
            cursor.execute("COMMIT")
