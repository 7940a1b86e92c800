"""Hashed rows of a lake table's data files. A data file never changes, so each is read and hashed once for a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.features import TableRefused, check_rows_readable
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.shape import Shape, shape_of
from dblog_core.delta_writer.snapshot import LiveFile, Snapshot
from dblog_core.delta_writer.stored_rows import row_stretches, rows_at
from dblog_core.delta_writer.vectors import read_vector
from dblog_core.errors import LakeError
from dblog_core.model.schema import TableSchema
from dblog_core.rows.arrow_hashes import hash_rows
from dblog_core.storage.location import Location
from dblog_core.verify.direct.key_numbers import Numbers
from dblog_core.verify.direct.not_direct import NotDirect

NEVER = -1
"""The offset of a row whose own is missing or impossible: anything that is staged is newer."""

MAX_ROWS = 3_000_000
MAX_BYTES = 1 << 30
"""Of a table's data files; beyond these Spark's executors hash it."""

_OFFSET = "_dblog_offset"


@dataclass(frozen=True, slots=True)
class HashedFile:
    """All rows of a data file in their order, the dead ones too: keys, hashes, offsets."""

    keys: pa.Table
    hashes: Numbers
    offsets: Numbers


@dataclass(frozen=True, slots=True)
class LakeRows:
    """The rows of one version. `files` and `rows`: in which of its `paths` each stands, and its number there."""

    keys: pa.Table
    hashes: Numbers
    offsets: Numbers
    files: npt.NDArray[np.int32]
    rows: Numbers
    paths: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.hashes)

    @classmethod
    def none(cls, schema: TableSchema) -> LakeRows:
        """Those of a table that the lake does not have."""
        keys = pa.schema([pa.field(c.name, c.type) for c in schema.key_columns]).empty_table()
        numbers = np.empty(0, np.int64)
        return cls(keys, numbers, numbers, numbers.astype(np.int32), numbers)

    def where(self, chosen: npt.NDArray[np.bool_]) -> LakeRows:
        """Some of them."""
        if chosen.all():
            return self
        arrays = {name: getattr(self, name)[chosen] for name in ("hashes", "offsets", "files", "rows")}
        return replace(self, keys=self.keys.filter(pa.array(chosen)), **arrays)


class LakeHashes:
    """One table's; for one thread at a time."""

    def __init__(self, table: Location, schema: TableSchema, check: Callable[[], None] = lambda: None) -> None:
        """`schema`: the staged shape that rows are hashed in; `check` is asked now and then, and may raise."""
        self._check = check
        self._files = TableFiles.at(table)
        self._schema = schema
        self._hashed: dict[str, HashedFile] = {}
        self._snapshot: Snapshot | None = None

    @property
    def memory(self) -> int:
        """Bytes, about."""
        files = list(self._hashed.values())  # another thread may add one
        return sum(file.keys.nbytes + 16 * len(file.hashes) for file in files)

    def rows_of(self, version: int, newest: int) -> LakeRows:
        """The rows of a version; `newest`: the largest offset that any of them can have.

        Raises NotDirect or TableRefused where Spark must read it, LakeError where nobody can.
        """
        shape = self._open(version)
        live_files = self._live
        try:
            self._hash_new(live_files, shape)
        except TableRefused:
            raise
        except LakeError as error:
            raise LakeError(
                error.message,
                where=error.where,
                fix="if VACUUM has removed the version meanwhile, verify again; otherwise restore or rebuild the table",
            ) from error
        keys: list[pa.Table] = []
        hashes = [np.empty(0, np.int64)]
        offsets = [np.empty(0, np.int64)]
        files = [np.empty(0, np.int32)]
        rows = [np.empty(0, np.int64)]
        for number, live in enumerate(live_files.values()):
            file = self._hashed[live.path]
            alive = self._alive_rows(live, len(file.hashes))
            keys.append(file.keys.take(alive) if len(alive) < len(file.hashes) else file.keys)
            hashes.append(file.hashes[alive])
            offsets.append(file.offsets[alive])
            files.append(np.full(len(alive), number, np.int32))
            rows.append(alive)
        row_offsets = np.concatenate(offsets)
        return LakeRows(
            pa.concat_tables([self._no_keys, *keys]),
            np.concatenate(hashes),
            np.where((row_offsets < 0) | (row_offsets > newest), NEVER, row_offsets),
            np.concatenate(files),
            np.concatenate(rows),
            tuple(live_files),
        )

    def images(self, lake: LakeRows, chosen: Numbers) -> pa.Table:
        """All columns of these rows of a version that was read last, in their order."""
        shape = self._open_shape
        names = [column.name for column in self._schema.columns]
        parts = [self._no_rows]
        places = [np.empty(0, np.int64)]
        for number in np.unique(lake.files[chosen]).tolist():
            at = np.flatnonzero(lake.files[chosen] == number)
            live = self._live[lake.paths[number]]
            parts.append(rows_at(self._files, live, shape, names, lake.rows[chosen[at]]).select(names))
            places.append(at)
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_tables(parts).take(pa.array(order))

    def _open(self, version: int) -> Shape:
        opened = snapshot.at_version(self._files, version, self._snapshot)
        where = str(self._files)
        check_rows_readable(opened.protocol, opened.metadata, where)
        shape = shape_of(opened.metadata, where)
        self._check_columns(shape)
        if self._snapshot is not None and self._snapshot.metadata != opened.metadata:
            self._hashed = {}  # a column may have another name in the same file
        self._snapshot = opened
        self._open_shape = shape
        rows = [live.rows for live in opened.files.values()]
        size = sum(live.size for live in opened.files.values())
        if None in rows or sum(count or 0 for count in rows) > MAX_ROWS or size > MAX_BYTES:
            raise NotDirect(f"its lake copy has more than {MAX_ROWS:,} rows, or than {MAX_BYTES >> 20} MiB")
        return shape

    def _check_columns(self, shape: Shape) -> None:
        types = {column.name: column.type for column in shape}
        for column in self._schema.columns:
            # What is wider by now, or not there yet, Spark casts and fills in.
            if types.get(column.name) != column.type:
                raise NotDirect(f"column {column.name} is {types.get(column.name)} in the lake, not {column.type}")
        if types.get(_OFFSET) != pa.int64():
            raise NotDirect(f"the lake table has no column {_OFFSET}")

    @property
    def _live(self) -> Mapping[str, LiveFile]:
        assert self._snapshot is not None
        return self._snapshot.files

    def _hash_new(self, live_files: Mapping[str, LiveFile], shape: Shape) -> None:
        self._hashed = {path: file for path, file in self._hashed.items() if path in live_files}
        for live in live_files.values():
            if live.path not in self._hashed:
                self._hashed[live.path] = self._hash_file(live, shape)

    def _hash_file(self, live: LiveFile, shape: Shape) -> HashedFile:
        names = [*(column.name for column in self._schema.columns), _OFFSET]
        keys = [self._no_keys]
        hashes = [np.empty(0, np.int64)]
        offsets = [np.empty(0, np.int64)]
        for _, rows in row_stretches(self._files, live, shape, names):
            self._check()
            whole = rows.combine_chunks()
            columns = {name: _array(whole[name]) for name in whole.column_names}
            hashes.append(hash_rows(columns, self._schema))
            offsets.append(np.asarray(columns[_OFFSET].fill_null(NEVER)))
            keys.append(whole.select(list(self._schema.key)))
        return HashedFile(pa.concat_tables(keys).combine_chunks(), np.concatenate(hashes), np.concatenate(offsets))

    def _alive_rows(self, live: LiveFile, count: int) -> Numbers:
        alive = np.ones(count, np.bool_)
        if live.vector is not None:
            alive[read_vector(self._files, live.vector).rows()] = False
        return np.flatnonzero(alive)

    @property
    def _no_keys(self) -> pa.Table:
        return pa.schema([pa.field(c.name, c.type) for c in self._schema.key_columns]).empty_table()

    @property
    def _no_rows(self) -> pa.Table:
        return pa.schema([pa.field(c.name, c.type) for c in self._schema.columns]).empty_table()


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])
