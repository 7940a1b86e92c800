"""What the order of a key depends on: types with ENUM labels, character sets and collations.

A collation of one name keeps its order within a server's version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymysql.connections import Connection

from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.sql.connection import rows

_COLUMNS = """SELECT COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"""


def columns(connection: Connection[Any], table: TableName, key: Sequence[str]) -> list[tuple[Any, ...]]:
    """Of each column of the key: name, type, character set and collation; the name alone if it is gone.

    Empty if there is no such table.
    """
    described = {str(row[0]): row for row in rows(connection, _COLUMNS, (table.schema, table.name))}
    return [described.get(name, (name,)) for name in key] if described else []
