"""Which tables have had rows since an offset, and what proves that a row means what the catalogue says of its table.

A row of the log has the names, types and labels of its own place in the log. Where a description was written between
two looks at the catalogue, three things tell whether rows in between can have met another one:
- there is no row;
- the log lists the columns of each row as the catalogue does at one of the two looks (`Listed`), and the table has the
  same columns at both. Then no other column was there in between, since those of both looks were there all the time;
  the log has them in the order of their numbers, so that each name stands for the column that it stands for now;
- a row holds, of an enum, only labels that were there, with this text, at the earlier look.
A row of a dump proves nothing: its SELECT may have met any description.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import takewhile

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.model.events import Transaction
from dblog_core.model.table_stamp import TableStamp
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest

Listed = tuple[tuple[str, int, int], ...]
"""The columns of a row as the log lists them: name, type's id and modifier."""


class LoggedRows:
    """Of one term, by the names of tables."""

    def __init__(self, begins: int) -> None:
        """`begins`: the last offset before the term."""
        self._begins = begins
        self._earlier: Collection[str] | None = None
        self._last: dict[str, int] = {}
        self._lists: dict[str, list[tuple[int, Listed | None]]] = {}
        self._last_chunk: dict[str, int] = {}
        self._stamps: dict[str, TableStamp] = {}
        self._labels: dict[str, Mapping[str, pa.Array]] = {}  # of these stamps, as far as there were rows
        self._last_other_label: dict[str, int] = {}
        self._early: dict[str, int] = {}
        self._has_early: set[str] = set()

    def know_earlier(self, tables: Collection[str] | None) -> None:
        """Tables that have had rows between the last look of the term before and its end. None, and as long as this is
        not called: all may have had some."""
        self._earlier = tables

    def know_labels(self, table: str, stamp: TableStamp, *, is_new: bool = True) -> None:
        """Rows of the table are expected to hold, in each column that is an enum, the labels of this stamp. If it is
        not new, it counts where none is known so far."""
        if is_new or table not in self._stamps:
            self._stamps[table] = stamp
            self._labels.pop(table, None)

    def add_list(self, table: str, listed: Listed | None, after: int) -> None:
        """From after this offset on, the log lists the table's columns so; None: nothing is certain."""
        lists = self._lists.setdefault(table, [])
        if not lists or lists[-1][1] != listed:
            lists.append((after, listed))

    def add_rows(self, table: str, last: int, values: pa.StructArray, transactions: Iterable[Transaction]) -> None:
        """Rows of the log up to this offset, of these transactions."""
        self._last[table] = last
        if (labels := self._find_labels(table)) and not _holds_only(values, labels):
            self._last_other_label[table] = last
        first_later = self._early.get(table)
        if first_later is not None and any(_is_before(transaction.xid, first_later) for transaction in transactions):
            self._has_early.add(table)

    def add_chunk(self, table: str, last: int) -> None:
        """Rows of a dump up to this offset."""
        self._last_chunk[table] = last

    def watch_early(self, table: str, first_later: int) -> None:
        """Watches from here on for rows of transactions that may have begun before this one."""
        self._early[table] = first_later

    def take_early(self) -> set[str]:
        """Watched tables that have had such rows since the last call."""
        early = self._has_early
        self._has_early = set()
        return early

    def end_watch(self, table: str) -> None:
        self._early.pop(table, None)
        self._has_early.discard(table)

    def all_are_listed(self, table: str, since: int | None, allowed: Collection[Listed]) -> bool:
        """Whether the log lists the columns of all rows after `since` (None: nobody knows since when) in one of these
        ways."""
        if self._may_have_earlier(table, since) or self._last_chunk.get(table, 0) > (since or 0):
            return False
        if since is None or self._last.get(table, 0) <= since:
            return since is not None
        lists = self._lists.get(table, [])
        ends = [after for after, _ in lists[1:]] + [self._last[table]]
        later = [listed for (_, listed), end in zip(lists, ends, strict=True) if end > since]
        return bool(later) and all(listed in allowed for listed in later)

    def all_have_known_labels(self, table: str, since: int | None, columns: Collection[str]) -> bool:
        """Whether all rows after `since` hold only known labels in these columns."""
        if since is None or self._may_have_earlier(table, since) or self._last_chunk.get(table, 0) > since:
            return False
        if self._last.get(table, 0) <= since:
            return True
        return self._find_labels(table).keys() >= set(columns) and self._last_other_label.get(table, 0) <= since

    def has_none(self, table: str, since: int | None) -> bool:
        """Whether there is no row after `since`."""
        if since is None or self._may_have_earlier(table, since):
            return False
        return max(self._last.get(table, 0), self._last_chunk.get(table, 0)) <= since

    def _find_labels(self, table: str) -> Mapping[str, pa.Array]:
        """The expected labels of each enum, and NULL."""
        if (labels := self._labels.get(table)) is None:
            stamp = self._stamps.get(table)
            columns = {} if stamp is None else stamp.columns
            labels = self._labels[table] = {
                name: pa.array([*column.prints.labels.values(), None], pa.string())
                for name, column in columns.items()
                if column.prints is not None and column.prints.is_enum
            }
        return labels

    def _may_have_earlier(self, table: str, since: int | None) -> bool:
        if since is not None and since >= self._begins:
            return False
        return since is None or self._earlier is None or table in self._earlier


def _holds_only(values: pa.StructArray, labels: Mapping[str, pa.Array]) -> bool:
    """Whether rows hold only these labels, by columns."""
    names = {field.name for field in values.type}
    return labels.keys() <= names and all(
        pc.all(pc.is_in(values.field(name), value_set=known)).as_py() is not False for name, known in labels.items()
    )


def _is_before(xid: int | None, other: int) -> bool:
    """Whether the 32-bit id of a transaction is before the 64-bit one: less than half of all ids behind it."""
    return xid is None or 0 < (other - xid) & 0xFFFFFFFF < 1 << 31


def find_tables_since(staging: Staging, head: Manifest, offset: int) -> set[str] | None:
    """Tables that have rows between the offset and the end of `head`; None where staging no longer tells."""
    if offset >= head.last_offset:
        return set()
    segments = takewhile(
        lambda m: m.segment <= head.segment, staging.manifests(staging.segment_of(offset + 1, head) - 1)
    )
    tables: set[str] = set()
    reaches_back = False
    for manifest in segments:
        reaches_back |= manifest.first_offset <= offset + 1
        tables |= {file.table for file in manifest.files if file.last_offset > offset}
        tables |= {chunk.table for chunk in manifest.chunks if chunk.first_offset + chunk.rows > offset}
    return tables if reaches_back else None
