"""A table that somebody keeps locked waits for its dump alone: the capture begins, and brings all others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.dumps import dump_store
from tests.fix_servers import Database
from tests.integration.test_read_only import capturing
from tests.waiting import wait_until


@contextmanager
def locked(database: Database, table: str) -> Iterator[None]:
    """Nobody else can read the table."""
    postgres = ("BEGIN", f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"), "COMMIT"
    begin, end = postgres if database.kind == "postgres" else ((f"LOCK TABLES {table} WRITE",), "UNLOCK TABLES")
    with closing(database.connect()) as holder, holder.cursor() as cursor:
        for statement in begin:
            cursor.execute(statement)
        yield
        cursor.execute(end)


@pytest.mark.in_turn
def test_a_locked_table_that_is_to_be_dumped_keeps_no_other_from_its_capture(
    database: Database, tmp_path: Path
) -> None:
    """It was not captured before, and is dumped as a capture of both begins."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    database.execute("INSERT INTO b VALUES (7)")
    of_one = database.config(tmp_path, source={"tables": [f"{database.schema}.a"]})
    run_capture(of_one, stop=threading.Event(), until_current=True)
    config = database.config(tmp_path)
    staging = wiring.open_staging(config)
    with closing(wiring.open_state(config)) as state:

        def has_dumped(table: str) -> bool:
            return any(chunk.table.endswith(f".{table}") for m in staging.manifests() for chunk in m.chunks)

        def has_staged_row_of_a() -> bool:
            return any(file.table.endswith(".a") for manifest in staging.manifests() for file in manifest.files)

        with ExitStack() as lock:
            lock.enter_context(locked(database, "b"))
            with capturing(config):
                database.execute("INSERT INTO a VALUES (1)")
                wait_until(has_staged_row_of_a, "a row of the other table is staged")
                assert not has_dumped("b")
                lock.close()
                wait_until(lambda: has_dumped("b"), "the table is dumped once it is free")
                wait_until(lambda: all(d.state == "done" for d in dump_store.list_dumps(state)), "the dumps are done")
