"""Ways to make values of column types by a seed, as SQL: a type's ends, special values, and any within its range."""

# ruff: noqa: DTZ001  (DATETIME has no zone)
from __future__ import annotations

import datetime as dt
import json
import math
import random
import struct
from collections.abc import Callable
from typing import Any

Make = Callable[[random.Random], str]
"""A value as SQL."""

DATETIMES = (dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999))
"""The first and the last of year 1 to year 9999."""
MOST = 0.3
"""How often a value is one of a type's own ends or special values."""
LETTERS = "ab Z\"'\\%,{}()\n\t\x01\x7fé€ß日本😀\u0301\u200b\ufeff\uffff"


def one_of(*special: str, other: Make) -> Make:
    return lambda r: r.choice(special) if special and r.random() < MOST else other(r)


def integers(low: int, high: int) -> Make:
    inner = tuple(str(n) for n in (low, high, 0, 1, low + 1, high - 1) if low <= n <= high)
    return one_of(*inner, other=lambda r: str(r.randint(low, high) >> r.randrange(high.bit_length())))


def decimals(precision: int, scale: int, *, signed: bool = True, least: int = 0) -> Make:
    """Any number of such digits, as quoted text; `least`: the smallest, counted in the last digit."""

    def make(r: random.Random) -> str:
        longest = 10**precision - 1
        ends = (least, longest, max(least, 1), max(least, 10 ** r.randrange(precision)))
        number = (
            r.choice(ends) if r.random() < MOST else max(least, r.randint(0, longest) // 10 ** r.randrange(precision))
        )
        sign = "-" if signed and number and r.random() < 0.5 else ""
        if scale <= 0:
            return f"'{sign}{number * 10**-scale}'"
        digits = f"{number:0{scale + 1}d}"
        return f"'{sign}{digits[:-scale]}.{digits[-scale:]}'"

    return make


def floating(form: str) -> Callable[[random.Random], float]:
    """A finite float of any bits (`form` of struct)."""
    width = struct.calcsize(form)

    def make(r: random.Random) -> float:
        while True:
            (value,) = struct.unpack(form, r.randbytes(width))
            if r.random() < 0.5:
                value = r.choice(
                    (float(r.randrange(-1000, 1000)), r.randrange(10**7) / 100, 2.0 ** r.randrange(-140, 120))
                )
                (value,) = struct.unpack(form, struct.pack(form, value))
            if math.isfinite(value):
                return float(value)

    return make


def text(longest: int, letters: str = LETTERS) -> Callable[[random.Random], str]:
    """Text of so many characters; also the empty, and the longest of the widest ones."""

    def make(r: random.Random) -> str:
        if r.random() < MOST:
            return r.choice(
                ("", max(letters, key=lambda c: len(c.encode())) * longest, letters[0] * longest, letters[0])
            )
        return "".join(r.choices(letters, k=r.randint(0, min(longest, 40))))

    return make


def octets(longest: int) -> Callable[[random.Random], bytes]:
    def make(r: random.Random) -> bytes:
        if r.random() < MOST:
            return r.choice((b"", bytes(longest), b"\xff" * longest, b"\0", r.randbytes(longest)))
        return r.randbytes(r.randint(0, min(longest, 60))) + bytes(r.choice((0, 0, 1)) if longest > 60 else 0)

    return make


def moments(first: dt.datetime, last: dt.datetime, scale: int) -> Make:
    """`YYYY-MM-DD HH:MM:SS[.ffffff]` with so many digits of a second, at most, as quoted text."""
    unit = 10 ** (6 - scale)

    def make(r: random.Random) -> str:
        span = (last - first) // dt.timedelta(microseconds=1)
        micros = r.choice((0, span, r.randint(0, span), r.randint(0, span) // 10**6 * 10**6))
        moment = first + dt.timedelta(microseconds=micros)
        moment = moment.replace(microsecond=moment.microsecond // unit * unit)
        time_text = f"{moment:%H:%M:%S}" + (f".{moment.microsecond:06d}"[: scale + 1] if scale else "")
        return f"'{moment.year:04d}-{moment:%m-%d} {time_text}'"

    return make


def days(first: dt.date, last: dt.date) -> Make:
    def make(r: random.Random) -> str:
        day = r.choice((first, last, dt.date.fromordinal(r.randint(first.toordinal(), last.toordinal()))))
        return f"'{day.isoformat()}'"

    return make


def hex_literal(make: Callable[[random.Random], bytes], prefix: str = "") -> Make:
    return lambda r: f"{prefix}x'{make(r).hex()}'"


def _any_document(r: random.Random, depth: int = 3) -> Any:
    """A document as Python's json writes it; numbers beyond 64 bits and doubles' digits included."""
    kind = r.randrange(9 if depth else 7)
    if kind == 0:
        return r.choice((None, True, False))
    if kind <= 2:
        return r.choice(
            (
                0,
                -1,
                2**15,
                -(2**15) - 1,
                2**31,
                2**53 + 1,
                2**63 - 1,
                -(2**63),
                2**64 - 1,
                2**64,
                10**30,
                r.getrandbits(64),
            )
        )
    if kind <= 4:
        return floating("<d")(r)
    if kind <= 6:
        return text(60)(r)
    if kind == 7:
        return [_any_document(r, depth - 1) for _ in range(r.choice((0, 1, 3, 30)))]
    return {text(9)(r): _any_document(r, depth - 1) for _ in range(r.choice((0, 1, 3, 30)))}


def document(r: random.Random) -> str:
    separators = r.choice(((",", ":"), (", ", ": "), (" ,\n", "\t:")))
    return json.dumps(_any_document(r), separators=separators, ensure_ascii=r.random() < 0.5)


def inet4(r: random.Random) -> str:
    return "'" + ".".join(str(r.choice((0, 255, r.randrange(256)))) for _ in range(4)) + "'"


def inet6(r: random.Random) -> str:
    words = [r.choice((0, 0, 0xFFFF, r.randrange(65536))) for _ in range(8)]
    if r.random() < 0.3:  # what servers may print with an IPv4 address at its end
        words[:6] = [0, 0, 0, 0, 0, r.choice((0, 0xFFFF))]
    return "'" + ":".join(f"{word:x}" for word in words) + "'"


def uuid(r: random.Random) -> str:
    digits = r.choice(("0" * 32, "f" * 32, f"{r.getrandbits(128):032x}", f"{r.getrandbits(128):032x}"))
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
