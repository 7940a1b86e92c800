"""Which table has a name: what tells that another one has taken it, and that partitions came or went with their rows.

PostgreSQL's log says nothing of either: rows come under the name that their table has by then. So the capture remembers
of each table the oid, and those of its partitions:

    SCHEMA.TABLE@OID             a table, or the root of a partitioned one
    SCHEMA.TABLE@OID/PARTITION   one of its partitions
    SCHEMA.TABLE@OID/PARTITION!  one that has not been made as such, so that it may have brought rows along

An older version remembered the name alone. Where columns are hidden, an `Origin` proves more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Set
from dataclasses import dataclass

import orjson

BROUGHT_ROWS = "!"


def write_entry(name: str, oid: int, partition: int | None = None, *, brought_rows: bool = False) -> str:
    """One table, or one of its partitions."""
    part = "" if partition is None else f"/{partition}{BROUGHT_ROWS if brought_rows else ''}"
    return f"{name}@{oid}{part}"


def entries_to_remember(entries: Iterable[str]) -> set[str]:
    """What the next look must know."""
    return {entry.removesuffix(BROUGHT_ROWS) for entry in entries}


def leave_out(entries: Iterable[str], tables: Set[str]) -> frozenset[str]:
    """The entries without those of the tables."""
    return frozenset(entry for entry in entries if _split_entry(entry)[0] not in tables)


def find_names(entries: Iterable[str]) -> set[str]:
    """The tables that have entries."""
    return {_split_entry(entry)[0] for entry in entries}


def find_other_tables(remembered: Set[str], present: Iterable[str]) -> set[str]:
    """The names of tables whose rows are not in the log: new ones, others under an old name, and those of which a
    partition has come with rows, or gone."""
    names = set()
    present_entries = entries_to_remember(present)
    for entry in present:
        name, root, partition = _split_entry(entry)
        is_other = partition is None and not remembered & {entry, name}
        came_with_rows = (
            entry.endswith(BROUGHT_ROWS) and root in remembered and entry.removesuffix(BROUGHT_ROWS) not in remembered
        )
        if is_other or came_with_rows:
            names.add(name)
    for entry in remembered - present_entries:
        name, root, partition = _split_entry(entry)
        if partition is not None and root in present_entries:
            names.add(name)
    return names


def _split_entry(entry: str) -> tuple[str, str, str | None]:
    """The name, the entry of the table, and what of it is meant."""
    name, _, numbers = entry.rpartition("@")
    oid, slash, partition = numbers.partition("/")
    return name, f"{name}@{oid}", partition if slash else None


@dataclass(frozen=True, slots=True)
class Origin:
    """What a catalogue says of a table now.

    `oid`: the table; `brought`: digest of its other names, of partitions that were attached, of whether it may have
    been a partition itself, and of the tree of `is_beside_hidden`, empty where it was made with this name and all its
    partitions as such, and there is no such tree; `attached`: of the
    partitions alone; `numbers`: digest of its columns' names, types and numbers; `columns`: of names and types;
    `version`: another one whenever the description of a column, or the table's name, was written since, and `described`
    behind a colon; `is_as_made`: nothing of all that was written again; `parts`: whether it is partitioned;
    `described`: empty while the description of some column is the one with which the table was made, else another one
    whenever any is written; `is_beside_hidden`: it has no entry in [source.columns], and its rows may be those of a
    root, or of another partition of it, that hides columns; `is_partition`: it has no entry, and is a partition of a
    table.
    """

    oid: int
    brought: str
    attached: str
    numbers: str
    columns: str
    version: str
    is_as_made: bool
    parts: bool = False
    described: str = ""
    is_beside_hidden: bool = False
    is_partition: bool = False

    def describe(self, *, hides: bool) -> str:
        """What an acceptance of the table keeps; of one whose columns nobody hides, where its rows come from."""
        return f"{self.oid}:{self.attached}:{self.numbers}" if hides else f"{self.oid}:{self.brought}"


def digest(value: object) -> str:
    """16 hex digits of something that has a JSON form."""
    return hashlib.blake2b(orjson.dumps(value), digest_size=8).hexdigest()
