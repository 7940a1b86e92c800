"""Works in which the log left columns out, folded on the driver bucket by bucket: memory holds one bucket at a time.

  changes of key -> which keys belong together -> all events, each to the bucket of its key, on the local disk -> some
  buckets at a time: their events folded (`PortionFold`), back to the disk -> parts, no two of which share a key

A row keeps values of the key that it had before, so keys that a change of key leads between are in one bucket.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.key_hash import hash_keys
from dblog_core.lake.merge_plan import Work
from dblog_core.model.schema import TableSchema
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.staging import Staging
from spark_jobs.events import fold_in_parts, fold_on_driver
from spark_jobs.events.fold import WITHHOLD
from spark_jobs.events.key_buckets import Words, split_by_key
from spark_jobs.events.portion_fold import PortionFold
from spark_jobs.events.table_spool import SpooledTable, TableSpool

MOST_BUCKETS = 256
BUCKET_ROWS = 10_000
BUCKET_BYTES = 2 << 20
"""Of staged files, which are compressed: what goes to a bucket where keys are spread evenly."""
DISTRIBUTED_BYTES = 32 << 20
"""Decoded bytes of events that are sorted into buckets at once."""
PART_BYTES = 48 << 20
PART_EVENTS = 100_000
"""Of buckets that are folded together: the most of each, where one bucket alone does not have more."""
PORTION = 32 << 20
"""Decoded bytes of events that are folded at a time."""


@dataclass(frozen=True, slots=True)
class _Events:
    """Events of one bucket on the disk, and their lowest and highest offset."""

    spooled: SpooledTable
    first: int
    last: int


class SpooledParts:
    """Folded rows of a work in parts on the local disk; no two parts have a key in common."""

    def __init__(self, spool: TableSpool, parts: Sequence[SpooledTable], *, withheld: int) -> None:
        """`withheld`: the rows with a value that nobody knows, whatever the table has."""
        self._spool = spool
        self._parts = parts
        self.withheld = withheld

    def __len__(self) -> int:
        """Folded rows."""
        return sum(part.rows for part in self._parts)

    def __iter__(self) -> Iterator[pa.Table]:
        return map(self._spool.read, self._parts)


def fits_buckets(work: Work, schema: TableSchema) -> bool:
    """Whether the work may be folded so."""
    return (
        fold_on_driver.has_unchanged_toast(work)
        and work.rows <= fold_in_parts.MOST_EVENTS
        and fold_in_parts.have_room(work)
        and not fold_on_driver.has_float_key(schema)
    )


def fold_buckets(staging: Staging, work: Work, schema: TableSchema) -> SpooledParts | None:
    """The folded rows of the work; None where keys that belong together have no room in memory.

    Raises CorruptSegment for a file that is missing or not the one that the manifest names; LakeError where the local
    disk has no room.
    """
    with fold_in_parts.ONE_AT_A_TIME:
        spool = TableSpool()
        parts = TableSpool()
        folded: list[SpooledTable] = []
        withheld = 0
        for events in _group_buckets(_distribute_events(spool, staging, work, schema)):
            rows = _fold_events(spool, events, schema)
            if rows is None:
                return None
            if len(rows):
                withheld += int(pc.sum(pc.equal(rows["op"], WITHHOLD)).as_py())
                folded.append(parts.write(rows))
        return SpooledParts(parts, folded, withheld=withheld)


def _distribute_events(
    spool: TableSpool, staging: Staging, work: Work, schema: TableSchema
) -> Sequence[Sequence[_Events]]:
    """All events on the disk, by bucket."""
    secret = secrets.token_bytes(16)
    linked = _LinkedKeys()
    for old, new in _changes_of_key(staging, work, schema, secret):
        linked.add(old, new)
    chains = linked.chains()
    count = min(MOST_BUCKETS, 1 + max(work.rows // BUCKET_ROWS, work.bytes // BUCKET_BYTES))
    buckets: list[list[_Events]] = [[] for _ in range(count)]
    names = [f"k{i}" for i in range(len(schema.key))]
    for events in _join_up_to(DISTRIBUTED_BYTES, fold_on_driver.read_events(staging, work, schema)):
        keys = chains.replace(hash_keys([join_chunks(events[name]) for name in names], secret).first)
        for bucket, rows in zip(buckets, split_by_key(events, keys, count), strict=True):
            if len(rows):
                offsets = np.asarray(rows["offset"])
                bucket.append(_Events(spool.write(rows), int(offsets.min()), int(offsets.max())))
    return buckets


def _join_up_to(size: int, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
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


def _group_buckets(buckets: Sequence[Sequence[_Events]]) -> Iterator[list[_Events]]:
    """The events of buckets that are folded together, those with the lowest offsets first."""
    group: list[_Events] = []
    for bucket in buckets:
        together = [*group, *bucket]
        if group and (
            sum(events.spooled.nbytes for events in together) > PART_BYTES
            or sum(events.spooled.rows for events in together) > PART_EVENTS
        ):
            yield sorted(group, key=lambda events: events.first)
            group = []
        group += bucket
    if group:
        yield sorted(group, key=lambda events: events.first)


def _fold_events(spool: TableSpool, group: Sequence[_Events], schema: TableSchema) -> pa.Table | None:
    """The folded rows of these events, in portions that follow one another; None where they have no room."""
    fold = PortionFold(schema)
    waiting: list[pa.Table] = []
    waiting_bytes = 0
    ends = accumulate(group, lambda last, events: max(last, events.last), initial=-1)
    for events, last_before in zip(group, ends, strict=False):
        # A portion may end only where all its events are older than all that follow.
        if waiting_bytes >= PORTION and last_before < events.first:
            fold.add_portion(pa.concat_tables(waiting))
            waiting = []
            waiting_bytes = 0
        waiting.append(spool.read(events.spooled))
        waiting_bytes += events.spooled.nbytes
        if max(waiting_bytes, fold.nbytes) > fold_on_driver.MAX_DECODED or fold.keys > fold_on_driver.MAX_ROWS:
            return None
    fold.add_portion(pa.concat_tables(waiting))
    return fold.fold_rows()


def _changes_of_key(staging: Staging, work: Work, schema: TableSchema, secret: bytes) -> Iterator[tuple[Words, Words]]:
    """The hashes of old and new keys where a row keeps values over the change."""
    changing = tuple(file for file in work.files if file.has_moves and file.has_unchanged)
    if not changing:
        return
    for events in fold_on_driver.read_events(staging, replace(work, files=changing, chunks=()), schema):
        moved = events.filter(pc.and_(events["moved"], events["unchanged"].is_valid()))
        if len(moved):
            old, new = (
                hash_keys([join_chunks(moved[f"{side}{i}"]) for i in range(len(schema.key))], secret).first
                for side in "mk"
            )
            yield old, new


class _LinkedKeys:
    """Which keys belong together, by their hashes: two keys with the same hash share a bucket too."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def add(self, old: Words, new: Words) -> None:
        for one, other in zip(old.tolist(), new.tolist(), strict=True):
            first = self._root(one)
            second = self._root(other)
            if first != second:
                self._parents[second] = first

    def _root(self, key: int) -> int:
        parents = self._parents
        while (parent := parents.setdefault(key, key)) != key:
            parents[key] = parents[parent]
            key = parents[key]
        return key

    def chains(self) -> _Chains:
        keys = np.fromiter(self._parents, np.uint64, len(self._parents))
        roots = np.fromiter(map(self._root, list(self._parents)), np.uint64, len(keys))
        order = np.argsort(keys)
        return _Chains(keys[order], roots[order])


@dataclass(frozen=True, slots=True)
class _Chains:
    """Keys that belong to others: `keys` in order, and for each the one that stands for all of them."""

    keys: Words
    roots: Words

    def replace(self, keys: Words) -> Words:
        """The keys, each as the one that stands for it."""
        if not len(self.keys):
            return keys
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.roots[places], keys)
