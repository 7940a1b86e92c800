"""Sets of row numbers, kept as Roaring containers, and the portable RoaringBitmapArray that Delta stores them in.

A set never changes: a grown one shares the containers that stay. So a commit that fails leaves nothing to undo, and
growing costs what the touched containers cost: 65,536 rows each.

Sources: PROTOCOL.md, "Deletion Vector Format"; the Roaring format specification, portable 32-bit form.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dblog_core.errors import LakeError

Rows = npt.NDArray[np.int64]
Container = npt.NDArray[np.uint16] | npt.NDArray[np.uint8]
"""The low 16 bits in order where they are at most `_ARRAY_MAX`; else a bit each (uint8, lowest bit first)."""

_MAGIC = 1681511377
_COOKIE = 12346
_COOKIE_RUNS = 12347
_ARRAY_MAX = 4096
_BITMAP_BYTES = 8192
_OFFSETS_FROM = 4  # containers from which on the form with runs has offsets too
_MOST_CONTAINERS = 1 << 16
_MOST_BUCKETS = 1 << 31  # a bucket's key has 0 as its highest bit


@dataclass(frozen=True, slots=True)
class RowSet:
    """Row numbers from 0. Equal sets have equal containers."""

    containers: Mapping[int, Container] = field(default_factory=dict)
    """By the number of 65,536 rows; none is empty."""

    def __len__(self) -> int:
        return sum(map(_count, self.containers.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowSet) and bool(np.array_equal(self.rows(), other.rows()))

    __hash__ = None  # type: ignore[assignment]

    def rows(self) -> Rows:
        """All of them, in order."""
        return _concatenate(_lows(c).astype(np.int64) | key << 16 for key, c in sorted(self.containers.items()))

    @property
    def last(self) -> int:
        """The highest row; -1 without one."""
        if not self.containers:
            return -1
        key = max(self.containers)
        return key << 16 | _last(self.containers[key])

    def contains(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """For each row whether it is in the set."""
        is_in_set = np.zeros(len(rows), np.bool_)
        if not self.containers or not len(rows):
            return is_in_set
        order = np.argsort(rows, kind="stable")
        for key, begin, end in _groups(rows[order]):
            if (container := self.containers.get(key)) is not None:
                places = order[begin:end]
                is_in_set[places] = _contains_lows(container, (rows[places] & 0xFFFF).astype(np.uint16))
        return is_in_set

    def with_rows(self, rows: Rows) -> RowSet:
        """The set with these rows as well."""
        ordered = np.unique(rows)
        if len(ordered) and ordered[0] < 0:
            raise ValueError(f"row {ordered[0]} is no row number")
        grown = dict(self.containers)
        for key, begin, end in _groups(ordered):
            grown[key] = _add_lows(grown.get(key), (ordered[begin:end] & 0xFFFF).astype(np.uint16))
        return RowSet(grown)

    def encode(self) -> bytes:
        """The portable RoaringBitmapArray, with its magic number."""
        # A bucket holds the rows that share the upper 32 bits of their number: one bitmap of 32 bits each.
        buckets: dict[int, list[int]] = {}
        # Readers bisect buckets and containers, and take their order for granted.
        for key in sorted(self.containers):
            buckets.setdefault(key >> 16, []).append(key)
        parts = [struct.pack("<IQ", _MAGIC, len(buckets))]
        for high, keys in buckets.items():
            parts += [struct.pack("<I", high), *_bucket({key & 0xFFFF: self.containers[key] for key in keys})]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, *, where: str = "") -> RowSet:
        """What `encode` made, or another writer: containers with runs too. Raises LakeError for anything else."""
        try:
            return cls(_decode_containers(data))
        except (struct.error, ValueError, IndexError) as error:
            raise LakeError(
                f"a deletion vector cannot be read: {error}",
                where=where,
                fix="restore the table from a backup, or run `dblog reset` for it",
            ) from error


def _concatenate(parts: Iterable[Rows]) -> Rows:
    chosen = list(parts)
    return np.concatenate(chosen) if chosen else np.empty(0, np.int64)


def _groups(ordered: Rows) -> Iterator[tuple[int, int, int]]:
    """Stretches of ordered rows that share a container: its number, begin and end."""
    if not len(ordered):
        return
    keys = ordered >> 16
    edges = np.flatnonzero(np.diff(keys)) + 1
    begins = [0, *edges.tolist()]
    for begin, end in zip(begins, [*begins[1:], len(ordered)], strict=True):
        yield int(keys[begin]), begin, end


def _count(container: Container) -> int:
    if container.dtype == np.uint16:
        return len(container)
    return int(np.bitwise_count(container.view(np.uint64)).sum())


def _last(container: Container) -> int:
    if container.dtype == np.uint16:
        return int(container[-1])
    byte = int(np.flatnonzero(container)[-1])
    return byte << 3 | int(container[byte]).bit_length() - 1


def _lows(container: Container) -> npt.NDArray[np.uint16]:
    if container.dtype == np.uint16:
        return container.view(np.uint16)
    return np.flatnonzero(np.unpackbits(container.view(np.uint8), bitorder="little")).astype(np.uint16)


def _contains_lows(container: Container, lows: npt.NDArray[np.uint16]) -> npt.NDArray[np.bool_]:
    if container.dtype == np.uint16:
        at = np.minimum(np.searchsorted(container, lows), len(container) - 1)
        return np.asarray(container[at] == lows)
    return np.asarray(container[lows >> 3] >> (lows & 7).astype(np.uint8) & 1, np.bool_)


def _add_lows(container: Container | None, lows: npt.NDArray[np.uint16]) -> Container:
    """`lows` is in order and has no low twice."""
    if container is None:
        return _pack(lows)
    if container.dtype == np.uint16:
        return _pack(np.union1d(container, lows).astype(np.uint16))
    # A copy: a commit that fails continues with the set as it was.
    bits = container.view(np.uint8).copy()
    # `at`, since several rows may share a byte: plain `|=` would keep one of them.
    np.bitwise_or.at(bits, lows >> 3, np.left_shift(np.uint8(1), (lows & 7).astype(np.uint8)))
    return bits


def _pack(lows: npt.NDArray[np.uint16]) -> Container:
    # Up to here two bytes a row take at most the room of a bit for each of 65,536.
    if len(lows) <= _ARRAY_MAX:
        return lows
    marks = np.zeros(8 * _BITMAP_BYTES, np.uint8)
    marks[lows] = 1
    return np.packbits(marks, bitorder="little")


def _bucket(containers: Mapping[int, Container]) -> list[bytes]:
    counts = [_count(container) for container in containers.values()]
    bodies = [container.astype(container.dtype.newbyteorder("<")).tobytes() for container in containers.values()]
    # Counts less one, so that 65,536 fits into 16 bits.
    heads = np.array([(key, count - 1) for key, count in zip(containers, counts, strict=True)], "<u2")
    sizes = np.array([0, *map(len, bodies)], np.int64)
    offsets = 8 + 8 * len(bodies) + np.cumsum(sizes)[:-1]
    return [struct.pack("<II", _COOKIE, len(bodies)), heads.tobytes(), offsets.astype("<u4").tobytes(), *bodies]


def _decode_containers(data: bytes) -> dict[int, Container]:
    magic, buckets = struct.unpack_from("<IQ", data)
    if magic != _MAGIC:
        raise ValueError(f"it begins with {magic}, and {_MAGIC} is the one form that is known")
    containers: dict[int, Container] = {}
    at = 12
    last = -1
    for _ in range(buckets):
        (high,) = struct.unpack_from("<I", data, at)
        if not last < high < _MOST_BUCKETS:
            raise ValueError(f"bucket {high} follows bucket {last}")
        at = _read_bucket(data, at + 4, high << 16, containers)
        last = high
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes are left over")
    return containers


def _read_bucket(data: bytes, at: int, base: int, containers: dict[int, Container]) -> int:
    """Reads a 32-bit bitmap that begins at `at`; returns where it ends."""
    (cookie,) = struct.unpack_from("<I", data, at)
    if cookie & 0xFFFF == _COOKIE_RUNS:
        count = (cookie >> 16) + 1
        flags = np.frombuffer(data, np.uint8, -(-count // 8), at + 4)
        runs = np.unpackbits(flags, bitorder="little")[:count].astype(np.bool_).tolist()
        at += 4 + len(flags)
        offsets = 4 * count if count >= _OFFSETS_FROM else 0
    elif cookie == _COOKIE:
        (count,) = struct.unpack_from("<I", data, at + 4)
        # Before anything of that size is made: damaged bytes must not take the memory.
        if count > _MOST_CONTAINERS:
            raise ValueError(f"{count} containers in one bitmap")
        runs = [False] * count
        at = at + 8
        offsets = 4 * count
    else:
        raise ValueError(f"a bitmap begins with {cookie}")
    heads = np.frombuffer(data, "<u2", 2 * count, at).astype(np.int64).reshape(count, 2)
    if (np.diff(heads[:, 0]) <= 0).any():
        raise ValueError("its containers are not in order")
    at += 4 * count + offsets
    for (key, less), is_run in zip(heads.tolist(), runs, strict=True):
        container, at = _read_runs(data, at) if is_run else _read_plain(data, at, less + 1)
        if _count(container) != less + 1:
            raise ValueError(f"container {key} has {_count(container)} rows, and its head says {less + 1}")
        containers[base + key] = container
    return at


def _read_plain(data: bytes, at: int, count: int) -> tuple[Container, int]:
    if count > _ARRAY_MAX:
        return np.frombuffer(data, np.uint8, _BITMAP_BYTES, at), at + _BITMAP_BYTES
    lows = np.frombuffer(data, "<u2", count, at).astype(np.uint16)
    if (lows[1:] <= lows[:-1]).any():
        raise ValueError("rows are not in order")
    return lows, at + 2 * count


def _read_runs(data: bytes, at: int) -> tuple[Container, int]:
    (count,) = struct.unpack_from("<H", data, at)
    marks = np.zeros(8 * _BITMAP_BYTES, np.bool_)
    for start, more in np.frombuffer(data, "<u2", 2 * count, at + 2).astype(np.int64).reshape(count, 2).tolist():
        if start + more >= len(marks):
            raise ValueError(f"a run ends at {start + more}")
        marks[start : start + more + 1] = True
    return _pack(np.flatnonzero(marks).astype(np.uint16)), at + 2 + 4 * count
