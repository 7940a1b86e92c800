"""How far files of a table share their keys, and which of them are worth being put in order together.

All by the statistics in the log: what these cannot tell apart, no reader can leave out either. Two files share keys
where their ranges meet in every column of the key. Each file counts by its bytes: a small one costs a reader little.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dblog_core.delta_writer.statistics import HIGHEST, PREFIX, Ends, load_json

FILES = 4
"""So many files with the same keys cost little."""
SHARE = 0.1
"""Of the table: where a key may lie in a larger share, that is too much."""
_LIKE = 3
"""Files that share a third as much as the one that shares most are put in order with it; others would be written again
for little."""
_LEFT = 0.6
"""So much of what files share among each other may be left, for a rewrite to be worth it. Two files of the same keys
that become halves leave 0.5."""
_SEEDS = 32
_PAIRS = 1 << 22  # of files that are compared at once: a table may have tens of thousands

Numbers = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Bytes of the rows of a file that live, and the ends of the key's columns as its statistics have them."""

    bytes: int
    ends: tuple[Ends, ...]


class Overlap:
    """Which files share keys."""

    def __init__(self, ranges: Sequence[KeyRange]) -> None:
        self.sizes: Sizes = np.array([key_range.bytes for key_range in ranges], np.float64)
        columns = len(ranges[0].ends) if ranges else 0
        self._ranks = [_rank_ends([key_range.ends[i] for key_range in ranges]) for i in range(columns)]

    @cached_property
    def shared(self) -> Sizes:
        """By file, the bytes of all that may have its keys, itself included."""
        return self.sum_partners(np.arange(len(self.sizes)), self.sizes)

    def sum_partners(self, files: Numbers, sizes: Sizes) -> Sizes:
        """For each of these files, the bytes of all that share keys with it, where each has the bytes of `sizes`."""
        shared = np.zeros(len(files))
        for block in self._blocks(len(files)):
            shared[block] = self.partners(files[block]) @ sizes
        return shared

    def _blocks(self, count: int) -> Iterator[slice]:
        step = max(1, _PAIRS // max(1, len(self.sizes)))
        for first in range(0, count, step):
            yield slice(first, first + step)

    def partners(self, files: Numbers) -> Flags:
        """For each of these files, which ones share keys with it."""
        meet = np.ones((len(files), len(self.sizes)), np.bool_)
        for lows, highs in self._ranks:
            meet &= (lows[files, None] <= highs[None, :]) & (lows[None, :] <= highs[files, None])
        meet[np.arange(len(files)), files] = True
        return meet

    @property
    def pair_bytes(self) -> float:
        """The sum over all pairs of files that share keys: the less, the better a table is in order."""
        return float(self.sizes @ self.shared)

    @property
    def files(self) -> float:
        """How many times as much shares keys as where no two files do: of files of one size, how many share their
        keys on average."""
        alone = float(self.sizes @ self.sizes)
        return self.pair_bytes / alone if alone else 0.0

    def is_mixed(self, times: float = 1.0) -> bool:
        """Whether files share their keys with too many others, or with so many `times` as many."""
        total = float(self.sizes.sum())
        return self.files > times * FILES and self.pair_bytes > times * SHARE * total * total


def ends_of(statistics: str | None, columns: Sequence[str]) -> tuple[Ends, ...]:
    """The ends of these columns (physical names) in the statistics of a file."""
    fields = load_json(statistics)
    lows = fields.get("minValues") or {}
    highs = fields.get("maxValues") or {}
    return tuple((lows.get(name), highs.get(name)) for name in columns)


def choose_files(
    overlap: Overlap, fits: Flags, *, least: int, together: int, without: Collection[int] = ()
) -> list[int]:
    """Files to put in order: the one that shares most and others that share keys with it and about as much, up to
    `together` bytes; empty where none come to `least` bytes. A file beyond that is chosen alone. `fits`: which files
    may be chosen; `without`: those that are not chosen first."""
    widest_first = [int(i) for i in np.argsort(-overlap.shared, kind="stable") if fits[i]]
    seeds = [i for i in widest_first if i not in without]
    for seed in seeds[:_SEEDS]:
        chosen = _gather(overlap, seed, widest_first, least=least, together=together)
        if overlap.sizes[chosen].sum() >= least:
            return chosen
    return []


def _gather(overlap: Overlap, seed: int, widest_first: Sequence[int], *, least: int, together: int) -> list[int]:
    partners = overlap.partners(np.array([seed]))[0]
    chosen = [seed]
    total = float(overlap.sizes[seed])
    for i in widest_first:
        is_like = _LIKE * overlap.shared[i] >= overlap.shared[seed]
        # Others fill it up only as far as new files of a good size need it.
        if i == seed or not partners[i] or not (is_like or total < least):
            continue
        if total + overlap.sizes[i] <= together:
            chosen.append(i)
            total += float(overlap.sizes[i])
    return chosen


def is_worth(files: Sequence[KeyRange], new_files: Sequence[KeyRange], others: Sequence[KeyRange]) -> bool:
    """Whether `new_files` in place of `files` leave a table in a much better order. As no rewrite without that is
    committed, and what is shared is finite, they end."""
    among, outside = _pair_bytes(files, others)
    left, outside_left = _pair_bytes(new_files, others)
    if left > _LEFT * among:
        return False
    # Where files become wider, they share more with others: the sum over the table, which has these pairs twice, must
    # fall by half of what it falls by among the files themselves at least.
    return 4 * (outside_left - outside) <= among - left


def _pair_bytes(files: Sequence[KeyRange], others: Sequence[KeyRange]) -> tuple[float, float]:
    """What files share among each other, themselves included, and with others: of each pair its bytes multiplied."""
    overlap = Overlap([*files, *others])
    numbers = np.arange(len(files))
    sizes = overlap.sizes[numbers]
    is_other = np.arange(len(overlap.sizes)) >= len(files)
    among = overlap.sum_partners(numbers, np.where(is_other, 0.0, overlap.sizes))
    outside = overlap.sum_partners(numbers, np.where(is_other, overlap.sizes, 0.0))
    return float(sizes @ among), float(sizes @ outside)


def _rank_ends(ends: Sequence[Ends]) -> tuple[Numbers, Numbers]:
    """The ends of a column as numbers in their order. What is not given lies beyond all others."""
    certain = [_certain_ends(low, high) for low, high in ends]
    values = {value for pair in certain for value in pair if value is not None}
    try:
        ranks: dict[Any, int] = {value: i for i, value in enumerate(sorted(values))}
    except TypeError:  # statistics of another type, from before the column was altered
        return np.zeros(len(ends), np.int64), np.zeros(len(ends), np.int64)
    lows = [-1 if low is None else ranks[low] for low, _ in certain]
    highs = [len(ranks) if high is None else ranks[high] for _, high in certain]
    return np.array(lows, np.int64), np.array(highs, np.int64)


def _certain_ends(low: Any, high: Any) -> Ends:
    """Ends that lie within the file's: a text may be cut, and no order would give files that only seem to meet other
    statistics."""
    if isinstance(low, str) and len(low) >= PREFIX:
        low += HIGHEST
    if isinstance(high, str) and len(high) > PREFIX:
        high = high[:PREFIX]
    return low, high
