"""Entries in [source.keys] that contradict a primary key.

The entry is for a table that has no primary key. Where the table has one, rows are known by it; an entry that names the
same columns says nothing else, and one that names others is refused by name: neither key is what its reader expects.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dblog_core.model.schema import TableName
from dblog_core.model.table_names import keys_entry


def explain_contradiction(table: TableName, entry: Collection[str], primary: Sequence[str]) -> str:
    """Why the entry cannot stand beside the primary key, in words; empty if it may, or one of them is not there."""
    if not entry or not primary or set(entry) == set(primary):
        return ""
    return f"{keys_entry(table)} names ({', '.join(entry)}), and its primary key is ({', '.join(primary)})"


def contradiction_fix(table: TableName) -> str:
    """What to do about it."""
    return f"remove {keys_entry(table)}: it is for a table without a primary key"
