"""PostgreSQL's log as tests read it: to an end, and as rows."""

from __future__ import annotations

import time
from typing import Any

from dblog_core.model.events import LogBatch, Truncated
from dblog_core.sources.postgres.source import PostgresSource
from tests.waiting import PATIENCE_SECONDS


def read_to(source: PostgresSource, log: Any, target: str) -> list[LogBatch]:
    batches: list[LogBatch] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (batches and source.has_reached(batches[-1].position, target) and not batches[-1].partial):
        assert time.monotonic() < deadline, "the log did not come to its end"
        batch = log.read(0.5)
        if batch is not None:
            batches.append(batch)
    return batches


def lines(batches: list[LogBatch]) -> list[dict[str, Any]]:
    """Rows and truncations in log order."""
    row_lines = []
    for number, batch in enumerate(batches):
        for changes in batch.changes:
            for row in changes.batch.to_pylist():
                transaction = batch.transactions[row["transaction"]]
                row_lines.append(
                    {
                        **row,
                        "place": (number, row["sequence"]),
                        "table": str(changes.schema.table),
                        "xid": transaction.xid,
                    }
                )
        row_lines += [
            {"op": "t", "place": (number, signal.sequence), "table": str(signal.table)}
            for signal in batch.signals
            if isinstance(signal, Truncated)
        ]
    return sorted(row_lines, key=lambda line: line["place"])


def begin(source: PostgresSource) -> str:
    source.prepare()
    return source.start_position()
