"""Keys that belong together: a row may keep values of the key that it had before, so all keys that changes of key lead
between are in one bucket.

A key is the first half of its hash here: two keys with the same one are together too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.keys.key_hash import hash_keys
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events.staged_events import read_events
from dblog_core.model.schema import TableSchema
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.rows.disk_spool import SpooledTables, spooled_array
from dblog_core.staging import Staging

Words = npt.NDArray[np.uint64]

_SLICE = 1 << 20
"""Numbers of changes of key that are in memory at once."""


@dataclass(frozen=True, slots=True)
class KeyHasher:
    """The hashes of events' keys. `kinds`: the types that the keys are hashed in: only so equal ones have equal hashes
    wherever they come from."""

    secret: bytes
    kinds: tuple[pa.DataType, ...]

    def columns(self, events: pa.Table, side: str = "k") -> list[pa.Array]:
        """The key of each event; with `side` m the old one, of a change of key."""
        return [join_chunks(events[f"{side}{i}"].cast(kind)) for i, kind in enumerate(self.kinds)]

    def hash(self, events: pa.Table, side: str = "k") -> Words:
        return hash_keys(self.columns(events, side), self.secret).first


def find_staged_chains(staging: Staging, work: Work, schema: TableSchema, hasher: KeyHasher) -> Chains:
    """The chains of the work: where a row keeps values over a change of its key."""
    changes = SpooledTables()
    changing = tuple(file for file in work.files if file.has_moves and file.has_unchanged)
    for events in read_events(staging, replace(work, files=changing, chunks=()), schema):
        moved = events.filter(pc.and_(events["moved"], events["unchanged"].is_valid()))
        if len(moved):
            changes.append(pa.table({"old": hasher.hash(moved, "m"), "new": hasher.hash(moved)}))
    old = spooled_array(len(changes), np.uint64)
    new = spooled_array(len(changes), np.uint64)
    end = 0
    for rows in changes:
        old[end : end + len(rows)] = np.asarray(rows["old"])
        new[end : end + len(rows)] = np.asarray(rows["new"])
        end += len(rows)
    return find_chains(old, new)


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
