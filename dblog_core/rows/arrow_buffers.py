"""Values that lie scattered in a buffer as Arrow arrays: one copy, no Python object per value."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.rows.jit import (
    BYTES,
    INT32S,
    INT64S,
    RAW,
    kernel,
    void,
)

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LARGEST = 2**31 - 1
"""Bytes that one array of variable width can hold."""


@kernel(void, RAW, INT64S, INT64S, INT32S, BYTES)
def _copy(raw: Bytes, starts: Int64s, lengths: Int64s, offsets: npt.NDArray[np.int32], out: Bytes) -> None:
    at = 0
    for row in range(len(starts)):
        offsets[row] = at
        start = starts[row]
        for i in range(max(lengths[row], 0)):
            out[np.uintp(at + i)] = raw[np.uintp(start + i)]  # unsigned: no look at the sign, so copied in wide steps
        at += max(lengths[row], 0)
    offsets[len(starts)] = at


def gather(raw: Bytes, starts: Int64s, lengths: Int64s) -> pa.Array:
    """A binary array of the values `raw[starts[i] : starts[i] + lengths[i]]`; a negative length is a null.

    Raises ValueError where a value lies outside `raw`, or all of them do not fit one array.
    """
    present = lengths >= 0
    whole = bool(present.all())
    sizes = lengths if whole else np.where(present, lengths, 0)
    begin = starts if whole else np.where(present, starts, 0)
    if len(sizes) and (int(begin.min()) < 0 or bool((begin > len(raw) - sizes).any())):  # begin + size may overflow
        raise ValueError("a value lies outside its buffer")
    total = int(sizes.sum())
    if total > LARGEST:
        raise ValueError(f"{total} bytes do not fit one array")
    offsets = np.empty(len(sizes) + 1, dtype=np.int32)
    out = np.empty(total, dtype=np.uint8)
    _copy(raw, begin, sizes, offsets, out)
    buffers = [None if whole else validity_bitmap(present), pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


def text(values: pa.Array) -> pa.Array:
    """A binary array as a string array, without a copy. Raises pa.ArrowInvalid where a value is not UTF-8."""
    strings = pa.Array.from_buffers(pa.string(), len(values), values.buffers(), offset=values.offset)
    strings.validate(full=True)
    return strings


def fixed_width_array(values: npt.NDArray[Any], present: Flags | None, kind: pa.DataType) -> pa.Array:
    """The array of a fixed-width type whose values lie in `values` as Arrow has them; without a copy."""
    bitmap = None if present is None else validity_bitmap(present)
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(values)])


def validity_bitmap(present: Flags) -> pa.Buffer:
    """Arrow's bitmap of values that are there."""
    return pa.py_buffer(np.packbits(present, bitorder="little"))
