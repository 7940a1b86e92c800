"""Row hashes: what source and lake compare rows by, each computing it itself. This is the definition.

A row's canonical text is the fields of its columns, joined by commas, in the order of the staged schema:

- integers and decimals: their digits, a decimal with every digit of its scale; booleans `t` or `f`;
- dates `YYYY-MM-DD`, timestamps `YYYY-MM-DD HH:MM:SS` in UTC, a fraction of a second without the zeros at its end;
- floats: by arithmetic (`float_field`), since no two programs print them alike; -0.0 is 0.0, as in every comparison;
- text and binary: two fields, the number of octets (of UTF-8) and the text itself, or the bytes in hexadecimal; above
  `LONGEST` octets the SHA-256 of them in its place. The number keeps two columns from running together;
- columns of the source's type `json`: the SHA-256 of the text, whatever its length, so that a server prints it once;
- columns whose value no server can print as it is staged (`is_compared`): `t`, so that only NULL differs from a value.

NULL is an empty field (two of them for text and binary), which no other value has. The row hash is the first 16
hexadecimal digits of the text's SHA-256 as a signed 64-bit integer. (MD5 is gone from MySQL 9.6 on.)
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import math
import re
from typing import Any

import pyarrow as pa

from dblog_core.errors import ValueOutOfRange
from dblog_core.interfaces import RangeHash
from dblog_core.model.schema import Column, TableSchema
from dblog_core.model.values import keys_of
from dblog_core.rows.column_rules import KEYED

HASH = "_dblog_hash"
"""The name of the column of hashes beside those of the key; the lake refuses it for a column of a source."""

LONGEST = 1024
"""Octets of text or bytes that stand in the row's text themselves."""

PRESENT = "t"
"""The field of a value that is not compared."""

WINDOW = 72
"""Binary orders of magnitude that one form of a float covers; window 0 begins at two to the power of `LOWEST`."""
LOWEST = -10
_UNIT = 62
UNIT = 2.0**_UNIT
"""What makes an integer of a fraction in window 0."""
WINDOWS = range(-15, 15)
"""All that doubles need; almost all values lie in window 0."""

COUNTED = "_dblog_rows"
HASHED = "_dblog_hashed"
SUM = "_dblog_sum"
"""The columns of a range: its rows, how many of them the server could hash, and the sum."""

_FLOATING = re.compile(r"(float|double|real)\b(?!.*\[\])", re.IGNORECASE)
"""Not arrays of them: those are staged as the server's text."""


def is_compared(column: Column) -> bool:
    """Whether the hash covers the values of a column of a staged schema: of all but floats under the rule `hash`, and
    of keyed hashes. Of the others it covers whether there is a value.

    Those are staged as the SHA-256 of what Python prints, which no server prints; no server gets a key.
    """
    return column.source_type != KEYED and not (pa.types.is_string(column.type) and _FLOATING.match(column.source_type))


def explain_not_compared(column: Column) -> str | None:
    """Why the hash does not cover the values of a column of a staged schema; None: it does."""
    if is_compared(column):
        return None
    if column.source_type == KEYED:
        return "hashed with hash_key, which no server gets; only NULL is told from a value"
    return "a floating-point number under the rule hash, which no server prints alike; only NULL is told from a value"


def window_bounds(window: int) -> tuple[float, float]:
    """The magnitudes of a window, from the first up to but without the second (infinity: no end)."""
    low = _power(window * WINDOW + LOWEST)
    high = _power(window * WINDOW + _UNIT)
    return low, high


def window_exponent(window: int) -> int:
    """A value of the window, multiplied *twice* by two to the power of this, lies in window 0; nothing is rounded."""
    return -window * WINDOW // 2


def _power(exponent: int) -> float:
    return math.ldexp(1.0, exponent) if exponent < 1024 else math.inf


def is_json(column: Column) -> bool:
    """Whether the column's text costs its server much to print."""
    return column.source_type.lower() == "json"


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
    scale = 2.0 ** window_exponent(window)
    scaled = value * scale * scale
    whole = math.trunc(scaled)
    field = f"{whole} {int((scaled - whole) * UNIT)}"
    return f"{field} {window}" if window else field


def fields(value: Any, column: Column) -> tuple[str, ...]:
    """The fields of a column's value as Arrow's `as_py` gives it."""
    kind = column.type
    if not is_compared(column):
        return ("",) if value is None else (PRESENT,)
    if is_json(column):
        return ("",) if value is None else (hashlib.sha256(value.encode()).hexdigest(),)
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


def hashed_shape(schema: TableSchema) -> tuple[Column, ...]:
    """The columns of `Hashes.rows`."""
    return *schema.key_columns, Column(HASH, "bigint", pa.int64())


def range_shape(schema: TableSchema) -> tuple[Column, ...]:
    """The columns of the one row by which a server describes a range: those of its last key, then three numbers."""
    numbers = [Column(name, "bigint", pa.int64()) for name in (COUNTED, HASHED)]
    return *schema.key_columns, *numbers, Column(SUM, "numeric(38,0)", pa.decimal128(38, 0))


def check_hashed(rows: pa.RecordBatch, schema: TableSchema) -> None:
    """Raises ValueOutOfRange where the server has answered NULL in place of a hash."""
    if rows.column(HASH).null_count:
        raise _unhashed(schema)


def range_hash(answer: pa.RecordBatch, schema: TableSchema, snapshot: str | None) -> RangeHash:
    """What a row of `range_shape` says; of an empty range there is none, or one that counts none.

    Raises ValueOutOfRange where a row has no hash.
    """
    if not answer.num_rows or not answer.column(COUNTED)[0].as_py():
        return RangeHash(0, 0, None, snapshot)
    counted, hashed, total = (answer.column(name)[0].as_py() for name in (COUNTED, HASHED, SUM))
    if counted != hashed:
        raise _unhashed(schema)
    return RangeHash(counted, int(total), keys_of(answer, schema)[0], snapshot)


def _unhashed(schema: TableSchema) -> ValueOutOfRange:
    return ValueOutOfRange(
        "a row's text is longer than the server makes one, so it has no hash",
        where=str(schema.table),
        fix="raise max_allowed_packet of the server to 16M or more",
    )
