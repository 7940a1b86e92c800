"""The last one of each key among many rows that go past.

Of each row the hash of its key, its offset and its number stay: in memory, and of more rows on the local disk, apart by
key.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.delta_writer.keys.key_hash import hash_keys
from dblog_core.lake_engine.events.key_buckets import KeyBuckets
from dblog_core.lake_engine.events.unchanged_values import Flags, Ids
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.rows.disk_spool import spooled_array

SORTED_ROWS = 4_000_000
"""Whose hashes and offsets are put in order at once: they take up to 200 MiB meanwhile."""
SPOOLED_ROWS = 1_000_000
"""That are sorted into buckets at once."""
LAST = 1
BORN = 2
"""The last row of a key of which some row is a birth."""

Marks = npt.NDArray[np.uint8]


class LastRows:
    """Rows in any order; the last one of a key has its highest offset."""

    def __init__(self, keys: Sequence[str], rows: int, *, order: str = "offset") -> None:
        """`keys`, `order`: the columns of the key and of the offset; `rows`: about how many there will be."""
        self._keys = keys
        self._order = order
        self._secret = secrets.token_bytes(16)
        self._buckets: KeyBuckets | None = None
        if rows >= SORTED_ROWS:
            self._buckets = KeyBuckets(1 + rows // SORTED_ROWS, lambda part: np.asarray(part["first"]))
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._count = 0

    def add(self, rows: pa.Table, *, born: Flags | None = None, among: Flags | None = None) -> None:
        """Rows go past. `born`: those that are births; `among`: those that count."""
        numbers = np.arange(self._count, self._count + len(rows))
        self._count += len(rows)
        if among is not None:
            rows = rows.filter(pa.array(among))
            numbers = numbers[among]
        hashes = hash_keys([join_chunks(rows[name]) for name in self._keys], self._secret)
        columns = {"first": hashes.first, "offset": np.asarray(rows[self._order]), "row": numbers}
        columns["born"] = np.zeros(len(rows), np.bool_) if born is None else born
        if hashes.second is not None:
            columns["second"] = hashes.second
        self._waiting.append(pa.table(columns))
        self._waiting_rows += len(rows)
        if self._buckets is not None and self._waiting_rows >= SPOOLED_ROWS:
            self._spool_waiting(self._buckets)

    def _spool_waiting(self, buckets: KeyBuckets) -> None:
        if self._waiting:
            buckets.add(pa.concat_tables(self._waiting).combine_chunks())
        self._waiting = []
        self._waiting_rows = 0

    def mark(self) -> tuple[Marks, int]:
        """By row LAST, BORN, or 0 for one that is not the last of its key; and how many are."""
        marks = spooled_array(self._count, np.uint8)
        count = 0
        groups: Iterable[Iterable[pa.Table]] = [self._waiting]
        if self._buckets is not None:
            self._spool_waiting(self._buckets)
            groups = self._buckets
        for group in groups:
            if (last := _last_of_each_key(group)) is not None:
                marks[np.asarray(last["row"])] = np.where(np.asarray(last["born"]), BORN, LAST)
                count += len(last)
        return marks, count


def _last_of_each_key(tables: Iterable[pa.Table]) -> pa.Table | None:
    """The last row of each key, `born` where one of the key's rows is; None without a row.

    A key may have more rows than memory has room for: some are taken at a time, and of those before the last ones.
    """
    waiting: list[pa.Table] = []
    count = last = 0
    for table in tables:
        waiting.append(table)
        count += len(table)
        if count - last > max(SORTED_ROWS, last):
            waiting = [_last_rows(pa.concat_tables(waiting))]
            count = last = len(waiting[0])
    return _last_rows(pa.concat_tables(waiting)) if waiting else None


def _last_rows(rows: pa.Table) -> pa.Table:
    first = np.asarray(rows["first"])
    second = np.asarray(rows["second"]) if "second" in rows.column_names else None
    if len(first) < 2 or (second is None and (first[1:] > first[:-1]).all()):  # a dump in the order of its key
        return rows
    order, starts = _order_by_key(first, second)
    offsets = np.asarray(rows["offset"])[order]
    lengths = np.diff(np.append(starts, len(order)))
    is_highest = offsets == np.repeat(np.maximum.reduceat(offsets, starts), lengths)
    ends = np.maximum.reduceat(np.where(is_highest, np.arange(len(order)), -1), starts)
    born = np.logical_or.reduceat(np.asarray(rows["born"])[order], starts)
    last = {name: np.asarray(rows[name])[order[ends]] for name in rows.column_names}
    return pa.table({**last, "born": born})


def _order_by_key(first: npt.NDArray[np.uint64], second: npt.NDArray[np.uint64] | None) -> tuple[Ids, Ids]:
    """The rows by their keys, those of a key in any order; and where each key begins."""
    order = np.argsort(first)
    differs = np.ones(len(order), np.bool_)
    differs[1:] = first[order[1:]] != first[order[:-1]]
    if second is not None:
        differs_by_second = second[order[1:]] != second[order[:-1]]
        if (differs_by_second & ~differs[1:]).any():  # one first half of two keys, by chance
            order = np.lexsort((second, first))
            differs[1:] = (first[order[1:]] != first[order[:-1]]) | (second[order[1:]] != second[order[:-1]])
    return order, np.flatnonzero(differs)
