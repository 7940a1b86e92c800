"""Which table has a name: what tells that another one has taken it, and that partitions came or went with their rows.

PostgreSQL's log says nothing of either: rows come under the name that their table has by then. So the capture remembers
of each table the oid, and those of its partitions:

    SCHEMA.TABLE@OID             a table, or the root of a partitioned one
    SCHEMA.TABLE@OID/PARTITION   one of its partitions
    SCHEMA.TABLE@OID/PARTITION!  one that has not been made as such, so that it may have brought rows along

An older version remembered the name alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

BROUGHT = "!"


def entry(name: str, oid: int, partition: int | None = None, *, brought: bool = False) -> str:
    """One table, or one of its partitions."""
    part = "" if partition is None else f"/{partition}{BROUGHT if brought else ''}"
    return f"{name}@{oid}{part}"


def remembered(entries: Iterable[str]) -> set[str]:
    """What is to be known the next time."""
    return {one.removesuffix(BROUGHT) for one in entries}


def others(known: Set[str], now: Iterable[str]) -> set[str]:
    """The names of tables whose rows the log does not tell of: new ones, others under an old name, and those of which a
    partition has come with rows, or gone."""
    found, there = set(), remembered(now)
    for one in now:
        name, root, partition = _parts(one)
        is_other = partition is None and not known & {one, name}
        came = one.endswith(BROUGHT) and root in known and one.removesuffix(BROUGHT) not in known
        if is_other or came:
            found.add(name)
    for one in known - there:
        name, root, partition = _parts(one)
        if partition is not None and root in there:
            found.add(name)
    return found


def _parts(one: str) -> tuple[str, str, str | None]:
    """The name, the entry of the table, and what of it is meant."""
    name, _, numbers = one.rpartition("@")
    oid, slash, partition = numbers.partition("/")
    return name, f"{name}@{oid}", partition if slash else None
