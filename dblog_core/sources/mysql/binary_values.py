"""Values as the log stores them, one column at a time, as Arrow arrays."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.sources.mysql import decimals, jsontext, temporal
from dblog_core.sources.mysql.types import ColumnType, Kind

Values = Sequence[bytes | None]


class ValueFault(ValueError):
    """A value with no exact form: the number of its row, and why."""

    def __init__(self, row: int, why: str, fix: str) -> None:
        super().__init__(why)
        self.row, self.why, self.fix = row, why, fix


ZERO_DATE_FIX = 'correct the value in the source, or set source.zero_dates = "null"'


def to_arrow(column: ColumnType, values: Values, *, zero_dates: str) -> pa.Array:
    """The column's Arrow array; None is NULL. Raises ValueFault."""
    if column.kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP):
        return _temporal(column, values, zero_dates)
    return _CONVERSIONS[column.kind](column, values)


def _fixed(values: Values, width: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_] | None]:
    """Values of equal width as rows of bytes, and where they are NULL."""
    try:
        data, nulls = b"".join(values), None  # type: ignore[arg-type]  # the usual case, without a pass for NULLs
    except TypeError:
        empty = bytes(width)
        nulls = np.fromiter((value is None for value in values), dtype=np.bool_, count=len(values))
        data = b"".join(empty if value is None else value for value in values)
    return np.frombuffer(data, dtype=np.uint8).reshape(len(values), width), nulls


def _integer(column: ColumnType, values: Values) -> pa.Array:
    rows, nulls = _fixed(values, column.width)
    unsigned = column.text.endswith("unsigned")
    if column.width == 3:
        wide = np.zeros((len(rows), 4), dtype=np.uint8)
        wide[:, 1:] = rows
        # An arithmetic shift from the top byte brings the sign along.
        numbers: Any = wide.view("<u4").ravel() >> 8 if unsigned else wide.view("<i4").ravel() >> 8
    else:
        numbers = np.ascontiguousarray(rows).view(f"<{'u' if unsigned else 'i'}{column.width}").ravel()
    return pa.array(numbers.astype(column.arrow.to_pandas_dtype()), type=column.arrow, mask=nulls)


def _year(column: ColumnType, values: Values) -> pa.Array:
    rows, nulls = _fixed(values, 1)
    years = rows[:, 0].astype(np.int16)
    return pa.array(np.where(years > 0, years + np.int16(1900), years).astype(np.int16), type=column.arrow, mask=nulls)


def _floating(column: ColumnType, values: Values) -> pa.Array:
    rows, nulls = _fixed(values, column.width)
    return pa.array(np.ascontiguousarray(rows).view(f"<f{column.width}").ravel(), type=column.arrow, mask=nulls)


def decimal128(
    low: npt.NDArray[Any], high: npt.NDArray[Any], kind: pa.DataType, nulls: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """A decimal array from the two halves of its integers."""
    pairs = np.empty((len(low), 2), dtype="<i8")
    pairs[:, 0], pairs[:, 1] = low.view("<i8"), high
    validity = None if nulls is None else pa.array(~nulls).buffers()[1]
    return pa.Array.from_buffers(kind, len(low), [validity, pa.py_buffer(pairs.tobytes())])


def _unsigned64(column: ColumnType, values: Values) -> pa.Array:
    rows, nulls = _fixed(values, 8)
    return decimal128(np.ascontiguousarray(rows).view("<u8").ravel(), np.zeros(len(rows), "<i8"), column.arrow, nulls)


def _decimal(column: ColumnType, values: Values) -> pa.Array:
    rows, nulls = _fixed(values, decimals.width(column.precision, column.scale))
    if nulls is not None:
        rows = rows.copy()
        rows[nulls, 0] = 0x80  # the first byte of zero
    numbers = decimals.unscaled(rows, column.precision, column.scale)
    if numbers.dtype == np.int64:
        return decimal128(numbers, numbers >> 63, column.arrow, nulls)
    data = b"".join(int(number).to_bytes(16, "little", signed=True) for number in numbers)
    halves = np.frombuffer(data, dtype="<i8").reshape(len(rows), 2)
    return decimal128(np.ascontiguousarray(halves[:, 0]), halves[:, 1], column.arrow, nulls)


def _long_decimal(column: ColumnType, values: Values) -> pa.Array:
    texts = _each(values, lambda value: decimals.to_text(value, precision=column.precision, scale=column.scale))
    return pa.array(texts, pa.string())


def _each(values: Values, convert: Callable[[bytes], Any]) -> list[Any]:
    """Value by value, for forms that have no column-wise way. A value that cannot be read is a ValueFault."""
    found = []
    for row, value in enumerate(values):
        try:
            found.append(None if value is None else convert(value))
        except (ValueError, IndexError, KeyError, struct.error) as error:
            raise ValueFault(row, f"cannot be decoded: {error}", "correct the value in the source") from error
    return found


def _text(column: ColumnType, values: Values) -> pa.Array:
    if column.decode:
        return pa.array(_each(values, column.decode), pa.string())
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(_each(values, bytes.decode), pa.string())


def _binary(column: ColumnType, values: Values) -> pa.Array:
    return pa.array(values, pa.binary())


def _padded(column: ColumnType, values: Values) -> pa.Array:
    # The log leaves trailing zero bytes out, a SELECT does not.
    return pa.array([None if value is None else value.ljust(column.width, b"\0") for value in values], pa.binary())


def _json(column: ColumnType, values: Values) -> pa.Array:
    return pa.array(_each(values, jsontext.to_text), pa.string())


def _time(column: ColumnType, values: Values) -> pa.Array:
    return pa.array(_each(values, lambda value: temporal.time_text(value, column.scale)), pa.string())


def _enum(column: ColumnType, values: Values) -> pa.Array:
    labels = ("", *column.labels)  # 0 is what the server stores for an invalid label, and prints as nothing
    return pa.array(_each(values, lambda value: labels[int.from_bytes(value, "little")]), pa.string())


def _set(column: ColumnType, values: Values) -> pa.Array:
    @lru_cache(maxsize=4096)
    def members(value: bytes) -> str:
        bits = int.from_bytes(value, "little")
        return ",".join(label for i, label in enumerate(column.labels) if bits >> i & 1)

    return pa.array(_each(values, members), pa.string())


def _temporal(column: ColumnType, values: Values, zero_dates: str) -> pa.Array:
    rows, nulls = _fixed(values, column.width)
    if column.kind is Kind.DATE:
        numbers, exists = temporal.dates(rows)
    elif column.kind is Kind.DATETIME:
        numbers, exists = temporal.datetimes(rows, column.scale)
    else:
        numbers, exists = temporal.timestamps(rows, column.scale)
    missing = ~exists if nulls is None else ~exists & ~nulls
    if missing.any():
        if zero_dates != "null":
            raise ValueFault(int(missing.argmax()), "is a date that does not exist (a zero date)", ZERO_DATE_FIX)
        nulls = missing if nulls is None else missing | nulls
    if column.kind is Kind.DATE:
        return pa.array(numbers.astype(np.int32), type=pa.int32(), mask=nulls).cast(column.arrow)
    return pa.array(numbers, type=pa.int64(), mask=nulls).cast(column.arrow)


_CONVERSIONS: dict[Kind, Callable[[ColumnType, Values], pa.Array]] = {
    Kind.INTEGER: _integer,
    Kind.UNSIGNED64: _unsigned64,
    Kind.DECIMAL: _decimal,
    Kind.LONG_DECIMAL: _long_decimal,
    Kind.FLOAT: _floating,
    Kind.DOUBLE: _floating,
    Kind.TEXT: _text,
    Kind.BINARY: _binary,
    Kind.PADDED: _padded,
    Kind.BIT: _binary,
    Kind.JSON: _json,
    Kind.TIME: _time,
    Kind.YEAR: _year,
    Kind.ENUM: _enum,
    Kind.SET: _set,
}
