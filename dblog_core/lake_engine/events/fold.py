"""The fold: many events of a key become one row, which says what the span as a whole does to that key's row.

  the events of some keys (`Bucket`) -> the last one of each key -> its row, with the values that the log left out

A small work is one bucket in memory. Of a larger one in which the log left values out, the events wait on the local
disk, some keys in a bucket. Where it left nothing out, all events are one bucket, which memory holds as far as it has
room, and which is read again from staging beyond: nothing is needed of an event but the hash of its key and its offset
(`last_rows`). Of 5,000,000 events of three columns this takes 6.0 s of CPU and 61 MB of the disk, and by buckets of
events 10.4 s and 325 MB; and the rows stay in the order of the log.

A folded row has `key`, `op`, `offset`, `position`, `commit_time`, `origin` (those of the key's last event), `inserted`,
`unchanged_toast` and `row`. Its op is PUT, DELETE, or WITHHOLD: the row lives, and a value of it is not known.
`unchanged_toast` names columns that keep the lake's value: every event since the last that set them left them out.
`origin_key` is then the key whose row in the lake has them. `inserted`: the log itself has the row's birth in this
span, so it is written even where it equals the lake's row. The ghosts of dumps in the span are DELETEs
(`dump_ends`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.errors import LakeError
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events.dump_ends import delete_ghosts, dumps_within
from dblog_core.lake_engine.events.key_buckets import Bucket, read_small_bucket, staged_buckets
from dblog_core.lake_engine.events.last_rows import BORN, LastRows, Marks
from dblog_core.lake_engine.events.staged_events import has_left_out_values, read_events
from dblog_core.lake_engine.events.unchanged_values import PortionWalk, list_names
from dblog_core.model import sizes
from dblog_core.model.events import DELETE
from dblog_core.model.schema import TableSchema
from dblog_core.model.table_names import quote_for_shell
from dblog_core.rows.chunked_columns import join_chunks, mask_named
from dblog_core.rows.disk_spool import SpooledTables
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark

PUT = "p"
WITHHOLD = "w"

PART_BYTES = 48 << 20
"""Of decoded rows that are folded, compared and written at once."""
KEPT_BYTES = 128 << 20
"""Of decoded events that all works together keep in memory until they are written."""
MOST_HELD_KEYS = 2_000_000
MOST_HELD_BYTES = 512 << 20
"""Of rows that changes of key lead between, all of which are in memory at once."""
ONE_AT_A_TIME = threading.Lock()
"""Held while a large work is read, and while it is written: tables merge beside each other, and share the memory."""

_NOTHING = pa.table({"op": pa.array([], pa.string())})
_META = ("offset", "position", "commit_time", "origin")


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


@dataclass(frozen=True, slots=True)
class FoldedRows:
    """The folded rows of a work in parts, of which no two share a key, and which can be gone through again."""

    parts: Iterable[pa.Table]
    count: int
    withheld: int = 0
    """Rows with an unknown value, whatever the table has."""
    is_small: bool = False
    """Whether all parts are in memory."""

    @classmethod
    def in_memory(cls, rows: pa.Table) -> FoldedRows:
        """All of them are one part."""
        return cls([rows] if len(rows) else [], len(rows), count_withheld(rows), is_small=True)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[pa.Table]:
        return iter(self.parts)

    def lock(self) -> AbstractContextManager[object]:
        """To hold while the parts are gone through."""
        return nullcontext() if self.is_small else ONE_AT_A_TIME


def fold_work(staging: Staging, work: Work, schema: TableSchema) -> FoldedRows:
    """The folded rows of the work.

    Raises CorruptSegment for a file that is missing or not the one that the manifest names; LakeError where the local
    disk has no room, or memory none for keys that changes of key lead between.
    """
    leaves_out = has_left_out_values(work)
    if (bucket := read_small_bucket(staging, work, schema)) is not None:
        return FoldedRows.in_memory(fold_bucket(bucket, schema, leaves_out=leaves_out, ends=dumps_within(work)))
    with ONE_AT_A_TIME:
        return _fold_buckets(staging, work, schema) if leaves_out else _fold_staged(staging, work, schema)


def _fold_buckets(staging: Staging, work: Work, schema: TableSchema) -> FoldedRows:
    parts = SpooledTables()
    withheld = 0
    ends = dumps_within(work)
    for bucket in staged_buckets(staging, work, schema):
        rows = fold_bucket(bucket, schema, leaves_out=True, ends=ends)
        withheld += count_withheld(rows)
        size = max(1, len(rows) * PART_BYTES // max(rows.nbytes, 1))
        for first in range(0, len(rows), size):
            parts.append(rows.slice(first, size))
    return FoldedRows(parts, len(parts), withheld)


def _fold_staged(staging: Staging, work: Work, schema: TableSchema) -> FoldedRows:
    """The fold of whole events that are read from staging again where memory has no room for them."""
    last = LastRows(_key_columns(schema), work.rows)
    in_memory: list[pa.Table] | None = []
    memory_bytes = 0
    try:
        for events in read_events(staging, work, schema):
            last.add(events, born=np.asarray(events["created"]))
            if in_memory is not None and _ROOM.take(events.nbytes):
                in_memory.append(events)
                memory_bytes += events.nbytes
            elif in_memory is not None:
                in_memory = None
                _ROOM.give_back(memory_bytes)
                memory_bytes = 0
        marks, count = last.mark()
    except BaseException:
        _ROOM.give_back(memory_bytes)
        raise
    events = _StagedEvents(staging, work, schema) if in_memory is None else in_memory
    parts = _LastEvents(events, marks, schema, dumps_within(work))
    weakref.finalize(parts, _ROOM.give_back, memory_bytes)
    return FoldedRows(parts, count)


@dataclass(frozen=True, slots=True)
class _StagedEvents:
    staging: Staging
    work: Work
    schema: TableSchema

    def __iter__(self) -> Iterator[pa.Table]:
        return read_events(self.staging, self.work, self.schema)


def fold_bucket(bucket: Bucket, schema: TableSchema, *, leaves_out: bool, ends: Sequence[LogMark] = ()) -> pa.Table:
    """The folded rows of all events of some keys. `leaves_out`: the log may have left values out of them; `ends`: those
    of dumps in the span of the events."""
    if leaves_out:
        return delete_ghosts(fold_portions(bucket.portions(), schema), ends, schema)
    last = LastRows(_key_columns(schema), bucket.rows)
    for events in bucket:
        last.add(events, born=np.asarray(events["created"]))
    marks, _ = last.mark()
    return _LastEvents(bucket, marks, schema, ends).fold_all()


def _key_columns(schema: TableSchema) -> list[str]:
    return [f"k{i}" for i in range(len(schema.key))]


class _LastEvents:
    """The folded rows of the events that are marked (`last_rows`), in parts. `events`: in the order that they are
    marked in, each time; `ends`: as for `fold_bucket`."""

    def __init__(self, events: Iterable[pa.Table], marks: Marks, schema: TableSchema, ends: Sequence[LogMark]) -> None:
        self._events = events
        self._marks = marks
        self._schema = schema
        self._ends = ends

    def __iter__(self) -> Iterator[pa.Table]:
        waiting: list[pa.Table] = []
        size = 0
        for rows in self._last_events():
            waiting.append(rows)
            size += rows.nbytes
            if size >= PART_BYTES:
                yield self._fold(waiting)
                waiting = []
                size = 0
        if waiting:
            yield self._fold(waiting)

    def fold_all(self) -> pa.Table:
        return self._fold(list(self._last_events()))

    def _last_events(self) -> Iterator[pa.Table]:
        first = 0
        for events in self._events:
            marks = self._marks[first : first + len(events)]
            first += len(events)
            last = marks > 0
            if last.any():
                rows = events if last.all() else events.filter(pa.array(last))
                yield rows.append_column("born", pa.array(marks[last] == BORN))
        assert first == len(self._marks), "staged files are what they were"

    def _fold(self, last_events: Sequence[pa.Table]) -> pa.Table:
        if not last_events:
            return _NOTHING
        rows = pa.concat_tables(last_events).combine_chunks()
        deleted = pc.equal(rows["op"], DELETE)
        folded = pa.table(
            {
                "key": struct_of(rows, _key_columns(self._schema), list(self._schema.key)),
                "op": pc.if_else(deleted, DELETE, PUT),
                **{name: rows[name] for name in _META},
                "inserted": pc.and_not(rows["born"], deleted),
                "unchanged_toast": pa.nulls(len(rows), pa.list_(pa.string())),
                "row": image_of(rows, self._schema),
            }
        )
        return delete_ghosts(folded, self._ends, self._schema)


# Where the log left values out ---------------------------------------------------------------------------------------


def fold_portions(portions: Iterable[pa.Table], schema: TableSchema) -> pa.Table:
    """The folded rows of events with values that the log left out, in portions that follow one another. Raises
    LakeError where memory has no room for the keys, which changes of key lead between."""
    fold = _PartialFold(schema)
    for portion in portions:
        fold.add_portion(portion)
        if fold.keys > MOST_HELD_KEYS or fold.nbytes > MOST_HELD_BYTES:
            raise LakeError(
                f"changes of key lead between {fold.keys:,} rows of one work, which have no room in memory together: "
                f"at most {MOST_HELD_KEYS:,} rows and {sizes.text(MOST_HELD_BYTES)} have",
                where=str(schema.table),
                fix=f"run `dblog reset {quote_for_shell(schema.table)}`: the table is built again by a dump",
            )
    return fold.fold_rows()


class _PartialFold:
    """Of all events that came before a portion it holds only the last one of each key, and those with a value that a
    later event may keep."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._names = [c.name for c in schema.columns if c.name not in schema.key]
        self._portions = PortionWalk(schema, len(self._names))
        self._last = np.empty(0, np.int64)  # by the key's number, the place of its last event; -1: it has none
        self._born = np.empty(0, np.bool_)

    @property
    def keys(self) -> int:
        """Keys so far, those too that rows had before a change."""
        return len(self._portions.keys)

    @property
    def nbytes(self) -> int:
        """Bytes of the events that are held."""
        return self._portions.nbytes

    def add_portion(self, portion: pa.Table) -> None:
        """Takes in the events that follow those before; their own order does not matter."""
        if not len(portion):
            return
        self._drop_events()
        portion = portion.combine_chunks()
        keys, old = self._portions.number_keys(portion)
        new = self.keys - len(self._last)
        self._last = np.concatenate([self._last, np.full(new, -1, np.int64)])
        self._born = np.concatenate([self._born, np.zeros(new, np.bool_)])
        in_event = np.stack(
            [~mask_named(portion["unchanged"], name) for name in self._names] or [np.ones(len(portion), np.bool_)],
            axis=1,
        )
        order = np.argsort(np.asarray(portion["offset"]), kind="stable")
        first = self._portions.hold(portion)
        self._portions.walk.follow(keys, old, portion["op"], in_event, order, first=first)
        self._last[keys[order]] = first + order
        self._born[keys[np.asarray(portion["created"])]] = True

    def _drop_events(self) -> None:
        """Of those before a portion nothing more can become."""
        if self._portions.events is None:
            return
        moved_to = self._portions.drop_events(self._last[self._last >= 0])
        self._last = np.where(self._last >= 0, moved_to[self._last], -1)

    def fold_rows(self) -> pa.Table:
        """The folded rows."""
        events = self._portions.events
        if events is None:
            return _NOTHING
        keys = np.flatnonzero(self._last >= 0)
        rows = events.take(pa.array(self._last[keys])).combine_chunks()
        value_events, lake = self._portions.walk.places(self.keys)
        deleted = np.asarray(pc.equal(rows["op"], DELETE))
        places = dict(zip(self._names, value_events[keys].T, strict=False))
        left_out = {name: (at < 0) & ~deleted for name, at in places.items()}
        lost = np.logical_or.reduce([np.zeros(len(keys), np.bool_), *left_out.values()]) & (lake[keys] < 0)
        for i, column in enumerate(self._schema.columns):
            if (at := places.get(column.name)) is not None and (at != self._last[keys]).any():
                # A deleted row keeps the image of its delete.
                at = np.where(deleted, self._last[keys], at)
                values = events[f"v{i}"].take(pa.array(at, mask=at < 0))
                rows = rows.set_column(rows.column_names.index(f"v{i}"), f"v{i}", values)
        ops = np.where(deleted, DELETE, np.where(lost, WITHHOLD, PUT))
        key_names = list(self._schema.key)
        key_columns = self._portions.keys.column_names
        return pa.table(
            {
                "key": struct_of(rows, key_columns, key_names),
                "op": pa.array(ops.tolist(), pa.string()),
                **{name: rows[name] for name in _META},
                "inserted": pa.array(self._born[keys] & ~deleted),
                "unchanged_toast": list_names({name: mask & ~lost for name, mask in left_out.items()}, len(keys)),
                "row": image_of(rows, self._schema),
                "origin_key": struct_of(
                    self._portions.keys.take(pa.array(lake[keys], mask=lake[keys] < 0)), key_columns, key_names
                ),
            }
        )


def struct_of(rows: pa.Table, columns: Sequence[str], names: Sequence[str]) -> pa.Array:
    """A struct of these columns under other names."""
    parts = [join_chunks(rows[name]) for name in columns]
    return pa.StructArray.from_arrays(parts, names=list(names))


def image_of(rows: pa.Table, schema: TableSchema) -> pa.Array:
    """The images of events, as structs."""
    return struct_of(rows, [f"v{i}" for i in range(len(schema.columns))], [c.name for c in schema.columns])


def count_withheld(rows: pa.Table) -> int:
    """Folded rows with an unknown value."""
    return int(pc.sum(pc.equal(rows["op"], WITHHOLD)).as_py() or 0)
