"""Data files are written again while others change the table: a row that dies meanwhile is dead in the new file too.

  files and vectors of one version -> their live rows in new files (long) -> the newest version -> rows that have died
  since, marked by their numbers in the new files -> one commit without a change of data (short)

The long part reads what never changes, data files and the vectors of one version, so it may run in a thread of its own
while the table's thread commits merges. The commit needs no index: a row's new number follows from its old one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.bitmaps import Rows, RowSet
from dblog_core.delta_writer.commit import removal
from dblog_core.delta_writer.data_file import FileWriter, KeptKeys, StoredFile
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.order_guard import Flags
from dblog_core.delta_writer.partitions import Partition
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.statistics import loosen_bounds
from dblog_core.delta_writer.stored_rows import row_stretches
from dblog_core.delta_writer.table_log import ATTEMPTS
from dblog_core.delta_writer.vectors import tag_replaced, unique_id
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json
from dblog_core.rows.chunked_columns import take_rows

_TRIES = 3  # at files that others replace meanwhile
_GROUP_BYTES = 64 << 20
"""Of rows, decoded, that are gathered for one row group of the new file."""
_GROUP_ROWS = 1 << 20
_ORDERED_BYTES = 512 << 20
"""Of rows, decoded, beyond which they keep the order that they have: a column of text of 2 GiB cannot be sorted."""
LARGEST_FILE = 256 << 20
"""Bytes of a new file, about: it is in memory, compressed, until it is written. Of a larger one several are made."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file that is written again, and its dead rows, as one version has them."""

    live: LiveFile
    dead: RowSet

    @property
    def partition(self) -> Partition:
        """The partition of all its rows."""
        return partition_of(self.live)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What stands in place of the sources. `files`: none where no row of them lives; `places`: by source, for each of
    its rows the number that it has now, counted through all new files, -1 for a dead one; `metadata`: of the version
    that was read."""

    sources: tuple[Source, ...]
    files: tuple[StoredFile, ...]
    places: Mapping[str, Rows]
    metadata: Json


@dataclass(frozen=True, slots=True)
class Died:
    """The rows of the new files that have died since. `replaced`: those of them that are known to have been replaced by
    a newer row of their key."""

    rows: Rows
    replaced: Rows

    def within(self, first: int, count: int) -> Died:
        """Those of so many rows from the first one on, by their numbers from there."""
        return Died(*(at[(at >= first) & (at < first + count)] - first for at in (self.rows, self.replaced)))


class FileRewrite(Protocol):
    """A plan of files that are written again."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """The files, and their dead rows."""
        ...

    def carry_out(self, check: Callable[[], None] = lambda: None) -> Rewritten | None:
        """Writes the new files, in any thread; None where that is not worth it. `check` is asked between two stretches
        of rows, and raises where the work shall end. Raises LakeError where a file cannot be read, and StagingError
        with storage's own faults."""
        ...


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A plan for files of one partition. `shape`: with all that tracked rows keep; `order`: the columns by which the
    rows of the new file are ordered, all at once in memory; none, or where they are too large: they stay in their
    order, and a few of them are in memory. `change`: what becomes of some rows on the way, as many and in the same
    order. A new file ends behind `largest` bytes or `most_rows` rows; `keeps_places`: whether it is wanted where each
    row is then."""

    files: TableFiles
    sources: tuple[Source, ...]
    shape: Shape
    metadata: Json
    keys: tuple[str, ...]
    order: tuple[str, ...]
    new_id: Callable[[], uuid.UUID]
    change: Callable[[pa.Table], pa.Table] = lambda rows: rows
    largest: int = field(default_factory=lambda: LARGEST_FILE)
    most_rows: int | None = None
    keeps_places: bool = True

    def carry_out(self, check: Callable[[], None] = lambda: None) -> Rewritten:
        """Writes the new files: one, or several where one would be too large."""
        try:
            return self._write(check)
        except (pa.ArrowException, MemoryError) as error:
            raise cannot_rewrite(self.files, error) from error

    def _write(self, check: Callable[[], None]) -> Rewritten:
        places: dict[str, Rows] = {}
        ordered = self._read_ordered(places) if self.order else None
        parts = self._read_as_is(places, check) if ordered is None else iter([ordered] if len(ordered) else [])
        return Rewritten(self.sources, tuple(self._write_files(parts)), places, self.metadata)

    def _write_files(self, parts: Iterator[pa.Table]) -> Iterator[StoredFile]:
        """`parts`: rows, of which none is empty."""
        configuration = self.metadata.get("configuration") or {}
        partition = self.sources[0].partition
        kept_keys = KeptKeys()
        for first in parts:
            with FileWriter(
                self.files, self.shape, configuration, self.new_id(), keys=self.keys, partition=partition
            ) as writer:
                writer.write(first)
                count = len(first)
                while self._has_room(writer.size, count) and (rows := next(parts, None)) is not None:
                    writer.write(rows)
                    count += len(rows)
            yield kept_keys.limit(writer.store())

    def _has_room(self, size: int, count: int) -> bool:
        return size < self.largest and (self.most_rows is None or count < self.most_rows)

    def _read_as_is(self, places: dict[str, Rows], check: Callable[[], None]) -> Iterator[pa.Table]:
        """The living rows in their order, in parts of a size for a row group."""
        count = 0
        waiting: list[pa.Table] = []
        for source in self.sources:
            numbers: list[Rows] = []
            for rows, alive in self._stretches(source):
                check()
                chosen = rows.filter(pa.array(alive))
                if self.keeps_places:
                    numbers.append(np.where(alive, count + np.cumsum(alive) - 1, -1))
                count += len(chosen)
                waiting.append(chosen)
                if sum(part.nbytes for part in waiting) >= _GROUP_BYTES or sum(map(len, waiting)) >= _GROUP_ROWS:
                    yield pa.concat_tables(waiting)
                    waiting.clear()
            places[source.live.path] = concatenate(numbers)
        if sum(map(len, waiting)):
            yield pa.concat_tables(waiting)

    def _read_ordered(self, places: dict[str, Rows]) -> pa.Table | None:
        """The living rows in the wanted order; None, and no places, where they take too much memory for it."""
        parts = [pa.table({column.name: pa.array([], column.type) for column in self.shape})]
        flags = [list[Flags]() for _ in self.sources]
        size = 0
        for source, of_source in zip(self.sources, flags, strict=True):
            for rows, alive in self._stretches(source):
                parts.append(rows.filter(pa.array(alive)))
                of_source.append(alive)
                if (size := size + parts[-1].nbytes) > _ORDERED_BYTES:
                    return None
        order_columns = pa.concat_tables([part.select(list(self.order)) for part in parts])
        by_key = pc.sort_indices(order_columns, sort_keys=[(name, "ascending") for name in self.order])
        living = [np.concatenate([np.empty(0, np.bool_), *stretches]) for stretches in flags]
        places |= place_rows(self.sources, living, np.asarray(by_key))
        return take_rows(parts, by_key) if len(by_key) else parts[0]

    def _stretches(self, source: Source) -> Iterator[tuple[pa.Table, Flags]]:
        """The rows of a source, and which of them live."""
        for first, rows in row_stretches(self.files, source.live, self.shape, self.shape.names):
            yield self.change(rows), ~source.dead.contains(np.arange(first, first + len(rows)))


def place_rows(sources: Sequence[Source], alive: Sequence[Flags], by_key: Rows) -> dict[str, Rows]:
    """For each row of each source its place in the order; -1 for a dead one."""
    ranks = np.empty(len(by_key), np.int64)
    ranks[by_key] = np.arange(len(by_key))
    places: dict[str, Rows] = {}
    begin = 0
    for source, flags in zip(sources, alive, strict=True):
        end = begin + int(flags.sum())
        at = np.full(len(flags), -1)
        at[flags] = ranks[begin:end]
        places[source.live.path] = at
        begin = end
    return places


def cannot_rewrite(files: TableFiles, error: BaseException) -> LakeError:
    """The error of a rewrite that Arrow, or the memory, has no room for."""
    return LakeError(
        f"files of the table cannot be written again, and merges continue without it: {error}", where=str(files)
    )


def plan_rewrite(table: OpenTable, sources: Sequence[Source], *, order: Sequence[str] = ()) -> Rewrite:
    """The plan for these files of the table's snapshot, all of one partition."""
    shape = table.shape().with_tracking()
    metadata = table.snapshot.metadata
    return Rewrite(table.files, tuple(sources), shape, metadata, table.keys, tuple(order), table.new_id)


def partition_of(live: LiveFile) -> Partition:
    """The partition of a file's rows."""
    return live.add.get("partitionValues") or {}


def by_partition(files: Iterable[LiveFile]) -> list[list[LiveFile]]:
    """Files that may become one, those of each partition."""
    groups: dict[tuple[tuple[str, str | None], ...], list[LiveFile]] = {}
    for live in files:
        groups.setdefault(tuple(sorted(partition_of(live).items())), []).append(live)
    return list(groups.values())


def order_of(table: OpenTable) -> tuple[str, ...]:
    """The columns by which rows are to lie: those that the table's owner has named, or its key's. Not those of
    partitions, of which a file has one value."""
    shape = table.shape()
    named = [c.name for physical in table.snapshot.clustered_by for c in shape if c.physical == physical]
    within = {column.name for column in shape.partitions}
    return tuple(name for name in named or table.keys if name not in within)


def sources_of(table: OpenTable, chosen: Sequence[LiveFile]) -> tuple[Source, ...]:
    """These files of the table's snapshot, with the rows that are dead in it."""
    return tuple(Source(live, table.dead_rows(live)) for live in chosen)


def rewrite_files(table: OpenTable, plan: Callable[[Collection[str]], FileRewrite | None]) -> Rewritten | None:
    """Carries out the rewrite that `plan` has of the newest version, and commits it; None where it has none, or others
    replace the files all the time meanwhile. `plan` gets the first files, by path, of rewrites that were not worth
    it."""
    not_worth: set[str] = set()
    for _ in range(_TRIES):
        table.refresh()
        if (rewrite := plan(not_worth)) is None:
            return None
        if (rewritten := rewrite.carry_out()) is None:
            not_worth.add(rewrite.sources[0].live.path)
        elif commit_rewritten(table, rewritten):
            return rewritten
    return None


def commit_rewritten(table: OpenTable, rewritten: Rewritten) -> bool:
    """Puts the new files in place of their sources, with what has died since; False where the table has no longer these
    files, or another shape, or a new file is gone, so that all was for nothing.

    Raises TableRefused where the table needs another writer now, and StagingError with storage's own faults.
    """
    for _ in range(ATTEMPTS):
        table.refresh()
        if _form(table.snapshot.metadata) != _form(rewritten.metadata):
            return False
        if (died := _find_died(table, rewritten)) is None:
            return False
        # A VACUUM of somebody else may have taken a file that no version names yet.
        if not all(table.files.exists(file.name) for file in rewritten.files):
            return False
        if _commit(table, rewritten, died):
            return True
    return False


def _form(metadata: Json) -> tuple[str, str, Json]:
    """What says how the table's files look; other writers say the rest in their own words."""
    return metadata["id"], metadata["schemaString"], metadata.get("configuration") or {}


def _find_died(table: OpenTable, rewritten: Rewritten) -> Died | None:
    """None where a source is gone, or a row has come back."""
    died: list[Rows] = []
    replaced: list[Rows] = []
    for source in rewritten.sources:
        live = table.snapshot.files.get(source.live.path)
        if live is None or live.size != source.live.size:
            return None
        if unique_id(live.vector) == unique_id(source.live.vector):
            continue
        dead = table.dead_rows(live).rows()
        since = dead[~source.dead.contains(dead)]
        # Fewer than before: somebody has brought the table back to an older version.
        if len(since) != len(dead) - len(source.dead):
            return None
        places = rewritten.places[live.path][since]
        died.append(places)
        # The log counts them: where some were deleted, nobody knows which ones.
        if live.replaced_count - source.live.replaced_count == len(places):
            replaced.append(places)
    return Died(concatenate(died), concatenate(replaced))


def _commit(table: OpenTable, rewritten: Rewritten, died: Died) -> bool:
    now = table.now_ms()
    before = [table.snapshot.files[source.live.path] for source in rewritten.sources]
    # No data change: streams that read the table pass such a commit over.
    actions: list[Json] = [removal(live, now_ms=now, data_change=False) for live in before]
    # A file whose rows have all died is not added.
    added = [new for new in _dead_by_file(rewritten.files, died) if len(new[1]) < new[0].count]
    vectors, _ = table.store_vectors({file.name: dead for file, dead, _ in added if len(dead)})
    for file, dead, replaced in added:
        addition = file.addition(now_ms=now, data_change=False)
        if len(dead):
            addition["deletionVector"] = vectors[file.name]
            addition["stats"] = loosen_bounds(file.statistics, file.count)
            tag_replaced(addition, replaced)
        actions.append({"add": addition})
    metrics = {"numAddedFiles": len(added), "numRemovedFiles": len(before)}
    shape = table.shape()
    # If others were faster, no version names the new vectors, and VACUUM removes them.
    if not table.commit("OPTIMIZE", metrics, actions):
        return False
    for file, dead, _ in added:
        if len(dead):
            table.vectors[file.name] = unique_id(vectors[file.name]), dead
        table.index_file(file, shape)
    return True


def _dead_by_file(files: Sequence[StoredFile], died: Died) -> Iterator[tuple[StoredFile, RowSet, int]]:
    """Each file with those of the rows that are its own, by their numbers in it, and how many of them were replaced."""
    first = 0
    for file in files:
        in_file = died.within(first, file.count)
        yield file, RowSet().with_rows(in_file.rows), len(in_file.replaced)
        first += file.count


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Row numbers one after the other."""
    return np.concatenate([np.empty(0, np.int64), *parts])
