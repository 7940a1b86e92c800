"""Filters of a dump: conditions on columns that a row must all pass; values are typed here, bound by the source."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from dblog_core.errors import RequestError
from dblog_core.model.schema import Column, TableSchema
from dblog_core.model.values import from_json as value_from_json
from dblog_core.model.values import to_json as value_to_json

OPERATORS = ("=", "<", "<=", ">", ">=", "in")


@dataclass(frozen=True, slots=True)
class Filter:
    """`column op values`: op is =, <, <=, >, >= (one value) or in (one or more), as `values.from_json` gives them."""

    column: str
    op: str
    values: tuple[Any, ...]


def parse(expressions: Iterable[tuple[str, str, Any]], schema: TableSchema) -> tuple[Filter, ...]:
    """The filters of (column, op, JSON value) triples; the value of `in` is a list. Raises RequestError."""
    columns = {c.name: c for c in schema.columns}
    return tuple(_filter(name, op, data, columns, schema) for name, op, data in expressions)


@dataclass(frozen=True, slots=True)
class FiledFilter:
    """A filter as the state store keeps it: `values` are JSON, which the reader of the table types."""

    column: str
    op: str
    values: tuple[Any, ...]

    @classmethod
    def of(cls, condition: Filter) -> Self:
        return cls(condition.column, condition.op, tuple(map(value_to_json, condition.values)))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["column"], data["op"], tuple(data["values"]))

    def to_json(self) -> dict[str, Any]:
        return {"column": self.column, "op": self.op, "values": list(self.values)}

    @property
    def json_value(self) -> Any:
        """What `parse` takes. Raises RequestError."""
        if self.op == "in":
            return list(self.values)
        if len(self.values) != 1:
            raise RequestError(f"{len(self.values)} values where one is compared", fix="give one value, or use `in`")
        return self.values[0]


def parse_filed(filters: Iterable[FiledFilter], schema: TableSchema) -> tuple[Filter, ...]:
    """The filters against the table's present shape. Raises RequestError where it has changed."""
    return parse(((f.column, f.op, f.json_value) for f in filters), schema)


def _filter(name: str, op: str, data: Any, columns: dict[str, Column], schema: TableSchema) -> Filter:
    column = columns.get(name)
    if column is None:
        raise RequestError(
            f"filter: {schema.table} has no column {name}", fix=f"filter by one of: {', '.join(columns)}"
        )
    if op not in OPERATORS:
        raise RequestError(f"filter on {name}: {op!r} is no operator", fix=f"use one of: {' '.join(OPERATORS)}")
    if op == "in" and not (isinstance(data, list | tuple) and data):
        raise RequestError(f"filter on {name}: `in` needs values", fix="give a JSON array that is not empty")
    return Filter(name, op, tuple(_value(v, column) for v in (data if op == "in" else [data])))


def _value(data: Any, column: Column) -> Any:
    if data is None:
        raise RequestError(
            f"filter on {column.name}: null passes no comparison", fix="give a value, or leave the filter out"
        )
    try:
        value = value_from_json(data, column)
    except RequestError as error:
        raise RequestError(
            f"filter on {column.name}: its value is not a value of {column.source_type}", fix=error.fix
        ) from None  # the cause names the value
    if isinstance(value, float) and math.isnan(value):
        raise RequestError(f"filter on {column.name}: NaN is not comparable", fix="give a number")
    if isinstance(value, str) and not _is_text(value):
        raise RequestError(
            f"filter on {column.name}: a text that holds half a character", fix="give valid Unicode text"
        )
    return value


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell
        return False
    return True


@dataclass(frozen=True, slots=True)
class Typed:
    """A filter's value as somebody typed it: JSON, or the text itself where the column holds text, a date or a time."""

    text: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A filter's value as SQL spells it: text in quotes, or a number, true or false without.

    It is taken only where SQL compares it as what it is: a number with text, say, is compared by rules of each server.
    """

    text: str
    quoted: bool


Expression = tuple[str, str, Any]
"""A condition as it is asked for: column, operator, and a JSON value, `Typed`, `Literal`, or a tuple of `Literal`."""


def parse_expressions(expressions: Sequence[Expression], schema: TableSchema) -> tuple[Filter, ...]:
    """The filters that somebody asks for. Raises RequestError."""
    if not expressions:
        return ()
    columns = {c.name: c for c in schema.columns}
    return parse([(name, op, _json_value(value, op, columns.get(name))) for name, op, value in expressions], schema)


def _json_value(value: Any, operator: str, column: Column | None) -> Any:
    if isinstance(value, tuple):
        return [_json_of_literal(literal, column) for literal in value]
    return _json_of_literal(value, column) if isinstance(value, Literal) else _json_of_text(value, operator, column)


def _json_of_literal(value: Literal, column: Column | None) -> Any:
    """The JSON value of SQL's; a time needs its zone where the column is a point in time."""
    if column is None:
        return value.text
    types = pa.types
    kind = column.type
    if not value.quoted:
        if not any(
            is_kind(kind) for is_kind in (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal)
        ):
            raise _incomparable(value, column, "text in quotes")
        return json.loads(value.text.lstrip("+"), parse_float=str) if _is_json(value.text) else value.text
    needs_zone = types.is_timestamp(kind) and bool(kind.tz)
    if needs_zone and not _has_zone(value.text):
        raise _incomparable(value, column, "a time with its zone, such as '2026-11-01T10:00:00Z'")
    if not any(is_kind(kind) for is_kind in (types.is_string, types.is_date, types.is_timestamp)):
        raise _incomparable(value, column, "a value of its own type, without quotes")
    return value.text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _has_zone(text: str) -> bool:
    try:
        return dt.datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return True  # no time at all: refused as such


def _incomparable(value: Literal, column: Column, needed: str) -> RequestError:
    return RequestError(
        f"the filter on {column.name} ({column.source_type}) compares it with "
        f"{'a text' if value.quoted else 'a value without quotes'}, which has no exact meaning",
        fix=f"give {needed}",
    )


def _json_of_text(value: Any, operator: str, column: Column | None) -> Any:
    """The JSON value of what somebody typed; every digit counts, and 42 in a text column is text."""
    if not isinstance(value, Typed) or column is None:
        return value.text if isinstance(value, Typed) else value
    kind = column.type
    is_plain = operator != "in" and (pa.types.is_string(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind))
    try:
        parsed = json.loads(value.text, parse_float=str, parse_constant=str)
    except ValueError:
        if is_plain:
            return value.text
        form = "a JSON array" if operator == "in" else "a JSON value"
        raise RequestError(
            f"filter on {column.name} ({column.source_type}): a value that is not JSON",
            fix=f"give {form}; text in it needs double quotes of its own",
        ) from None  # the cause holds the value
    return value.text if is_plain and parsed is not None and not isinstance(parsed, str) else parsed
