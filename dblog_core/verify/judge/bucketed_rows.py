"""Rows apart by their keys, on the local disk: all rows of a key are in one bucket, and memory holds one at a time.

Keys whose rows may have values of each other (changes of key) are `linked`, and share a bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.rows.disk_spool import SpooledTable, TableSpool
from dblog_core.verify.judge.hashed_rows import Numbers, select_keys

Words = npt.NDArray[np.uint64]

BUCKET_ROWS = 100_000
"""Of the lake, and of the log, that a bucket is to have."""
MOST_BUCKETS = 1_024
PART_ROWS = 500_000
PART_BYTES = 64 << 20
"""Of the lake, the log and the source together that are compared at once."""
SORTED_BYTES = 16 << 20
"""Of rows that are sorted into buckets at once."""

_LOWER = np.uint64(0xFFFFFFFF)
_UPPER = np.uint64(32)
_NO_WORDS = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Placement:
    """Which bucket of `count` a key is in. `linked`: keys that share a bucket with others, as hashes in order;
    `leaders`: for each the key that stands for all of its group."""

    count: int
    linked: Words = field(default_factory=lambda: _NO_WORDS)
    leaders: Words = field(default_factory=lambda: _NO_WORDS)

    @classmethod
    def for_rows(cls, rows: int) -> Placement:
        """With as many buckets as so many rows need."""
        return cls(min(MOST_BUCKETS, 1 + rows // BUCKET_ROWS))

    def words(self, keys: pa.Table) -> Words:
        """A number for each key, equal for keys of one bucket. Keys with NULL share one: no source has any."""
        words = np.zeros(len(keys), np.uint64)
        has_value = np.logical_and.reduce([np.asarray(column.is_valid()) for column in keys.columns])
        valued = keys if has_value.all() else keys.filter(pa.array(has_value))
        for column in valued.columns:
            words[has_value] = _mix(words[has_value] ^ _value_words(join_chunks(column)))
        if not len(self.linked):
            return words
        places = np.minimum(np.searchsorted(self.linked, words), len(self.linked) - 1)
        return np.where(self.linked[places] == words, self.leaders[places], words)

    def buckets(self, keys: pa.Table) -> Numbers:
        """The bucket of each key."""
        return ((self.words(keys) >> _UPPER) % np.uint64(self.count)).astype(np.int64)

    def parts(self, keys: pa.Table, count: int) -> Numbers:
        """One of `count` parts of its bucket, for each key."""
        return ((self.words(keys) & _LOWER) % np.uint64(count)).astype(np.int64)

    def with_links(self, old: pa.Table, new: pa.Table) -> Placement:
        """Has each two of these keys, row by row, in one bucket too."""
        ends = np.concatenate([self.words(old), self.words(new)])
        # The keys that are linked already follow their leaders.
        keys, numbers = np.unique(np.concatenate([ends, self.linked, self.leaders]), return_inverse=True)
        firsts = np.concatenate([numbers[: len(old)], numbers[2 * len(old) :][: len(self.linked)]])
        seconds = np.concatenate([numbers[len(old) : 2 * len(old)], numbers[2 * len(old) + len(self.linked) :]])
        leaders = np.arange(len(keys))
        while (leaders[firsts] != leaders[seconds]).any():
            lower = np.minimum(leaders[firsts], leaders[seconds])
            for side in (firsts, seconds):
                np.minimum.at(leaders, leaders[side], lower)
                np.minimum.at(leaders, side, lower)
        return replace(self, linked=keys, leaders=keys[leaders])


def count_parts(*sizes: tuple[int, int]) -> int:
    """In how many parts so many rows and bytes are compared."""
    rows, nbytes = (int(total) for total in np.sum(sizes, axis=0))
    return max(1, -(-rows // PART_ROWS), -(-nbytes // PART_BYTES))


def _mix(words: Words) -> Words:
    """Spreads all bits of each word over all of it. Source: Steele, Lea and Flood, SplitMix64."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _value_words(column: pa.Array) -> Words:
    """A number for each value, equal for equal ones; none is NULL. Texts have Python's own keyed hash."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        octets = column.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
        return np.fromiter(map(hash, octets), np.int64, len(octets)).view(np.uint64)
    if pa.types.is_decimal128(kind):
        halves = np.frombuffer(column.buffers()[1], np.uint64)[2 * column.offset :][: 2 * len(column)].reshape(-1, 2)
        return _mix(halves[:, 0]) ^ halves[:, 1]
    if pa.types.is_floating(kind):
        return np.asarray(column.cast(pa.float64())).view(np.uint64)
    whole = column.cast(pa.int32()) if pa.types.is_date32(kind) else column
    return np.ascontiguousarray(np.asarray(whole.cast(pa.int64()))).view(np.uint64)


class BucketedRows:
    """Tables of rows with their keys, by bucket, in the order that they were added. `key`: the columns of a key."""

    def __init__(self, placement: Placement, key: pa.Schema) -> None:
        self.placement = placement
        """A later one may take its place that has each row in the bucket where it is."""
        self._key = key
        self._spool = TableSpool()
        self._pieces: list[list[SpooledTable]] = [[] for _ in range(placement.count)]

    def sorter(self) -> RowSorter:
        """Takes rows, which count after `finish`."""
        return RowSorter(self)

    def has_rows(self, bucket: int) -> bool:
        return bool(self._pieces[bucket])

    def size_of(self, bucket: int) -> tuple[int, int]:
        """How many rows a bucket has, and their bytes in memory."""
        pieces = self._pieces[bucket]
        return sum(piece.rows for piece in pieces), sum(piece.nbytes for piece in pieces)

    def read(self, bucket: int, part: int = 0, parts: int = 1) -> Iterator[pa.Table]:
        """The rows of a bucket, or of one of several parts of it, in their order."""
        for piece in self._pieces[bucket]:
            rows = self._spool.read(piece)
            if parts > 1:
                chosen = self.placement.parts(select_keys(rows, self._key), parts) == part
                rows = rows.filter(pa.array(chosen))
            yield rows

    def move(self, placement: Placement) -> BucketedRows:
        """The same rows, where a later placement has them."""
        moved = BucketedRows(placement, self._key)
        sorter = moved.sorter()
        for bucket in range(len(self._pieces)):
            for rows in self.read(bucket):
                sorter.add(rows)
        sorter.finish()
        return moved

    def write(self, rows: pa.Table) -> list[tuple[int, SpooledTable]]:
        """Writes rows, and says in which buckets they are."""
        numbers = self.placement.buckets(select_keys(rows, self._key))
        by_bucket = np.argsort(numbers, kind="stable")
        ordered = rows.take(pa.array(by_bucket)) if self.placement.count > 1 else rows
        edges = np.searchsorted(numbers[by_bucket], np.arange(self.placement.count + 1)).tolist()
        return [
            (bucket, self._spool.write(ordered.slice(begin, end - begin)))
            for bucket, (begin, end) in enumerate(pairwise(edges))
            if end > begin
        ]

    def append(self, written: Sequence[tuple[int, SpooledTable]]) -> None:
        """Has rows that are written count."""
        for bucket, piece in written:
            self._pieces[bucket].append(piece)


class RowSorter:
    """Rows on their way to their buckets: none counts before the end, so that a fault leaves no half of them."""

    def __init__(self, target: BucketedRows) -> None:
        self._target = target
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._written: list[tuple[int, SpooledTable]] = []

    def add(self, rows: pa.Table) -> None:
        """Raises LakeError where the local disk has no room."""
        if not len(rows):
            return
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= SORTED_BYTES:
            self._write()

    def finish(self) -> None:
        self._write()
        self._target.append(self._written)

    def _write(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting).combine_chunks()
            self._waiting = []
            self._waiting_bytes = 0
            self._written += self._target.write(rows)
