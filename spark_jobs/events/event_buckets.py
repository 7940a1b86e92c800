"""All events of a work on the local disk, apart by key: memory holds those of a few keys at a time.

  changes of key -> which keys belong together -> all events, each to the bucket of its key -> some buckets at a time

A row may keep values of the key that it had before, so keys that a change of key leads between are in one bucket.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.keys.key_hash import hash_keys
from dblog_core.lake.merge_plan import Work
from dblog_core.model.schema import TableSchema
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.rows.table_spool import SpooledTable, TableSpool
from dblog_core.staging import Staging
from spark_jobs.events import fold_on_driver
from spark_jobs.events.key_buckets import Words, split_by_key

MOST_BUCKETS = 256
BUCKET_ROWS = 10_000
BUCKET_BYTES = 2 << 20
"""Of staged files, which are compressed: what goes to a bucket where keys are spread evenly."""
DISTRIBUTED_BYTES = 32 << 20
"""Decoded bytes of events that are sorted into buckets at once."""
GROUP_BYTES = 48 << 20
GROUP_EVENTS = 100_000
"""Of buckets that are read together: the most of each, where one bucket alone does not have more."""
MOST_CHANGES_OF_KEY = 2_000_000
"""That leave values out: to find the keys that they lead between takes up to 200 MiB."""


class TooManyChanges(Exception):
    """A work has more changes of key than memory has room for."""


@dataclass(frozen=True, slots=True)
class Events:
    """Some events of a bucket, and their lowest and highest offset."""

    spooled: SpooledTable
    first: int
    last: int


class EventBuckets:
    """The events of a work; `for_history`: as `fold_on_driver.read_events` has them for a history.

    Raises TooManyChanges; CorruptSegment for a file that is missing or not the one that the manifest names; LakeError
    where the local disk has no room.
    """

    def __init__(self, staging: Staging, work: Work, schema: TableSchema, *, for_history: bool = False) -> None:
        self._spool = TableSpool()
        count = min(MOST_BUCKETS, 1 + max(work.rows // BUCKET_ROWS, work.bytes // BUCKET_BYTES))
        self._buckets: list[list[Events]] = [[] for _ in range(count)]
        secret = secrets.token_bytes(16)
        chains = find_chains(*_changes_of_key(staging, work, schema, secret))
        names = [f"k{i}" for i in range(len(schema.key))]
        every = fold_on_driver.read_events(staging, work, schema, for_history=for_history)
        for events in join_up_to(DISTRIBUTED_BYTES, every):
            keys = chains.replace(hash_keys([join_chunks(events[name]) for name in names], secret).first)
            for bucket, rows in zip(self._buckets, split_by_key(events, keys, count), strict=True):
                if len(rows):
                    offsets = np.asarray(rows["offset"])
                    bucket.append(Events(self._spool.write(rows), int(offsets.min()), int(offsets.max())))

    def groups(self) -> Iterator[list[Events]]:
        """The events of buckets that are read together, those with the lowest offsets first."""
        group: list[Events] = []
        for bucket in self._buckets:
            if group and _is_too_much([*group, *bucket]):
                yield sorted(group, key=lambda events: events.first)
                group = []
            group += bucket
        if group:
            yield sorted(group, key=lambda events: events.first)

    def read(self, events: Events) -> pa.Table:
        return self._spool.read(events.spooled)


def _is_too_much(group: Sequence[Events]) -> bool:
    sizes = [events.spooled for events in group]
    return sum(size.nbytes for size in sizes) > GROUP_BYTES or sum(size.rows for size in sizes) > GROUP_EVENTS


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
    """The hashes of old and new keys where a row keeps values over the change. Raises TooManyChanges."""
    sides: tuple[list[Words], list[Words]] = ([np.empty(0, np.uint64)], [np.empty(0, np.uint64)])
    changing = tuple(file for file in work.files if file.has_moves and file.has_unchanged)
    count = 0
    for events in fold_on_driver.read_events(staging, replace(work, files=changing, chunks=()), schema):
        moved = events.filter(pc.and_(events["moved"], events["unchanged"].is_valid()))
        if not len(moved):
            continue
        count += len(moved)
        if count > MOST_CHANGES_OF_KEY:
            raise TooManyChanges
        for hashes, name in zip(sides, "mk", strict=True):
            keys = [join_chunks(moved[f"{name}{i}"]) for i in range(len(schema.key))]
            hashes.append(hash_keys(keys, secret).first)
    return np.concatenate(sides[0]), np.concatenate(sides[1])


def find_chains(old: Words, new: Words) -> Chains:
    """Which keys changes of key lead between, by their hashes: two keys with the same hash share a bucket too."""
    keys, numbers = np.unique(np.concatenate([old, new]), return_inverse=True)
    ends = np.split(numbers, 2)
    roots = np.arange(len(keys))
    while True:
        first, second = roots[ends[0]], roots[ends[1]]
        if (first == second).all():
            return Chains(keys, keys[roots])
        # The root of each pair that is not together yet points at the lower one, and then each key at its root.
        np.minimum.at(roots, np.maximum(first, second), np.minimum(first, second))
        while ((further := roots[roots]) != roots).any():
            roots = further


@dataclass(frozen=True, slots=True)
class Chains:
    """Keys that belong to others: `keys` in order, and for each the one that stands for all of them."""

    keys: Words
    roots: Words

    def replace(self, keys: Words) -> Words:
        """The keys, each as the one that stands for it."""
        if not len(self.keys):
            return keys
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.roots[places], keys)
