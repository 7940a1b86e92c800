"""A table's layout: what the places of its columns in the catalogue prove of shapes that the log has shown.

A column's number is never given to another one of its table, and stays in the catalogue when the column is dropped. So
where the catalogue knows of no dropped column, each column ever had the same number, and none is missing between them.
The log names the columns in that order. It is behind the catalogue; but if both list the same columns, then the log
shows all that the catalogue has, since it cannot have had more: a generated one, which the log leaves out, would be one
too few.

A new file of the table means that its rows were written again, with values that no row event tells. Without one, a
column that came later is, in rows that are older than it, what the catalogue keeps for them, or NULL. The kept value is
known as far as its type is still the one that the log shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dblog_core.model.column_defaults import Constant, kind_of
from dblog_core.model.schema import Column
from dblog_core.model.schema_changes import Layout
from dblog_core.sources.postgres.sql.connection import Connection, rows

_COLUMNS = """
    SELECT c.relkind, c.relfilenode::bigint, a.attname, a.attisdropped OR a.attgenerated <> '', a.atthasmissing,
        format_type(a.atttypid, a.atttypmod), (a.attmissingval::text::text[])[1]
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    WHERE c.oid = %s ORDER BY a.attnum
"""


def layout(connection: Connection, oid: int, columns: Sequence[Column]) -> Layout | None:
    """The layout of a table that the log shows with these columns; None where nothing is certain.

    A partitioned table has none: its rows lie in others, with columns of their own.
    """
    attributes = rows(connection, _COLUMNS, (oid,))
    if [name for _, _, name, *_ in attributes] != [c.name for c in columns] or any(
        is_dropped for _, _, _, is_dropped, *_ in attributes
    ):
        return None
    if not attributes or attributes[0][0] != "r":
        return None
    constants: dict[str, Any] = {}
    for column, (*_, has_missing, kind, missing) in zip(columns, attributes, strict=True):
        # What ADD COLUMN … DEFAULT has put beside the table instead of into its rows, in the type that it had then.
        value = _constant(column, missing) if has_missing and kind == column.source_type else None
        if not has_missing or value is not None:
            constants[column.name] = value
    return Layout(f"{oid}/{attributes[0][1]}", constants)


def _constant(column: Column, text: str | None) -> Any | None:
    """The JSON form of a value of which the catalogue has the text; None where that is not certain."""
    if text is None or (kind := kind_of(column)) is None:
        return None
    return Constant(kind, text).value(column)
