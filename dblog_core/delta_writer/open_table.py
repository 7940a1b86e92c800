"""A table that is open for writing: its log, its vectors and the index of its keys."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Unpack

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.bitmaps import RowSet
from dblog_core.delta_writer.data_file import StoredFile
from dblog_core.delta_writer.keys import key_index, key_runs
from dblog_core.delta_writer.keys.key_index import KeyIndex
from dblog_core.delta_writer.keys.key_runs import IndexDamaged
from dblog_core.delta_writer.order_guard import Hits
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.stored_rows import row_stretches
from dblog_core.delta_writer.table_log import Options, TableLog
from dblog_core.delta_writer.vectors import read_vector, unique_id, vector_file
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.storage.location import Location

log = logging.getLogger(__name__)

_MUCH = 32 << 20
"""Bytes of data files. To read the keys of more of them takes a second and more, and half a gigabyte for a table of
10,000,000 rows."""
_MUCH_AT_ONCE = threading.Semaphore(2)
"""Tables of which so much is read at the same time, in the process. Others do not wait for them."""
Between = tuple[int, int]
"""The lowest and the highest value of a key's first column."""


class OpenTable(TableLog):
    """A table whose rows are looked up by their keys."""

    def __init__(
        self,
        table: Location,
        keys: Sequence[str],
        *,
        order: str,
        index: Path | None = None,
        index_memory: int = key_index.MEMORY,
        only_grows: bool = False,
        **options: Unpack[Options],
    ) -> None:
        """`keys`: the key's columns; `order`: the column that tells which of two rows is newer; `only_grows`: others
        append rows, and here files alone are written again; `index`: a directory of this machine for the index, of
        which `index_memory` bytes stay in memory; the others: as for `TableLog`."""
        super().__init__(table, **options)
        self.keys = tuple(keys)
        self.order = order
        self._only_grows = only_grows
        self._directory = index
        self._index_memory = index_memory
        self._index: KeyIndex | None = None
        self.vectors: dict[str, tuple[str | None, RowSet]] = {}
        self._ends: dict[str, tuple[str | None, Between | None]] = {}
        self.rewritten_bytes = 0
        """Of all vectors, and copies of files, that changes have had written; never falls."""

    def shape(self) -> Shape:
        """The table's shape as of the last look. Raises TableRefused."""
        return self.snapshot.shape(str(self.files), only_grows=self._only_grows)

    def refresh(self) -> Shape:
        """Reads what others have committed; the table's shape now. Raises TableRefused."""
        self.look()
        return self.check_shape()

    def check_shape(self) -> Shape:
        """The table's shape as of the last look. Raises TableRefused, and LakeError where a column is missing that it
        takes to write the table."""
        shape = self.shape()
        if missing := {*self.keys, self.order} - set(shape.names):
            raise LakeError(
                f"the table no longer has the column {', '.join(sorted(missing))}, which identifies its rows",
                where=str(self.files),
                fix="give it the column again, or run `dblog reset` for the table: it is built again",
            )
        # Vectors of files that are no longer in the table would stay in memory for good.
        live = self.snapshot.files
        self.vectors = {path: cached for path, cached in self.vectors.items() if path in live}
        self._ends = {path: ends for path, ends in self._ends.items() if path in live}
        return shape

    def take_index(self, index: KeyIndex) -> None:
        """Has an index for the look-ups that come: of the keys alone that this process looks for."""
        self._index = index

    def stored_keys(self, shape: Shape) -> tuple[str, ...]:
        """The key's columns as files name them: a name may become that of another column."""
        return tuple(shape[name].physical for name in self.keys)

    def dead_rows(self, live: LiveFile) -> RowSet:
        """The rows that the file's vector marks."""
        if live.vector is None:
            return RowSet()
        name = unique_id(live.vector)
        cached = self.vectors.get(live.path)
        if cached is None or cached[0] != name:
            cached = self.vectors[live.path] = name, read_vector(self.files, live.vector)
        return cached[1]

    def store_vectors(self, vectors: Mapping[str, RowSet]) -> tuple[dict[str, Json], int]:
        """Writes one file with all these vectors, of which none is empty; their descriptors by the same names, and the
        bytes of the file."""
        if not vectors:
            return {}, 0
        file = vector_file([*vectors.values()], self.new_id())
        self.files.create_new(file.name, file.data)
        return dict(zip(vectors, file.descriptors, strict=True)), len(file.data)

    def index_file(self, file: StoredFile, shape: Shape) -> None:
        """Takes a file that has been committed into the index; one whose keys are many is read when a merge needs
        them."""
        if self._index is None or file.keys is None:
            return
        arrays = _arrays(file.keys.select([shape[name].physical for name in self.keys]))
        try:
            self._index.add(file.name, file.size, [(0, arrays)])
        except (IndexDamaged, MemoryError) as error:  # the commit is made: that must not look like a failure
            log.warning("%s: the index of keys is made again: %s", self.files, error)
            self._index = None

    @property
    def index_entries(self) -> int:
        """Entries of the index, those out of date too."""
        return 0 if self._index is None else len(self._index)

    @property
    def memory(self) -> int:
        """Bytes that the index takes in memory."""
        return 0 if self._index is None else self._index.bytes_in_memory

    def save(self) -> None:
        """Keeps the index on disk for the next process."""
        if self._index is not None:
            self._index.save()

    def key_arrays(self, rows: pa.Table, shape: Shape) -> list[pa.Array]:
        """The key columns of rows, in the table's types. Raises LakeError for a key without a value."""
        columns = {name: rows[name].cast(shape[name].type) for name in self.keys}
        if nulls := [name for name, values in columns.items() if values.null_count]:
            raise LakeError(
                f"a change has no value in {nulls[0]}, which is part of the key",
                where=str(self.files),
                fix="name never-null columns in [source.keys]",
            )
        return _arrays(pa.table(columns))

    def hits(self, keys: Sequence[pa.Array], shape: Shape, *, distinct: bool = True) -> list[Hits]:
        """The live rows of these keys: also several of one, where somebody else has appended it again."""
        return self.find_rows(keys, shape, distinct=distinct)[0]

    def find_rows(
        self, keys: Sequence[pa.Array], shape: Shape, *, distinct: bool = True
    ) -> tuple[list[Hits], list[Hits]]:
        """The live rows of these keys (`hits`), and the dead ones that live files still have."""
        between = _ends_of(keys)
        try:
            places = self._cover_files(shape, between).find(keys, distinct=distinct)
        except IndexDamaged as error:
            log.warning("%s: the index of keys is damaged (%s), and made again", self.files, error)
            kinds = tuple(shape[name].type for name in self.keys)
            stored_keys = self.stored_keys(shape)
            self._index = KeyIndex(self.snapshot.table_id, stored_keys, kinds, self._directory, self._index_memory)
            places = self._cover_files(shape, between).find(keys, distinct=distinct)
        living: list[Hits] = []
        dead: list[Hits] = []
        for path, stretch in places.files:
            if (live := self.snapshot.files.get(path)) is None:
                continue
            numbers = places.key_numbers[stretch]
            rows = places.rows[stretch]
            # The index keeps entries of rows that were replaced since: the vector decides.
            alive = ~self.dead_rows(live).contains(rows)
            for found, chosen in ((living, alive), (dead, ~alive)):
                if chosen.any():
                    found.append(Hits(live, numbers[chosen], rows[chosen]))
        return living, dead

    def _cover_files(self, shape: Shape, between: Between | None) -> KeyIndex:
        """The index with every file of the snapshot in it; or with those that may have a key of a range."""
        kinds = tuple(shape[name].type for name in self.keys)
        key_columns = self.stored_keys(shape)
        index = self._index
        table = self.snapshot.table_id
        if index is None or (index.table, index.keys, index.kinds) != (table, key_columns, kinds):
            directory = self._directory
            index = KeyIndex(table, key_columns, kinds)
            if directory is not None:
                index = key_index.load(directory, table, key_columns, kinds, memory=self._index_memory)
            self._index = index
        live = self.snapshot.files
        index.keep({path: file.size for path, file in live.items()})
        # By path and size: a file of another size has taken the path of an older one.
        uncovered = [
            file
            for path, file in live.items()
            if not index.covers(path, file.size) and self._may_have_keys(file, key_columns[0], between)
        ]
        index.check_room(sum(file.rows or 0 for file in uncovered))
        is_much = sum(file.size for file in uncovered) > _MUCH
        with _MUCH_AT_ONCE if is_much else nullcontext():
            for file in uncovered:
                stretches = row_stretches(self.files, file, shape, self.keys, most_rows=key_runs.LARGE)
                index.add(file.path, file.size, ((first, _arrays(rows)) for first, rows in stretches))
        return index

    def _may_have_keys(self, file: LiveFile, column: str, between: Between | None) -> bool:
        """Whether the file may have a key of the range, by its statistics: new keys above all others need none of the
        files before them in the index."""
        if between is None:
            return True
        statistics = file.add.get("stats")
        cached = self._ends.get(file.path)
        # By the statistics too: a table that is brought back to an older version has those of its living rows again.
        if cached is None or cached[0] != statistics:
            cached = self._ends[file.path] = statistics, _stated_ends(file, column)
        ends = cached[1]
        return ends is None or not (ends[1] < between[0] or ends[0] > between[1])


def _stated_ends(live: LiveFile, column: str) -> Between | None:
    """The ends of a file's column by its statistics; None where they do not say."""
    stated = live.stated_values(column)
    is_known = isinstance(stated.lowest, int) and isinstance(stated.highest, int)
    return (stated.lowest, stated.highest) if is_known else None


def _ends_of(keys: Sequence[pa.Array]) -> Between | None:
    """The ends of whole numbers; None for other keys, whose statistics may be cut or rounded."""
    if not pa.types.is_integer(keys[0].type) or not len(keys[0]):
        return None
    ends = pc.min_max(keys[0])
    return ends["min"].as_py(), ends["max"].as_py()


def _arrays(rows: pa.Table) -> list[pa.Array]:
    return [join_chunks(column) for column in rows.columns]
