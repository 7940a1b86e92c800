"""From PostgreSQL's text form of values to Arrow: the one conversion that log rows and chunk rows share.

Types are recognised by the text of `format_type`, so that pgoutput's oid and typmod, wal2json's type names and the
catalogue agree. What has no exact Arrow form stays text, as the server prints it under `session_settings.FORMS`.

Which Delta type an Arrow type becomes stands in `dblog_core/lake_engine/tables/column_types`.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.errors import ValueOutOfRange
from dblog_core.model.schema import Column, TableName
from dblog_core.model.table_names import quote_for_shell, quote_for_toml

_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
}
_TIMESTAMP = re.compile(r"timestamp(?:\(\d\))? (with|without) time zone")
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_LENGTH = re.compile(r"\(\d+(,-?\d+)?\)")
_HEX = np.zeros(256, dtype=np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16, dtype=np.uint8)


def arrow_type(source_type: str) -> pa.DataType:
    """The Arrow type of a column whose base type (domains resolved) prints as `source_type`."""
    if plain := _PLAIN.get(source_type):
        return plain
    if match := _TIMESTAMP.fullmatch(source_type):
        return pa.timestamp("us", tz="UTC" if match[1] == "with" else None)
    if match := _NUMERIC.fullmatch(source_type):
        precision = int(match[1])
        scale = int(match[2])
        # The server also takes scales below 0 and above the precision, which a decimal of Arrow and Delta has not.
        if 0 <= scale <= precision <= 38:
            return pa.decimal128(precision, scale)
    return pa.string()


def column(name: str, source_type: str) -> Column:
    """A column of a base type, with the Arrow type that it is staged in."""
    return Column(name, source_type, arrow_type(source_type))


def comparable(source_type: str) -> str:
    """The type to cast a bound to: without a length, since a cast to varchar(5) would cut a longer key silently."""
    if source_type.startswith("character("):
        return "bpchar"  # plain `character` means character(1)
    if source_type.startswith(("character varying(", "numeric(", "time(", "timestamp(", "bit varying(")):
        return _LENGTH.sub("", source_type, count=1)
    return source_type


_IN_RANGE = r"^\d{4}-[^B]*$"
"""A date or timestamp from year 1 to 9999: not BC, and no infinity."""


def from_text(values: pa.Array, target: Column, table: TableName) -> pa.Array:
    """Values in the server's text form as the column's Arrow type. Raises ValueOutOfRange where none is exact."""
    if target.or_null:
        values = pc.if_else(pc.match_substring_regex(values, _IN_RANGE), values, pa.scalar(None, values.type))
    try:
        return _convert(values, target.type)
    except (pa.ArrowInvalid, ValueError) as error:
        raise out_of_range(_first_bad(values, target.type), target, table) from (None if target.hidden else error)


def _convert(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return values if pa.types.is_string(values.type) else pc.cast(values, kind)
    if pa.types.is_binary(kind):
        return _bytes(values)
    if pa.types.is_boolean(kind):
        return _booleans(values)
    if pa.types.is_binary(values.type):
        values = pc.cast(values, pa.string())
    return pc.cast(values, kind)


def _booleans(values: pa.Array) -> pa.Array:
    true = pc.equal(values, pa.scalar("t", values.type))
    if pc.any(pc.invert(pc.or_(true, pc.equal(values, pa.scalar("f", values.type))))).as_py():
        raise ValueError("neither t nor f")
    return true


def _bytes(values: pa.Array) -> pa.Array:
    r"""Bytes of `\x…` hex texts: all digits of the array in one pass over its buffer."""
    if values.null_count == len(values):
        return pa.nulls(len(values), pa.binary())
    dense = values.drop_null().cast(pa.binary())
    offsets = np.frombuffer(dense.buffers()[1], dtype=np.int32)[dense.offset : dense.offset + len(dense) + 1]
    digits = np.frombuffer(dense.buffers()[2], dtype=np.uint8)[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    # The session's bytea_output = hex: a backslash, an x, and two digits for each byte.
    if not (pc.all(pc.starts_with(dense, r"\x")).as_py() and not (offsets & 1).any()):
        raise ValueError(r"a bytea that does not begin with \x")
    joined = (_HEX[digits[0::2]] << 4) | _HEX[digits[1::2]]  # a value's prefix becomes one byte, skipped below
    bounds = offsets >> 1
    mask = np.ones(len(joined), dtype=bool)
    mask[bounds[:-1]] = False
    packed = (bounds - np.arange(len(bounds))).astype(np.int32)
    decoded = pa.Array.from_buffers(pa.binary(), len(dense), [None, pa.py_buffer(packed), pa.py_buffer(joined[mask])])
    if values.null_count == 0:
        return decoded
    places = np.cumsum(valid := values.is_valid().to_numpy(zero_copy_only=False)) - 1
    return decoded.take(pa.array(places, mask=~valid))


def _first_bad(values: pa.Array, kind: pa.DataType) -> str:
    for number in range(len(values)):
        single = values.slice(number, 1)
        try:
            _convert(single, kind)
        except (pa.ArrowInvalid, ValueError):
            raw = single[0].as_py()
            return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
    return "a value"


def _or_null(column: Column) -> str:
    moment = pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)
    return ', or such values as NULL ("or_null")' if moment else ""


def out_of_range(text: str, target: Column, table: TableName) -> ValueOutOfRange:
    """The error for a value that prints as `text`."""
    if pa.types.is_string(target.type):
        fix = "the database's encoding does not guarantee UTF-8: repair the text, or exclude the column"
    else:
        fix = (
            f"change the value, or stage the column as text{_or_null(target)}: "
            f'[source.columns.{quote_for_toml(str(table))}] staged_as = {{ {quote_for_toml(target.name)} = "text" }} '
            f"(`dblog schema accept {quote_for_shell(table)}` then gives the lake that type), or exclude it there"
        )
    value = "a value" if target.hidden else repr(text[:60])
    return ValueOutOfRange(
        f"{value} of type {target.source_type} has no exact form as {target.type}",
        where=f"{table}.{target.name}",
        fix=fix,
    )
