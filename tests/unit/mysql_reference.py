"""The log's row images decoded value by value, in plain Python: what the compiled decoder must agree with."""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.model.events import CREATE, DELETE, UPDATE
from dblog_core.sources.mysql.row_events.row_decoder import ColumnFault
from dblog_core.sources.mysql.values import decimals, temporal
from dblog_core.sources.mysql.values.binary_values import ZERO_DATE_FIX, ValueFault
from dblog_core.sources.mysql.values.types import ColumnType, Kind
from tests.unit import mysql_json

Values = Sequence[bytes | None]

Reader = Callable[[bytes, int], int]
"""Takes the value at an offset of an event and returns the offset after it."""


class Images:
    """Row images of one table version, collected column by column."""

    def __init__(self, columns: Sequence[ColumnType]) -> None:
        self._columns = columns
        self._values: list[list[bytes | None]] = [[] for _ in columns]
        self._readers = [_reader(c, v.append) for c, v in zip(columns, self._values, strict=True)]
        self._null_bytes = (len(columns) + 7) // 8
        self._nullable = [
            (1 << i, r, v.append) for i, (r, v) in enumerate(zip(self._readers, self._values, strict=True))
        ]
        self.rows = 0

    def read(self, event: bytes, at: int) -> int:
        """Takes one image that begins at `at`; returns the offset after it."""
        end = at + self._null_bytes
        nulls = int.from_bytes(event[at:end], "little")
        at = end
        if not nulls:
            for read in self._readers:
                at = read(event, at)
        else:
            for bit, read, append in self._nullable:
                if nulls & bit:
                    append(None)
                else:
                    at = read(event, at)
        self.rows += 1
        return at

    def finish(self, zero_dates: str) -> list[pa.Array]:
        """The columns as Arrow arrays. Raises ColumnFault."""
        arrays = []
        for i, (column, values) in enumerate(zip(self._columns, self._values, strict=True)):
            try:
                arrays.append(to_arrow(column, values, zero_dates=zero_dates))
            except ValueFault as fault:
                raise ColumnFault(i, fault) from fault
        return arrays


def _reader(column: ColumnType, append: Callable[[bytes], None]) -> Reader:
    if column.kind in (Kind.DECIMAL, Kind.LONG_DECIMAL):
        return _fixed_reader(decimals.width(column.precision, column.scale), append)
    if column.prefix:
        return _short(append) if column.prefix == 1 else _prefixed_reader(column.prefix, append)
    return _fixed_reader(column.width, append)


def _fixed_reader(width: int, append: Callable[[bytes], None]) -> Reader:
    def read(event: bytes, at: int) -> int:
        end = at + width
        append(event[at:end])
        return end

    return read


def _short(append: Callable[[bytes], None]) -> Reader:
    def read(event: bytes, at: int) -> int:
        start = at + 1
        end = start + event[at]
        append(event[start:end])
        return end

    return read


def _prefixed_reader(size: int, append: Callable[[bytes], None]) -> Reader:
    def read(event: bytes, at: int) -> int:
        start = at + size
        end = start + int.from_bytes(event[at:start], "little")
        append(event[start:end])
        return end

    return read


def to_arrow(column: ColumnType, values: Values, *, zero_dates: str) -> pa.Array:
    """The column's Arrow array; None is NULL. Raises ValueFault."""
    if column.kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP):
        return _temporal(column, values, zero_dates)
    return _CONVERSIONS[column.kind](column, values)


def _read_fixed(values: Values, width: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_] | None]:
    """Values of equal width as rows of bytes, and where they are NULL."""
    try:
        # the usual case, without a pass for NULLs
        data = b"".join(values)
        nulls = None
    except TypeError:
        empty = bytes(width)
        nulls = np.fromiter((value is None for value in values), dtype=np.bool_, count=len(values))
        data = b"".join(empty if value is None else value for value in values)
    return np.frombuffer(data, dtype=np.uint8).reshape(len(values), width), nulls


def _integer(column: ColumnType, values: Values) -> pa.Array:
    rows, nulls = _read_fixed(values, column.width)
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
    rows, nulls = _read_fixed(values, 1)
    years = rows[:, 0].astype(np.int16)
    return pa.array(np.where(years > 0, years + np.int16(1900), years).astype(np.int16), type=column.arrow, mask=nulls)


def _floating(column: ColumnType, values: Values) -> pa.Array:
    rows, nulls = _read_fixed(values, column.width)
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
    rows, nulls = _read_fixed(values, 8)
    return decimal128(np.ascontiguousarray(rows).view("<u8").ravel(), np.zeros(len(rows), "<i8"), column.arrow, nulls)


def _decimal(column: ColumnType, values: Values) -> pa.Array:
    rows, nulls = _read_fixed(values, decimals.width(column.precision, column.scale))
    if nulls is not None:
        rows = rows.copy()
        rows[nulls, 0] = 0x80  # the first byte of zero
    numbers = decimals.unscale(rows, column.precision, column.scale)
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
    converted = []
    for row, value in enumerate(values):
        try:
            converted.append(None if value is None else convert(value))
        except (ValueError, IndexError, KeyError, struct.error) as error:
            raise ValueFault(row, f"cannot be decoded: {error}", "correct the value in the source") from error
    return converted


def _text(column: ColumnType, values: Values) -> pa.Array:
    if column.decode:
        return pa.array(_each(values, column.decode), pa.string())
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(_each(values, bytes.decode), pa.string())


def _binary(column: ColumnType, values: Values) -> pa.Array:
    return pa.array(values, pa.binary())


def _pad_values(column: ColumnType, values: Values) -> pa.Array:
    # The log leaves trailing zero bytes out, a SELECT does not.
    return pa.array([None if value is None else value.ljust(column.width, b"\0") for value in values], pa.binary())


def _native(column: ColumnType, values: Values) -> pa.Array:
    show = {Kind.UUID: _uuid, Kind.INET4: _inet4, Kind.INET6: inet6}[column.kind]
    return pa.array(_each(values, lambda value: show(value.ljust(column.width, b"\0"))), pa.string())


def _uuid(value: bytes) -> str:
    return str(UUID(bytes=value))


def _inet4(value: bytes) -> str:
    return str(ipaddress.IPv4Address(value))


def inet6(value: bytes) -> str:
    """As MariaDB prints it."""
    words = [f"{int.from_bytes(value[i : i + 2], 'big'):x}" for i in range(0, 16, 2)]
    runs = [(len(m[0].split()), m.start()) for m in re.finditer(r"(?<!\S)0(?: 0)*(?!\S)", " ".join(words))]
    if not runs:
        return ":".join(words)
    length, at = max(runs, key=lambda run: (run[0], -run[1]))
    first = len(" ".join(words)[:at].split())
    if first == 0 and (length == 6 or (length == 5 and words[5] == "ffff")):
        words[6:] = [_inet4(value[12:])]
    return ":".join(words[:first]) + "::" + ":".join(words[first + length :])


def _json(column: ColumnType, values: Values) -> pa.Array:
    return pa.array(_each(values, mysql_json.to_text), pa.string())


def time_text(value: bytes, fsp: int) -> str:
    """TIME2 as the server prints it: hours up to 838, a sign, and `fsp` digits."""
    whole = int.from_bytes(value[:3], "big") - 0x800000
    size = len(value) - 3
    part = int.from_bytes(value[3:], "big")
    # Below zero the fraction is stored as a complement of its own, except where whole and fraction are one number.
    packed = (whole << 24) + part if size == 3 else (whole << 24) + _scale_fraction(whole, part, size)
    return temporal.packed_time(packed, fsp)


def _scale_fraction(whole: int, part: int, size: int) -> int:
    if not size:
        return 0
    unit = int(10 ** (6 - 2 * size))
    if whole < 0 and part:
        return (1 << 24) + (part - (1 << 8 * size)) * unit
    return part * unit


def _time(column: ColumnType, values: Values) -> pa.Array:
    return pa.array(_each(values, lambda value: time_text(value, column.scale)), pa.string())


def _enum(column: ColumnType, values: Values) -> pa.Array:
    labels = ("", *column.labels)  # 0 is what the server stores for an invalid label, and prints as nothing
    return pa.array(_each(values, lambda value: labels[int.from_bytes(value, "little")]), pa.string())


def _set(column: ColumnType, values: Values) -> pa.Array:
    @lru_cache(maxsize=4096)
    def members(value: bytes) -> str:
        bits = int.from_bytes(value, "little")
        text = ""
        for label in (label for i, label in enumerate(column.labels) if bits >> i & 1):
            text = f"{text},{label}" if text else label  # as the server's Field_set does, empty labels included
        return text

    return pa.array(_each(values, members), pa.string())


def _temporal(column: ColumnType, values: Values, zero_dates: str) -> pa.Array:
    rows, nulls = _read_fixed(values, column.width)
    if column.kind is Kind.DATE:
        numbers, exists = dates(rows)
    elif column.kind is Kind.DATETIME:
        numbers, exists = datetimes(rows, column.scale)
    else:
        numbers, exists = timestamps(rows, column.scale)
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
    Kind.PADDED: _pad_values,
    **dict.fromkeys((Kind.UUID, Kind.INET4, Kind.INET6), _native),
    Kind.BIT: _binary,
    Kind.JSON: _json,
    Kind.TIME: _time,
    Kind.YEAR: _year,
    Kind.ENUM: _enum,
    Kind.SET: _set,
}


Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0, 0, 0], dtype=np.int64)


def big_endian(rows: Bytes, start: int, end: int) -> Numbers:
    """The bytes start to end of each row as an unsigned number."""
    total: Numbers = np.zeros(len(rows), dtype=np.int64)
    for i in range(start, end):
        total = total << 8 | rows[:, i]
    return total


def days(year: Numbers, month: Numbers, day: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Days since 1970 in the proleptic Gregorian calendar, and which of the dates exist (year 1 at the earliest)."""
    leap = ((year % 4 == 0) & (year % 100 != 0)) | (year % 400 == 0)
    last = _MONTH_DAYS[np.clip(month, 0, 15)] + ((month == 2) & leap)
    exists = (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= last)
    shifted = year - (month <= 2)  # years that begin in March end with the leap day
    era = shifted // 400
    of_era = shifted % 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468, exists


def fraction(rows: Bytes, start: int, fsp: int) -> Numbers:
    """Microseconds from the bytes after the whole seconds."""
    size = (fsp + 1) // 2
    return big_endian(rows, start, start + size) * int(10 ** (6 - 2 * size))


def datetimes(rows: Bytes, fsp: int) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """DATETIME2: microseconds since 1970 without a zone, and which of them exist."""
    packed = big_endian(rows, 0, 5) - 0x8000000000
    date = packed >> 17
    clock = packed & 0x1FFFF
    months = date >> 5
    day, exists = days(months // 13, months % 13, date & 31)
    seconds = (clock >> 12) * 3600 + ((clock >> 6) & 63) * 60 + (clock & 63)
    return (day * 86400 + seconds) * 1_000_000 + fraction(rows, 5, fsp), exists


def timestamps(rows: Bytes, fsp: int) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """TIMESTAMP2: microseconds since 1970 UTC; second 0 stands for the zero date."""
    seconds = big_endian(rows, 0, 4)
    return seconds * 1_000_000 + fraction(rows, 4, fsp), seconds != 0


def dates(rows: Bytes) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """DATE: days since 1970, and which of them exist."""
    packed = rows[:, 0].astype(np.int64) | rows[:, 1].astype(np.int64) << 8 | rows[:, 2].astype(np.int64) << 16
    return days(packed >> 9, (packed >> 5) & 15, packed & 31)


def decode(
    columns: Sequence[ColumnType], op: str, event: bytes, zero_dates: str
) -> tuple[list[pa.Array] | None, list[pa.Array] | None]:
    """The images before and after of one event's rows, by column. Raises IndexError, ValueError or struct.error."""
    before = Images(columns)
    after = Images(columns)
    at = 0
    while at < len(event):
        if op != CREATE:
            at = before.read(event, at)
        if op != DELETE:
            at = after.read(event, at)
    if at != len(event):
        raise ValueError("the rows do not end where their event ends")
    return (
        before.finish(zero_dates) if op in (UPDATE, DELETE) else None,
        after.finish(zero_dates) if op in (UPDATE, CREATE) else None,
    )
