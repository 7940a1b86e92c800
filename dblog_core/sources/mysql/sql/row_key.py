"""The key that identifies a table's rows: its primary key, or, where it has none, the columns that [source.keys] names.

A row's key has to name one row in the log, in a chunk and in the lake alike. So no column of it may be NULL, a unique
index must have exactly its columns, and no two of its values may print alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dblog_core.model.schema import Column
from dblog_core.sources.mysql.sql.where_clause import labels
from dblog_core.sources.mysql.values import types

IndexParts = list[tuple[str | None, int | None]]
"""Column and prefix length of each part of an index; None for an expression, and for a whole column."""


def why_not_in_key(column: Column) -> str | None:
    """Why a key cannot hold the column."""
    kind = column.source_type.lower().partition("(")[0]
    if kind not in ("enum", "set"):
        return None
    return types.why_alike(types.in_catalogue(labels(column)), of_set=kind == "set")


def list_unique_indexes(index_rows: Sequence[tuple[Any, ...]]) -> dict[str, IndexParts]:
    """The parts of each unique index, in index order."""
    indexes: dict[str, IndexParts] = {}
    for index, column, prefix in index_rows:
        indexes.setdefault(str(index), []).append((column, prefix))
    return indexes


def whole_columns(parts: IndexParts) -> tuple[str, ...]:
    """An index's columns; empty if it is over an expression or over the beginning of a column."""
    columns = tuple(str(column) for column, prefix in parts if column is not None and prefix is None)
    return columns if len(columns) == len(parts) else ()


def find_faults(
    key: tuple[str, ...], names: set[str], nullable: set[str], unique: Sequence[tuple[str, ...]]
) -> list[str]:
    """What is wrong with a key of [source.keys]."""
    if missing := [name for name in key if name not in names]:
        return [f"[source.keys] names columns that do not exist: {', '.join(missing)}"]
    faults = []
    if empty := [name for name in key if name in nullable]:
        faults.append(f"[source.keys] names columns that can be NULL: {', '.join(empty)}")
    if not any(set(columns) == set(key) for columns in unique):
        faults.append(f"[source.keys] ({', '.join(key)}) is not unique: no unique index has exactly these columns")
    return faults
