"""What is to become of a table's keys, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from dblog_core.delta_writer.bitmaps import Rows
from dblog_core.delta_writer.order_guard import Flags


@dataclass(frozen=True, slots=True)
class Changes:
    """The last change of each key: one row a key, with all of the table's columns by their names.

    `deleted`: the key goes; of its row only key and order mean something. `guarded`: the change wins only where the
    table's row of the key is older by the order column. `same`: a guarded row that equals the table's in these columns
    is left as it is, unless it was `born` since (so is one that keeps values of another key); none: it is always
    written. `unchanged_toast`: by column the rows that keep the table's value in it; the row to take it from is that of
    the change's own key, or of the key in `origins`: its key before the change. `mends`: a row of the table of the same
    order is not trusted, so that a guarded change wins against it too.
    """

    rows: pa.Table
    deleted: Flags
    guarded: Flags
    same: Sequence[str] = ()
    unchanged_toast: Mapping[str, Flags] = field(default_factory=dict)
    origins: pa.Table | None = None
    """The key columns, a row for each change."""
    origins_before: int | None = None
    """A row of another key has values for a change only where its order column is below this. A later row of that key
    is another one, which a table has that is ahead of the changes' beginning. None: it never is."""
    born: Flags | None = None
    born_at: Rows | None = None
    """By change the order of its row's birth; those that keep values keep them of their own key. A row of the table
    that is older is of another life: no such change is equal to it, or takes values from it. None: none is."""
    mends: bool = False

    def take(self, numbers: Rows) -> Changes:
        """The changes with these numbers, in this order."""
        return replace(
            self,
            rows=self.rows.take(pa.array(numbers)),
            deleted=self.deleted[numbers],
            guarded=self.guarded[numbers],
            unchanged_toast={name: mask[numbers] for name, mask in self.unchanged_toast.items()},
            origins=None if self.origins is None else self.origins.take(pa.array(numbers)),
            born=None if self.born is None else self.born[numbers],
            born_at=None if self.born_at is None else self.born_at[numbers],
        )


@dataclass(frozen=True, slots=True)
class Upserted:
    """The version that has the changes, and the keys by what became of them.

    `already`: an earlier run had committed them, and the counts say nothing. `older`: a guarded change lost against a
    newer row; `unchanged`: the table had the row like that; `absent`: a delete of a key that is not there; `withheld`:
    a row that keeps a value which the table does not have, so that the key is no longer in the table. `emptied`: so
    many of the `deleted` are rows below the number that the upsert was given, or that its readings removed.
    """

    version: int
    already: bool = False
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    older: int = 0
    unchanged: int = 0
    absent: int = 0
    withheld: int = 0
    emptied: int = 0

    def plus(self, more: Upserted) -> Upserted:
        """The counts of both; the version is this one's."""
        return replace(self, **{name: getattr(self, name) + getattr(more, name) for name in _COUNTS})


_COUNTS = ("inserted", "updated", "deleted", "older", "unchanged", "absent", "withheld", "emptied")
