"""Row hashes in plain Python, by their definition (`rows.row_hashes`): servers and Spark are compared with them."""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from dblog_core.interfaces import Chunk, Hashes, RangeHash
from dblog_core.model.schema import Column, TableSchema
from dblog_core.model.values import keys_of
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.row_hashes import (
    HASH,
    LONGEST,
    UNIT,
    WINDOWS,
    is_compared,
    is_json,
    window_bounds,
    window_exponent,
)


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


def row_text(schema: TableSchema, row: Mapping[str, Any]) -> str:
    """The canonical text of a row of a staged schema."""
    return ",".join(field for c in schema.columns if is_compared(c) for field in fields(row.get(c.name), c))


def row_hash(schema: TableSchema, row: Mapping[str, Any]) -> int:
    """The hash of a row of a staged schema."""
    return int.from_bytes(hashlib.sha256(row_text(schema, row).encode()).digest()[:8], "big", signed=True)


def of_rows(chunk: Chunk, rules: Rules) -> Hashes:
    """The hashes of rows that have been read, as they are staged."""
    staged, rows = rules.compared(chunk.schema), rules.rows(chunk.schema, chunk.rows)
    found = pa.array([row_hash(staged, row) for row in rows.to_pylist()], pa.int64())
    names = chunk.schema.key
    batch = pa.RecordBatch.from_arrays([*map(chunk.rows.column, names), found], names=[*names, HASH])
    return Hashes(chunk.schema, batch, chunk.snapshot)


def total(found: Hashes) -> RangeHash:
    """The range of which these are all hashes."""
    keys = keys_of(found.rows, found.schema)
    return RangeHash(len(keys), sum(found.rows.column(HASH).to_pylist()), keys[-1] if keys else None, found.snapshot)
