"""Sets of row numbers, and the portable RoaringBitmapArray that Delta stores them in: Roaring containers.

A set never changes: a grown one shares the containers that stay. So a commit that fails leaves nothing to undo, and
growing costs what the touched containers cost: 65,536 rows each.

Sources: PROTOCOL.md, "Deletion Vector Format"; the Roaring format specification, portable 32-bit form.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from dblog_core.errors import LakeError

Rows = npt.NDArray[np.int64]
Container = npt.NDArray[np.uint16] | npt.NDArray[np.uint8]
"""The low 16 bits in order where they are at most `_ARRAY_MAX`; else a bit each (uint8, lowest bit first)."""

_IS_LITTLE = sys.byteorder == "little"
_MAGIC = 1681511377
_COOKIE = 12346
_COOKIE_RUNS = 12347
_ARRAY_MAX = 4096
_BITMAP_BYTES = 8192
_FEW = 4096  # rows of a set that is one array, of eight bytes a row
_OFFSETS_FROM = 4  # containers from which on the form with runs has offsets too
_MOST_CONTAINERS = 1 << 16
_MOST_BUCKETS = 1 << 31  # a bucket's key has 0 as its highest bit


@dataclass(frozen=True, slots=True, eq=False)
class RowSet:
    """Row numbers from 0. A small set is one array: most files have few dead rows, and a commit touches many files."""

    _few: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    """The rows in order, where they are at most `_FEW`; nobody may change it."""
    _containers: Mapping[int, Container] = field(default_factory=dict)
    """Those of a larger set, by the number of 65,536 rows; none is empty."""
    _size: int = field(init=False)

    def __post_init__(self) -> None:
        self._few.flags.writeable = False  # `rows` hands it out
        # Counted once: a commit asks for the size of each vector several times.
        object.__setattr__(self, "_size", len(self._few) + sum(map(_count, self._containers.values())))

    @classmethod
    def of_first(cls, count: int) -> RowSet:
        """The rows 0 to `count` - 1. Its full containers are one in memory, however many there are."""
        if count <= _FEW:
            return cls(np.arange(count))
        whole, rest = divmod(count, 8 * _BITMAP_BYTES)
        containers: dict[int, Container] = dict.fromkeys(range(whole), np.full(_BITMAP_BYTES, 255, np.uint8))
        if rest:
            containers[whole] = _pack(np.arange(rest, dtype=np.uint16))
        return cls(_containers=containers)

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowSet) and bool(np.array_equal(self.rows(), other.rows()))

    __hash__ = None  # type: ignore[assignment]

    def rows(self) -> Rows:
        """All of them, in order."""
        if not self._containers:
            return self._few
        return np.concatenate([_lows(c).astype(np.int64) | key << 16 for key, c in sorted(self._containers.items())])

    @property
    def last(self) -> int:
        """The highest row; -1 without one."""
        if not self._containers:
            return int(self._few[-1]) if len(self._few) else -1
        key = max(self._containers)
        return key << 16 | _last(self._containers[key])

    def contains(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """For each row whether it is in the set."""
        if not len(self) or not len(rows):
            return np.zeros(len(rows), np.bool_)
        if not self._containers:
            return _are_in(self._few, rows)
        is_in_set = np.zeros(len(rows), np.bool_)
        order = np.argsort(rows)
        ordered = rows[order]
        lows = ordered.astype(np.uint16)  # the low 16 bits
        for key, begin, end in _groups(ordered):
            if (container := self._containers.get(key)) is not None:
                is_in_set[order[begin:end]] = _contains_lows(container, lows[begin:end])
        return is_in_set

    def with_rows(self, rows: Rows) -> RowSet:
        """The set with these rows as well."""
        rows = np.asarray(rows, np.int64)
        if len(rows) and rows.min() < 0:
            raise ValueError(f"row {rows.min()} is no row number")
        if not self._containers:
            merged = _in_order(np.concatenate((self._few, rows)))
            return RowSet(merged) if len(merged) <= _FEW else RowSet(_containers=_grow({}, merged))
        return RowSet(_containers=_grow(self._containers, np.sort(rows)))

    def encode(self) -> bytes:
        """The portable RoaringBitmapArray, with its magic number."""
        if len(self._few) and self._few[0] >> 32 == self._few[-1] >> 32:
            return _encode_few(self._few)
        containers = self._containers or _grow({}, self._few)
        # A bucket holds the rows that share the upper 32 bits of their number: one bitmap of 32 bits each.
        buckets: dict[int, list[int]] = {}
        # Readers bisect buckets and containers, and take their order for granted.
        for key in sorted(containers):
            buckets.setdefault(key >> 16, []).append(key)
        parts = [struct.pack("<IQ", _MAGIC, len(buckets))]
        for high, keys in buckets.items():
            parts += [struct.pack("<I", high), *_bucket({key & 0xFFFF: containers[key] for key in keys})]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, *, where: str = "") -> RowSet:
        """What `encode` made, or another writer: containers with runs too. Raises LakeError for anything else."""
        try:
            many = cls(_containers=_decode_containers(data))
        except (struct.error, ValueError, IndexError) as error:
            raise LakeError(
                f"a deletion vector cannot be read: {error}",
                where=where,
                fix="restore the table from a backup, or run `dblog reset` for it",
            ) from error
        return cls(many.rows()) if len(many) <= _FEW else many


def _in_order(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values, each once; they are put in order where they are."""
    values.sort()
    is_new = values[1:] != values[:-1]
    return values if is_new.all() else values[np.append(True, is_new)]


def _grow(containers: Mapping[int, Container], ordered: Rows) -> dict[int, Container]:
    """The containers with these rows as well, which are in order."""
    grown = dict(containers)
    lows = ordered.astype(np.uint16)  # the low 16 bits
    for key, begin, end in _groups(ordered):
        grown[key] = _add_lows(grown.get(key), lows[begin:end])
    return grown


def _groups(ordered: Rows) -> Iterator[tuple[int, int, int]]:
    """Stretches of ordered rows that share a container: its number, begin and end."""
    if not len(ordered):
        return
    keys = ordered >> 16
    edges = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    begins = [0, *edges.tolist()]
    yield from zip(keys[begins].tolist(), begins, [*begins[1:], len(ordered)], strict=True)


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


def _are_in(ordered: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.asarray(ordered[at] == values)


def _contains_lows(container: Container, lows: npt.NDArray[np.uint16]) -> npt.NDArray[np.bool_]:
    if container.dtype == np.uint16:
        return _are_in(container, lows)
    return np.asarray(container[lows >> 3] >> (lows & 7).astype(np.uint8) & 1, np.bool_)


def _add_lows(container: Container | None, lows: npt.NDArray[np.uint16]) -> Container:
    """`lows` is in order."""
    if container is None or container.dtype == np.uint16:
        # A copy in any case: a part of an array would keep the whole one.
        return _pack(_in_order(lows.copy() if container is None else np.concatenate((container.view(np.uint16), lows))))
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


def _encode_few(ordered: Rows) -> bytes:
    """What `encode` makes of some rows of one bucket: all containers are arrays, which lie one behind the other."""
    keys = ordered >> 16
    begins = np.append(0, np.flatnonzero(keys[1:] != keys[:-1]) + 1)
    heads = np.empty((len(begins), 2), "<u2")
    heads[:, 0] = keys[begins] & 0xFFFF
    heads[:, 1] = np.diff(begins, append=len(ordered)) - 1  # so that 65,536 fits into 16 bits
    offsets = 8 + 8 * len(begins) + 2 * begins
    head = struct.pack("<IQIII", _MAGIC, 1, ordered[0] >> 32, _COOKIE, len(begins))
    return b"".join((head, heads.tobytes(), offsets.astype("<u4").tobytes(), ordered.astype("<u2").tobytes()))


def _bucket(containers: Mapping[int, Container]) -> list[bytes]:
    counts = [_count(container) for container in containers.values()]
    bodies = [
        (container if _IS_LITTLE else container.astype(container.dtype.newbyteorder("<"))).tobytes()
        for container in containers.values()
    ]
    # Counts less one, so that 65,536 fits into 16 bits.
    heads = [number for key, count in zip(containers, counts, strict=True) for number in (key, count - 1)]
    offsets = accumulate(map(len, bodies[:-1]), initial=8 + 8 * len(bodies))
    form = f"<II{len(heads)}H{len(bodies)}I"
    return [struct.pack(form, _COOKIE, len(bodies), *heads, *offsets), *bodies]


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
