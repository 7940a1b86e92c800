"""Filters of a dump: conditions on columns that a row must all pass; values are typed here, bound by the source."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

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


def to_json(filters: Sequence[Filter]) -> list[dict[str, Any]]:
    """The filters as the state store keeps them."""
    return [{"column": f.column, "op": f.op, "values": [value_to_json(v) for v in f.values]} for f in filters]


def from_json(data: Iterable[dict[str, Any]], schema: TableSchema) -> tuple[Filter, ...]:
    """The filters of `to_json`, against the table's present shape. Raises RequestError where it has changed."""
    return parse(
        ((d["column"], d["op"], list(d["values"]) if d["op"] == "in" else _one(d["values"])) for d in data), schema
    )


def _one(values: Sequence[Any]) -> Any:
    if len(values) != 1:
        raise RequestError(f"{len(values)} values where one is compared", fix="give one value, or use `in`")
    return values[0]


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
            f"filter on {column.name}: {data!r} is not a value of {column.source_type}", fix=error.fix
        ) from error
    if isinstance(value, float) and math.isnan(value):
        raise RequestError(f"filter on {column.name}: NaN is not comparable", fix="give a number")
    if isinstance(value, str) and not _is_text(value):
        raise RequestError(f"filter on {column.name}: {data!r} holds half a character", fix="give valid Unicode text")
    return value


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell
        return False
    return True
