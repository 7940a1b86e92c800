"""Dates and times: the log's packed forms, as numbers for Arrow and as the server's own text."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0, 0, 0], dtype=np.int64)


def big_endian(rows: Bytes, start: int, end: int) -> Numbers:
    """The bytes start to end of each row as an unsigned number."""
    total: Numbers = np.zeros(len(rows), dtype=np.int64)
    for i in range(start, end):
        total = total << 8 | rows[:, i]
    return total


def days(year: Numbers, month: Numbers, day: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Days since 1970 in the proleptic Gregorian calendar, and which of the dates exist (year 1 at the earliest)."""
    leap = ((year % 4 == 0) & (year % 100 != 0)) | (year % 400 == 0)
    last = _MONTH_DAYS[np.clip(month, 0, 15)] + ((month == 2) & leap)
    exists = (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= last)
    shifted = year - (month <= 2)  # years that begin in March end with the leap day
    era, of_era = shifted // 400, shifted % 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468, exists


def fraction(rows: Bytes, start: int, fsp: int) -> Numbers:
    """Microseconds from the bytes after the whole seconds."""
    size = (fsp + 1) // 2
    return big_endian(rows, start, start + size) * int(10 ** (6 - 2 * size))


def datetimes(rows: Bytes, fsp: int) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """DATETIME2: microseconds since 1970 without a zone, and which of them exist."""
    packed = big_endian(rows, 0, 5) - 0x8000000000
    date, clock = packed >> 17, packed & 0x1FFFF
    months = date >> 5
    day, exists = days(months // 13, months % 13, date & 31)
    seconds = (clock >> 12) * 3600 + ((clock >> 6) & 63) * 60 + (clock & 63)
    return (day * 86400 + seconds) * 1_000_000 + fraction(rows, 5, fsp), exists


def timestamps(rows: Bytes, fsp: int) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """TIMESTAMP2: microseconds since 1970 UTC; second 0 stands for the zero date."""
    seconds = big_endian(rows, 0, 4)
    return seconds * 1_000_000 + fraction(rows, 4, fsp), seconds != 0


def dates(rows: Bytes) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """DATE: days since 1970, and which of them exist."""
    packed = rows[:, 0].astype(np.int64) | rows[:, 1].astype(np.int64) << 8 | rows[:, 2].astype(np.int64) << 16
    return days(packed >> 9, (packed >> 5) & 15, packed & 31)


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
