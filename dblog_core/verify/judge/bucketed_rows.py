"""Rows apart by their keys, on the local disk: all rows of a key are in one bucket, and memory holds one at a time.

Keys whose rows may have values of each other (changes of key) are `linked`, and share a bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import pyarrow as pa

from dblog_core.rows.chunked_columns import join_chunks, join_up_to, split_by_number
from dblog_core.rows.disk_spool import SpooledTables, TableSpool
from dblog_core.rows.key_spreading import Chains, Words, bucket_numbers, find_chains
from dblog_core.verify.judge.hashed_rows import Numbers, select_keys

BUCKET_ROWS = 100_000
"""Of the lake, and of the log, that a bucket is to have."""
MOST_BUCKETS = 1_024
PART_ROWS = 500_000
PART_BYTES = 64 << 20
"""Of the lake, the log and the source together that are compared at once."""
SORTED_BYTES = 16 << 20
"""Of rows that are sorted into buckets at once."""

_NO_WORDS = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Placement:
    """Which bucket of `count` a key is in; those of one chain are in the same."""

    count: int
    chains: Chains = field(default_factory=lambda: find_chains(_NO_WORDS, _NO_WORDS))

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
            for column in valued.columns:
                words[has_value] = _mix(words[has_value] ^ _value_words(join_chunks(column)))
        return self.chains.replace(words)

    def buckets(self, keys: pa.Table) -> Numbers:
        """The bucket of each key."""
        return bucket_numbers(self.words(keys), self.count)

    def parts(self, keys: pa.Table, count: int) -> Numbers:
        """One of `count` parts of its bucket, for each key."""
        return bucket_numbers(self.words(keys), count, level=1)

    def with_links(self, old: pa.Table, new: pa.Table) -> Placement:
        """Has each two of these keys, row by row, in one bucket too."""
        earlier = self.chains.keys
        return replace(
            self,
            chains=find_chains(
                np.concatenate([self.words(old), earlier]),
                np.concatenate([self.words(new), self.chains.replace(earlier)]),
            ),
        )


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
    """A number for each value, equal for equal ones; none is NULL. Texts have Python's own keyed hash.

    The hashes of the table's index would need the compiler of its kernels, of 100 MB of memory.
    """
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
            self._write(rows)
            del rows  # before the next are read

    def _write(self, rows: pa.Table) -> None:
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
