"""What the server says of how it reads a chunk (EXPLAIN)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymysql.connections import Connection
from pymysql.cursors import DictCursor

from dblog_core.model.schema import TableSchema
from dblog_core.sources.mysql.sql.connection import is_mariadb, quote_identifier
from dblog_core.sources.mysql.sql.watermarks import qualify

Row = dict[str, Any]
_BOUNDED = {"range", "ref", "eq_ref", "const"}


def explain(connection: Connection[Any], statement: str, values: Sequence[Any]) -> Row:
    """The server's plan for a SELECT of one table: `type`, `key`, `rows`, `filtered`, `Extra`."""
    # MySQL's default form is a tree of text; MariaDB estimates what passes only when it is asked for more.
    form = "EXPLAIN EXTENDED" if is_mariadb(connection) else "EXPLAIN FORMAT=TRADITIONAL"
    return _dicts(connection, f"{form} {statement}", values)[0]


def index_used(plan: Row, *, bounded: bool) -> str | None:
    """The index by which rows come in key order, none outside of the bounds; None if the server sorts or scans."""
    extra = str(plan["Extra"] or "")
    if "filesort" in extra or "temporary" in extra or plan["key"] is None:
        return None
    if plan["type"] in _BOUNDED or (plan["type"] == "index" and not bounded):
        return str(plan["key"])
    return None


def passing_rows(plan: Row) -> int:
    """The estimate of rows that a plan gives; 0 where the server knows that there are none."""
    share = plan["filtered"]
    return round(float(plan["rows"] or 0) * (100.0 if share is None else float(share)) / 100)


def from_item(schema: TableSchema, index: str | None) -> str:
    """The FROM item. Without the hint a poor estimate, or a filter, makes the server sort the rest for each chunk."""
    return qualify(schema.table) + (f" FORCE INDEX ({quote_identifier(index)})" if index else "")


def _dicts(connection: Connection[Any], statement: str, values: Sequence[Any] = ()) -> list[Row]:
    with connection.cursor(DictCursor) as cursor:
        cursor.execute(statement, tuple(values))
        return list(cursor.fetchall())
