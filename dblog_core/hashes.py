"""Row hashes: what source and lake compare rows by, each computing it itself. The definition, and it in plain Python.

A row's canonical text is the fields of its columns, joined by commas, in the order of the staged schema:

- integers and decimals: their digits, a decimal with every digit of its scale; booleans `t` or `f`;
- dates `YYYY-MM-DD`, timestamps `YYYY-MM-DD HH:MM:SS` in UTC, a fraction of a second without the zeros at its end;
- floats: by arithmetic (`float_field`), since no two programs print them alike; -0.0 is 0.0, as in every comparison;
- text and binary: two fields, the number of octets (of UTF-8) and the text itself, or the bytes in hexadecimal; above
  `LONGEST` octets the SHA-256 of them in its place. The number keeps two columns from running together.

NULL is an empty field (two of them for text and binary), which no other value has. The row hash is the first 16
hexadecimal digits of the text's SHA-256 as a signed 64-bit integer. (MD5 is gone from MySQL 9.6 on.)
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from dblog_core.schema import Column, TableSchema

HASH = "_dblog_hash"
"""The name of the column of hashes beside those of the key; the lake refuses it for a column of a source."""

LONGEST = 1024
"""Octets of text or bytes that stand in the row's text themselves."""

WINDOW = 72
"""Binary orders of magnitude that one form of a float covers."""
_LOWEST, _UNIT = -10, 62
WINDOWS = range(-15, 15)
"""All that doubles need; almost all values lie in window 0."""

_FLOATING = re.compile(r"(float|double|real)\b", re.IGNORECASE)


def compared(schema: TableSchema) -> tuple[Column, ...]:
    """The columns of a staged schema that the hash covers: all but floats under the rule `hash`.

    Those are staged as the SHA-256 of what Python prints, which no server prints.
    """
    return tuple(c for c in schema.columns if not (pa.types.is_string(c.type) and _FLOATING.match(c.source_type)))


def window_bounds(window: int) -> tuple[float, float]:
    """The magnitudes of a window, from the first up to but without the second (infinity: no end)."""
    low, high = _power(window * WINDOW + _LOWEST), _power(window * WINDOW + _UNIT)
    return low, high


def window_scale(window: int) -> float:
    """What to multiply a value of the window by, *twice*: it then lies in window 0, without any rounding."""
    return _power(-window * WINDOW // 2)


UNIT = 2.0**_UNIT
"""What makes an integer of a fraction in window 0."""


def _power(exponent: int) -> float:
    return math.ldexp(1.0, exponent) if exponent < 1024 else math.inf


def float_field(value: float) -> str:
    """A float, exactly: its whole part, a blank, and its fraction times 2**62, both with the value's sign.

    So for magnitudes from 2**-10 up to 2**62, where both are 64-bit integers. Others are scaled by a power of 2**72
    into that window, and the exponent (of 2**72) follows after another blank.
    """
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "0 0"
    window = next(w for w in WINDOWS if window_bounds(w)[0] <= abs(value) < window_bounds(w)[1])
    scaled = value * window_scale(window) * window_scale(window)
    whole = math.trunc(scaled)
    field = f"{whole} {int((scaled - whole) * UNIT)}"
    return f"{field} {window}" if window else field


def fields(value: Any, kind: pa.DataType) -> tuple[str, ...]:
    """The fields of a value as Arrow's `as_py` gives it."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return ("", "") if value is None else _content(value)
    if value is None:
        return ("",)
    if isinstance(value, bool):
        return ("t" if value else "f",)
    if isinstance(value, float):
        return (float_field(value),)
    if isinstance(value, decimal.Decimal):
        return (format(value, "f"),)
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        return (text.rstrip("0").rstrip("."),) if value.microsecond else (text[:19],)
    return (str(value),)


def _content(value: str | bytes) -> tuple[str, str]:
    raw = value.encode() if isinstance(value, str) else value
    if len(raw) > LONGEST:
        return str(len(raw)), hashlib.sha256(raw).hexdigest()
    return str(len(raw)), value if isinstance(value, str) else value.hex()


def row_text(schema: TableSchema, row: Mapping[str, Any]) -> str:
    """The canonical text of a row of a staged schema."""
    return ",".join(field for c in compared(schema) for field in fields(row.get(c.name), c.type))


def row_hash(schema: TableSchema, row: Mapping[str, Any]) -> int:
    """The hash of a row of a staged schema."""
    return int.from_bytes(hashlib.sha256(row_text(schema, row).encode()).digest()[:8], "big", signed=True)
