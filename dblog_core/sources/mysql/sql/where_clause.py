"""Conditions of a chunk's SELECT: places in key order, listed keys and filters, as SQL with the values to bind.

They have the form that lets both servers read a range of the key's index: row comparisons such as (a, b) > (1, 2) do
not. The column's own collation wins over that of a bound text, so the database compares as it sorts. What a `KeyOrder`
orders by octets is compared by them too.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pymysql

from dblog_core.errors import RequestError
from dblog_core.model import server_messages
from dblog_core.model.filters import Filter
from dblog_core.model.schema import Column, TableSchema
from dblog_core.model.values import Key
from dblog_core.sources.mysql.sql.connection import quote_identifier
from dblog_core.sources.mysql.sql.key_order import KeyOrder, is_text

Condition = tuple[str, list[Any]]
"""SQL with a `%s` for each value, and the values."""

# Character sets that do not fit, and text that is no time where the server wants one.
_INCOMPARABLE_ERRORS = {1267, 1270, 1271, 1292, 1525, 3854}
NEVER: Condition = ("1 = 0", [])
_LABELS = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPED = re.compile(r"''|\\(.)", re.DOTALL)
_TIME = re.compile(r"-?\d{2,3}:[0-5]\d:[0-5]\d(\.\d{1,6})?")
_GEOMETRY = ("geom", "point", "linestring", "polygon", "multi")
_INCOMPARABLE = ("json", "vector", *_GEOMETRY)


@contextlib.contextmanager
def comparable(schema: TableSchema) -> Iterator[None]:
    """Turns the server's refusal to compare a column with a value into ours."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        if error.args[0] not in _INCOMPARABLE_ERRORS:
            raise
        raise RequestError(
            f"a key or filter does not fit its column: {server_messages.by_mysql(error)}",
            where=str(schema.table),
            fix="give values that the column's type and character set can hold",
        ) from error


def every(*conditions: Condition) -> Condition:
    """All of them; the empty text where there is none."""
    present = [c for c in conditions if c[0]]
    return " AND ".join(text for text, _ in present), [value for _, values in present for value in values]


def order(schema: TableSchema, key_order: KeyOrder, direction: str) -> str:
    """ORDER BY of the key. ENUM and SET sort by their number, as their index does."""
    return ", ".join(f"{sorted_form(column, key_order)} {direction}" for column in schema.key_columns)


def sorted_form(column: Column, key_order: KeyOrder) -> str:
    """What a key column is ordered by."""
    return _octets(column, key_order, quote_identifier(column.name))


def _octets(column: Column, key_order: KeyOrder, value: str) -> str:
    """The value, or its octets where the column is ordered by them."""
    if column.name not in key_order.octets:
        return value
    characters = key_order.octets[column.name]
    beginning = value if characters is None else f"LEFT({value}, {characters})"
    # As the server sends it, and as we bind it.
    return f"CAST({f'CONVERT({beginning} USING utf8mb4)' if is_text(column) else beginning} AS BINARY)"


def between(schema: TableSchema, key_order: KeyOrder, after: Key | None, upto: Key | None) -> Condition:
    """after < key <= upto; None is open."""
    parts = [_beyond(schema, key_order, key, op) for key, op in ((after, ">"), (upto, "<")) if key is not None]
    return every(*parts)


def is_one_of(schema: TableSchema, keys: Sequence[Key]) -> Condition:
    """The key is one of `keys`."""
    columns = schema.key_columns
    values = [equal_value(part, column) for key in keys for part, column in zip(key, columns, strict=True)]
    if len(columns) == 1:
        return f"{quote_identifier(columns[0].name)} IN ({_marks(keys)})", values
    # MariaDB turns a long IN of rows into a join; this form uses the key's index on both servers.
    is_key = "(" + " AND ".join(f"{quote_identifier(c.name)} = %s" for c in columns) + ")"
    return "(" + " OR ".join([is_key] * len(keys)) + ")", values


def passing(schema: TableSchema, filters: Iterable[Filter]) -> Condition:
    """Every filter holds. Raises RequestError for one that has no exact meaning in SQL."""
    columns = {c.name: c for c in schema.columns}
    return every(*(_filter(f, columns[f.column]) for f in filters))


def _filter(condition: Filter, column: Column) -> Condition:
    base = _base(column)
    # A wrong comparison would leave out rows, and nobody would notice.
    if base.startswith(_INCOMPARABLE):
        raise _refusal(column, f"{column.source_type} has no plain comparison", "filter by another column")
    if base in ("enum", "set") and condition.op not in ("=", "in"):
        raise _refusal(column, f"{column.source_type} has no order of values", "use = or in")
    values = [equal_value(value, column) for value in condition.values]
    if condition.op == "in":
        return f"{quote_identifier(column.name)} IN ({_marks(values)})", values
    return f"{quote_identifier(column.name)} {condition.op} %s", values


def _beyond(schema: TableSchema, key_order: KeyOrder, key: Key, op: str) -> Condition:
    """`key op` column by column, where op is > or <, which stands for <= on the whole key.

    (a, b) > (1, 2) is `a >= 1 AND (a > 1 OR (a = 1 AND b > 2))`, whose first part alone gives the range its start.
    """
    columns = schema.key_columns
    whole = ">" if op == ">" else "<="
    if len(columns) == 1:
        return _compare(columns[0], key_order, whole, key[0])
    equal: list[Condition] = []
    alternatives = []
    for i, (column, part) in enumerate(zip(columns, key, strict=True)):
        alternatives.append(every(*equal, _compare(column, key_order, whole if i == len(columns) - 1 else op, part)))
        equal.append(_compare(column, key_order, "=", part))
    start = _compare(columns[0], key_order, op + "=", key[0])
    either = " OR ".join(f"({text})" for text, _ in alternatives)
    return every(start, (f"({either})", [value for _, values in alternatives for value in values]))


def _compare(column: Column, key_order: KeyOrder, op: str, part: Any) -> Condition:
    base = _base(column)
    value = equal_value(part, column)
    if base == "enum" and op != "=":
        # An index on an ENUM serves equality alone: so a range of it is the list of its numbers.
        numbers = [n for n in range(len(labels(column)) + 1) if _holds(n, op, value)]
        return (f"{quote_identifier(column.name)} IN ({_marks(numbers)})", list(numbers)) if numbers else NEVER
    if base == "set" and op != "=":
        # It has too many values to list. By its number, which no index serves: each chunk reads from the beginning.
        return f"CAST({quote_identifier(column.name)} AS UNSIGNED) {op} %s", [_bits(value, column)]
    return f"{sorted_form(column, key_order)} {op} {_octets(column, key_order, '%s')}", [value]


def _holds(number: int, op: str, than: int) -> bool:
    return (op[0] == ">" and number > than) or (op[0] == "<" and number < than) or (op[1:] == "=" and number == than)


def equal_value(part: Any, column: Column) -> Any:
    """A key part or filter value as the driver is to bind it. Raises RequestError where the server would guess."""
    base = _base(column)
    if part is None:
        raise _refusal(column, "the key holds no value there", "a date that does not exist cannot be part of a key")
    if base == "enum":
        return _number(part, column)
    if base == "set":
        return _members(part, column)
    if base == "bit":
        return int.from_bytes(part, "big")
    if base == "decimal" and isinstance(part, str):
        return _decimal(part, column)
    if base == "time" and not _TIME.fullmatch(part):
        raise _refusal(column, "a value that is no time", "give HH:MM:SS, with up to six digits after a point")
    if base == "year" and part and not 1901 <= part <= 2155:
        raise _refusal(column, "a value that is no year of four digits", "give a year from 1901 to 2155, or 0")
    if isinstance(part, float) and not math.isfinite(part):
        raise _refusal(column, "the server knows no infinity", "give a finite number")
    if isinstance(part, dt.datetime):
        # Without a zone: the session is in UTC, as the value is.
        return part.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return part


@lru_cache(maxsize=64)
def _labels(source_type: str) -> tuple[str, ...]:
    # The catalogue doubles quotes in labels, and escapes some characters.
    return tuple(_ESCAPED.sub(lambda m: _plain(m[1]), text) for text in _LABELS.findall(source_type))


def _plain(escaped: str | None) -> str:
    return "'" if escaped is None else {"n": "\n", "r": "\r", "0": "\0", "Z": "\x1a"}.get(escaped, escaped)


def labels(column: Column) -> tuple[str, ...]:
    """The labels of an ENUM or SET in their order, from the catalogue's text of its type."""
    texts = _labels(column.source_type)
    if not texts:
        raise AssertionError(f"{column.name}: {column.source_type} is not the catalogue's")
    return texts


def _place(label: str, column: Column) -> int | None:
    """The place of a label among the column's. The catalogue prints characters beyond 16 bits as question marks."""
    all_labels = labels(column)
    in_catalogue = label if label in all_labels else _WIDE.sub("?", label)
    if all_labels.count(in_catalogue) > 1:
        raise _refusal(column, f"the catalogue prints several of its labels as {in_catalogue!r}", LABELS_ALIKE)
    return all_labels.index(in_catalogue) if in_catalogue in all_labels else None


_SCALED = re.compile(r"double\(", re.IGNORECASE)
_WIDE = re.compile("[\U00010000-\U0010ffff]")
LABELS_ALIKE = "give the labels texts that differ in characters of 16 bits, or use another column as the key"


def _number(label: str, column: Column) -> int:
    place = _place(label, column)
    if place is not None:
        return place + 1
    if label == "":
        return 0  # what a server that was not strict has stored for an invalid label
    raise _refusal(column, "a value that is not one of its labels", f"give one of: {', '.join(labels(column))}")


def _members(text: str, column: Column) -> str:
    """A SET's text in the order of its labels, as the server prints it."""
    places = {label: _place(label, column) for label in (text.split(",") if text else [])}
    if None in places.values():
        raise _refusal(column, "a value that is not one of its labels", f"give some of: {', '.join(labels(column))}")
    return ",".join(sorted(places, key=lambda label: places[label] or 0))


def _bits(members: str, column: Column) -> int:
    places = (_place(label, column) for label in (members.split(",") if members else []))
    return sum(1 << place for place in places if place is not None)


def _decimal(text: str, column: Column) -> decimal.Decimal:
    """A decimal of more digits than Arrow has travels as text; compared as text it would become a float."""
    try:
        value = decimal.Decimal(text)
    except decimal.InvalidOperation:
        value = decimal.Decimal("NaN")
    if not value.is_finite():
        raise _refusal(column, "a value that is no decimal", "give its digits, as text")
    return value


def select_column(column: Column) -> str:
    """What the SELECT lists for a column, so that the server prints each value exactly."""
    name = quote_identifier(column.name)
    if pa.types.is_float32(column.type) or _SCALED.match(column.source_type):
        # A FLOAT is printed with six digits, and DOUBLE(M,D) with D; as a double without either it is printed exactly.
        return f"CAST({name} AS DOUBLE)"
    return name


def _base(column: Column) -> str:
    return re.split(r"[ (]", column.source_type, maxsplit=1)[0].lower()


def _marks(values: Sequence[Any]) -> str:
    return ", ".join(["%s"] * len(values))


def _refusal(column: Column, why: str, fix: str) -> RequestError:
    return RequestError(f"column {column.name}: {why}", fix=fix)
