"""From PostgreSQL's binary form of values (`typsend`) to Arrow: exactly what `types.from_text` makes of the text form.

A type is supported only where that is certain. What is not (arrays, intervals, types of users, whose names do not tell
how they are sent) is read as text.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.errors import RequestError, UnknownLogEvent
from dblog_core.model.schema import Column, TableName
from dblog_core.rows.arrow_buffers import LARGEST, fixed_width_array, gather, text
from dblog_core.sources.postgres.values import binary_kernel as forms
from dblog_core.sources.postgres.values.types import arrow_type, out_of_range

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Number = TypeVar("Number", bound=np.number[Any])

_EPOCH = dt.date(2000, 1, 1)
_UNIX_DAYS = (_EPOCH - dt.date(1970, 1, 1)).days
_FIRST_DAY, _LAST_DAY = ((day - _EPOCH).days for day in (dt.date.min, dt.date.max))
_MICROS = 86_400_000_000  # a day
_CYCLE = 146_097  # days of 400 years
_UNIX_MICROS = _UNIX_DAYS * _MICROS
_EVER = {2**31 - 1, 2**63 - 1}
_NEVER = {-(2**31), -(2**63)}
_LENGTH = re.compile(r"\([\d,-]+\)")


class _Refused(Exception):
    """The value `number` has no place in the column; `args[0]` is its number."""


def is_supported(source_type: str) -> bool:
    """Whether `to_arrow` converts values of a base type, named as `format_type` prints it."""
    return _decoder(source_type) is not None


def to_arrow(raw: Bytes, starts: Int64s, lengths: Int64s, column: Column, table: TableName) -> pa.Array:
    """The values `raw[starts[i] : starts[i] + lengths[i]]` as the column's Arrow type; a negative length is a NULL.

    Raises ValueOutOfRange where a value has no exact form there, UnknownLogEvent where the bytes are no such value.
    """
    decode = _decoder(column.source_type)
    if pa.types.is_string(column.type):
        decode = _printer(arrow_type(column.source_type)) or decode
    elif column.or_null:
        dates = pa.types.is_date(column.type)
        decode = partial(_dates if dates else partial(_timestamps, kind=column.type), or_null=True)
    if decode is None:
        raise ValueError(f"{column.source_type} is not supported")
    try:
        return decode(raw, starts, lengths)
    except _Refused as refused:
        number = int(refused.args[0])
        # The kernels return a number alone: what stands there is read again, for the message.
        text = _text_of(_one(raw, int(starts[number]), int(lengths[number])), column)
        if text is None:
            raise _unknown_error(column, table) from None
        raise out_of_range(text, column, table) from None
    except pa.ArrowInvalid as error:
        # Arrow's message may quote the value, which is not to show of a hidden column.
        cause = None if column.hidden else error
        raise out_of_range(_first_not_utf8(raw, starts, lengths), column, table) from cause
    except ValueError as error:
        raise _unknown_error(column, table) from error


_Decode = Callable[[Bytes, Int64s, Int64s], pa.Array]


@lru_cache(maxsize=4096)
def _decoder(source_type: str) -> _Decode | None:
    kind = arrow_type(source_type)
    name = _LENGTH.sub("", source_type, count=1)
    if pa.types.is_decimal(kind):
        return partial(_decimals, kind=kind)
    decoders: dict[str, _Decode] = {
        "boolean": _booleans,
        "smallint": partial(_numbers, kind=kind),
        "integer": partial(_numbers, kind=kind),
        "bigint": partial(_numbers, kind=kind),
        "real": _floats32,
        "double precision": _floats64,
        "numeric": _numerics,
        "date": _dates,
        "timestamp without time zone": partial(_timestamps, kind=kind),
        "timestamp with time zone": partial(_timestamps, kind=kind),
        "time without time zone": partial(_clocks, zoned=False),
        "time with time zone": partial(_clocks, zoned=True),
        "text": _texts,
        "character varying": _texts,
        "character": _texts,
        "bpchar": _texts,
        "name": _texts,
        "json": _texts,
        "xml": _texts,
        "jsonb": _jsonb,
        "bytea": gather,
        "uuid": partial(_hex, width=16, size=36),
        "macaddr": partial(_hex, width=6, size=17),
        "macaddr8": partial(_hex, width=8, size=23),
        "oid": _oids,
    }
    return decoders.get(name)


def _require_none(refused: int) -> None:
    if refused >= 0:
        raise _Refused(refused)


def _present(lengths: Int64s) -> npt.NDArray[np.bool_] | None:
    present = lengths >= 0
    return None if present.all() else present


def _read_numbers(raw: Bytes, starts: Int64s, lengths: Int64s, kind: type[Number]) -> npt.NDArray[Number]:
    values = np.zeros(len(starts), dtype=kind)
    _require_none(forms.numbers(raw, starts, lengths, values.itemsize, values.view(np.uint8)))
    return values


def _numbers(raw: Bytes, starts: Int64s, lengths: Int64s, *, kind: pa.DataType) -> pa.Array:
    return fixed_width_array(_read_numbers(raw, starts, lengths, kind.to_pandas_dtype()), _present(lengths), kind)


def _floats32(raw: Bytes, starts: Int64s, lengths: Int64s) -> pa.Array:
    values = _read_numbers(raw, starts, lengths, np.float32)
    values[np.isnan(values)] = np.float32(np.nan)  # there are many; the text form knows one
    return fixed_width_array(values, _present(lengths), pa.float32())


def _floats64(raw: Bytes, starts: Int64s, lengths: Int64s) -> pa.Array:
    values = _read_numbers(raw, starts, lengths, np.float64)
    # As above: one NaN for all, so that a row hashes alike whatever way it came.
    values[np.isnan(values)] = np.nan
    return fixed_width_array(values, _present(lengths), pa.float64())


def _first(wrong: npt.NDArray[np.bool_]) -> int:
    return int(wrong.argmax()) if wrong.any() else -1


def _room(size: int) -> Bytes:
    if size > LARGEST:
        raise RequestError(f"{size} bytes do not fit one column", fix="ask for fewer rows with a smaller chunk_size")
    return np.empty(size, dtype=np.uint8)


def _booleans(raw: Bytes, starts: Int64s, lengths: Int64s) -> pa.Array:
    values = _read_numbers(raw, starts, lengths, np.uint8)
    _require_none(_first(values > 1))
    present = _present(lengths)
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    bitmap = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [bitmap, bits])


def _dates(raw: Bytes, starts: Int64s, lengths: Int64s, *, or_null: bool = False) -> pa.Array:
    values = _read_numbers(raw, starts, lengths, np.int32)
    present = _presence(lengths, (values < _FIRST_DAY) | (values > _LAST_DAY), or_null=or_null)
    return fixed_width_array(values + np.int32(_UNIX_DAYS), present, pa.date32())


def _timestamps(raw: Bytes, starts: Int64s, lengths: Int64s, *, kind: pa.DataType, or_null: bool = False) -> pa.Array:
    values = _read_numbers(raw, starts, lengths, np.int64)
    outside = (values < _FIRST_DAY * _MICROS) | (values >= (_LAST_DAY + 1) * _MICROS)
    present = _presence(lengths, outside, or_null=or_null)
    values += _UNIX_MICROS
    return fixed_width_array(values, present, kind)


def _presence(lengths: Int64s, outside: npt.NDArray[np.bool_], *, or_null: bool) -> npt.NDArray[np.bool_] | None:
    """Which values are there, where those that are `outside` of the type are none or refused."""
    if not or_null:
        _require_none(_first(outside))
        return _present(lengths)
    present = (lengths >= 0) & ~outside
    return None if present.all() else present


def _printer(usual: pa.DataType) -> _Decode | None:
    """For a column that is staged as text, unlike others of its type."""
    if pa.types.is_decimal(usual):
        return _numerics
    return partial(_moments, kind=usual) if pa.types.is_date(usual) or pa.types.is_timestamp(usual) else None


def _moments(raw: Bytes, starts: Int64s, lengths: Int64s, *, kind: pa.DataType) -> pa.Array:
    """Dates and timestamps as the server prints them, infinities and all years too."""
    width = np.int32 if pa.types.is_date(kind) else np.int64
    numbers = _read_numbers(raw, starts, lengths, width).tolist()
    present = (lengths >= 0).tolist()
    return pa.array(
        [_moment(n, kind) if is_present else None for n, is_present in zip(numbers, present, strict=True)], pa.string()
    )


def _decimals(raw: Bytes, starts: Int64s, lengths: Int64s, *, kind: pa.Decimal128Type) -> pa.Array:
    values = np.zeros(2 * len(starts), dtype=np.uint64)
    # Low and high half of the first number that has a digit too many, as the kernel compares it.
    limit = np.array(divmod(10**kind.precision, 2**64)[::-1], dtype=np.uint64)
    _require_none(forms.decimals(raw, starts, lengths, limit, kind.scale, values))
    present = _present(lengths)
    bitmap = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(kind, len(starts), [bitmap, pa.py_buffer(values)])


def _numerics(raw: Bytes, starts: Int64s, lengths: Int64s) -> pa.Array:
    offsets = np.empty(len(starts) + 1, dtype=np.int64)
    _require_none(forms.numeric_offsets(raw, starts, lengths, offsets))
    out = _room(int(offsets[-1]))
    # Twice over the values: their lengths first, since numeric has up to 131,072 digits before the point.
    forms.numeric_texts(raw, starts, lengths, offsets, out)
    return _strings(offsets.astype(np.int32), out, lengths)


def _clocks(raw: Bytes, starts: Int64s, lengths: Int64s, *, zoned: bool) -> pa.Array:
    present = lengths >= 0
    width = 12 if zoned else 8
    _require_none(_first(present & (lengths != width)))
    # A time with its zone is eight bytes of microseconds, and four of seconds west of UTC.
    micros = _read_numbers(raw, starts, np.where(present, 8, -1), np.int64)
    zones = np.zeros(0, dtype=np.int32)
    if zoned:
        zones = _read_numbers(raw, starts + 8, np.where(present, 4, -1), np.int32)
    offsets = np.empty(len(starts) + 1, dtype=np.int32)
    out = _room(forms.LONGEST_CLOCK * len(starts))
    _require_none(forms.clock_texts(micros, zones, present.view(np.uint8), zoned, offsets, out))
    return _strings(offsets, out, lengths)


def _texts(raw: Bytes, starts: Int64s, lengths: Int64s) -> pa.Array:
    return text(gather(raw, starts, lengths))


def _jsonb(raw: Bytes, starts: Int64s, lengths: Int64s) -> pa.Array:
    """A version byte, always 1, before the text."""
    present = lengths >= 0
    versions = _read_numbers(raw, starts, np.where(present, np.where(lengths > 0, 1, 0), -1), np.uint8)
    # Another version would have another layout; no server has one yet.
    _require_none(_first(present & (versions != 1)))
    return _texts(raw, starts + 1, np.where(present, lengths - 1, -1))


def _hex(raw: Bytes, starts: Int64s, lengths: Int64s, *, width: int, size: int) -> pa.Array:
    offsets = np.empty(len(starts) + 1, dtype=np.int32)
    out = _room(size * len(starts))
    _require_none(forms.hex_texts(raw, starts, lengths, width, offsets, out))
    return _strings(offsets, out, lengths)


def _oids(raw: Bytes, starts: Int64s, lengths: Int64s) -> pa.Array:
    return fixed_width_array(_read_numbers(raw, starts, lengths, np.uint32), _present(lengths), pa.uint32()).cast(
        pa.string()
    )


def _strings(offsets: npt.NDArray[np.int32], out: Bytes, lengths: Int64s) -> pa.Array:
    present = _present(lengths)
    bitmap = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(lengths), [bitmap, pa.py_buffer(offsets), pa.py_buffer(out)])


def _one(raw: Bytes, start: int, length: int) -> bytes:
    inside = 0 <= start <= len(raw) - length
    return raw[start : start + length].tobytes() if inside else b""


def _unknown_error(column: Column, table: TableName) -> UnknownLogEvent:
    return UnknownLogEvent(
        f"the server sent bytes that are no {column.source_type}", where=f"{table}.{column.name}", fix="upgrade dblog"
    )


def _text_of(value: bytes, column: Column) -> str | None:
    """The text form of a value that the column's Arrow type does not hold; None for what is no value at all."""
    kind = column.type
    if pa.types.is_decimal(kind):
        lengths = np.array([len(value)], dtype=np.int64)
        try:
            return str(_numerics(np.frombuffer(value, dtype=np.uint8), np.zeros(1, np.int64), lengths)[0])
        except _Refused:
            return None
    if (pa.types.is_date(kind) and len(value) == 4) or (pa.types.is_timestamp(kind) and len(value) == 8):
        return _moment(int.from_bytes(value, signed=True), kind)
    return None


def _moment(number: int, kind: pa.DataType) -> str:
    if number in _EVER:
        return "infinity"
    if number in _NEVER:
        return "-infinity"
    days, micros = (number, 0) if pa.types.is_date(kind) else divmod(number, _MICROS)
    # The calendar repeats every 400 years; Python's ends in 9999, PostgreSQL's in 294276.
    cycles, days = divmod(days, _CYCLE)
    day = _EPOCH + dt.timedelta(days)
    year = day.year + 400 * cycles
    text = f"{year if year > 0 else 1 - year:04d}-{day:%m-%d}"
    if pa.types.is_timestamp(kind):
        seconds, fraction = divmod(micros, 1_000_000)
        text += f" {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        text += f".{fraction:06d}".rstrip("0").rstrip(".") + ("+00" if kind.tz else "")
    # Year 0 is 1 BC: the server counts no year 0.
    return text if year > 0 else f"{text} BC"


def _first_not_utf8(raw: Bytes, starts: Int64s, lengths: Int64s) -> str:
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        value = _one(raw, start, max(length, 0))
        try:
            value.decode()
        except UnicodeDecodeError:
            return value.removeprefix(b"\1").decode(errors="replace")
    return "a value"
