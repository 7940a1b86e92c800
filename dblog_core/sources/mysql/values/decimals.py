"""The server's packed decimals: base 10^9 groups, big-endian, the sign in the first bit, negatives inverted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Bytes that hold 0 to 9 decimal digits."""


def groups(precision: int, scale: int) -> Iterator[tuple[int, int]]:
    """(digits, bytes) of each group, the most significant first."""
    # Groups of nine are counted from the point, so a shorter one stands first before it, and last behind it.
    whole = precision - scale
    for digits in (whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9):
        if digits:
            yield digits, _BYTES[digits]


def width(precision: int, scale: int) -> int:
    """Bytes of a packed decimal."""
    return sum(size for _, size in groups(precision, scale))


def unscale(
    packed: npt.NDArray[np.uint8], precision: int, scale: int
) -> npt.NDArray[np.int64] | npt.NDArray[np.object_]:
    """Packed values (rows of bytes) as integers without their point: int64 where they fit, else Python's."""
    values = packed.copy()
    negative = (values[:, 0] & 0x80) == 0
    values[:, 0] ^= 0x80
    values[negative] ^= 0xFF
    total = np.zeros(len(values), dtype=np.int64 if precision <= 18 else object)
    at = 0
    for digits, size in groups(precision, scale):
        group = np.zeros(len(values), dtype=np.int64)
        for i in range(at, at + size):
            group = group << 8 | values[:, i]
        total = total * 10**digits + group.astype(total.dtype)
        at += size
    return np.where(negative, -total, total)


def text(value: int, scale: int) -> str:
    """As the server prints it: every digit of the scale, one zero before a bare fraction."""
    digits = f"{abs(value):0{scale + 1}d}"
    printed = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return f"-{printed}" if value < 0 else printed


def to_text(packed: bytes, *, precision: int, scale: int) -> str:
    """One packed decimal as text."""
    row = np.frombuffer(packed[: width(precision, scale)], dtype=np.uint8).reshape(1, -1)
    return text(int(unscale(row, precision, scale)[0]), scale)
