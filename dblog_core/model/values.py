"""Values outside Arrow: the JSON forms that `log`, keys and watermarks share.

Integers and floats are numbers, decimals strings that keep every digit, dates and times ISO 8601, binary base64, NaN
and infinities strings.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.errors import RequestError
from dblog_core.model.schema import Column, TableSchema

Key = tuple[Any, ...]
"""A key as Python values (`RecordBatch.to_pylist` forms) in key order: exact, hashable, never compared by order."""

_NAN = float("nan")
"""In every key: PostgreSQL's NaN equals itself, and Python's does so only as one and the same object."""


def to_json(value: Any) -> Any:
    """The JSON form of a value as Arrow's `as_py` gives it."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case decimal.Decimal():
            return format(value, "f")
        case dt.datetime():
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds" if value.microsecond else "seconds")
            return text + "Z" if value.tzinfo else text
        case dt.date():
            return value.isoformat()
    return value


def from_json(value: Any, column: Column) -> Any:
    """The Python value of a JSON key part. Raises RequestError where it does not fit the column's type."""
    kind = column.type
    try:
        if pa.types.is_boolean(kind) and isinstance(value, bool):
            return value
        if pa.types.is_integer(kind) and isinstance(value, int) and not isinstance(value, bool):
            return int(pa.scalar(value, kind).as_py())
        if pa.types.is_floating(kind) and isinstance(value, int | float | str) and not isinstance(value, bool):
            return _floating(float(value), kind)
        if pa.types.is_decimal(kind) and isinstance(value, int | str) and not isinstance(value, bool):
            return pa.scalar(decimal.Decimal(value), kind).as_py()
        if isinstance(value, str):
            if pa.types.is_string(kind):
                return value
            if pa.types.is_binary(kind):
                return base64.b64decode(value, validate=True)
            if pa.types.is_date(kind):
                return dt.date.fromisoformat(value)
            if pa.types.is_timestamp(kind):
                return _moment(dt.datetime.fromisoformat(value), kind)
    except (ValueError, OverflowError, binascii.Error, decimal.InvalidOperation, pa.ArrowInvalid):
        pass
    raise RequestError(
        f"{value!r} is not a value of key column {column.name} ({column.source_type})",
        fix="give a JSON value of that type: numbers as numbers, decimals and dates as strings, binary as base64",
    )


def _floating(value: float, kind: pa.DataType) -> float:
    """The value as the column has it: 0.1 in a column of four bytes is 0.10000000149011612."""
    exact = float(pa.scalar(value, kind).as_py())
    if math.isnan(exact):
        return _NAN
    if math.isinf(exact) and not math.isinf(value):
        raise OverflowError
    return exact


def _moment(parsed: dt.datetime, kind: pa.DataType) -> dt.datetime:
    """A time without a zone is UTC where the column is a point in time; elsewhere a zone has no meaning."""
    if kind.tz:
        return parsed.astimezone(dt.UTC) if parsed.tzinfo else parsed.replace(tzinfo=dt.UTC)
    if parsed.tzinfo:
        raise ValueError("a zone in a column without one")
    return parsed


def key_to_json(key: Key) -> Any:
    """A key as users and watermarks write it: one JSON value, or an array for a composite key."""
    parts = [to_json(part) for part in key]
    return parts[0] if len(parts) == 1 else parts


def key_text(key: Key) -> str:
    """A key as one JSON text: equal for equal keys, so that -0.0 is 0.0."""
    parts = tuple(part + 0.0 if isinstance(part, float) else part for part in key)
    return orjson.dumps(key_to_json(parts)).decode()


def key_from_json(data: Any, schema: TableSchema) -> Key:
    """The key of a JSON form. Raises RequestError where its shape or a part does not fit the table."""
    columns = schema.key_columns
    parts = [data] if len(columns) == 1 else data
    if not isinstance(parts, list) or len(parts) != len(columns):
        names = ", ".join(schema.key)
        raise RequestError(
            f"{data!r} is not a key of {schema.table}",
            fix=f"its key is ({names}): give "
            + ("one JSON value" if len(columns) == 1 else f"a JSON array of {len(columns)}"),
        )
    return tuple(from_json(part, column) for part, column in zip(parts, columns, strict=True))


def has_null(key: Any) -> bool:
    """Whether a JSON key has a part that is NULL: no row of a source has one, but a stranger's row of the lake may."""
    return key is None or (isinstance(key, list) and None in key)


def lake_key_from_json(data: Any, schema: TableSchema) -> Key:
    """As `key_from_json`, also of a key of the lake in which parts are NULL."""
    if not has_null(data):
        return key_from_json(data, schema)
    parts = data if isinstance(data, list) else [data]
    columns = schema.key_columns
    if len(parts) != len(columns):
        return key_from_json(data, schema)  # which refuses it
    return tuple(None if part is None else from_json(part, c) for part, c in zip(parts, columns, strict=True))


def keys_of(rows: pa.RecordBatch | pa.StructArray, schema: TableSchema) -> list[Key]:
    """The key of every row of a batch or of an image array."""
    columns = [rows.field(name) if isinstance(rows, pa.StructArray) else rows.column(name) for name in schema.key]
    return key_tuples(columns)


def key_of(parts: Iterable[Any]) -> Key:
    """The key of these Python values, in which NaN is the one that equals itself."""
    return tuple(_NAN if isinstance(part, float) and math.isnan(part) else part for part in parts)


def key_tuples(columns: Sequence[pa.Array]) -> list[Key]:
    """The keys whose parts are in the columns, one of each row."""
    return list(zip(*map(_parts, columns), strict=True))


def _parts(column: pa.Array) -> list[Any]:
    parts: list[Any] = column.to_pylist()
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return [_NAN if part is not None and math.isnan(part) else part for part in parts]
    return parts


def rows_with(rows: pa.RecordBatch, schema: TableSchema, keys: Collection[Key]) -> Iterator[tuple[int, Key]]:
    """Number and key of every row that has one of `keys`; some others may be among them.

    Rows are sorted out column by column before any value becomes an object. Where a column does not compare as Python
    does (floats), or cannot hold a key (of an older shape of the table), it sorts nothing out.
    """
    candidates: Any = None
    for number, column in enumerate(schema.key_columns):
        if pa.types.is_floating(column.type):
            continue
        try:
            parts = pa.array(list({key[number] for key in keys}), column.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError, IndexError):
            continue
        matches = pc.is_in(rows.column(column.name), parts)
        candidates = matches if candidates is None else pc.and_(candidates, matches)
    if candidates is None:
        yield from enumerate(keys_of(rows, schema))
        return
    numbers = pc.indices_nonzero(candidates)
    yield from zip(numbers.to_pylist(), keys_of(rows.take(numbers), schema), strict=True)
