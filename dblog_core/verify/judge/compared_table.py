"""Lake and log of one table, hashed and apart by key, and the sides of a comparison in parts that fit into memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from dblog_core.storage.location import Location
from dblog_core.verify.judge.bucketed_rows import BucketedRows, Placement, count_parts
from dblog_core.verify.judge.comparison import Comparison
from dblog_core.verify.judge.hashed_rows import KEY, HashedRows, key_columns, key_schema
from dblog_core.verify.judge.lake_hashes import LakeHashes, estimate_rows, no_lake_rows
from dblog_core.verify.judge.sides import Sides
from dblog_core.verify.judge.staged_hashes import StagedHashes
from dblog_core.verify.pinned_version import Pin

SOURCE_VALUE = "value"
"""The column that a row of the source has next to its key: its hash, or its number among the rows that were read."""


class ComparedTable:
    """Kept from one comparison to the next, for one user at a time."""

    def __init__(
        self,
        staging: Staging,
        table: Location,
        schema: TableSchema,
        *,
        rows: int,
        pin: Pin | None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`rows`: of the source, as far as they are known; `pin` None: the lake has no such table; `check` is asked now
        and then, and may raise."""
        self._lock = threading.Lock()
        self._staging = staging
        self._table = table
        self._schema = schema
        self._key = key_schema(schema)
        self._check = check
        self._placement = Placement.for_rows(max(rows, 0 if pin is None else estimate_rows(table, pin.version)))
        self._begin()

    def _begin(self) -> None:
        self.lake = LakeHashes(self._table, self._schema, self._placement, self._check)
        self.staged = StagedHashes(self._staging, self._schema, self._placement, self._check)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Held by who uses it. A fault may come while something is read in part: all is read again then."""
        with self._lock:
            try:
                yield
            except BaseException:
                self._begin()
                raise

    def read_ahead(self, pin: Pin) -> None:
        """Reads and hashes lake and log up to their ends."""
        if (head := self._staging.head()) is not None:
            self.staged.read_on(pin.offset, head.last_offset)
        self.open_lake(pin)

    def open_lake(self, pin: Pin | None) -> None:
        """Has the lake's rows at hand."""
        if pin is not None:
            self.lake.open(pin.version, pin.newest, self.staged.renames.after(pin.offset))
            self.lake.place(self.staged.events.placement)

    def read_on(self, comparison: Comparison) -> None:
        """Has lake and log at hand, up to the end of the comparison's stretch."""
        self.staged.read_on(comparison.first_offset, comparison.upto)
        self.open_lake(comparison.pin)

    def sort_source(self, rows: Iterable[tuple[pa.Table, pa.Array | pa.ChunkedArray]]) -> BucketedRows:
        """Keys of the source, each with a number, by bucket."""
        sorted_rows = BucketedRows(self.staged.events.placement, self._key)
        sorted_rows.extend(
            pa.table({**key_columns([keys[name] for name in self._key.names], self._key), SOURCE_VALUE: numbers})
            for keys, numbers in rows
        )
        return sorted_rows

    def parts(self, comparison: Comparison, source: BucketedRows) -> Iterator[Sides]:
        """The sides of a comparison, some keys at a time. `source`: from `sort_source`."""
        key_fields = [pa.field(KEY + field.name, field.type) for field in self._key]
        nothing = pa.schema([*key_fields, pa.field(SOURCE_VALUE, pa.int64())]).empty_table()
        for bucket in range(self.staged.events.placement.count):
            if comparison.for_chosen_keys and not source.size_of(bucket)[0]:
                continue
            lake_size = (0, 0) if comparison.pin is None else self.lake.rows.size_of(bucket)
            count = count_parts(source.size_of(bucket), self.staged.events.size_of(bucket), lake_size)
            for part in range(count):
                self._check()
                source_rows = HashedRows(pa.concat_tables([nothing, *source.read(bucket, part, count)]), self._key)
                if comparison.for_chosen_keys and not len(source_rows):
                    continue
                lake = no_lake_rows(self._schema) if comparison.pin is None else self.lake.load(bucket, part, count)
                events = self.staged.load(
                    bucket, part, count, after=comparison.first_offset, upto=comparison.upto, settled=comparison.since
                )
                yield Sides(comparison, self.lake, self.staged, lake, events, source_rows)
