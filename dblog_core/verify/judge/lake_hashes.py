"""Hashed rows of a lake table's data files. A data file never changes, so each is read and hashed once for a table;
the hashes wait on the local disk, by key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.features import TableRefused, check_rows_readable
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.order_guard import Flags
from dblog_core.delta_writer.snapshot import LiveFile, Snapshot
from dblog_core.delta_writer.stored_rows import row_stretches, rows_at
from dblog_core.delta_writer.vectors import read_vector
from dblog_core.errors import LakeError
from dblog_core.model.schema import TableSchema
from dblog_core.schema_evolution.renames import Renames
from dblog_core.storage.location import Location
from dblog_core.verify.judge.bucketed_rows import BucketedRows, Placement, count_parts
from dblog_core.verify.judge.exact_values import MISFITS, hash_values
from dblog_core.verify.judge.hashed_rows import (
    KEY,
    HashedRows,
    Numbers,
    gather_images,
    key_columns,
    key_schema,
)
from dblog_core.verify.judge.lake_columns import LakeColumns

NEVER = -1
"""The offset of a row whose own is missing or impossible: anything that is staged is newer."""

_BITS = 8
_LEAST_ROW = 32  # bytes, of a file that does not say how many rows it has


class LakeHashes:
    """One table's; for one thread at a time."""

    def __init__(
        self,
        table: Location,
        schema: TableSchema,
        placement: Placement,
        check: Callable[[], None] = lambda: None,
        *,
        extra: Mapping[str, pa.DataType] | None = None,
    ) -> None:
        """`schema`: the staged shape that rows are hashed in; `check` is asked now and then, and may raise. `extra`:
        columns of the table that are kept with the hashes, in the types that they have."""
        self._check = check
        self._extra = extra or {}
        self._files = TableFiles.at(table)
        self._schema = schema
        self._key = key_schema(schema)
        self._snapshot: Snapshot | None = None
        self._columns: LakeColumns | None = None
        self._newest = 0
        self._row_counts: dict[str, int] = {}  # by the path of each hashed file, dead rows too
        self.rows = BucketedRows(placement, self._key)
        """All of the hashed files, dead ones too."""

    @property
    def count(self) -> int:
        """How many rows the version has."""
        return sum(self._row_counts[path] for path in self._live) - self._dead_count

    def open(self, version: int, newest: int, renames: Renames | None = None) -> None:
        """Reads and hashes the files of a version that are not read yet; `newest`: the largest offset that any row can
        have, `renames`: those since. Raises LakeError, TableRefused."""
        opened = snapshot.at_version(self._files, version, self._snapshot)
        where = str(self._files)
        check_rows_readable(opened.protocol, opened.metadata, where)
        columns = LakeColumns.of(opened, self._schema, renames or Renames(), where, extra=self._extra)
        if columns != self._columns:  # a column may have another name, or another type, in the same file
            self._row_counts = {}
            self.rows = BucketedRows(self.rows.placement, self._key)
        self._snapshot = opened
        self._columns = columns
        self._newest = newest
        try:
            self._hash_new_files()
            self._mark_dead_rows()
        except TableRefused:
            raise
        except LakeError as error:
            raise LakeError(
                error.message,
                where=error.where,
                fix="if VACUUM has removed the version meanwhile, verify again; otherwise restore or rebuild the table",
            ) from error

    def place(self, placement: Placement) -> None:
        """Has rows where a later placement has them."""
        if placement is not self.rows.placement:
            self.rows = self.rows.move(placement)

    def load(self, bucket: int, part: int = 0, parts: int = 1) -> HashedRows:
        """The version's rows of a bucket, or of one of several parts of it."""
        tables = [no_lake_rows(self._schema, self._extra).rows]
        for rows in self.rows.read(bucket, part, parts):
            self._check()
            rows = rows.filter(pa.array(self._are_alive(np.asarray(rows["file"]), np.asarray(rows["row"]))))
            offsets = np.asarray(rows["offset"])
            possible = np.where((offsets < 0) | (offsets > self._newest), NEVER, offsets)
            tables.append(rows.set_column(rows.schema.get_field_index("offset"), "offset", pa.array(possible)))
        return HashedRows(pa.concat_tables(tables), self._key)

    def parts(self) -> Iterator[HashedRows]:
        """All rows of the version, some keys at a time."""
        for bucket in range(self.rows.placement.count):
            for part in range(count := count_parts(self.rows.size_of(bucket))):
                yield self.load(bucket, part, count)

    def images(self, lake: HashedRows, chosen: Numbers, *, max_bytes: int) -> pa.Table:
        """The columns of these rows of the version that was opened last, in their order, and MISFITS. Raises
        ValuesTooLarge where they have more than `max_bytes`."""
        columns = self._open_columns
        files = lake.array("file")[chosen]
        paths = list(self._row_counts)

        def read(number: int) -> tuple[Numbers, pa.Table]:
            at = np.flatnonzero(files == number)
            numbers = lake.array("row")[chosen[at]]
            live = self._live[paths[number]]
            stored = rows_at(self._files, live, columns.shape, columns.shape.names, numbers, most=max_bytes)
            values, _, misfits = columns.adapt(stored)
            return at, pa.table({**values, MISFITS: pa.array(misfits)})

        parts = map(read, np.unique(files).tolist())
        return gather_images(parts, self._schema, max_bytes=max_bytes, where=str(self._files))

    @property
    def _open_columns(self) -> LakeColumns:
        assert self._columns is not None, "a version is opened first"
        return self._columns

    @property
    def _live(self) -> Mapping[str, LiveFile]:
        return {} if self._snapshot is None else self._snapshot.files

    # Files ----------------------------------------------------------------------------------------------------------

    def _hash_new_files(self) -> None:
        new_files = [live for live in self._live.values() if live.path not in self._row_counts]
        self.rows.extend(chain.from_iterable(map(self._hash_file, new_files)))

    def _hash_file(self, live: LiveFile) -> Iterator[pa.Table]:
        columns = self._open_columns
        number = len(self._row_counts)
        self._row_counts[live.path] = 0
        for first, stored in row_stretches(self._files, live, columns.shape, columns.shape.names):
            self._check()
            values, offsets, misfits = columns.adapt(stored)
            count = len(stored)
            self._row_counts[live.path] += count
            yield pa.table(
                {
                    **key_columns([values[name] for name in self._key.names], self._key),
                    "hash": pa.array(hash_values(values, misfits, self._schema)),
                    "offset": offsets.fill_null(NEVER),
                    "file": pa.array(np.full(count, number, np.int32)),
                    "row": pa.array(np.arange(first, first + count)),
                    **{name: _column(stored, name, kind) for name, kind in self._extra.items()},
                }
            )

    # Rows that are dead ---------------------------------------------------------------------------------------------

    def _mark_dead_rows(self) -> None:
        """Notes by a bit for each row of each file whether it is dead, those of files that are gone too."""
        sizes = [-(-rows // _BITS) for rows in self._row_counts.values()]
        self._starts = np.cumsum([0, *sizes]) * _BITS  # by file the number of its first bit
        self._dead = np.full(sum(sizes), 255, np.uint8)
        self._dead_count = 0
        for number, (path, rows) in enumerate(self._row_counts.items()):
            if (live := self._live.get(path)) is None:
                continue
            dead = np.zeros(rows, np.bool_)
            if live.vector is not None:
                dead[read_vector(self._files, live.vector).rows()] = True
                self._dead_count += int(dead.sum())
            begin = int(self._starts[number]) // _BITS
            packed = np.packbits(dead, bitorder="little")
            self._dead[begin : begin + len(packed)] = packed

    def _are_alive(self, files: npt.NDArray[np.int32], rows: Numbers) -> Flags:
        bits = self._starts[files] + rows
        alive: Flags = (self._dead[bits // _BITS] >> (bits % _BITS).astype(np.uint8) & 1) == 0
        return alive


def no_lake_rows(schema: TableSchema, extra: Mapping[str, pa.DataType] | None = None) -> HashedRows:
    """Those of a table that the lake does not have."""
    key = key_schema(schema)
    numbers = {"hash": pa.int64(), "offset": pa.int64(), "file": pa.int32(), "row": pa.int64(), **(extra or {})}
    keys = [pa.field(KEY + field.name, field.type) for field in key]
    return HashedRows(pa.schema([*keys, *numbers.items()]).empty_table(), key)


def _column(stored: pa.Table, name: str, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """A column as it is; NULL where the table does not have it."""
    return stored[name].cast(kind) if name in stored.column_names else pa.nulls(len(stored), kind)


def estimate_rows(table: Location, version: int) -> int:
    """How many rows a version of a table has, about, from its log alone. Raises LakeError, TableRefused."""
    opened = snapshot.at_version(TableFiles.at(table), version)
    return sum(live.size // _LEAST_ROW if live.rows is None else live.rows for live in opened.files.values())
