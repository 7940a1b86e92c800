"""Entries in [source.keys] that contradict a primary key.

The entry is for a table that has no primary key. Where the table has one, rows are known by it; an entry that names the
same columns says nothing else, and one that names others is refused by name: neither key is what its reader expects.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dblog_core.model.schema import TableName
from dblog_core.model.table_names import keys_entry

UNIQUE_KEY = "a unique key whose columns are all NOT NULL"
"""What stands for a primary key, as fixes name it."""


def explain_contradiction(
    table: TableName, entry: Collection[str], primary: Sequence[str], *, ignore_case: bool = False
) -> str:
    """Why the entry cannot stand beside the primary key, in words; empty if it may, or one of them is not there.

    `ignore_case`: columns whose names differ in case alone are the same, as on MySQL and MariaDB.
    """
    if not entry or not primary or _names(entry, ignore_case) == _names(primary, ignore_case):
        return ""
    return f"{keys_entry(table)} names ({', '.join(entry)}), and its primary key is ({', '.join(primary)})"


def contradiction_fix(table: TableName) -> str:
    """What to do about it."""
    return f"remove {keys_entry(table)}: it is for a table without a primary key"


def _names(columns: Collection[str], ignore_case: bool) -> set[str]:
    return {column.lower() for column in columns} if ignore_case else set(columns)
