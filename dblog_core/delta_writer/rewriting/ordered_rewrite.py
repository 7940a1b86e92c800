"""Files that share their keys are written again as files that share none: their rows in the order of the key.

Keys are read first, and say where each row goes. Rows follow in several passes, so that never more are in memory than
one new file has: each pass reads the row groups in which one of its rows stands. All files have small row groups, so
that what was put in order once is read about once. A file ends by the bytes that were written, and where it can
between two values of the key's first column.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.bitmaps import Rows
from dblog_core.delta_writer.data_file import FileWriter, KeptKeys, StoredFile
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.order_guard import Flags
from dblog_core.delta_writer.rewriting.key_overlap import KeyRange, ends_of, is_worth
from dblog_core.delta_writer.rewriting.rewrite import Rewritten, Source, cannot_rewrite, place_rows
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.statistics import Ends, bounds
from dblog_core.delta_writer.stored_rows import row_stretches
from dblog_core.interfaces import Json
from dblog_core.rows.chunked_columns import join_chunks, take_rows

_PART_BYTES = 256 << 20
"""Of rows, decoded, that are gathered at once."""
MOST_ROWS = 5_000_000
"""Of all files together: the index takes them in with the commit, half a second a million, and the table waits."""
_KEY_BYTES = 256 << 20
"""Of all keys, decoded, while rows get their places: there are two copies of them."""
_GROUPS = 8
"""Row groups of a new file, about."""
_UP = 0.45
"""Of the size of a file: so much more begins another one, and all become smaller."""


@dataclass(frozen=True, slots=True)
class OrderedRewrite:
    """A plan for files of one partition. `sources`: the most important one first; the last ones are left out where
    there is no room for them; `shape`: with all that tracked rows keep.
    `order`: the columns by which rows are ordered, the `bounded` ones first, of which the log has statistics;
    `ranges`: of all files of the table, by path; `target`: the bytes of a new file."""

    files: TableFiles
    sources: tuple[Source, ...]
    shape: Shape
    metadata: Json
    keys: tuple[str, ...]
    order: tuple[str, ...]
    bounded: tuple[str, ...]
    ranges: Mapping[str, KeyRange]
    target: int
    new_id: Callable[[], uuid.UUID]

    def carry_out(self, check: Callable[[], None] = lambda: None) -> Rewritten | None:
        """Writes the new files; None where they share about as many keys as before, which their keys tell nearly always
        before they are written, or no memory has room."""
        try:
            return self._write(check)
        except (pa.ArrowException, MemoryError) as error:
            raise cannot_rewrite(self.files, error) from error

    def _write(self, check: Callable[[], None]) -> Rewritten | None:
        keys, alive = self._read_keys(check)
        if not alive:
            return None
        sources = self.sources[: len(alive)]
        by_key = np.asarray(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in self.order]))
        bounded = keys.select(list(self.bounded)).take(by_key)
        size = sum(self.ranges[source.live.path].bytes for source in sources)
        edges = _piece_edges(join_chunks(bounded.column(0)), max(1, size * _GROUPS // self.target))
        if not self._is_worth(sources, self._expected_ranges(size, bounded, edges)):
            return None
        places = place_rows(sources, alive, by_key)
        del keys, bounded, by_key  # rows need the room
        parts = _Rows(self.files, self.shape, sources, places, edges).read(check)
        files = tuple(self._write_files(parts))
        # Only now their ends are known: what improves nothing would be done again and again.
        is_worth_it = self._is_worth(sources, self._ranges(size, files))
        return Rewritten(sources, files, places, self.metadata) if is_worth_it else None

    def _read_keys(self, check: Callable[[], None]) -> tuple[pa.Table, list[Flags]]:
        """The keys of all rows that live, and by source which of its rows do: of as many sources as there is room for,
        maybe of none."""
        tables = [pa.table({name: pa.array([], self.shape[name].type) for name in self.order})]
        alive: list[Flags] = []
        size = 0
        count = 0
        for source in self.sources:
            parts: list[pa.Table] = []
            flags: list[Flags] = []
            for first, rows in row_stretches(self.files, source.live, self.shape, self.order):
                check()
                flags.append(~source.dead.contains(np.arange(first, first + len(rows))))
                parts.append(rows.filter(pa.array(flags[-1])))
                count += len(rows)
                size += parts[-1].nbytes
                if count > MOST_ROWS or size > _KEY_BYTES:
                    return pa.concat_tables(tables), alive
            tables += parts
            alive.append(np.concatenate([np.empty(0, np.bool_), *flags]))
        return pa.concat_tables(tables), alive

    def _is_worth(self, sources: Sequence[Source], new_ranges: Sequence[KeyRange]) -> bool:
        chosen = {source.live.path: self.ranges[source.live.path] for source in sources}
        others = [key_range for path, key_range in self.ranges.items() if path not in chosen]
        return is_worth(list(chosen.values()), new_ranges, others)

    def _expected_ranges(self, size: int, bounded: pa.Table, edges: Rows) -> list[KeyRange]:
        """Of the files that rows of these keys, in order, become."""
        ranges = []
        for begin, end in pairwise([*edges[:-1:_GROUPS].tolist(), len(bounded)]):
            rows = bounded.slice(begin, end - begin)
            ranges.append(KeyRange(size * (end - begin) // len(bounded), tuple(map(_ends, rows.columns))))
        return ranges

    def _ranges(self, size: int, files: Sequence[StoredFile]) -> list[KeyRange]:
        """Of the new files, which have the `size` of the old ones to this end: another compression is no better or
        worse order."""
        names = [self.shape[name].physical for name in self.bounded]
        new_size = sum(file.size for file in files)
        return [KeyRange(file.size * size // new_size, ends_of(file.statistics, names)) for file in files]

    def _write_files(self, parts: Iterator[_Part]) -> Iterator[StoredFile]:
        """Files of about the target's bytes, each written while its parts are read."""
        configuration = self.metadata.get("configuration") or {}
        partition = self.sources[0].partition
        kept_keys = KeptKeys()
        is_over = False
        while not is_over:
            count = 0
            is_over = True
            with FileWriter(
                self.files, self.shape, configuration, self.new_id(), keys=self.keys, partition=partition
            ) as writer:
                for part in parts:
                    writer.write(part.rows)
                    count += len(part.rows)
                    if part.may_end and self._is_whole(writer.size, count, part.left):
                        is_over = False
                        break
            if count:
                yield kept_keys.limit(writer.store())

    def _is_whole(self, size: int, count: int, left: int) -> bool:
        """Whether a file has as many rows as those that follow will have. `left`: the rows for all of these."""
        files = int(size * (count + left) / count / self.target + _UP)
        return left > 0 and count * files >= count + left


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows in order. `left`: how many follow; `may_end`: whether a file may end here."""

    rows: pa.Table
    left: int
    may_end: bool


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of sources, by their places. `edges`: where parts begin and the last one ends."""

    files: TableFiles
    shape: Shape
    sources: Sequence[Source]
    places: Mapping[str, Rows]
    edges: Rows

    def read(self, check: Callable[[], None]) -> Iterator[_Part]:
        """All of them, in order."""
        count = int(self.edges[-1])
        done = 0
        for begin, end in pairwise([*self.edges[:-1:_GROUPS].tolist(), count]):
            for rows in self._gather(begin, end, check):
                first = done
                done += len(rows)
                inside = self.edges[(self.edges > first) & (self.edges < done)].tolist()
                for at, until in pairwise([first, *inside, done]):
                    may_end = bool(np.isin(until, self.edges))
                    yield _Part(rows.slice(at - first, until - at), count - until, may_end)

    def _gather(self, begin: int, end: int, check: Callable[[], None]) -> Iterator[pa.Table]:
        """The rows of these places, at once or, where they are large, in parts."""
        parts: list[pa.Table] = []
        places: list[Rows] = []
        size = 0
        for source in self.sources:
            for rows, at in self._stretches(source, begin, end):
                check()
                is_chosen = (at >= begin) & (at < end)
                parts.append(rows.filter(pa.array(is_chosen)))
                places.append(at[is_chosen])
                size += parts[-1].nbytes
                if size > _PART_BYTES and end - begin > 1:
                    parts.clear()
                    middle = (begin + end) // 2
                    yield from self._gather(begin, middle, check)
                    yield from self._gather(middle, end, check)
                    return
        yield take_rows(parts, pa.array(np.argsort(np.concatenate(places))))

    def _stretches(self, source: Source, begin: int, end: int) -> Iterator[tuple[pa.Table, Rows]]:
        """Rows of a source and their places, of the row groups that have one of these places."""
        places = self.places[source.live.path]

        def has_some(first: int, last: int) -> bool:
            group = places[first:last]
            return bool(((group >= begin) & (group < end)).any())

        for first, rows in row_stretches(self.files, source.live, self.shape, self.shape.names, is_wanted=has_some):
            yield rows, places[first : first + len(rows)]


def _ends(values: pa.ChunkedArray) -> Ends:
    """As the file's statistics will have them."""
    # Another program may have appended rows without a key.
    return bounds(values) if values.null_count < len(values) else (None, None)


def _piece_edges(values: pa.Array, pieces: int) -> Rows:
    """Where pieces of about the same number of rows begin, and where the last one ends: between two of the values,
    which are in order, where such a place is near."""
    count = len(values)
    edges = np.arange(pieces + 1) * count // pieces
    if count > 1:
        differ = pc.not_equal(values.slice(1), values.slice(0, count - 1)).fill_null(True)
        begins = np.concatenate([[0], np.flatnonzero(np.asarray(differ)) + 1, [count]])
        after = np.minimum(np.searchsorted(begins, edges), len(begins) - 1)
        before = np.maximum(after - 1, 0)
        is_before = edges - begins[before] < begins[after] - edges
        nearest = np.where(is_before, begins[before], begins[after])
        edges = np.where(2 * np.abs(nearest - edges) * pieces <= count, nearest, edges)
    return np.unique(edges)
