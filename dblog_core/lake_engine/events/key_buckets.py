"""Rows apart by key: all rows of a key are in one bucket, which memory has room for, and the rest is on the local disk.

  staged events -> each to the bucket of its key -> one bucket at a time, again and again, or in portions

A small work is one bucket, in memory. A bucket that memory has no room for is split again, and small ones are joined.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events import staged_events
from dblog_core.lake_engine.events.key_chains import KeyHasher, find_staged_chains
from dblog_core.lake_engine.events.staged_events import read_events
from dblog_core.model.schema import TableSchema
from dblog_core.rows.chunked_columns import join_up_to, split_by_number
from dblog_core.rows.disk_spool import SpooledTable, TableSpool
from dblog_core.rows.key_spreading import Words, bucket_numbers
from dblog_core.staging import Staging

MOST_BUCKETS = 256
BUCKET_ROWS = 10_000
BUCKET_BYTES = 2 << 20
"""Of staged files, which are compressed: what goes to a bucket where keys are spread evenly."""
DISTRIBUTED_BYTES = 32 << 20
"""Decoded bytes of events that are put into buckets at once."""
GROUP_BYTES = 48 << 20
GROUP_EVENTS = 100_000
"""Of buckets that are joined: the most of each, unless one bucket has more."""
PORTION_BYTES = 32 << 20
"""Decoded bytes of events of a bucket that are followed at a time."""

HashRows: TypeAlias = Callable[[pa.Table], Words]
"""By row the key that stands for all keys which must be in its bucket."""


class Earlier(Protocol):
    """Events in some parts, and how many there are."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[pa.Table]: ...


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of a bucket, where they wait, and their lowest offset; 0: they have none."""

    spool: TableSpool
    spooled: SpooledTable
    first: int

    def read(self) -> pa.Table:
        return self.spool.read(self.spooled)


class Bucket:
    """All rows of some keys. Each iteration reads them again, in any order."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self.rows = 0
        self.nbytes = 0
        """In memory."""

    def append(self, rows: pa.Table, spool: TableSpool) -> None:
        """Raises LakeError where the local disk has no room."""
        if len(rows):
            first = pc.min(rows["offset"]).as_py() if "offset" in rows.column_names else 0
            self._add_part(_Part(spool, spool.write(rows), first))

    def _add_part(self, part: _Part) -> None:
        self._parts.append(part)
        self.rows += part.spooled.rows
        self.nbytes += part.spooled.nbytes

    def add_bucket(self, other: Bucket) -> None:
        """Takes in the rows of other keys."""
        for part in other._parts:
            self._add_part(part)

    def __iter__(self) -> Iterator[pa.Table]:
        return (part.read() for part in self._parts)

    def portions(self) -> Iterator[pa.Table]:
        """The rows, so many bytes at a time; all of a portion have lower offsets than those of the next."""
        waiting: list[pa.Table] = []
        waiting_bytes = 0
        for part in sorted(self._parts, key=lambda part: part.first):
            if waiting_bytes >= PORTION_BYTES:
                rows = pa.concat_tables(waiting)
                is_older = pc.less(rows["offset"], part.first)
                yield rows.filter(is_older)
                waiting = [rows.filter(pc.invert(is_older))]
                waiting_bytes = waiting[0].nbytes
            waiting.append(part.read())
            waiting_bytes += part.spooled.nbytes
        if waiting:
            yield pa.concat_tables(waiting)


class KeyBuckets:
    """Rows on the local disk, apart by key."""

    def __init__(self, count: int, hash_rows: HashRows, *, level: int = 0, spool: TableSpool | None = None) -> None:
        """`level`: keys that share a bucket at one level share none at another, but by chance."""
        self._hash_rows = hash_rows
        self._level = level
        self._spool = spool or TableSpool()
        self.all = [Bucket() for _ in range(count)]
        """Those too that have no row."""

    def add(self, rows: pa.Table) -> None:
        """Raises LakeError where the local disk has no room."""
        numbers = bucket_numbers(self._hash_rows(rows), len(self.all), level=self._level)
        for bucket, part in zip(self.all, split_by_number(rows, numbers, len(self.all)), strict=True):
            bucket.append(part, self._spool)

    def __iter__(self) -> Iterator[Bucket]:
        """Those that have a row."""
        return (bucket for bucket in self.all if bucket.rows)


def read_small_bucket(staging: Staging, work: Work, schema: TableSchema, *, for_history: bool = False) -> Bucket | None:
    """All events of a work, in memory; None where it has no room for them.

    Raises CorruptSegment for a file that is missing or not the one that the manifest names.
    """
    if not staged_events.is_small(work):
        return None
    bucket = Bucket()
    spool = TableSpool(memory=sys.maxsize)
    for events in read_events(staging, work, schema, for_history=for_history):
        bucket.append(events, spool)
        if bucket.nbytes > staged_events.MAX_DECODED:
            return None
    return bucket


def staged_buckets(
    staging: Staging, work: Work, schema: TableSchema, *, for_history: bool = False, earlier: Earlier | None = None
) -> Iterator[Bucket]:
    """The events of a work, some keys at a time; `for_history`: as `read_events` has them for a history. `earlier`:
    events of before the work, which are among them; all have what that adds `with_unchanged` then.

    Raises CorruptSegment for a file that is missing or not the one that the manifest names; LakeError
    where the local disk has no room.
    """
    hasher = KeyHasher(secrets.token_bytes(16), tuple(c.type for c in schema.key_columns))
    chains = find_staged_chains(staging, work, schema, hasher)
    rows = work.rows + (0 if earlier is None else len(earlier))
    count = min(MOST_BUCKETS, 1 + max(rows // BUCKET_ROWS, work.bytes // BUCKET_BYTES))

    def hash_events(events: pa.Table) -> Words:
        return chains.replace(hasher.hash(events))

    buckets = KeyBuckets(count, hash_events)
    every = read_events(staging, work, schema, for_history=for_history, with_unchanged=earlier is not None)
    for events in join_up_to(DISTRIBUTED_BYTES, chain(earlier or (), every)):
        buckets.add(events)
    limits = (staged_events.MAX_ROWS, staged_events.MAX_DECODED)
    return _join_small(chain.from_iterable(split_bucket(bucket, hash_events, *limits) for bucket in buckets))


def split_bucket(
    bucket: Bucket,
    hash_rows: HashRows,
    most_rows: int,
    most_bytes: int,
    *,
    level: int = 1,
    spool: TableSpool | None = None,
) -> Iterator[Bucket]:
    """The bucket; or smaller ones, as far as its keys need not be together, where it has more rows or bytes."""
    if (bucket.rows <= most_rows and bucket.nbytes <= most_bytes) or not _can_split(bucket, hash_rows):
        yield bucket
        return
    count = min(MOST_BUCKETS, 2 + max(bucket.rows * 2 // most_rows, bucket.nbytes * 2 // most_bytes))
    smaller = KeyBuckets(count, hash_rows, level=level, spool=spool)
    for rows in join_up_to(DISTRIBUTED_BYTES, bucket):
        smaller.add(rows)
    for part in smaller:
        yield from split_bucket(part, hash_rows, most_rows, most_bytes, level=level + 1, spool=spool)


def _can_split(bucket: Bucket, hash_rows: HashRows) -> bool:
    first: int | None = None
    for rows in bucket:
        keys = hash_rows(rows)
        first = int(keys[0]) if first is None else first
        if (keys != np.uint64(first)).any():
            return True
    return False


def _join_small(buckets: Iterable[Bucket]) -> Iterator[Bucket]:
    group = Bucket()
    for bucket in buckets:
        if group.rows and (group.nbytes + bucket.nbytes > GROUP_BYTES or group.rows + bucket.rows > GROUP_EVENTS):
            yield group
            group = Bucket()
        group.add_bucket(bucket)
    if group.rows:
        yield group
