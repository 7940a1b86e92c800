"""What the order of a key depends on: types with ENUM labels, character sets and collations.

A collation of one name keeps its order within a server's version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pymysql.connections import Connection

from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.sql.connection import rows

_COLUMNS = """SELECT COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"""


def describe_columns(connection: Connection[Any], table: TableName) -> dict[str, tuple[Any, ...]]:
    """Of each column of the table, by name: name, type, character set and collation.

    Empty if there is no such table.
    """
    return {str(row[0]): row for row in rows(connection, _COLUMNS, (table.schema, table.name))}


def of_key(columns: Mapping[str, tuple[Any, ...]], key: Sequence[str]) -> list[tuple[Any, ...]]:
    """What `describe_columns` says of the key's columns; of one that is gone, the name alone. Empty as that is."""
    return [columns.get(name, (name,)) for name in key] if columns else []
