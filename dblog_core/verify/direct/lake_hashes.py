"""Hashed rows of a lake table's data files. A data file never changes, so each is read and hashed once for a table;
the hashes wait on the local disk, by key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.features import TableRefused, ValuesTooLarge, check_rows_readable
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.snapshot import LiveFile, Snapshot
from dblog_core.delta_writer.stored_rows import row_stretches, rows_at
from dblog_core.delta_writer.vectors import read_vector
from dblog_core.errors import LakeError
from dblog_core.model.schema import TableSchema
from dblog_core.rows.arrow_hashes import hash_rows
from dblog_core.schema_evolution.renames import Renames
from dblog_core.storage.location import Location
from dblog_core.verify.direct.exact_cast import MISFITS, turn_misfits
from dblog_core.verify.direct.key_buckets import BucketedRows, Placement
from dblog_core.verify.direct.key_numbers import Numbers, key_schema, make_keys
from dblog_core.verify.direct.lake_columns import LakeColumns

NEVER = -1
"""The offset of a row whose own is missing or impossible: anything that is staged is newer."""

_KEY = "key "
_BITS = 8
_LEAST_ROW = 32  # bytes, of a file that does not say how many rows it has
_NO_NUMBERS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class LakeRows:
    """Rows of one version. `files` and `rows`: in which data file each is, and its number there; `beside`: the columns
    that are kept as they are."""

    keys: pa.Table
    hashes: Numbers
    offsets: Numbers
    files: npt.NDArray[np.int32]
    rows: Numbers
    beside: pa.Table = field(default_factory=lambda: pa.table({}))

    def __len__(self) -> int:
        return len(self.hashes)

    @classmethod
    def none(cls, schema: TableSchema) -> LakeRows:
        """Those of a table that the lake does not have."""
        keys = key_schema(schema).empty_table()
        return cls(keys, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS.astype(np.int32), _NO_NUMBERS)

    def where(self, chosen: npt.NDArray[np.bool_]) -> LakeRows:
        """Some of them."""
        if chosen.all():
            return self
        arrays = {name: getattr(self, name)[chosen] for name in ("hashes", "offsets", "files", "rows")}
        mask = pa.array(chosen)
        beside = self.beside.filter(mask) if self.beside.num_columns else self.beside
        return replace(self, keys=self.keys.filter(mask), beside=beside, **arrays)


@dataclass(frozen=True, slots=True)
class _File:
    """A data file that is hashed: its number, and how many rows it has, the dead ones too."""

    number: int
    rows: int


class LakeHashes:
    """One table's; for one thread at a time."""

    def __init__(
        self,
        table: Location,
        schema: TableSchema,
        placement: Placement,
        check: Callable[[], None] = lambda: None,
        *,
        beside: Mapping[str, pa.DataType] | None = None,
    ) -> None:
        """`schema`: the staged shape that rows are hashed in; `check` is asked now and then, and may raise. `beside`:
        columns of the table that are kept with the hashes, in the types that they have."""
        self._check = check
        self._beside = beside or {}
        self._files = TableFiles.at(table)
        self._schema = schema
        self._kind = key_schema(schema)
        self._placement = placement
        self._snapshot: Snapshot | None = None
        self._columns: LakeColumns | None = None
        self._newest = 0
        self._hashed: dict[str, _File] = {}
        self._paths: list[str] = []
        self._rows = BucketedRows(placement, self._keys_of)

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return self._rows.size

    @property
    def count(self) -> int:
        """How many rows the version has."""
        live = (self._hashed[path] for path in self._live)
        return sum(file.rows for file in live) - self._dead_count

    def open(self, version: int, newest: int, renames: Renames | None = None) -> None:
        """Reads and hashes the files of a version that are not read yet; `newest`: the largest offset that any row can
        have, `renames`: those since. Raises LakeError, TableRefused."""
        opened = snapshot.at_version(self._files, version, self._snapshot)
        where = str(self._files)
        check_rows_readable(opened.protocol, opened.metadata, where)
        columns = LakeColumns.of(opened, self._schema, renames or Renames(), where, beside=self._beside)
        if columns != self._columns:
            self._forget()  # a column may have another name, or another type, in the same file
        self._snapshot = opened
        self._columns = columns
        self._newest = newest
        try:
            self._hash_new()
            self._mark_dead()
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
        if placement is not self._placement:
            self._rows = self._rows.move(placement)
            self._placement = placement

    def rows_of(self, bucket: int) -> tuple[int, int]:
        """How many rows a bucket has at most, and their bytes in memory."""
        pieces = self._rows.pieces(bucket)
        return sum(piece.rows for piece in pieces), sum(piece.nbytes for piece in pieces)

    def load(self, bucket: int, part: int = 0, parts: int = 1) -> LakeRows:
        """The version's rows of a bucket, or of one of several parts of it."""
        tables = []
        for rows in self._rows.read(bucket, part, parts):
            self._check()
            tables.append(rows.filter(pa.array(self._are_alive(np.asarray(rows["file"]), np.asarray(rows["row"])))))
        if not tables:
            no_values = pa.schema(list(self._beside.items())).empty_table()
            return replace(LakeRows.none(self._schema), beside=no_values)
        whole = pa.concat_tables(tables).combine_chunks()
        offsets = np.asarray(whole["offset"])
        return LakeRows(
            self._keys_of(whole),
            np.asarray(whole["hash"]),
            np.where((offsets < 0) | (offsets > self._newest), NEVER, offsets),
            np.asarray(whole["file"]),
            np.asarray(whole["row"]),
            whole.select(list(self._beside)),
        )

    def images(self, lake: LakeRows, chosen: Numbers, *, most: int) -> pa.Table:
        """The columns of these rows of the version that was opened last, in their order, and MISFITS. Raises
        ValuesTooLarge where they have more than `most` bytes."""
        columns = self._open_columns
        shape = self._schema.arrow.append(pa.field(MISFITS, pa.bool_()))
        parts = [shape.empty_table()]
        places = [_NO_NUMBERS]
        size = 0
        for number in np.unique(lake.files[chosen]).tolist():
            at = np.flatnonzero(lake.files[chosen] == number)
            live = self._live[self._paths[number]]
            stored = rows_at(self._files, live, columns.shape, columns.stored_names, lake.rows[chosen[at]], most=most)
            size += stored.nbytes
            if size > most:
                raise ValuesTooLarge("rows of the lake have too large values", where=str(self._files))
            values, _, misfits = columns.adapt(stored)
            parts.append(pa.table({**values, MISFITS: pa.array(misfits)}, schema=shape))
            places.append(at)
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_tables(parts).take(pa.array(order))

    @property
    def _open_columns(self) -> LakeColumns:
        assert self._columns is not None, "a version is opened first"
        return self._columns

    @property
    def _live(self) -> Mapping[str, LiveFile]:
        return {} if self._snapshot is None else self._snapshot.files

    # Files ----------------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._hashed = {}
        self._paths = []
        self._rows = BucketedRows(self._placement, self._keys_of)

    def _hash_new(self) -> None:
        sorter = self._rows.sorter()
        hashed = dict(self._hashed)
        paths = list(self._paths)
        for live in self._live.values():
            if live.path not in hashed:
                rows = 0
                for part in self._hashed_rows(live, len(paths)):
                    sorter.add(part)
                    rows += len(part)
                hashed[live.path] = _File(len(paths), rows)
                paths.append(live.path)
        sorter.finish()
        self._hashed = hashed
        self._paths = paths

    def _hashed_rows(self, live: LiveFile, number: int) -> Iterator[pa.Table]:
        columns = self._open_columns
        for first, stored in row_stretches(self._files, live, columns.shape, columns.stored_names):
            self._check()
            values, offsets, misfits = columns.adapt(stored)
            hashes = hash_rows(values, self._schema)
            turn_misfits(hashes, misfits)
            count = len(stored)
            keys = make_keys([values[name] for name in self._kind.names], self._kind)
            yield pa.table(
                {
                    **{_KEY + name: keys[name] for name in self._kind.names},
                    "hash": pa.array(hashes),
                    "offset": offsets.fill_null(NEVER),
                    "file": pa.array(np.full(count, number, np.int32)),
                    "row": pa.array(np.arange(first, first + count)),
                    **{name: _column(stored, name, kind) for name, kind in self._beside.items()},
                }
            )

    def _keys_of(self, rows: pa.Table) -> pa.Table:
        return pa.table([rows[_KEY + name] for name in self._kind.names], schema=self._kind)

    # Rows that are dead ---------------------------------------------------------------------------------------------

    def _mark_dead(self) -> None:
        """Notes by a bit for each row of each file whether it is dead, those of files that are gone too."""
        sizes = [0] * len(self._paths)
        for file in self._hashed.values():
            sizes[file.number] = -(-file.rows // _BITS)
        self._starts = np.cumsum([0, *sizes]) * _BITS  # by file the number of its first bit
        self._dead = np.full(int(sum(sizes)), 255, np.uint8)
        self._dead_count = 0
        for path, live in self._live.items():
            file = self._hashed[path]
            dead = np.zeros(file.rows, np.bool_)
            if live.vector is not None:
                rows = read_vector(self._files, live.vector).rows()
                dead[rows] = True
                self._dead_count += int(dead.sum())
            begin = int(self._starts[file.number]) // _BITS
            packed = np.packbits(dead, bitorder="little")
            self._dead[begin : begin + len(packed)] = packed

    def _are_alive(self, files: npt.NDArray[np.int32], rows: Numbers) -> npt.NDArray[np.bool_]:
        bits = self._starts[files] + rows
        alive: npt.NDArray[np.bool_] = (self._dead[bits // _BITS] >> (bits % _BITS).astype(np.uint8) & 1) == 0
        return alive


def _column(stored: pa.Table, name: str, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """A column as it is; NULL where the table does not have it."""
    return stored[name].cast(kind) if name in stored.column_names else pa.nulls(len(stored), kind)


def estimate_rows(table: Location, version: int) -> int:
    """How many rows a version of a table has, about, from its log alone. Raises LakeError, TableRefused."""
    opened = snapshot.at_version(TableFiles.at(table), version)
    return sum(live.size // _LEAST_ROW if live.rows is None else live.rows for live in opened.files.values())
