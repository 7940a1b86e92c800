"""Forms that a column's values may be staged in, in place of the usual one: `staged_as` of a column, by name.

Log and chunk rows pass through here alike, after they are decoded (`column_rules`); a server computes the same in row
hashes (`sources/*/sql/row_hashes`). A form is exact, or loses what its description says.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.config.source import ColumnRules
from dblog_core.model.schema import Column, TableSchema

_DECIMAL = re.compile(r"(decimal|numeric)\b(?!.*\[\])", re.IGNORECASE)
_CLOCK = re.compile(r"time(\(\d\))?( without time zone)?", re.IGNORECASE)
_MOMENT = re.compile(r"(date|datetime|timestamp)\b(?!.*\[\])", re.IGNORECASE)
_PARTS = r"^(?P<sign>-?)(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)\.?(?P<fraction>\d*)$"
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


class FormFault(ValueError):
    """A value that a form does not hold: the number of its row, and why."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row
        self.why = why


@dataclass(frozen=True, slots=True)
class Form:
    """`of`: the columns that it is for, in words. `convert` raises FormFault; NULL stays NULL.

    `fits` is what `check` asks of a column. A capture asks `takes` alone, of the type that is staged without the form:
    shapes are known by these types, so that log and dump of one shape come to the same form. A form that takes none is
    read by the source itself (`shape_to_read`), as the column's own type.
    """

    of: str
    fits: Callable[[Column], bool]
    type: pa.DataType | None = None
    takes: Callable[[pa.DataType], bool] = lambda kind: False
    convert: Callable[[pa.Array], pa.Array] = lambda values: values


def shape_to_read(schema: TableSchema, columns: Mapping[str, ColumnRules]) -> TableSchema:
    """The shape as its source is to read it: what `is_read_as_text` names is text from the beginning, as the server
    prints, since some of its values have no other form: zero dates, infinity, years before 1, PostgreSQL's NaN in
    decimals; or these values are NULL (`or_null`). What is excluded is text too: no value of it may be refused;
    what becomes something else by a rule is `hidden`."""
    rules = columns.get(str(schema.table))
    if rules is None or not (rules.staged_as or rules.exclude or rules.mask or rules.hash):
        return schema
    to_read = tuple(c if c.name in schema.key else _column_to_read(c, rules) for c in schema.columns)
    return TableSchema(schema.table, to_read, schema.key)


def _column_to_read(column: Column, rules: ColumnRules) -> Column:
    staged_as = rules.staged_as
    if is_read_as_text(column, staged_as) or (
        column.name in rules.exclude and is_read_as_text(column, {column.name: "text"})
    ):
        return Column(column.name, column.source_type, pa.string())
    if staged_as.get(column.name) == "or_null" and not pa.types.is_string(column.type) and _is_moment(column):
        return replace(column, or_null=True)
    return replace(column, hidden=True) if column.name in (*rules.mask, *rules.hash) else column


def is_read_as_text(column: Column, staged_as: Mapping[str, str]) -> bool:
    form = staged_as.get(column.name)
    if column.source_type.startswith("numeric("):
        return form in ("text", "double")
    return form == "text" and _is_moment(column)


def _is_moment(column: Column) -> bool:
    kind = column.type
    return bool(
        pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or (pa.types.is_string(kind) and _MOMENT.match(column.source_type))
    )


def form_of(column: Column, staged_as: Mapping[str, str]) -> str | None:
    """The name of the form that is wanted of a column of the source, if it takes the column's present type.

    It does when a capture begins: `check` sees to that. A column that was altered since to a type that the form cannot
    take keeps the usual form of the new type, which loses nothing; the lake reports the change.
    """
    name = staged_as.get(column.name)
    return name if name is not None and FORMS[name].takes(column.type) else None


def forms_for(column: Column) -> list[str]:
    """The names of all forms that a column can have."""
    return [name for name, form in FORMS.items() if form.fits(column)]


def _is_decimal(column: Column) -> bool:
    """Those of too many digits are staged as text."""
    if pa.types.is_string(column.type):
        return _DECIMAL.match(column.source_type) is not None
    return bool(pa.types.is_decimal(column.type))


def _is_clock(column: Column) -> bool:
    return pa.types.is_string(column.type) and _CLOCK.fullmatch(column.source_type) is not None


def _is_binary(column: Column) -> bool:
    return bool(pa.types.is_binary(column.type))


def digits(values: pa.Array) -> pa.Array:
    """Decimals as text, with every digit of their scale; Arrow's own text of a small one has an exponent."""
    kind = values.type
    bitmap, numbers = values.buffers()
    whole = pa.Array.from_buffers(pa.decimal128(38, 0), len(values), [bitmap, numbers], offset=values.offset)
    text = pc.cast(whole, pa.string())
    if not kind.scale:
        return text
    signs = pc.if_else(pc.starts_with(text, "-"), "-", "")
    padded = pc.utf8_lpad(pc.utf8_ltrim(text, "-"), kind.scale + 1, "0")
    before = pc.utf8_slice_codeunits(padded, 0, -kind.scale)
    after = pc.utf8_slice_codeunits(padded, -kind.scale)
    return pc.binary_join_element_wise(pc.binary_join_element_wise(signs, before, ""), after, ".")


def _text(values: pa.Array) -> pa.Array:
    return digits(values) if pa.types.is_decimal(values.type) else values


def _doubles(values: pa.Array) -> pa.Array:
    """The nearest double to each; by their text, since Arrow's own cast of a decimal may be off by a bit."""
    return pa.array([_double(row, text) for row, text in enumerate(_text(values).to_pylist())], pa.float64())


def _double(row: int, text: str | None) -> float | None:
    if text is None:
        return None
    if text not in _NO_NUMBERS and not _NUMBER.fullmatch(text):
        raise FormFault(row, f"{text[:60]!r} is no number")
    value = float(text)
    if (math.isinf(value) and text not in _NO_NUMBERS) or (value == 0 and text.strip("-0.")):
        raise FormFault(row, f"{text[:60]} is beyond the range of a double")
    return value


def _bigints(values: pa.Array) -> pa.Array:
    try:
        return pc.cast(values, pa.int64())
    except pa.ArrowInvalid:
        large = next(
            (row, n) for row, n in enumerate(values.to_pylist()) if n is not None and not -(2**63) <= n < 2**63
        )
        raise FormFault(large[0], f"{large[1]} is beyond 64 bits with a sign") from None


def _microseconds(values: pa.Array) -> pa.Array:
    parts = pc.extract_regex(values, _PARTS)
    wrong = pc.and_(pc.is_null(parts), values.is_valid())
    if pc.any(wrong).as_py():
        row = pc.index(wrong, True).as_py()
        raise FormFault(row, f"{values[row].as_py()!r} is no time of hours, minutes and seconds")
    hours, minutes, seconds = (
        pc.cast(pc.struct_field(parts, name), pa.int64()) for name in ("hours", "minutes", "seconds")
    )
    fraction = pc.cast(pc.utf8_rpad(pc.struct_field(parts, "fraction"), 6, "0"), pa.int64())
    total = pc.multiply(pc.add(pc.multiply(pc.add(pc.multiply(hours, 60), minutes), 60), seconds), 1_000_000)
    total = pc.add(total, fraction)
    return pc.if_else(pc.equal(pc.struct_field(parts, "sign"), "-"), pc.negate(total), total)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _each(convert: Callable[[bytes], str]) -> Callable[[pa.Array], pa.Array]:
    def of(values: pa.Array) -> pa.Array:
        texts: list[Any] = [None if value is None else convert(value) for value in values.to_pylist()]
        return pa.array(texts, pa.string())

    return of


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) or pa.types.is_string(kind))


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind)) and kind.scale == 0


FORMS: dict[str, Form] = {
    "double": Form("decimals", _is_decimal, pa.float64(), _is_number, _doubles),
    "text": Form(
        "decimals, dates and timestamps",
        lambda c: _is_decimal(c) or _is_moment(c),
        pa.string(),
        pa.types.is_decimal,
        digits,
    ),
    "or_null": Form("dates and timestamps", _is_moment),
    "bigint": Form(
        "whole decimals and unsigned 64 bits", lambda c: _is_integer(c.type), pa.int64(), _is_integer, _bigints
    ),
    "microseconds": Form("times without a date and a zone", _is_clock, pa.int64(), pa.types.is_string, _microseconds),
    "base64": Form("binary columns", _is_binary, pa.string(), pa.types.is_binary, _each(_base64)),
    "hex": Form("binary columns", _is_binary, pa.string(), pa.types.is_binary, _each(bytes.hex)),
}
"""By the name that stands in the configuration."""
