"""Keys spread over buckets by their hashes, those that changes of key lead between together.

A key is the first half of its hash here: two keys with the same one are together too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dblog_core.rows.disk_spool import spooled_array

Words = npt.NDArray[np.uint64]

_SLICE = 1 << 20
"""Numbers of changes of key that are in memory at once."""

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplier: keys with a stride would fill one bucket
_UPPER = np.uint64(32)
_MIX = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))  # of MurmurHash3's finalizer
_SHIFT = np.uint64(33)


def bucket_numbers(keys: Words, count: int, *, level: int = 0) -> npt.NDArray[np.int64]:
    """By key the number of its bucket. `keys`: the first halves of their hashes; `level`: keys that share a bucket at
    one level share none at another, but by chance."""
    for _ in range(level):
        for factor in _MIX:
            keys = (keys ^ (keys >> _SHIFT)) * factor
    return (((keys * _SPREAD) >> _UPPER) % np.uint64(count)).astype(np.int64)


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
