"""Keys as numbers: one integer as it is, anything else as a keyed hash of 128 bits (SipHash-2-4).

A user of the source may choose the text of a key, so the hash has a secret of the index: without it nobody can make
two keys that would be taken for one another. By chance two of a billion keys are so in one of 10^20 tables.
Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF"; the 128-bit output is that of its reference code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import types

from dblog_core.rows.jit import RAW, int64, kernel, part

Words = npt.NDArray[np.uint64]
Edges = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]

_U = np.uint64
_SIGN = np.uint64(1 << 63)
_WORDS = types.uint64[::1]


@dataclass(frozen=True, slots=True)
class KeyHashes:
    """Keys, row by row: `first` orders them; `second` is None where a key is its own first half."""

    first: Words
    second: Words | None

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_] | slice) -> KeyHashes:
        return KeyHashes(self.first[rows], None if self.second is None else self.second[rows])


def is_exact(kinds: Sequence[pa.DataType]) -> bool:
    """Whether a key of these types is its own number."""
    return len(kinds) == 1 and pa.types.is_integer(kinds[0])


def hash_keys(columns: Sequence[pa.Array], secret: bytes) -> KeyHashes:
    """The keys whose columns these are; no key is NULL. `secret`: 16 bytes."""
    if is_exact([column.type for column in columns]):
        # With the sign bit flipped, unsigned numbers are in the order of the keys: neighbours share a page of a run.
        return KeyHashes(np.asarray(columns[0].cast(pa.int64())).view(np.uint64) ^ _SIGN, None)
    count = len(columns[0])
    first = np.zeros(count, np.uint64)
    second = np.zeros(count, np.uint64)
    # Each column hashes what those before it left, so that ("a", "bc") and ("ab", "c") differ.
    for column in columns:
        edges, data = _bytes(column)
        chain(edges, data, secret, first, second)
    return KeyHashes(first, second)


def chain(edges: Edges, data: Octets, secret: bytes, first: Words, second: Words) -> None:
    """Replaces each row's halves by the hash of them and of the row's bytes, which lie from edge to edge."""
    k0, k1 = (_U(k) for k in np.frombuffer(secret, "<u8"))
    if _chain(edges, data, k0, k1, first, second) != len(first):
        raise ValueError("a value lies outside of its column's bytes")


@part
def _rounds(v0: _U, v1: _U, v2: _U, v3: _U, count: int) -> tuple[_U, _U, _U, _U]:
    for _ in range(count):
        v0 += v1
        v1 = ((v1 << _U(13)) | (v1 >> _U(51))) ^ v0
        v0 = (v0 << _U(32)) | (v0 >> _U(32))
        v2 += v3
        v3 = ((v3 << _U(16)) | (v3 >> _U(48))) ^ v2
        v0 += v3
        v3 = ((v3 << _U(21)) | (v3 >> _U(43))) ^ v0
        v2 += v1
        v1 = ((v1 << _U(17)) | (v1 >> _U(47))) ^ v2
        v2 = (v2 << _U(32)) | (v2 >> _U(32))
    return v0, v1, v2, v3


@kernel(int64, types.Array(int64, 1, "C", readonly=True), RAW, types.uint64, types.uint64, _WORDS, _WORDS)
def _chain(edges: Edges, data: Octets, k0: _U, k1: _U, first: Words, second: Words) -> int:
    """As `chain`; how many rows it has done: it ends at one that is not in `data`."""
    for row in range(len(first)):
        at = edges[row]
        end = edges[row + 1]
        if at < 0 or end < at or end > len(data):
            return row
        v0 = k0 ^ _U(0x736F6D6570736575)
        v1 = k1 ^ _U(0x646F72616E646F6D) ^ _U(0xEE)
        v2 = k0 ^ _U(0x6C7967656E657261)
        v3 = k1 ^ _U(0x7465646279746573)
        size = end - at + 16  # the two halves come first
        words = size // 8 + 1  # the last one holds the size, and what is left
        for word in range(words):
            m = _U(0)
            if word == 0:
                m = first[row]
            elif word == 1:
                m = second[row]
            else:
                begin = at + 8 * (word - 2)
                for i in range(min(8, end - begin)):
                    m |= _U(data[begin + i]) << _U(8 * i)
            if word == words - 1:
                m |= _U(size & 0xFF) << _U(56)
            v3 ^= m
            v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 2)
            v0 ^= m
        v0, v1, v2, v3 = _rounds(v0, v1, v2 ^ _U(0xEE), v3, 4)
        first[row] = v0 ^ v1 ^ v2 ^ v3
        v0, v1, v2, v3 = _rounds(v0, v1 ^ _U(0xDD), v2, v3, 4)
        second[row] = v0 ^ v1 ^ v2 ^ v3
    return len(first)


def _bytes(column: pa.Array) -> tuple[Edges, Octets]:
    """Where each value begins and the last one ends, and the bytes."""
    kind = column.type
    count = len(column)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        _, offsets, data = column.buffers()
        edges = np.frombuffer(offsets, np.int32)[column.offset : column.offset + count + 1].astype(np.int64)
        return edges, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    width, octets = _fixed_width_bytes(column)
    return np.arange(count + 1, dtype=np.int64) * width, octets


def _fixed_width_bytes(column: pa.Array) -> tuple[int, Octets]:
    """The width of each value in bytes, and the bytes of all."""
    kind = column.type
    if pa.types.is_decimal128(kind):
        return 16, np.frombuffer(column.buffers()[1], np.uint8)[16 * column.offset :][: 16 * len(column)]
    if pa.types.is_floating(kind):  # -0.0 is 0.0, and one NaN any other
        values = np.asarray(column.cast(pa.float64())) + 0.0
        return 8, np.where(np.isnan(values), np.nan, values).view(np.uint8)
    whole = column.cast(pa.int32()) if pa.types.is_date(kind) else column
    return 8, np.ascontiguousarray(np.asarray(pc.cast(whole, pa.int64()))).view(np.uint8)
