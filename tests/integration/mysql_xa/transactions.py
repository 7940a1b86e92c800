"""XA transactions that a test prepares and ends, and what the log says of their rows."""

from __future__ import annotations

import time
from typing import Any

from dblog_core.model.events import LogBatch
from tests.fix_servers import Database
from tests.integration.mysql_source.log_rows import changes, execute
from tests.waiting import PATIENCE_SECONDS


class Ids:
    """Transaction ids of one test: the server's are shared by all databases."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def prepare(self, xid: str, *statements: str) -> str:
        """Prepares an XA transaction of these statements in a session that then ends; returns its id for the server."""
        full = self.of(xid)
        execute(self._database, f"XA START {full}", *statements, f"XA END {full}", f"XA PREPARE {full}")
        return full

    def of(self, xid: str) -> str:
        return f"'{self._database.name}','{xid}',7"

    def commit(self, xid: str) -> None:
        finish(self._database, f"XA COMMIT {self.of(xid)}")

    def rollback(self, xid: str) -> None:
        finish(self._database, f"XA ROLLBACK {self.of(xid)}")


def finish(database: Database, statement: str) -> None:
    """Runs the second phase, as soon as the session that has prepared it is gone."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            execute(database, statement)
            return
        except Exception as error:
            if error.args[0] == 1402:  # MariaDB's word for an empty one that is rolled back
                return
            if error.args[0] not in (1397, 1399) or time.monotonic() > deadline:
                raise


def ops_and_ids(batches: list[LogBatch]) -> list[Any]:
    """Op and id of each change, in order."""
    return [(row["op"], (row["after"] or row["before"])["id"]) for row in changes(batches)]


def owners(log_batches: list[LogBatch]) -> list[tuple[Any, str]]:
    """Id of each changed row, and the id of its transaction."""
    rows = []
    for batch in log_batches:
        of_batch = [row for change in batch.changes for row in change.batch.to_pylist()]
        of_batch.sort(key=lambda row: row["sequence"])
        rows += [(row["after"]["id"], batch.transactions[row["transaction"]].id) for row in of_batch]
    return rows
