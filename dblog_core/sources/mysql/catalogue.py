"""The server's catalogue: which tables are wanted, and their shape."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from dblog_core.config import SourceConfig
from dblog_core.schema import Column, TableName, TableSchema
from dblog_core.sources.mysql import types
from dblog_core.sources.mysql.connection import rows


class TableFilter:
    """The configuration's patterns, of which only `*` and `?` are special. The watermark table is never wanted."""

    def __init__(self, config: SourceConfig) -> None:
        self.patterns = config.tables
        self.watermarks = TableName.parse(config.watermark_table)
        self._expressions = [expression(pattern) for pattern in config.tables]
        self._schemas = [expression(pattern.partition(".")[0]) for pattern in config.tables]
        self._known: dict[TableName, bool] = {}

    def wants(self, table: TableName) -> bool:
        known = self._known.get(table)
        if known is None:
            known = table != self.watermarks and any(e.fullmatch(str(table)) for e in self._expressions)
            self._known[table] = known
        return known

    def wants_schema(self, schema: str) -> bool:
        return any(e.fullmatch(schema) for e in self._schemas)


def expression(pattern: str) -> re.Pattern[str]:
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(c, re.escape(c)) for c in pattern), re.DOTALL)


@dataclass(frozen=True, slots=True)
class Described:
    """A table of the catalogue: its shape, or why it has none that we can use."""

    table: TableName
    schema: TableSchema | None
    faults: tuple[str, ...] = ()


_TABLES = """SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES
WHERE TABLE_TYPE = 'BASE TABLE' AND TABLE_SCHEMA NOT IN ('mysql', 'sys', 'performance_schema', 'information_schema')
ORDER BY TABLE_SCHEMA, TABLE_NAME"""
_COLUMNS = """SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, NUMERIC_PRECISION, NUMERIC_SCALE,
  CHARACTER_SET_NAME, IS_NULLABLE
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"""
_INDEXES = """SELECT INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0 ORDER BY INDEX_NAME, SEQ_IN_INDEX"""


def wanted(connection: Connection[Any], tables: TableFilter) -> list[TableName]:
    """The existing tables that the patterns match."""
    found = (TableName(str(schema), str(name)) for schema, name in rows(connection, _TABLES))
    return [table for table in found if tables.wants(table)]


def describe(connection: Connection[Any], table: TableName, keys: Mapping[str, Sequence[str]]) -> Described | None:
    """The table as the catalogue has it now; None if it does not exist."""
    found = rows(connection, _COLUMNS, (table.schema, table.name))
    if not found:
        return None
    columns, faults = [], []
    for name, data_type, column_type, precision, scale, charset, _ in found:
        try:
            kind = types.from_catalogue(str(data_type), str(column_type), precision, scale, charset)
            columns.append(Column(str(name), str(column_type), kind))
        except types.UnsupportedType as error:
            faults.append(f"column {name}: {error}")
    unique = _unique(connection, table)
    key = unique.get("PRIMARY") or tuple(keys.get(str(table), ()))
    nullable = {str(row[0]) for row in found if row[6] == "YES"}
    if "PRIMARY" not in unique and key:
        faults += _key_faults(key, {str(row[0]) for row in found}, nullable, unique)
    return Described(table, None if faults else TableSchema(table, tuple(columns), key), tuple(faults))


def _unique(connection: Connection[Any], table: TableName) -> dict[str, tuple[str, ...]]:
    """Columns of each unique index, in index order."""
    found: dict[str, tuple[str, ...]] = {}
    for index, column, _ in rows(connection, _INDEXES, (table.schema, table.name)):
        if column is not None:  # None: an index over an expression
            found[str(index)] = (*found.get(str(index), ()), str(column))
    return found


def _key_faults(
    key: tuple[str, ...], names: set[str], nullable: set[str], unique: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """What is wrong with a key of [source.keys]."""
    if missing := [name for name in key if name not in names]:
        return [f"[source.keys] names columns that do not exist: {', '.join(missing)}"]
    faults = []
    if empty := [name for name in key if name in nullable]:
        faults.append(f"[source.keys] names columns that can be NULL: {', '.join(empty)}")
    if not any(set(columns) <= set(key) for columns in unique.values()):
        faults.append(f"[source.keys] ({', '.join(key)}) is not unique: no unique index lies within it")
    return faults
