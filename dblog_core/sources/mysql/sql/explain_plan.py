"""Which index a chunk is read by, and what the server says of it (EXPLAIN)."""

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


def key_index(connection: Connection[Any], schema: TableSchema) -> str | None:
    """The unique index that has exactly the key's columns in key order; None if there is none that can be read so."""
    indexes: dict[str, list[Row]] = {}
    for part in _dicts(connection, f"SHOW INDEX FROM {qualify(schema.table)} WHERE Non_unique = 0"):
        indexes.setdefault(str(part["Key_name"]), []).append(part)
    fitting = [name for name, parts in indexes.items() if _fits(parts, schema)]
    return min(fitting, key=lambda name: (name != "PRIMARY", name), default=None)


def _fits(parts: Sequence[Row], schema: TableSchema) -> bool:
    columns = [p["Column_name"] for p in sorted(parts, key=lambda p: int(p["Seq_in_index"]))]
    usable = all(
        p["Sub_part"] is None
        and p["Index_type"] == "BTREE"
        and p.get("Visible", "YES") == "YES"
        # MariaDB's word for an index that the optimizer must not use
        and p.get("Ignored", "NO") == "NO"
        for p in parts
    )
    return usable and columns == list(schema.key) and len({p["Collation"] for p in parts}) == 1


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
