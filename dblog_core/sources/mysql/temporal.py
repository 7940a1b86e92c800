"""Dates and times: the log's packed forms as the server's own text."""

from __future__ import annotations

from typing import Any


def time_text(value: bytes, fsp: int) -> str:
    """TIME2 as the server prints it: hours up to 838, a sign, and `fsp` digits."""
    whole = int.from_bytes(value[:3], "big") - 0x800000
    size = len(value) - 3
    part = int.from_bytes(value[3:], "big")
    # Below zero the fraction is stored as a complement of its own, except where whole and fraction are one number.
    packed = (whole << 24) + part if size == 3 else (whole << 24) + _scaled(whole, part, size)
    return packed_time(packed, fsp)


def _scaled(whole: int, part: int, size: int) -> int:
    if not size:
        return 0
    unit = int(10 ** (6 - 2 * size))
    if whole < 0 and part:
        return (1 << 24) + (part - (1 << 8 * size)) * unit
    return part * unit


def packed_time(packed: int, fsp: int) -> str:
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    clock, micros = packed >> 24, packed & 0xFFFFFF
    shown = f"{sign}{clock >> 12 & 0x3FF:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}"
    return f"{shown}.{micros:06d}"[: len(shown) + 1 + fsp] if fsp else shown


def _packed_parts(packed: int) -> tuple[Any, ...]:
    whole, micros = packed >> 24, packed & 0xFFFFFF
    date, clock = whole >> 17, whole & 0x1FFFF
    months = date >> 5
    return months // 13, months % 13, date & 31, clock >> 12, clock >> 6 & 63, clock & 63, micros


def packed_date(packed: int) -> str:
    return "{:04d}-{:02d}-{:02d}".format(*_packed_parts(packed)[:3])


def packed_datetime(packed: int) -> str:
    return "{:04d}-{:02d}-{:02d} {:02d}:{:02d}:{:02d}.{:06d}".format(*_packed_parts(packed))
