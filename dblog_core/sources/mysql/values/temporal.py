"""Dates and times: the log's packed forms as the server's own text."""

from __future__ import annotations

import datetime as dt
from typing import Any

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def date_text(value: bytes, _: int = 0) -> str:
    """DATE as the server prints it, one that does not exist too. Raises ValueError for what no server holds."""
    packed = int.from_bytes(value, "little")
    return _format_date(packed >> 9, packed >> 5 & 15, packed & 31)


def datetime_text(value: bytes, fsp: int) -> str:
    """DATETIME2, likewise."""
    packed = int.from_bytes(value[:5], "big") - 0x8000000000
    # Year and month are one number of 13 months a year, since a month may be 0.
    date = packed >> 17
    clock = packed & 0x1FFFF
    day = _format_date((date >> 5) // 13, (date >> 5) % 13, date & 31)
    hour = clock >> 12
    minute = clock >> 6 & 63
    second = clock & 63
    if packed < 0 or hour > 23 or minute > 59 or second > 59:
        raise ValueError("it is no time of a server")
    return f"{day} {hour:02d}:{minute:02d}:{second:02d}{_fraction(value[5:], fsp)}"


def timestamp_text(value: bytes, fsp: int) -> str:
    """TIMESTAMP2 in UTC, likewise; second 0 stands for the zero date."""
    seconds = int.from_bytes(value[:4], "big")
    fraction = _fraction(value[4:], fsp)
    moment = f"{_EPOCH + dt.timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S}" if seconds else "0000-00-00 00:00:00"
    return moment + fraction


def _format_date(year: int, month: int, day: int) -> str:
    if not 0 <= year <= 9999 or month > 12:
        raise ValueError("it is no date of a server")
    return f"{year:04d}-{month:02d}-{day:02d}"


def _fraction(value: bytes, fsp: int) -> str:
    # Stored in whole bytes of two digits each.
    micros = int.from_bytes(value, "big") * 10 ** (6 - 2 * len(value))
    if micros > 999_999:
        raise ValueError("it has more than a second's fraction")
    return f".{micros:06d}"[: fsp + 1] if fsp else ""


def packed_time(packed: int, fsp: int) -> str:
    """A TIME in the server's packed 64 bits (`TIME_to_longlong_time_packed`), `fsp` digits after the point."""
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    clock = packed >> 24
    micros = packed & 0xFFFFFF
    text = f"{sign}{clock >> 12 & 0x3FF:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}"
    return f"{text}.{micros:06d}"[: len(text) + 1 + fsp] if fsp else text


def _packed_parts(packed: int) -> tuple[Any, ...]:
    whole = packed >> 24
    micros = packed & 0xFFFFFF
    date = whole >> 17
    clock = whole & 0x1FFFF
    months = date >> 5
    return months // 13, months % 13, date & 31, clock >> 12, clock >> 6 & 63, clock & 63, micros


def packed_date(packed: int) -> str:
    """A DATE in 64 packed bits."""
    return "{:04d}-{:02d}-{:02d}".format(*_packed_parts(packed)[:3])


def packed_datetime(packed: int) -> str:
    """A DATETIME or TIMESTAMP in 64 packed bits, with microseconds."""
    return "{:04d}-{:02d}-{:02d} {:02d}:{:02d}:{:02d}.{:06d}".format(*_packed_parts(packed))
