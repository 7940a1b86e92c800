"""Rows apart by their keys, on the local disk: all rows of a key are in one bucket, and memory holds one at a time.

Keys whose rows may have values of each other (changes of key) are `linked`, and share a bucket.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.delta_writer.keys.key_hash import hash_keys
from dblog_core.rows.chunked_columns import join_chunks, join_up_to, split_by_number
from dblog_core.rows.disk_spool import SpooledTables, TableSpool
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
_SECRET = secrets.token_bytes(16)


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
        if has_value.any():
            valued = keys if has_value.all() else keys.filter(pa.array(has_value))
            words[has_value] = _mix(hash_keys([join_chunks(column) for column in valued.columns], _SECRET).first)
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


class BucketedRows:
    """Rows with their keys, by bucket, in the order that they were added. `key`: the columns of a key."""

    def __init__(self, placement: Placement, key: pa.Schema) -> None:
        self.placement = placement
        """A later one may take its place that has each row in the bucket where it is."""
        self._key = key
        spool = TableSpool()
        self._buckets = [SpooledTables(spool) for _ in range(placement.count)]

    def extend(self, tables: Iterable[pa.Table]) -> None:
        """Adds rows. Raises LakeError where the local disk has no room; some of the rows are added then."""
        for rows in join_up_to(SORTED_BYTES, tables):
            numbers = self.placement.buckets(select_keys(rows, self._key))
            for bucket, part in zip(self._buckets, split_by_number(rows, numbers, len(self._buckets)), strict=True):
                bucket.append(part)

    def size_of(self, bucket: int) -> tuple[int, int]:
        """How many rows a bucket has, and their bytes in memory."""
        return len(self._buckets[bucket]), self._buckets[bucket].nbytes

    def read(self, bucket: int, part: int = 0, parts: int = 1) -> Iterator[pa.Table]:
        """The rows of a bucket, or of one of several parts of it, in their order."""
        for rows in self._buckets[bucket]:
            if parts == 1:
                yield rows
            else:
                yield rows.filter(pa.array(self.placement.parts(select_keys(rows, self._key), parts) == part))

    def move(self, placement: Placement) -> BucketedRows:
        """The same rows, where a later placement has them."""
        moved = BucketedRows(placement, self._key)
        moved.extend(chain.from_iterable(self._buckets))
        return moved
