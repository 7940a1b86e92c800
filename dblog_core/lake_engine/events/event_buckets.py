"""All events of a work on the local disk, apart by key: memory holds those of a few keys at a time.

  changes of key -> which keys belong together -> all events, each to the bucket of its key -> some buckets at a time

A row may keep values of the key that it had before, so keys that a change of key leads between are in one bucket. A
bucket that memory has no room for is split again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.keys.key_hash import hash_keys
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events import fold_on_driver
from dblog_core.lake_engine.events.key_buckets import Words, split_by_key
from dblog_core.model.schema import TableSchema
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.rows.table_spool import SpooledTable, TableSpool, spooled_array
from dblog_core.staging import Staging

MOST_BUCKETS = 256
BUCKET_ROWS = 10_000
BUCKET_BYTES = 2 << 20
"""Of staged files, which are compressed: what goes to a bucket where keys are spread evenly."""
DISTRIBUTED_BYTES = 32 << 20
"""Decoded bytes of events that are sorted into buckets at once."""
GROUP_BYTES = 48 << 20
GROUP_EVENTS = 100_000
"""Of buckets that are read together: the most of each, where one bucket alone does not have more."""
_SLICE = 1 << 20
"""Numbers of changes of key that are in memory at once."""


class TooManyChanges(Exception):
    """A work has more changes of key than memory has room for."""


@dataclass(frozen=True, slots=True)
class Events:
    """Some events of a bucket, where they are, and their lowest and highest offset."""

    spool: TableSpool
    spooled: SpooledTable
    first: int
    last: int


Bucket: TypeAlias = list[Events]


class Earlier(Protocol):
    """Events in some parts, and how many there are."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[pa.Table]: ...


class EventBuckets:
    """The events of a work; `for_history`: as `fold_on_driver.read_events` has them for a history. `earlier`: events of
    before the work, which are among them; all have what that adds `with_unchanged` then.

    Raises CorruptSegment for a file that is missing or not the one that the manifest names; LakeError
    where the local disk has no room.
    """

    def __init__(
        self,
        staging: Staging,
        work: Work,
        schema: TableSchema,
        *,
        for_history: bool = False,
        earlier: Earlier | None = None,
    ) -> None:
        rows = work.rows + (0 if earlier is None else len(earlier))
        count = min(MOST_BUCKETS, 1 + max(rows // BUCKET_ROWS, work.bytes // BUCKET_BYTES))
        self._secret = secrets.token_bytes(16)
        self._key_names = [f"k{i}" for i in range(len(schema.key))]
        self._chains = find_chains(*_changes_of_key(staging, work, schema, self._secret))
        every = fold_on_driver.read_events(
            staging, work, schema, for_history=for_history, with_unchanged=earlier is not None
        )
        self._buckets = self._distribute(chain(earlier or (), every), count, level=0)

    def _distribute(self, every: Iterable[pa.Table], count: int, *, level: int) -> list[Bucket]:
        buckets: list[Bucket] = [[] for _ in range(count)]
        spool = TableSpool()
        for events in join_up_to(DISTRIBUTED_BYTES, every):
            parts = split_by_key(events, self._hash_keys(events), count, level=level)
            for bucket, rows in zip(buckets, parts, strict=True):
                if len(rows):
                    offsets = np.asarray(rows["offset"])
                    bucket.append(Events(spool, spool.write(rows), int(offsets.min()), int(offsets.max())))
        return buckets

    def _hash_keys(self, events: pa.Table) -> Words:
        """By event the key that stands for all keys which must be in its bucket."""
        keys = hash_keys([join_chunks(events[name]) for name in self._key_names], self._secret)
        return self._chains.replace(keys.first)

    def groups(self) -> Iterator[Bucket]:
        """The events of buckets that are read together, those with the lowest offsets first."""
        group: Bucket = []
        for bucket in chain.from_iterable(self._split(bucket, level=1) for bucket in self._buckets):
            if group and _is_too_much([*group, *bucket]):
                yield sorted(group, key=lambda events: events.first)
                group = []
            group += bucket
        if group:
            yield sorted(group, key=lambda events: events.first)

    def _split(self, bucket: Bucket, *, level: int) -> Iterator[Bucket]:
        """The bucket, or smaller ones of its keys, as far as they need not be together."""
        rows, nbytes = _size(bucket)
        has_room = rows <= fold_on_driver.MAX_ROWS and nbytes <= fold_on_driver.MAX_DECODED
        if has_room or not self._can_split(bucket):
            yield bucket
            return
        count = min(MOST_BUCKETS, 2 + max(rows // GROUP_EVENTS, nbytes // GROUP_BYTES))
        for part in self._distribute(map(self.read, bucket), count, level=level):
            yield from self._split(part, level=level + 1)

    def _can_split(self, bucket: Bucket) -> bool:
        first: int | None = None
        for events in bucket:
            keys = self._hash_keys(self.read(events))
            first = int(keys[0]) if first is None else first
            if (keys != np.uint64(first)).any():
                return True
        return False

    def read(self, events: Events) -> pa.Table:
        return events.spool.read(events.spooled)


def _is_too_much(group: Bucket) -> bool:
    rows, nbytes = _size(group)
    return nbytes > GROUP_BYTES or rows > GROUP_EVENTS


def _size(bucket: Bucket) -> tuple[int, int]:
    """Events, and their bytes in memory."""
    return sum(events.spooled.rows for events in bucket), sum(events.spooled.nbytes for events in bucket)


def join_up_to(size: int, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows of all tables in their order, so many bytes at a time."""
    waiting: list[pa.Table] = []
    waiting_bytes = 0
    for table in tables:
        if not len(table):
            continue
        waiting.append(table)
        waiting_bytes += table.nbytes
        if waiting_bytes >= size:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting = []
            waiting_bytes = 0
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _changes_of_key(staging: Staging, work: Work, schema: TableSchema, secret: bytes) -> tuple[Words, Words]:
    """The hashes of old and new keys where a row keeps values over the change."""
    spool: TableSpool | None = None
    changes: list[SpooledTable] = []
    changing = tuple(file for file in work.files if file.has_moves and file.has_unchanged)
    for events in fold_on_driver.read_events(staging, replace(work, files=changing, chunks=()), schema):
        moved = events.filter(pc.and_(events["moved"], events["unchanged"].is_valid()))
        if not len(moved):
            continue
        sides = {
            side: hash_keys([join_chunks(moved[f"{side}{i}"]) for i in range(len(schema.key))], secret).first
            for side in "mk"
        }
        spool = spool or TableSpool()
        changes.append(spool.write(pa.table(sides)))
    count = sum(table.rows for table in changes)
    old, new = spooled_array(count, np.uint64), spooled_array(count, np.uint64)
    end = 0
    for table in changes:
        assert spool is not None
        rows = spool.read(table)
        old[end : end + len(rows)] = np.asarray(rows["m"])
        new[end : end + len(rows)] = np.asarray(rows["k"])
        end += len(rows)
    return old, new


def find_chains(old: Words, new: Words) -> Chains:
    """Which keys changes of key lead between, by their hashes: two keys with the same hash share a bucket too. What is
    as long as the changes is a `spooled_array`."""
    both = spooled_array(2 * len(old), np.uint64)
    both[: len(old)] = old
    both[len(old) :] = new
    both.sort()
    keys = _distinct(both)
    roots = spooled_array(len(keys), np.int64)
    for part in _slices(len(keys)):
        roots[part] = np.arange(part.start, part.start + len(roots[part]))
    while True:
        is_done = True
        for part in _slices(len(old)):
            first, second = (roots[np.searchsorted(keys, side[part])] for side in (old, new))
            if (first != second).any():
                is_done = False
                # The root of each pair that is not together yet points at the lower one, and then each key at its root.
                np.minimum.at(roots, np.maximum(first, second), np.minimum(first, second))
        if is_done:
            return Chains(keys, roots)
        while _shorten(roots):
            pass


def _shorten(roots: npt.NDArray[np.int64]) -> bool:
    """Has each key point at the root of the one that it points at; False where all do."""
    is_shorter = False
    for part in _slices(len(roots)):
        further = roots[roots[part]]
        is_shorter |= bool((further != roots[part]).any())
        roots[part] = further
    return is_shorter


def _distinct(ordered: Words) -> Words:
    """The numbers, each once, moved to the front of the array."""
    count = 0
    for part in _slices(len(ordered)):
        numbers = ordered[part]
        is_new = np.ones(len(numbers), np.bool_)
        is_new[1:] = numbers[1:] != numbers[:-1]
        is_new[0] = not count or numbers[0] != ordered[count - 1]
        chosen = numbers[is_new]
        ordered[count : count + len(chosen)] = chosen
        count += len(chosen)
    return ordered[:count]


def _slices(count: int) -> list[slice]:
    return [slice(at, at + _SLICE) for at in range(0, count, _SLICE)]


@dataclass(frozen=True, slots=True)
class Chains:
    """Keys that belong to others: `keys` in order, and for each the place of the one that stands for all of them."""

    keys: Words
    roots: npt.NDArray[np.int64]

    def replace(self, keys: Words) -> Words:
        """The keys, each as the one that stands for it."""
        if not len(self.keys):
            return keys
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.keys[self.roots[places]], keys)
