"""The key that identifies a table's rows: its primary key, or, where it has none, the columns that [source.keys] names,
or else the first of its unique keys that are never null.

A row's key has to name one row in the log, in a chunk and in the lake alike. So no column of it may be NULL, a unique
index must have exactly its columns, and no two of its values may print alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dblog_core.model.schema import Column
from dblog_core.sources.mysql.sql.where_clause import labels
from dblog_core.sources.mysql.values import types


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """`columns`: those of its parts, without expressions; `whole`: it is over columns alone, and over all of each;
    `hashed`: by a hash of its values."""

    columns: tuple[str, ...]
    whole: bool
    hashed: bool


def why_not_in_key(column: Column) -> str | None:
    """Why a key cannot hold the column."""
    kind = column.source_type.lower().partition("(")[0]
    if kind not in ("enum", "set"):
        return None
    return types.why_alike(types.in_catalogue(labels(column)), of_set=kind == "set")


def list_unique_indexes(index_rows: Sequence[tuple[Any, ...]]) -> dict[str, UniqueIndex]:
    """The unique indexes by name; of each part name, column (None: an expression), length (None: whole), kind."""
    parts: dict[str, list[tuple[Any, ...]]] = {}
    for index, *part in index_rows:
        parts.setdefault(str(index), []).append(tuple(part))
    return {
        index: UniqueIndex(
            columns=tuple(str(column) for column, _, _ in of_index if column is not None),
            whole=all(column is not None and prefix is None for column, prefix, _ in of_index),
            hashed=of_index[0][2] == "HASH",
        )
        for index, of_index in parts.items()
    }


def choose(entry: tuple[str, ...], first: tuple[str, ...]) -> tuple[str, ...]:
    """The key of a table without a primary key: its entry in [source.keys], or else the `first` of its unique keys, as
    the log names it. An entry with the columns of that one has their order from there."""
    return first if not entry or set(entry) == set(first) else entry


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
