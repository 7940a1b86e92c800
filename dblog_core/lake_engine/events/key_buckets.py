"""Rows apart by their keys: all rows of a key come into the same bucket."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Words = npt.NDArray[np.uint64]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplier: keys with a stride would fill one bucket
_UPPER = np.uint64(32)
_MIX = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))  # of MurmurHash3's finalizer
_SHIFT = np.uint64(33)


def split_by_key(rows: pa.Table, keys: Words, count: int, *, level: int = 0) -> list[pa.Table]:
    """The rows of each bucket, in the order that they have now. `keys`, `level`: as for `bucket_numbers`."""
    return split_by_number(rows, bucket_numbers(keys, count, level=level), count)


def bucket_numbers(keys: Words, count: int, *, level: int = 0) -> npt.NDArray[np.int64]:
    """By key the number of its bucket. `keys`: the first halves of their hashes; `level`: keys that share a bucket at
    one level share none at another, but by chance."""
    for _ in range(level):
        for factor in _MIX:
            keys = (keys ^ (keys >> _SHIFT)) * factor
    return (((keys * _SPREAD) >> _UPPER) % np.uint64(count)).astype(np.int64)


def split_by_number(rows: pa.Table, numbers: npt.NDArray[np.int64], count: int) -> list[pa.Table]:
    """The rows of each bucket, in the order that they have now. `numbers`: by row its bucket's."""
    if len(numbers) and (numbers[1:] >= numbers[:-1]).all():
        ordered = rows  # a chunk of a dump, in the order of its key
    else:
        by_bucket = np.argsort(numbers, kind="stable")
        ordered = rows.take(pa.array(by_bucket))
        numbers = numbers[by_bucket]
    edges = np.searchsorted(numbers, np.arange(count + 1)).tolist()
    return [ordered.slice(begin, end - begin) for begin, end in pairwise(edges)]


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Buckets that follow the order of the first column of a key: so a bucket has few files of a table that is in that
    order. `bounds`: the first place of each bucket but the first; `prefix`: bytes that texts have in common, which say
    nothing. Where a place lies is a matter of cost alone."""

    bounds: npt.NDArray[np.int64]
    prefix: int = 0

    @classmethod
    def of_sample(cls, sample: pa.Array, count: int) -> KeyRanges | None:
        """So many buckets, each with about as many values of the sample; None for a column without places."""
        if not has_places(sample.type) or not len(sample):
            return None
        prefix = _common_prefix(sample) if pa.types.is_string(sample.type) else 0
        places = np.sort(key_places(sample, prefix))
        return cls(places[np.linspace(0, len(places), count + 1)[1:-1].astype(np.int64)], prefix)

    def numbers(self, column: pa.Array) -> npt.NDArray[np.int64]:
        """By row the number of its bucket."""
        return np.searchsorted(self.bounds, key_places(column, self.prefix), side="right")


def has_places(kind: pa.DataType) -> bool:
    """Whether values of this type have places on a line."""
    types = pa.types
    kinds = (types.is_signed_integer, types.is_unsigned_integer, types.is_date, types.is_timestamp, types.is_string)
    return any(is_kind(kind) for is_kind in kinds)


def key_places(column: pa.Array, prefix: int = 0) -> npt.NDArray[np.int64]:
    """Where values lie on a line: of texts the eight bytes behind the prefix say it."""
    if not pa.types.is_string(column.type):
        whole = column.cast(pa.int32()) if pa.types.is_date(column.type) else column
        return np.asarray(whole.cast(pa.int64(), safe=False))
    _, offsets, data = column.buffers()
    edges = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    octets = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    places = np.zeros(len(column), np.uint64)
    for i in range(8):
        at = edges[:-1] + prefix + i
        octet = np.where(at < edges[1:], octets[np.minimum(at, len(octets) - 1)], 0)
        places = places << np.uint64(8) | octet.astype(np.uint64)
    return (places >> np.uint64(1)).astype(np.int64)


def _common_prefix(texts: pa.Array) -> int:
    """The bytes that all of these texts begin with."""
    ends = pc.min_max(texts).as_py()
    low, high = ends["min"].encode(), ends["max"].encode()
    return next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
