"""Dates and times: the log's packed forms as the server's own text."""

from __future__ import annotations

import datetime as dt
from typing import Any

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


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


def date_text(value: bytes, _: int = 0) -> str:
    """DATE as the server prints it, one that does not exist too. Raises ValueError for what no server holds."""
    packed = int.from_bytes(value, "little")
    return _shown(packed >> 9, packed >> 5 & 15, packed & 31)


def datetime_text(value: bytes, fsp: int) -> str:
    """DATETIME2, likewise."""
    packed = int.from_bytes(value[:5], "big") - 0x8000000000
    date, clock = packed >> 17, packed & 0x1FFFF
    day = _shown((date >> 5) // 13, (date >> 5) % 13, date & 31)
    hour, minute, second = clock >> 12, clock >> 6 & 63, clock & 63
    if packed < 0 or hour > 23 or minute > 59 or second > 59:
        raise ValueError("it is no time of a server")
    return f"{day} {hour:02d}:{minute:02d}:{second:02d}{_fraction(value[5:], fsp)}"


def timestamp_text(value: bytes, fsp: int) -> str:
    """TIMESTAMP2 in UTC, likewise; second 0 stands for the zero date."""
    seconds, fraction = int.from_bytes(value[:4], "big"), _fraction(value[4:], fsp)
    moment = f"{_EPOCH + dt.timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S}" if seconds else "0000-00-00 00:00:00"
    return moment + fraction


def _shown(year: int, month: int, day: int) -> str:
    if not 0 <= year <= 9999 or month > 12:
        raise ValueError("it is no date of a server")
    return f"{year:04d}-{month:02d}-{day:02d}"


def _fraction(value: bytes, fsp: int) -> str:
    micros = int.from_bytes(value, "big") * 10 ** (6 - 2 * len(value))
    if micros > 999_999:
        raise ValueError("it has more than a second's fraction")
    return f".{micros:06d}"[: fsp + 1] if fsp else ""


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
