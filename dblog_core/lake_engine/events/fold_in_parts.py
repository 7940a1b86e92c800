"""Works of any size, folded on the driver in parts: memory holds one part, and the local disk a few bytes an event.

  all events, of which the keys' hashes and the offsets stay, on the local disk where they are many -> the last event of
  each key -> all events again, of which those last ones stay, a part at a time

Events that have room in memory are not read again. The fold is that of `fold_on_driver`: the last event of each key.
"""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.delta_writer.keys.key_hash import KeyHashes, hash_keys
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events import fold_on_driver
from dblog_core.lake_engine.events.key_buckets import split_by_key
from dblog_core.model.schema import TableSchema
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.rows.table_spool import SpooledTable, TableSpool, spooled_array
from dblog_core.staging import Staging

MOST_EVENTS = 50_000_000
"""Of a work, such as one large transaction: the places of old rows take eight bytes for each until the commit."""
SORTED_EVENTS = 4_000_000
"""Whose hashes and offsets are put in order at once: they take up to 200 MiB meanwhile."""
_SPOOLED_EVENTS = 1_000_000
"""That are sorted into buckets at once."""
MOST_FILE_BYTES = 256 << 20
"""Of a staged file, which is read whole."""
PART_BYTES = 48 << 20
"""Of decoded rows that are folded, compared and written at once."""
KEPT_BYTES = 128 << 20
"""Of decoded events that all works together keep in memory until they are written."""
ONE_AT_A_TIME = threading.Lock()
"""Held while such a work is read, and while it is written: tables merge beside each other, and share the memory."""

Marks = npt.NDArray[np.uint8]
_LAST = 1
_BORN = 2


class Room:
    """Bytes that several works share."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Whether there was so much room, which is taken now."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give_back(self, size: int) -> None:
        with self._lock:
            self._left += size


_ROOM = Room(KEPT_BYTES)


class FoldedParts:
    """The folded rows of a work, in tables as `fold_on_driver.fold_work` gives them; each iteration makes them again.

    `marks`: by event 0, `_LAST` for the last one of its key, or `_BORN` for that of a key with a birth in the work.
    """

    def __init__(
        self,
        staging: Staging,
        work: Work,
        schema: TableSchema,
        marks: Marks,
        count: int,
        in_memory: Sequence[pa.Table] | None,
    ) -> None:
        self._staging = staging
        self._work = work
        self._schema = schema
        self._marks = marks
        self._kept = in_memory
        self._count = count

    def __len__(self) -> int:
        """Folded rows."""
        return self._count

    def __iter__(self) -> Iterator[pa.Table]:
        waiting: list[pa.Table] = []
        size = 0
        stretches = (
            fold_on_driver.read_events(self._staging, self._work, self._schema) if self._kept is None else self._kept
        )
        first = 0
        for events in stretches:
            marks = self._marks[first : first + len(events)]
            first += len(events)
            last = marks > 0
            if not last.any():
                continue
            rows = events if last.all() else events.filter(pa.array(last))
            waiting.append(rows.append_column("born", pa.array(marks[last] == _BORN)))
            size += rows.nbytes
            if size >= PART_BYTES:
                yield self._fold(waiting)
                waiting = []
                size = 0
        assert first == len(self._marks), "staged files are what they were"
        if waiting:
            yield self._fold(waiting)

    def _fold(self, stretches: Iterable[pa.Table]) -> pa.Table:
        rows = pa.concat_tables(stretches).combine_chunks()
        return fold_on_driver.folded_rows(rows, rows["born"], self._schema)


def have_room(work: Work) -> bool:
    """Whether memory has room for each of its files."""
    return all(part.bytes <= MOST_FILE_BYTES for parts in (work.files, work.chunks) for part in parts)


def fold_parts(staging: Staging, work: Work, schema: TableSchema) -> FoldedParts:
    """The folded rows of the work.

    Raises CorruptSegment for a file that is missing or not the one that the manifest names.
    """
    with ONE_AT_A_TIME:
        return _find_last_events(staging, work, schema)


def _find_last_events(staging: Staging, work: Work, schema: TableSchema) -> FoldedParts:
    secret = secrets.token_bytes(16)
    keys = _EventKeys(1 + work.rows // SORTED_EVENTS)
    in_memory: list[pa.Table] | None = []
    kept_bytes = 0
    try:
        for events in fold_on_driver.read_events(staging, work, schema):
            hashes = hash_keys([join_chunks(events[f"k{i}"]) for i in range(len(schema.key))], secret)
            keys.add(hashes, np.asarray(events["offset"]), np.asarray(events["created"]))
            if in_memory is not None and _ROOM.take(events.nbytes):
                in_memory.append(events)
                kept_bytes += events.nbytes
            elif in_memory is not None:
                in_memory = None
                _ROOM.give_back(kept_bytes)
                kept_bytes = 0
        marks, count = keys.mark_last()
    except BaseException:
        _ROOM.give_back(kept_bytes)
        raise
    parts = FoldedParts(staging, work, schema, marks, count, in_memory)
    weakref.finalize(parts, _ROOM.give_back, kept_bytes)
    return parts


class _EventKeys:
    """The hashes and offsets of all events in the order that they come in; on the local disk where they are many."""

    def __init__(self, buckets: int) -> None:
        """`buckets`: of keys, which are put in order one after the other."""
        self._buckets: list[list[SpooledTable]] = [[] for _ in range(buckets)]
        self._spool = TableSpool() if buckets > 1 else None
        self._waiting: list[pa.Table] = []
        self._waiting_events = 0
        self._events = 0

    def add(self, keys: KeyHashes, offsets: npt.NDArray[np.int64], created: npt.NDArray[np.bool_]) -> None:
        numbers = np.arange(self._events, self._events + len(offsets))
        columns = {"first": keys.first, "second": keys.second, "offset": offsets, "created": created, "event": numbers}
        self._waiting.append(pa.table({name: values for name, values in columns.items() if values is not None}))
        self._events += len(offsets)
        self._waiting_events += len(offsets)
        if self._spool is not None and self._waiting_events >= _SPOOLED_EVENTS:
            self._spool_waiting(self._spool)

    def _spool_waiting(self, spool: TableSpool) -> None:
        rows = pa.concat_tables(self._waiting).combine_chunks()
        self._waiting = []
        self._waiting_events = 0
        by_bucket = split_by_key(rows, np.asarray(rows["first"]), len(self._buckets))
        for bucket, part in zip(self._buckets, by_bucket, strict=True):
            bucket.append(spool.write(part))

    def mark_last(self) -> tuple[Marks, int]:
        """The mark of each event (`FoldedParts`), and how many are the last ones of their keys."""
        marks = spooled_array(self._events, np.uint8)
        count = 0
        groups: Iterable[Iterable[pa.Table]] = [self._waiting]
        if self._spool is not None and self._waiting:
            self._spool_waiting(self._spool)
        if self._spool is not None:
            groups = (map(self._spool.read, bucket) for bucket in self._buckets)
        for group in groups:
            if (last := _last_of_each_key(group)) is not None:
                marks[np.asarray(last["event"])] = np.where(np.asarray(last["created"]), _BORN, _LAST)
                count += len(last)
        return marks, count


def _last_of_each_key(tables: Iterable[pa.Table]) -> pa.Table | None:
    """The last event of each key, `created` where one of the key's events is a birth; None without an event.

    A key may have more events than memory has room for: some are taken at a time, and of those before the last ones.
    """
    waiting: list[pa.Table] = []
    count = last = 0
    for table in tables:
        waiting.append(table)
        count += len(table)
        if count - last > max(SORTED_EVENTS, last):
            waiting = [_last_rows(pa.concat_tables(waiting))]
            count = last = len(waiting[0])
    return _last_rows(pa.concat_tables(waiting)) if waiting else None


def _last_rows(events: pa.Table) -> pa.Table:
    first = np.asarray(events["first"])
    second = np.asarray(events["second"]) if "second" in events.column_names else None
    if len(first) < 2 or (second is None and (first[1:] > first[:-1]).all()):  # a dump in the order of its key
        return events
    halves = (first,) if second is None else (second, first)
    order = np.lexsort((np.asarray(events["offset"]), *halves))
    differs = np.zeros(len(order), np.bool_)
    differs[1:] = first[order[1:]] != first[order[:-1]]
    if second is not None:
        differs[1:] |= second[order[1:]] != second[order[:-1]]
    differs[0] = True
    starts = np.flatnonzero(differs)
    ends = order[np.append(starts[1:], len(order)) - 1]
    born = np.logical_or.reduceat(np.asarray(events["created"])[order], starts)
    last = events.take(pa.array(ends))
    return last.set_column(last.column_names.index("created"), "created", pa.array(born))
