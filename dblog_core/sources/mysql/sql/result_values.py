"""Values as a SELECT prints them, one column at a time, as the same Arrow arrays that the log's values become."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.model.schema import Column
from dblog_core.rows import arrow_buffers
from dblog_core.rows.arrow_buffers import Bytes, Int64s
from dblog_core.sources.mysql.sql import result_numbers
from dblog_core.sources.mysql.values.binary_values import ZERO_DATE_FIX, ValueFault

_ZERO_PART = r"^0000|^\d{4}-00|^\d{4}-\d{2}-00"


def read(column: Column, raw: Bytes, starts: Int64s, lengths: Int64s, *, zero_dates: str) -> pa.Array:
    """The column's Arrow array of the values that lie in `raw`; a negative length is NULL. Raises ValueFault."""
    quick = result_numbers.to_arrow(column.type, raw, starts, lengths)
    if quick is not None:
        return quick
    return to_arrow(column, arrow_buffers.gather(raw, starts, lengths), zero_dates=zero_dates)


def to_arrow(column: Column, raw: pa.BinaryArray, *, zero_dates: str) -> pa.Array:
    """The column's Arrow array of what the server prints. Raises ValueFault."""
    kind = column.type
    if pa.types.is_binary(kind):
        return raw
    try:
        text = arrow_buffers.text(raw)
    except pa.ArrowInvalid as error:
        raise ValueFault(_first_invalid(raw), "is not valid UTF-8", "correct the value in the source") from error
    if pa.types.is_string(kind):
        return _plain_decimals(text) if column.source_type.startswith("decimal") else text
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _dates(column, text, "null" if column.or_null else zero_dates)
    if pa.types.is_float32(kind):
        return text.cast(pa.float64()).cast(pa.float32(), safe=False)  # selected as its exact double
    return text.cast(kind)


def _plain_decimals(text: pa.Array) -> pa.Array:
    """Without the zeros in front that ZEROFILL adds."""
    return pc.replace_substring_regex(text, r"^(-?)0+(\d)", r"\1\2")


def _first_invalid(values: pa.BinaryArray) -> int:
    for row, value in enumerate(values):
        try:
            (value.as_py() or b"").decode()
        except UnicodeDecodeError:
            return row
    return 0


def _dates(column: Column, text: pa.Array, zero_dates: str) -> pa.Array:
    kind = column.type
    zero = pc.match_substring_regex(text, _ZERO_PART)
    if pc.any(zero).as_py():
        text = _without(column, text, zero, zero_dates)
    plain = pa.date32() if pa.types.is_date(kind) else pa.timestamp("us")
    parsed = None
    with suppress(pa.ArrowInvalid):  # whose message has the value, and would be told as an error's context
        parsed = text.cast(plain)
    if parsed is None:
        impossible = pa.array([value is not None and not _exists(value) for value in text.to_pylist()])
        parsed = _without(column, text, impossible, zero_dates).cast(plain)
    # The session is in UTC: what is printed is the moment itself.
    return parsed if kind == plain else parsed.cast(pa.int64()).cast(kind)


def _without(column: Column, text: pa.Array, bad: pa.Array, zero_dates: str) -> pa.Array:
    if zero_dates != "null":
        row = pc.index(bad, True).as_py()
        value = "" if column.hidden else f": {text[row].as_py()}"
        raise ValueFault(row, f"is a date that does not exist{value}", ZERO_DATE_FIX)
    return pc.if_else(pc.fill_null(bad, False), pa.scalar(None, pa.string()), text)


def _exists(value: str) -> bool:
    try:
        dt.datetime.fromisoformat(value[:19])
    except ValueError:
        return False
    return True
