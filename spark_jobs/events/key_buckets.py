"""Rows apart by their keys: all rows of a key come into the same bucket."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Words = npt.NDArray[np.uint64]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplier: keys with a stride would fill one bucket
_UPPER = np.uint64(32)


def split_by_key(rows: pa.Table, keys: Words, count: int) -> list[pa.Table]:
    """The rows of each bucket, in the order that they have now. `keys`: by row the first half of its key's hash."""
    numbers = ((keys * _SPREAD) >> _UPPER) % np.uint64(count)
    by_bucket = np.argsort(numbers, kind="stable")
    ordered = rows.take(pa.array(by_bucket))
    edges = np.searchsorted(numbers[by_bucket], np.arange(count + 1, dtype=np.uint64)).tolist()
    return [ordered.slice(begin, end - begin) for begin, end in pairwise(edges)]
