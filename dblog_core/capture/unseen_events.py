"""What the log said before a restart, from staged segments: PostgreSQL's memory of events that a SELECT may miss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import pyarrow as pa

from dblog_core.capture.row_changes import ChangeTouches, runs
from dblog_core.model.events import TRUNCATE
from dblog_core.model.schema import TableName
from dblog_core.staging import Staging
from dblog_core.staging.manifest import DataFile, Manifest


@dataclass(frozen=True, slots=True)
class Event:
    """Row events of one transaction on one table, the first and last of them at `offsets`; no touches: a TRUNCATE."""

    table: TableName
    offsets: tuple[int, int]
    xid: int
    touches: ChangeTouches | None


def read_events(staging: Staging, head: Manifest) -> Iterator[Event]:
    """The log's events after `head.unseen_after`, in log order over each table. Raises CorruptSegment."""
    after = head.last_offset if head.unseen_after is None else head.unseen_after
    if after >= head.last_offset:
        return
    segments = staging.manifests(staging.segment_of(after + 1, head) - 1)
    for manifest in takewhile(lambda m: m.segment <= head.segment, segments):
        log_events = [e for f in manifest.files if f.last_offset > after for e in _read_file(staging, f, after)]
        log_events += [
            Event(TableName.parse(m.table), (m.offset, m.offset), int(m.transaction or 0), None)
            for m in manifest.marks
            if m.op == TRUNCATE and m.offset > after
        ]
        yield from sorted(log_events, key=lambda event: event.offsets)


def _read_file(staging: Staging, file: DataFile, after: int) -> Iterator[Event]:
    schema = staging.schema(file.schema)
    # A table without a key has no chunks that its rows could concern.
    if not schema.key:
        return
    columns = ["offset", "op", "origin", "transaction", "unchanged", "moved_from", "before", "after"]
    batches = list(staging.log_batches(file, columns=columns, after=after))
    if batches:  # as one: a change of key is two rows that must stay together
        (rows,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
        yield from _split_by_transaction(rows, schema.table, schema.key)


def _split_by_transaction(rows: pa.RecordBatch, table: TableName, key: tuple[str, ...]) -> Iterator[Event]:
    transaction = rows.column("transaction")  # null: a row of a dump
    for start, end in runs(np.asarray(transaction.fill_null("").to_pylist(), dtype=object)):
        if (xid := transaction[start].as_py()) is not None:
            part = rows.slice(start, end - start)
            first, last = (part.column("offset")[i].as_py() for i in (0, end - start - 1))
            yield Event(table, (first, last), int(xid), ChangeTouches(part, part.column("moved_from"), key))
