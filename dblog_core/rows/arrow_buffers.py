"""Values that lie scattered in a buffer as Arrow arrays: one copy, no Python object per value."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.rows.jit import (
    BYTES,
    INT32S,
    INT64S,
    RAW,
    int64,
    kernel,
    void,
)

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LARGEST = 2**31 - 1
"""Bytes that one array of variable width can hold."""
_SHORT = 4096
"""Values of an array that is kept to be shared."""


_OUTSIDE = -1
_WITH_NULLS = -2


@kernel(int64, int64, INT64S, INT64S, INT32S)
def _lay_out(end: int, starts: Int64s, lengths: Int64s, offsets: npt.NDArray[np.int32]) -> Any:
    """Fills Arrow's offsets of values that lie before `end`; their bytes. Some are null: `_WITH_NULLS` less these; or
    `_OUTSIDE`. Offsets mean nothing where the bytes are more than `LARGEST`."""
    total = int64(0)
    nulls = 0
    for row in range(len(starts)):
        offsets[row] = total
        if lengths[row] < 0:
            nulls += 1
        else:
            # In this order nothing overflows.
            if starts[row] < 0 or starts[row] > end - lengths[row]:
                return int64(_OUTSIDE)
            total += lengths[row]
    offsets[len(starts)] = total
    return _WITH_NULLS - total if nulls else total


@kernel(void, RAW, INT64S, INT32S, BYTES)
def _copy(raw: Bytes, starts: Int64s, offsets: npt.NDArray[np.int32], out: Bytes) -> None:
    for row in range(len(starts)):
        start = starts[row]
        at = int64(offsets[row])
        for i in range(int64(offsets[row + 1]) - at):
            out[np.uintp(at + i)] = raw[np.uintp(start + i)]  # unsigned: no look at the sign, so copied in wide steps


def gather(raw: Bytes, starts: Int64s, lengths: Int64s) -> pa.Array:
    """A binary array of the values `raw[starts[i] : starts[i] + lengths[i]]`; a negative length is a null.

    Raises ValueError where a value lies outside `raw`, or all of them do not fit one array.
    """
    offsets = np.empty(len(starts) + 1, dtype=np.int32)
    total = int(_lay_out(len(raw), starts, lengths, offsets))
    if total == _OUTSIDE:
        raise ValueError("a value lies outside its buffer")
    has_nulls = total < 0
    if has_nulls:
        total = _WITH_NULLS - total
    if total > LARGEST:
        raise ValueError(f"{total} bytes do not fit one array")
    out = np.empty(total, dtype=np.uint8)
    _copy(raw, starts, offsets, out)
    bitmap = validity_bitmap(lengths >= 0) if has_nulls else None
    return pa.Array.from_buffers(pa.binary(), len(starts), [bitmap, pa.py_buffer(offsets), pa.py_buffer(out)])


def text(values: pa.Array) -> pa.Array:
    """A binary array as a string array, without a copy. Raises pa.ArrowInvalid where a value is not UTF-8."""
    strings = pa.Array.from_buffers(pa.string(), len(values), values.buffers(), offset=values.offset)
    strings.validate(full=True)
    return strings


def repeat_value(value: pa.Scalar, count: int) -> pa.Array:
    """An array of one value. Short ones share the memory of one that is kept: thousands of small batches have some."""
    return _share_values(value).slice(0, count) if count <= _SHORT else _make_values(value, count)


@lru_cache(maxsize=64)
def _share_values(value: pa.Scalar) -> pa.Array:
    return _make_values(value, _SHORT)


def _make_values(value: pa.Scalar, count: int) -> pa.Array:
    return pa.repeat(value, count) if value.is_valid else pa.nulls(count, value.type)


def fixed_width_array(values: npt.NDArray[Any], present: Flags | None, kind: pa.DataType) -> pa.Array:
    """The array of a fixed-width type whose values lie in `values` as Arrow has them; without a copy."""
    bitmap = None if present is None else validity_bitmap(present)
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(values)])


def validity_bitmap(present: Flags) -> pa.Buffer:
    """Arrow's bitmap of values that are there."""
    return pa.py_buffer(np.packbits(present, bitorder="little"))
