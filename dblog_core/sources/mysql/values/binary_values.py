"""Values as the log stores them, one column at a time, as Arrow arrays."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.rows import arrow_buffers
from dblog_core.sources.mysql.values import (
    charsets,
    decimals,
    fixed_width,
    json_text,
    printed,
    temporal,
)
from dblog_core.sources.mysql.values.charsets import Decode
from dblog_core.sources.mysql.values.multibyte import Multibyte
from dblog_core.sources.mysql.values.types import ColumnType, Kind

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Values:
    """The values of one column: where in `raw` each begins, and the lengths of those of variable width.

    A start (and length) below 0 is a NULL; `present`: where there is none, None if there is none at all.
    """

    raw: npt.NDArray[np.uint8]
    starts: Int64s
    lengths: Int64s
    present: Flags | None

    def __len__(self) -> int:
        return len(self.starts)

    def bytes_of(self, row: int) -> bytes:
        """The bytes of a value of variable width that is not NULL."""
        return self.raw[self.starts[row] : self.starts[row] + self.lengths[row]].tobytes()


class ValueFault(ValueError):
    """A value with no exact form: the number of its row, and why."""

    def __init__(self, row: int, why: str, fix: str) -> None:
        super().__init__(why)
        self.row = row
        self.why = why
        self.fix = fix


_UNREADABLE = (ValueError, IndexError, KeyError, struct.error)
"""What reading a value that is none may raise."""
ZERO_DATE_FIX = (
    'correct the value in the source, set source.zero_dates = "null", or stage the column as "text" or "or_null" '
    "(staged_as)"
)
KEY_DATE_FIX = "correct the value in the source: a key cannot be NULL"


def to_arrow(column: ColumnType, values: Values, *, zero_dates: str, in_key: bool = False) -> pa.Array:
    """The column's Arrow array. `in_key`: a zero date must not become NULL, since rows that differ in it alone would
    have one key. Raises ValueFault."""
    # Dates and times alone have values that exist on the server and in no other calendar.
    if column.kind in _TEMPORAL:
        if pa.types.is_string(column.arrow):
            return _moments(column, values)
        if in_key:
            return _temporal(column, values, "error", KEY_DATE_FIX)
        return _temporal(column, values, "null" if column.or_null else zero_dates, ZERO_DATE_FIX)
    return _CONVERSIONS[column.kind](column, values)


def _undecodable(row: int, why: object) -> ValueFault:
    return ValueFault(row, f"cannot be decoded: {why}", "correct the value in the source")


def _numbers(values: Values, width: int, *, signed: bool = False) -> Int64s:
    """Little-endian numbers; unsigned ones of eight bytes keep their bits."""
    numbers = np.empty(len(values), dtype=np.int64)
    (fixed_width.read_signed if signed else fixed_width.read_unsigned)(values.raw, values.starts, width, numbers)
    return numbers


def _integer(column: ColumnType, values: Values) -> pa.Array:
    numbers = _numbers(values, column.width, signed=not column.text.endswith("unsigned"))
    return arrow_buffers.fixed_width_array(
        numbers.astype(column.arrow.to_pandas_dtype(), copy=False), values.present, column.arrow
    )


def _year(column: ColumnType, values: Values) -> pa.Array:
    years = _numbers(values, 1).astype(np.int16)
    # Stored from 1900 on in one byte; 0 is the year 0000.
    years[years > 0] += 1900
    return arrow_buffers.fixed_width_array(years, values.present, column.arrow)


def _floating(column: ColumnType, values: Values) -> pa.Array:
    bits = _numbers(values, column.width)
    # All ones in the exponent are infinities and NaN, which no column of the server holds.
    exponent = 0x7FF << 52 if column.width == 8 else 0xFF << 23
    if (odd := (bits & exponent) == exponent).any():
        raise _undecodable(int(odd.argmax()), "it is no finite number, and the server has no others")
    return arrow_buffers.fixed_width_array(
        bits if column.width == 8 else bits.astype(np.uint32), values.present, column.arrow
    )


def _unsigned64(column: ColumnType, values: Values) -> pa.Array:
    halves = np.zeros((len(values), 2), dtype=np.int64)
    # All 64 bits belong to the value: the upper half of the decimal stays 0.
    halves[:, 0] = _numbers(values, 8)
    return _halves(halves, column, values)


def _halves(halves: Int64s, column: ColumnType, values: Values) -> pa.Array:
    """A decimal array from the low and high halves of its integers."""
    bitmap = None if values.present is None else arrow_buffers.validity_bitmap(values.present)
    return pa.Array.from_buffers(column.arrow, len(values), [bitmap, pa.py_buffer(halves)])


def _groups(column: ColumnType) -> tuple[Int64s, Int64s]:
    pairs = np.array(list(decimals.groups(column.precision, column.scale)), dtype=np.int64)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


def _decimal(column: ColumnType, values: Values) -> pa.Array:
    halves = np.empty(2 * len(values), dtype=np.int64)
    bad = fixed_width.decimals(values.raw, values.starts, *_groups(column), halves)
    if bad >= 0:
        raise _undecodable(bad, "it is no packed decimal")
    return _halves(halves, column, values)


def _string(offsets: npt.NDArray[np.int32], text: npt.NDArray[np.uint8], values: Values, kind: pa.DataType) -> pa.Array:
    bitmap = None if values.present is None else arrow_buffers.validity_bitmap(values.present)
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(offsets), pa.py_buffer(text[: offsets[-1]])])


def _room(bytes_: int) -> int:
    if bytes_ > arrow_buffers.LARGEST:
        raise ValueError(f"{bytes_} bytes do not fit one array")
    return bytes_


def _long_decimal(column: ColumnType, values: Values) -> pa.Array:
    digits, sizes = _groups(column)
    offsets, out = printed.buffers(len(values), _room(len(values) * (column.precision + 3)))
    digits_room = np.empty(column.precision, dtype=np.uint8)
    bad = printed.long_decimals(values.raw, values.starts, digits, sizes, column.scale, digits_room, offsets, out)
    if bad >= 0:
        raise _undecodable(bad, "it is no packed decimal")
    return _string(offsets, out, values, pa.string())


def _time(column: ColumnType, values: Values) -> pa.Array:
    offsets, out = printed.buffers(len(values), _room(len(values) * printed.TIME))
    bad = printed.times(values.raw, values.starts, column.scale, offsets, out)
    if bad >= 0:
        raise _undecodable(bad, "it is no time of day or interval")
    return _string(offsets, out, values, pa.string())


def _each(values: Values, convert: Callable[[bytes], Any]) -> list[Any]:
    """Value by value, for forms that have no column-wise way. A value that cannot be read is a ValueFault."""
    results = []
    for row, length in enumerate(values.lengths):
        try:
            results.append(None if length < 0 else convert(values.bytes_of(row)))
        except _UNREADABLE as error:
            raise _undecodable(row, error) from error
    return results


def _text(column: ColumnType, values: Values) -> pa.Array:
    # Character sets of several bytes have a kernel with the server's own table; of one byte, a table of 256.
    if isinstance(column.decode, Multibyte):
        offsets, out, bad = column.decode.recode(values.raw, values.starts, values.lengths)
        if bad >= 0:
            raise _undecodable(bad, "it is no text of its character set")
        _room(int(offsets[-1]))
        return _string(offsets, out, values, pa.string())
    if column.decode:
        table = _table(column.decode)
        return pa.array(_each(values, column.decode), pa.string()) if table is None else _recode(table, values)
    return _check_text(arrow_buffers.gather(values.raw, values.starts, values.lengths), values)


def _check_text(raw: pa.Array, values: Values) -> pa.Array:
    """Bytes as text. `values`: what they were made of, where they are themselves the text."""
    try:
        return arrow_buffers.text(raw)
    # Arrow says that the column holds bad text, not where: value by value the row is found.
    except pa.ArrowInvalid:
        return pa.array(_each(values, bytes.decode), pa.string())


@lru_cache(maxsize=1024)
def _table(decode: Decode) -> tuple[npt.NDArray[np.uint8], Int64s] | None:
    """What each byte becomes in UTF-8, four bytes of room each, and its length; None where a character has several."""
    texts = charsets.by_byte(decode)
    if texts is None:
        return None
    table = np.frombuffer(b"".join(text.ljust(4, b"\0") for text in texts), dtype=np.uint8)
    return table, np.array([len(text) for text in texts], dtype=np.int64)


def _recode(table: tuple[npt.NDArray[np.uint8], Int64s], values: Values) -> pa.Array:
    total = int(np.maximum(values.lengths, 0).sum())
    offsets, out = printed.buffers(len(values), _room(total * int(table[1].max())))
    printed.recode(values.raw, values.starts, values.lengths, *table, offsets, out)
    return _string(offsets, out, values, pa.string())


def _binary(column: ColumnType, values: Values) -> pa.Array:
    return arrow_buffers.gather(values.raw, values.starts, values.lengths)


def _bit(column: ColumnType, values: Values) -> pa.Array:
    # A BIT(10) has two bytes, whose upper six bits are zero.
    if free := -column.precision % 8:  # bits of the first byte that are none of the column's
        first = np.where(values.starts < 0, 0, values.raw[np.maximum(values.starts, 0)])
        if (odd := first >> (8 - free) != 0).any():
            raise _undecodable(int(odd.argmax()), "it has more bits than its column")
    return arrow_buffers.gather(values.raw, values.starts, np.where(values.starts < 0, -1, column.width))


def _padded_binary(column: ColumnType, values: Values) -> pa.Array:
    # The log leaves trailing zero bytes out, a SELECT does not.
    offsets, out = printed.buffers(len(values), _room(len(values) * column.width))
    bad = printed.pad(values.raw, values.starts, values.lengths, column.width, offsets, out)
    if bad >= 0:
        raise _undecodable(bad, "it is longer than its column")
    return _string(offsets, out, values, pa.binary())


def _native(column: ColumnType, values: Values) -> pa.Array:
    fill, longest = _NATIVE[column.kind]
    offsets, out = printed.buffers(len(values), _room(len(values) * longest))
    bad = fill(values.raw, values.starts, values.lengths, offsets, out)
    if bad >= 0:
        raise _undecodable(bad, "it is longer than its column")
    return _string(offsets, out, values, pa.string())


_NATIVE = {
    Kind.UUID: (printed.uuids, printed.UUID),
    Kind.INET4: (printed.inet4s, printed.INET4),
    Kind.INET6: (printed.inet6s, printed.INET6),
}


def _json(column: ColumnType, values: Values) -> pa.Array:
    try:
        offsets, text = json_text.print_documents(values.raw, values.starts, values.lengths)
    except json_text.NoDocument as error:
        raise _undecodable(error.row, error) from error
    printed_values = Values(text, offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64), None)
    return _check_text(_string(offsets, text, values, pa.binary()), printed_values)


def _enum(column: ColumnType, values: Values) -> pa.Array:
    labels = ("", *column.labels)  # 0 is what the server stores for an invalid label, and prints as nothing
    numbers = _numbers(values, column.width)
    unknown = numbers >= len(labels)
    if unknown.any():
        row = int(unknown.argmax())
        raise _undecodable(row, f"{numbers[row]} is the number of no label")
    return _labels(labels, arrow_buffers.fixed_width_array(numbers, values.present, pa.int64()))


def _set(column: ColumnType, values: Values) -> pa.Array:
    numbers = _numbers(values, column.width)
    named = column.labels[:_MOST_MEMBERS]
    if len(named) < _MOST_MEMBERS and (odd := numbers >> len(named) != 0).any():
        row = int(odd.argmax())
        raise _undecodable(row, f"{numbers[row]} has more bits than there are labels")
    # Each combination of members is put together once, however many rows have it.
    member_bits = arrow_buffers.fixed_width_array(numbers, values.present, pa.int64()).dictionary_encode()
    texts = [
        members(label for i, label in enumerate(named) if bits >> i & 1) for bits in member_bits.dictionary.to_pylist()
    ]
    return _labels(texts, member_bits.indices)


_MOST_MEMBERS = 64
"""Bits of a SET. A server that is not strict takes more labels, where one stands there twice: no value has them."""


def members(labels: Iterable[str]) -> str:
    """A SET as the server prints it: no comma where nothing stands before it, so an empty label may leave no trace."""
    text = ""
    for label in labels:
        text += f",{label}" if text else label
    return text


def _labels(texts: Sequence[str], numbers: pa.Array) -> pa.Array:
    return pa.array(texts, pa.string()).take(numbers)


def _temporal(column: ColumnType, values: Values, zero_dates: str, fix: str) -> pa.Array:
    numbers = np.empty(len(values), dtype=np.int64)
    missing = np.empty(len(values), dtype=np.bool_)
    if column.kind is Kind.DATE:
        bad = fixed_width.dates(values.raw, values.starts, numbers, missing)
    else:
        fill = fixed_width.datetimes if column.kind is Kind.DATETIME else fixed_width.timestamps
        bad = fill(values.raw, values.starts, (column.scale + 1) // 2, numbers, missing)
    if bad >= 0:
        raise _undecodable(bad, "it is no date or time of a server")
    present = values.present
    if missing.any():
        if zero_dates != "null":
            raise ValueFault(int(missing.argmax()), "is a date that does not exist (a zero date)", fix)
        present = ~missing if present is None else present & ~missing
    return arrow_buffers.fixed_width_array(
        numbers.astype(np.int32) if column.kind is Kind.DATE else numbers, present, column.arrow
    )


def _moments(column: ColumnType, values: Values) -> pa.Array:
    """Dates and times as the server prints them in UTC, those that do not exist too."""
    texts: list[str | None] = []
    for row, start in enumerate(values.starts.tolist()):
        raw = values.raw[start : start + column.width].tobytes() if start >= 0 else b""
        try:
            texts.append(_SHOWN[column.kind](raw, column.scale) if raw else None)
        except ValueError as error:
            raise _undecodable(row, error) from error
    return pa.array(texts, pa.string())


_SHOWN: dict[Kind, Callable[[bytes, int], str]] = {
    Kind.DATE: temporal.date_text,
    Kind.DATETIME: temporal.datetime_text,
    Kind.TIMESTAMP: temporal.timestamp_text,
}
_TEMPORAL = (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP)
_CONVERSIONS: dict[Kind, Callable[[ColumnType, Values], pa.Array]] = {
    Kind.INTEGER: _integer,
    Kind.UNSIGNED64: _unsigned64,
    Kind.DECIMAL: _decimal,
    Kind.LONG_DECIMAL: _long_decimal,
    Kind.FLOAT: _floating,
    Kind.DOUBLE: _floating,
    Kind.TEXT: _text,
    Kind.BINARY: _binary,
    Kind.PADDED: _padded_binary,
    Kind.BIT: _bit,
    Kind.JSON: _json,
    Kind.TIME: _time,
    Kind.YEAR: _year,
    Kind.ENUM: _enum,
    Kind.SET: _set,
    **dict.fromkeys(_NATIVE, _native),
}
