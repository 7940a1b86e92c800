"""Conditions of a chunk's SELECT: places in key order, listed keys and filters, with their values as literals.

COPY takes no parameters, so values become literals made by psycopg2's own quoting, cast to the column's type. Row
comparisons such as (a, b) > (1, 2) read a range of the key's index.

`operators`: by the name of a type that users or an extension have made, the operators of its own order, with their
schemas. They are called by these: otherwise there is no operator for the type (ltree), or, worse, that of another type
that it turns into (citext would be compared as text, in another order than its index has). ORDER BY goes by the same.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from psycopg2 import sql

from dblog_core.errors import RequestError
from dblog_core.model.filters import Filter
from dblog_core.model.schema import Column, TableSchema
from dblog_core.model.values import Key, to_json
from dblog_core.sources.postgres.values.types import comparable

Operators = Mapping[str, Sequence[str]]
"""Schema and name of the operators of one type, by what they are called elsewhere: <, <=, =, >=, >."""


def every(conditions: Iterable[sql.Composable]) -> sql.Composable:
    """All of them; true where there is none."""
    listed_conditions = list(conditions)
    return sql.SQL(" AND ").join(listed_conditions) if listed_conditions else sql.SQL("true")


def order(schema: TableSchema, direction: str = "ASC") -> sql.Composable:
    """ORDER BY of the key in the table `t`: a bare name would be that of an output column first."""
    direction_of = sql.SQL("t.{} " + direction)
    return sql.SQL(", ").join(direction_of.format(sql.Identifier(name)) for name in schema.key)


def between(
    schema: TableSchema, after: Key | None, upto: Key | None, operators: Mapping[str, Operators]
) -> list[sql.Composable]:
    """after < key <= upto; None is open."""
    if any(column.source_type in operators for column in schema.key_columns):
        above = [] if after is None else _beyond(schema, after, (">", ">=", ">"), operators)
        below = [] if upto is None else _beyond(schema, upto, ("<", "<=", "<="), operators)
        return [*above, *below]
    return [
        sql.SQL("{} {} {}").format(_names(schema), sql.SQL(comparison), _literals(schema, key))
        for comparison, key in ((">", after), ("<=", upto))
        if key is not None
    ]


def _beyond(
    schema: TableSchema, key: Key, forms: tuple[str, str, str], operators: Mapping[str, Operators]
) -> Iterator[sql.Composable]:
    """The same as a row comparison, column by column: its operators cannot be of different schemas.

    `forms`: the comparison of a part that is followed by others, that of the first alone, and that of the last.
    """
    strict, first, last = forms
    columns = schema.key_columns
    equal = list[sql.Composable]()
    alternatives = []
    for number, (column, part) in enumerate(zip(columns, key, strict=True)):
        op = last if number == len(columns) - 1 else strict
        alternatives.append(sql.SQL("({})").format(every([*equal, _compare(column, op, part, operators)])))
        equal.append(_compare(column, "=", part, operators))
    yield _compare(columns[0], first, key[0], operators)  # for the index
    yield sql.SQL("({})").format(sql.SQL(" OR ").join(alternatives))


def _compare(column: Column, op: str, part: Any, operators: Mapping[str, Operators]) -> sql.Composable:
    called: sql.Composable = sql.SQL(op)
    if own := operators.get(column.source_type):
        schema, name = own[op]
        called = sql.SQL("OPERATOR({}.{})").format(sql.Identifier(schema), sql.SQL(name))
    return sql.SQL("{} {} {}").format(sql.Identifier(column.name), called, _literal(part, column))


def is_one_of(schema: TableSchema, keys: Sequence[Key], operators: Mapping[str, Operators]) -> sql.Composable:
    """The key is one of `keys`."""
    if not keys:
        return sql.SQL("false")
    # A row comparison looks its operators up by the search path, where those of an extension need not be.
    if any(column.source_type in operators for column in schema.key_columns):
        whole = (
            every(_compare(c, "=", part, operators) for c, part in zip(schema.key_columns, key, strict=True))
            for key in keys
        )
        return sql.SQL("({})").format(sql.SQL(" OR ").join(sql.SQL("({})").format(condition) for condition in whole))
    key_values = sql.SQL(", ").join(_literals(schema, key) for key in keys)
    return sql.SQL("{} IN (VALUES {})").format(_names(schema), key_values)


def passing(schema: TableSchema, filters: Iterable[Filter], operators: Mapping[str, Operators]) -> list[sql.Composable]:
    """A condition for each filter; the server says which types it can compare."""
    columns = {c.name: c for c in schema.columns}
    return [_filter(f, columns[f.column], operators) for f in filters]


def _filter(condition: Filter, column: Column, operators: Mapping[str, Operators]) -> sql.Composable:
    if column.source_type in operators:
        op = "=" if condition.op == "in" else condition.op
        either = sql.SQL(" OR ").join(_compare(column, op, value, operators) for value in condition.values)
        return sql.SQL("({})").format(either)
    values = sql.SQL(", ").join(_literal(value, column) for value in condition.values)
    form = "{} IN ({})" if condition.op == "in" else "{} " + condition.op + " {}"
    return sql.SQL(form).format(sql.Identifier(column.name), values)


def _names(schema: TableSchema) -> sql.Composable:
    return sql.SQL("({})").format(sql.SQL(", ").join(sql.Identifier(name) for name in schema.key))


def _literals(schema: TableSchema, key: Key) -> sql.Composable:
    parts = zip(key, schema.key_columns, strict=True)
    return sql.SQL("({})").format(sql.SQL(", ").join(_literal(part, column) for part, column in parts))


def _literal(part: Any, column: Column) -> sql.Composable:
    text = value_text(part)
    if "\0" in text:
        raise RequestError(
            f"a value for column {column.name} holds a zero character", fix="PostgreSQL has no such text: check it"
        )
    # As text with a type, so that the server reads each value by its own rules, and none is converted by the driver.
    return sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(comparable(column.source_type)))


def value_text(part: Any) -> str:
    """A key part or filter value in a text form that the server's type reads back exactly."""
    match part:
        case bool():
            return "t" if part else "f"
        case bytes():
            return rf"\x{part.hex()}"
        case decimal.Decimal():
            return format(part, "f")
        case dt.date() | float():
            return str(to_json(part))
    return str(part)
