"""Buckets of keys in the order of their first column, for the executors: so a bucket has few files of the table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


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
