"""How the server orders and compares a key: by an index, by its columns' collations, or by octets.

Each chunk begins behind the last key of the previous one, so rows must come in the order of the comparison that bounds
chunks. That is sure of a column that a unique index holds whole: the index has its collation, and a sort compares all
that such an index may hold. It is not so of a column of which an index holds a beginning, or a hash: a sort compares a
value up to `max_sort_length`, and two rows may have values that are equal by the collation ('ß' and 'ss') where their
beginnings are not. Such a column is ordered, and bounded, by the octets of what is unique of it.

A collation of one name keeps its order within a server's version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pymysql.connections import Connection
from pymysql.cursors import DictCursor

from dblog_core.errors import RequestError
from dblog_core.model.key_order import has_one_order
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.sources.mysql.sql.connection import is_mariadb, rows

SORTED_OCTETS = 256 << 10
"""Octets of a value that a session compares when it sorts (`session_settings`): more than the sort key of any value
that can be ordered."""

_COLUMNS = """SELECT COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"""
_UNIQUE_INDEXES = """SELECT INDEX_NAME, COLUMN_NAME, SUB_PART, INDEX_TYPE, COLLATION, {} AS USABLE
FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0
ORDER BY INDEX_NAME, SEQ_IN_INDEX"""
_SIZED = re.compile(r"(\w+)(?:\((\d+)\))?")
_LENGTHS = {"tinytext": 255, "tinyblob": 255, "text": 65_535, "blob": 65_535}
"""Octets of types whose declaration has no length."""
_OCTETS_OF_CHARACTER = 4
"""In UTF-8, at most."""
_WEIGHTS_OF_CHARACTER = 64
"""Octets of its sort key, at most: eight weights of two octets on each of four levels."""
_OCTETS_OF_NUMBER = 64
"""Of the sort key of any value that is no text and no binary string."""
GEOMETRIES = ("geometry", "point", "linestring", "polygon", "geometrycollection", "geomcollection")

IndexRows = Sequence[Mapping[str, Any]]
"""Parts of indexes: the rows of `_UNIQUE_INDEXES`, by their columns."""


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """How a table's key is ordered and bounded.

    `index`: the unique index that has exactly the key's columns, whole, in key order; None: the server sorts.
    `octets`: columns that are ordered and bounded by the octets of so many of their first characters (of binary
    columns: octets), None: of all of them. Other columns are ordered by their collation.
    """

    index: str | None = None
    octets: Mapping[str, int | None] = field(default_factory=dict)


def describe_columns(connection: Connection[Any], table: TableName) -> dict[str, tuple[Any, ...]]:
    """Of each column of the table, by name: name, type, character set and collation.

    Empty if there is no such table.
    """
    return {str(row[0]): row for row in rows(connection, _COLUMNS, (table.schema, table.name))}


def list_unique_indexes(connection: Connection[Any], table: TableName) -> IndexRows:
    """The parts of its unique indexes; none where there is no such table.

    SHOW INDEX would open the table for its statistics, and wait for a statement that changes it.
    """
    usable = "IGNORED = 'NO'" if is_mariadb(connection) else "IS_VISIBLE = 'YES'"
    with connection.cursor(DictCursor) as cursor:
        cursor.execute(_UNIQUE_INDEXES.format(usable), (table.schema, table.name))
        return list(cursor.fetchall())


def of_key(columns: Mapping[str, tuple[Any, ...]], key: Sequence[str], order: KeyOrder) -> list[tuple[Any, ...]]:
    """What `describe_columns` says of the key's columns, and by which of their octets they are ordered; of one that is
    gone, the name alone. Empty as that is."""
    if not columns:
        return []
    return [(*columns.get(name, (name,)), *_name_octets(order, name)) for name in key]


def _name_octets(order: KeyOrder, name: str) -> tuple[str, ...]:
    if name not in order.octets:
        return ()
    characters = order.octets[name]
    return ("octets of all" if characters is None else f"octets of the first {characters}",)


def of_indexes(index_rows: IndexRows, schema: TableSchema) -> KeyOrder:
    """The order of a table's key, by its unique indexes."""
    indexes: dict[str, list[Mapping[str, Any]]] = {}
    for part in index_rows:
        indexes.setdefault(str(part["INDEX_NAME"]), []).append(part)
    if fitting := [name for name, parts in indexes.items() if _serves(parts, schema)]:
        return KeyOrder(min(fitting, key=_primary_first))
    over_key = {name: parts for name, parts in indexes.items() if {p["COLUMN_NAME"] for p in parts} == set(schema.key)}
    if any(_is_whole(parts) for parts in over_key.values()):
        return KeyOrder()
    # Of two such indexes either tells which rows differ; where there is none any longer, all of each value counts.
    parts = over_key[min(over_key, key=_primary_first)] if over_key else []
    lengths = {str(p["COLUMN_NAME"]): p["SUB_PART"] for p in parts if p["INDEX_TYPE"] == "BTREE"}
    octets = {}
    for column in schema.key_columns:
        is_whole = column.name in lengths and lengths[column.name] is None
        if _has_octets(column) and not is_whole:
            length = lengths.get(column.name)
            octets[column.name] = None if length is None else int(length)
    return KeyOrder(None, octets)


def _primary_first(name: str) -> tuple[bool, str]:
    return name != "PRIMARY", name


def _is_whole(parts: IndexRows) -> bool:
    """Whether the index holds all of each of its columns, and not a hash of them."""
    return all(part["SUB_PART"] is None and part["INDEX_TYPE"] == "BTREE" for part in parts)


def _serves(parts: IndexRows, schema: TableSchema) -> bool:
    """Whether rows can be read in key order by the index."""
    is_in_order = [p["COLUMN_NAME"] for p in parts] == list(schema.key) and len({p["COLLATION"] for p in parts}) == 1
    return all(p["USABLE"] for p in parts) and is_in_order and _is_whole(parts)


def _has_octets(column: Column) -> bool:
    """Whether its values are texts or octets of any length."""
    return _base(column).endswith(("text", "blob", "char", "binary", "json", *GEOMETRIES))


def is_text(column: Column) -> bool:
    """Whether its values are characters, and not octets."""
    return _base(column).endswith(("text", "char", "json"))


def is_plain(schema: TableSchema, order: KeyOrder) -> bool:
    """Whether the keys compare here as on the server, and it cannot have sorted them by anything less."""
    return not order.octets and all(_has_one_order(column, order) for column in schema.key_columns)


def _has_one_order(column: Column, order: KeyOrder) -> bool:
    return has_one_order(column) and (order.index is not None or not _has_octets(column))


def check_sort(schema: TableSchema, order: KeyOrder, sorted_octets: int) -> None:
    """Raises RequestError where a sort that compares so many octets of each value would not tell all keys apart."""
    if order.index is not None:
        return
    for column in schema.key_columns:
        longest = _longest_sort_key(column, order)
        if longest is None or longest > sorted_octets:
            size = "of any length" if longest is None else f"of up to {longest:,} octets"
            raise RequestError(
                f"the server cannot put the keys in order: column {column.name} ({column.source_type}) holds values "
                f"{size}, no index has them in order, and a sort compares {sorted_octets:,} octets of a value",
                where=str(schema.table),
                fix="give the table a primary key or a unique index over all of each column, which the server keeps in "
                "order; or give the column a type of at most 65,535 octets, and sessions a max_sort_length of "
                f"{SORTED_OCTETS:,}",
            )


def _longest_sort_key(column: Column, order: KeyOrder) -> int | None:
    """Octets; None: there is no limit."""
    if not _has_octets(column):
        return _OCTETS_OF_NUMBER
    length = order.octets.get(column.name) or _declared_length(column)
    if length is None or not is_text(column):
        return length
    return length * (_OCTETS_OF_CHARACTER if column.name in order.octets else _WEIGHTS_OF_CHARACTER)


def _declared_length(column: Column) -> int | None:
    match = _SIZED.match(column.source_type)
    return int(match[2]) if match and match[2] else _LENGTHS.get(_base(column))


def _base(column: Column) -> str:
    match = _SIZED.match(column.source_type)
    return match[1].lower() if match else ""
