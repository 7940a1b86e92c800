"""Lake and log of one table, hashed and apart by key, and the sides of a task in parts that have room in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from dblog_core.storage.location import Location
from dblog_core.verify.direct.key_buckets import BucketedRows, Placement
from dblog_core.verify.direct.key_numbers import key_schema, make_keys
from dblog_core.verify.direct.lake_hashes import LakeHashes, LakeRows, estimate_rows
from dblog_core.verify.direct.sides import Sides
from dblog_core.verify.direct.staged_hashes import StagedHashes
from dblog_core.verify.exchange import Task

PART_ROWS = 500_000
PART_BYTES = 64 << 20
"""Of the lake, the log and the source together that are in memory at once."""

ROW = "number of the row"
"""What stands for a row of the source."""


class ComparedTable:
    """Kept from one task to the next; `lock`: held by who uses it."""

    def __init__(
        self,
        staging: Staging,
        table: Location,
        schema: TableSchema,
        *,
        rows: int,
        version: int | None,
        check: Callable[[], None],
    ) -> None:
        """`rows`: of the source, as far as they are known; `version`: of the lake (None: it has no such table); `check`
        is asked now and then, and may raise."""
        self.lock = threading.Lock()
        self._staging = staging
        self._kind = key_schema(schema)
        if version is not None:
            rows = max(rows, estimate_rows(table, version))
        placement = Placement.for_rows(rows)
        self.lake = LakeHashes(table, schema, placement, check)
        self.staged = StagedHashes(staging, schema, placement, check)
        self._schema = schema

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return self.lake.size + self.staged.size

    def read_ahead(self, task: Task) -> None:
        """Reads and hashes lake and log up to their ends, for tasks like this one."""
        head = self._staging.head()
        if task.pin is not None and head is not None:
            self.staged.read_on(task.pin.offset, head.last_offset)
        self.open_lake(task)

    def open_lake(self, task: Task) -> None:
        """Has the lake's rows at hand."""
        if task.pin is not None:
            self.lake.open(task.pin.version, task.pin.newest, self.staged.renames.after(task.pin.offset))
            self.lake.place(self.staged.placement)

    def sort_source(self, rows: Iterable[tuple[pa.Table, pa.Array]], name: str) -> BucketedRows:
        """Keys of the source, each with a value beside it, in a column of that name."""
        sorted_rows = BucketedRows(self.staged.placement, lambda table: table.select(self._kind.names))
        sorter = sorted_rows.sorter()
        for keys, beside in rows:
            typed_keys = make_keys([keys[column] for column in self._kind.names], self._kind)
            sorter.add(typed_keys.append_column(name, beside))
        sorter.finish()
        return sorted_rows

    def read_on(self, task: Task) -> None:
        """Has lake and log at hand, up to the end of the task's stretch."""
        self.staged.read_on(_first_offset(task), task.upto)
        self.open_lake(task)

    def parts(self, task: Task, source: BucketedRows, name: str, kind: pa.DataType) -> Iterator[Sides]:
        """The sides of a task, some keys at a time. `source`: from `sort_source`, its column `name` of type `kind`."""
        merged = 0 if task.pin is None else task.pin.offset
        nothing = pa.schema([*self._kind, pa.field(name, kind)]).empty_table()
        for bucket in range(self.staged.placement.count):
            if task.for_chosen_keys and not source.pieces(bucket):
                continue
            pieces = source.pieces(bucket)
            size = sum(piece.rows for piece in pieces), sum(piece.nbytes for piece in pieces)
            count = count_parts(size, self.staged.rows_of(bucket), self._lake_rows_of(task, bucket))
            for part in range(count):
                requested = pa.concat_tables([nothing, *source.read(bucket, part, count)]).combine_chunks()
                if task.for_chosen_keys and not len(requested):
                    continue
                lake = self._load_lake(task, bucket, part, count)
                events, left_out = self.staged.load(
                    bucket, part, count, after=_first_offset(task), upto=task.upto, settled=task.since, merged=merged
                )
                yield Sides.of(task, self.lake, self.staged, lake, events, requested, left_out)

    def lake_parts(self, task: Task) -> Iterator[LakeRows]:
        """The rows of the pinned version, some keys at a time."""
        for bucket in range(self.staged.placement.count if task.pin is not None else 0):
            count = count_parts(self.lake.rows_of(bucket))
            for part in range(count):
                yield self.lake.load(bucket, part, count)

    def _lake_rows_of(self, task: Task, bucket: int) -> tuple[int, int]:
        return (0, 0) if task.pin is None else self.lake.rows_of(bucket)

    def _load_lake(self, task: Task, bucket: int, part: int, count: int) -> LakeRows:
        return LakeRows.none(self._schema) if task.pin is None else self.lake.load(bucket, part, count)


def _first_offset(task: Task) -> int:
    """The offset after which a task is about the log."""
    return task.since if task.pin is None else min(task.pin.offset, task.since)


def count_parts(*sizes: tuple[int, int]) -> int:
    """In how many parts so many rows and bytes are compared."""
    rows, nbytes = (int(total) for total in np.sum(sizes, axis=0))
    return max(1, -(-rows // PART_ROWS), -(-nbytes // PART_BYTES))
