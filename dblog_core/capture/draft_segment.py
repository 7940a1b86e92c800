"""The segment that is being made: it gives each row, mark and chunk the next offset, and gathers them until its end."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dblog_core.model.events import Transaction
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.staging.manifest import ChunkRef, LogMark, Probed
from dblog_core.staging.segment import SegmentWriter


class DraftSegment:
    """One segment from `first_offset` on. What is added is in memory, or in files that no manifest names yet."""

    def __init__(self, number: int, first_offset: int, writer: SegmentWriter) -> None:
        self.number = number
        self.first_offset = first_offset
        self.next_offset = first_offset
        self.writer = writer
        self.chunks: list[ChunkRef] = []
        self.marks: list[LogMark] = []
        self.probes: list[Probed] = []

    @property
    def last_offset(self) -> int:
        """The newest offset that is given away."""
        return self.next_offset - 1

    def take_offsets(self, count: int) -> int:
        """The first of so many offsets in a row, which are given away by that."""
        first = self.next_offset
        self.next_offset += count
        return first

    def add_rows(self, schema: TableSchema, batch: pa.RecordBatch) -> None:
        """Rows of a table version with the columns of a log file; their offsets are taken already."""
        self.writer.add(schema, batch)

    def add_mark(self, op: str, table: TableName, at: Transaction, **more: Any) -> int:
        """Adds a line that is no row (`LogMark`), at that place in the log; its offset."""
        offset = self.take_offsets(1)
        self.marks.append(
            LogMark(offset=offset, op=op, table=str(table), position=at.position, commit_time=at.commit_time, **more)
        )
        return offset
