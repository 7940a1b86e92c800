"""What the catalogue says of how tables are stored, beyond what their shapes say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from pymysql.connections import Connection

from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.ddl import column_forms
from dblog_core.sources.mysql.ddl.column_forms import ColumnForm, TableForm
from dblog_core.sources.mysql.sql.connection import rows

_COLUMNS = """SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, IS_NULLABLE, EXTRA,
  GENERATION_EXPRESSION FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s {}"""
_TABLES = """SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_COLLATION FROM information_schema.TABLES
WHERE TABLE_TYPE = 'BASE TABLE' {}"""
_ONE = "AND TABLE_NAME = %s"
_FEW = 10
"""Tables of a schema up to which each is asked for alone: some servers open every table that they list."""


def read_forms(
    connection: Connection[Any], tables: Collection[TableName] | None, wants: Callable[[TableName], bool]
) -> dict[TableName, TableForm]:
    """How these tables are stored now; None: all that are wanted. A table that somebody keeps locked is left out: no
    log waits for one table."""
    collations = {table: text for table, text in _list_collations(connection, tables) if wants(table)}
    columns: dict[TableName, dict[str, ColumnForm | None]] = {}
    computed: dict[TableName, set[str]] = {}
    for table, (name, data_type, column_type, charset, nullable, extra, expression) in _ask(
        connection, _COLUMNS, collations
    ):
        columns.setdefault(table, {})[str(name).lower()] = column_forms.read_catalogue(
            str(data_type),
            str(column_type),
            charset,
            nullable=nullable == "YES",
            is_numbered="auto_increment" in str(extra).lower(),
        )
        if expression or "GENERATED" in str(extra).upper().split():
            computed.setdefault(table, set()).add(str(name).lower())
    return {
        table: TableForm(
            forms,
            column_forms.stored_charset(column_forms.charset_of(collations[table])),
            frozenset(computed.get(table, ())),
        )
        for table, forms in columns.items()
    }


def _list_collations(
    connection: Connection[Any], tables: Collection[TableName] | None
) -> Iterator[tuple[TableName, str]]:
    """Tables that are there, each with the collation of its columns that name none."""
    if tables is None:
        questions: list[tuple[str, list[str]]] = [("", [])]
    else:
        questions = [("AND TABLE_SCHEMA = %s AND TABLE_NAME = %s", [table.schema, table.name]) for table in tables]
    for condition, values in questions:
        for schema, name, collation in rows(connection, _TABLES.format(condition), values):
            yield TableName(str(schema), str(name)), str(collation)


def _ask(
    connection: Connection[Any], question: str, tables: Collection[TableName]
) -> Iterator[tuple[TableName, tuple[Any, ...]]]:
    """The answer's rows with the table that each is about."""
    for schema in sorted({table.schema for table in tables}):
        names = {table.name for table in tables if table.schema == schema}
        questions = [("", [schema])] if len(names) > _FEW else [(_ONE, [schema, name]) for name in sorted(names)]
        for condition, values in questions:
            for name, *row in rows(connection, question.format(condition), values):
                if name in names:
                    yield TableName(schema, str(name)), tuple(row)
