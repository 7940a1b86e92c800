"""Sorted runs of index entries: in memory, or mapped from a file of this machine's disk, whose pages are checked.

An entry is the first half of a key, its place, and the second half where keys have one. A place is the number of a file
in its upper 32 bits, and a row of it in the lower.
"""

from __future__ import annotations

import mmap
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dblog_core.delta_writer.keys.key_hash import KeyHashes
from dblog_core.interfaces import Json

Entries = npt.NDArray[np.uint64]
Places = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

BLOCK = 256
"""Entries between two keys that stay in memory: a look-up reads one page or two."""
LARGE = 8_000_000
"""Entries of a run that is joined with no other: to sort them takes a second, and twice their memory."""
_STRETCH = 1 << 19
ROW_BITS = np.uint64(32)
ROW_MASK = np.uint64((1 << 32) - 1)


class IndexDamaged(Exception):
    """A file of the index is not what was written: the index is made again."""


@dataclass(slots=True)
class Run:
    """Entries in the order of their keys. `sparse`: the first key of each block, in memory."""

    entries: Entries
    sparse: Entries
    sums: npt.NDArray[np.uint32] | None = None
    """Where it is mapped: the CRC-32 of each block."""
    name: str = ""
    """Of its file; empty in memory."""
    checked: npt.NDArray[np.bool_] | None = None
    """The blocks whose sum has been looked at."""

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def bytes_in_memory(self) -> int:
        return int(self.sparse.nbytes + (0 if self.name else self.entries.nbytes))

    def find(self, keys: KeyHashes) -> tuple[Numbers, Places]:
        """For each entry of one of the keys, which are in order: the key's number, and the place."""
        if not len(self) or not len(keys):
            return np.empty(0, np.int64), np.empty(0, np.uint64)
        first = keys.first
        low_block = np.maximum(np.searchsorted(self.sparse, first, side="left") - 1, 0)
        high_block = np.maximum(np.searchsorted(self.sparse, first, side="right") - 1, 0)
        # Before a page is believed: a cache on a disk of this machine may be damaged, and a wrong place would mark a
        # row that lives.
        self._check(low_block, high_block)
        low = self._bisect(first, low_block, right=False)
        counts = self._is(first, low).astype(np.int64)
        several = np.flatnonzero(counts.astype(np.bool_) & self._is(first, low + 1))  # keys of several entries
        counts[several] = self._bisect(first[several], high_block[several], right=True) - low[several]
        key_numbers = np.repeat(np.arange(len(first)), counts)
        entries = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(len(key_numbers))
        places = self.entries[entries, 1]
        if keys.second is None:
            return key_numbers, places
        same = self.entries[entries, 2] == keys.second[key_numbers]
        return key_numbers[same], places[same]

    def _is(self, first: Entries, places: Numbers) -> npt.NDArray[np.bool_]:
        """Whether each place is that of an entry of the key."""
        inside = np.minimum(places, len(self) - 1)
        return np.asarray((self.entries[inside, 0] == first) & (places < len(self)))

    def _bisect(self, first: Entries, block: npt.NDArray[np.intp], *, right: bool) -> Numbers:
        """The place of each key in its block: before, or behind the equal ones."""
        low = block * BLOCK
        high = np.minimum(low + BLOCK, len(self))
        step = BLOCK
        while step:
            ahead = low + step
            ends = self.entries[np.minimum(ahead, len(self)) - 1, 0]
            before = (ends <= first if right else ends < first) & (ahead <= high)
            low = np.where(before, ahead, low)
            step >>= 1
        return low

    def _check(self, low: npt.NDArray[np.intp], high: npt.NDArray[np.intp]) -> None:
        """Asks the disk for all blocks at once, and looks at the sum of each when it is first used."""
        if self.sums is None or self.checked is None:
            return
        wide = high > low + 1
        between = [np.arange(a, b) for a, b in zip(low[wide].tolist(), high[wide].tolist(), strict=True)]
        blocks = np.unique(np.concatenate([low, high, *between]))
        blocks = blocks[~self.checked[blocks]].tolist()
        self._ask_for(blocks)
        for block in blocks:
            if zlib.crc32(self.entries[block * BLOCK : (block + 1) * BLOCK].data) != self.sums[block]:
                raise IndexDamaged(f"{self.name}, block {block}")
            self.checked[block] = True

    def _ask_for(self, blocks: Sequence[int]) -> None:
        mapped = getattr(self.entries, "_mmap", None)
        if mapped is None:
            return
        # All pages in one go: on a cold cache the disk would otherwise be waited for once a page.
        size = BLOCK * self.entries.strides[0]
        for block in blocks:
            begin = block * size // mmap.PAGESIZE * mmap.PAGESIZE
            mapped.madvise(mmap.MADV_WILLNEED, begin, min((block + 1) * size, len(mapped)) - begin)


class RunBuilder:
    """Makes runs of the entries of stretches, in any order; it holds the entries of one run, and no copy of them."""

    def __init__(self) -> None:
        self._entries: Entries | None = None
        self._count = 0

    def add(self, keys: KeyHashes, places: Places) -> Run | None:
        """Takes the entries of a stretch; returns the run of those before it, where both together would be too many."""
        full = self.finish() if self._count and self._count + len(places) > LARGE else None
        if self._entries is None:
            # The system gives no memory for what nobody has written yet.
            self._entries = np.empty((max(LARGE, len(places)), 2 if keys.second is None else 3), np.uint64)
        end = self._count + len(places)
        self._entries[self._count : end, 0] = keys.first
        self._entries[self._count : end, 1] = places
        if keys.second is not None:
            self._entries[self._count : end, 2] = keys.second
        self._count = end
        return full

    def finish(self) -> Run | None:
        """The run of all that was not returned yet; None for no entry."""
        entries = self._entries
        count = self._count
        self._entries = None
        self._count = 0
        if entries is None or not count:
            return None
        return _in_order(entries[:count] if 2 * count > len(entries) else entries[:count].copy())


def join_runs(runs: Sequence[Run], live: Numbers) -> Run:
    """One run in memory of several; what is in other files than those with the numbers `live` is left out."""
    for run in runs:
        if run.sums is not None:
            blocks = np.arange(len(run.sums))
            # The new run gets sums of its own, which would vouch for damage that nobody has looked for.
            run._check(blocks, blocks)
    # By stretches: what is made for all entries at once would take as much memory as they do.
    stretches = [run.entries[at : at + _STRETCH] for run in runs for at in range(0, len(run), _STRETCH)]
    are_in = [np.isin((stretch[:, 1] >> ROW_BITS).astype(np.int64), live) for stretch in stretches]
    entries = np.empty((sum(map(np.count_nonzero, are_in)), runs[0].entries.shape[1]), np.uint64)
    end = 0
    for stretch, rows in zip(stretches, are_in, strict=True):
        chosen = stretch[rows]
        entries[end : end + len(chosen)] = chosen
        end += len(chosen)
    return _in_order(entries)


def _in_order(entries: Entries) -> Run:
    """Puts the entries in order where they are: a copy of them all would take as much memory again."""
    first = entries[:, 0]
    if (first[1:] < first[:-1]).any():
        order = np.argsort(first)
        for column in range(entries.shape[1]):
            entries[:, column] = entries[order, column]
    return Run(entries, np.ascontiguousarray(entries[::BLOCK, 0]))


def write_run(run: Run, directory: Path) -> Run:
    """The run as a file of its own in the directory, mapped. Raises OSError."""
    name = f"{uuid.uuid4().hex}.run"
    entries = np.ascontiguousarray(run.entries)
    sums = np.array([zlib.crc32(entries[at : at + BLOCK].data) for at in range(0, len(entries), BLOCK)], np.uint32)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        entries.tofile(directory / name)
    except OSError:
        (directory / name).unlink(missing_ok=True)
        raise
    return _map_run(directory / name, entries.shape, run.sparse, sums)


def _map_run(path: Path, shape: tuple[int, ...], sparse: Entries, sums: npt.NDArray[np.uint32]) -> Run:
    entries = np.memmap(path, np.uint64, "r", shape=shape) if shape[0] else np.empty(shape, np.uint64)
    return Run(entries, sparse, sums, path.name, np.zeros(len(sums), np.bool_))


@dataclass(frozen=True, slots=True)
class StoredRuns:
    """Runs as the index's own record describes them."""

    runs: list[Json] = field(default_factory=list)
    heads: bytes = b""
    """The sparse keys and the sums of all runs, one after the other."""

    @classmethod
    def of(cls, runs: Sequence[Run]) -> StoredRuns:
        stored = []
        heads = []
        for run in runs:
            assert run.sums is not None
            stored.append({"name": run.name, "rows": len(run), "width": run.entries.shape[1], "blocks": len(run.sums)})
            heads += [run.sparse.tobytes(), run.sums.tobytes()]
        return cls(stored, b"".join(heads))

    def open(self, directory: Path) -> list[Run]:
        """Raises OSError or ValueError where a file is missing or of another size."""
        runs = []
        at = 0
        for stored in self.runs:
            rows = int(stored["rows"])
            width = int(stored["width"])
            blocks = int(stored["blocks"])
            path = directory / Path(str(stored["name"])).name
            # A page behind the file's end would kill the process by SIGBUS, which no handler here sees.
            if path.stat().st_size != rows * width * 8 or blocks != -(-rows // BLOCK):
                raise ValueError(f"{path} is of another size")
            sparse = np.frombuffer(self.heads, np.uint64, blocks, at)
            sums = np.frombuffer(self.heads, np.uint32, blocks, at + 8 * blocks)
            at += 12 * blocks
            runs.append(_map_run(path, (rows, width), sparse, sums))
        return runs
