"""Values that the log left out (unchanged TOAST of PostgreSQL), and rows that a dump says again: where the values are.

Events are followed in their order, once, without their values. Of each key that lives it is known for every column that
the log may leave out where its value is: in an event, in the lake's row that a key had before all events, or nowhere. A
change of key takes the places of the old key along, so that chains of them cost no more than their length.

The fold of a merge (`fold`) and the former values of a history follow the same walk. It goes over portions of events:
memory holds one portion, and of those before it the events with a value that a later event may keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.model.events import CREATE, DELETE
from dblog_core.model.schema import TableSchema

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_NOWHERE = -1
_CHANGE = 0
_BIRTH = 1
_DEATH = 2


Life = tuple[int, Sequence[int]]
"""The key whose row in the lake it continues, or -1; and for each column the event that has its value, or -1."""


@dataclass(slots=True)
class Walk:
    """The keys that live, and those whose last event was their death, with the life that it ended. Keys and events are
    numbers; `columns`: how many the log may leave out."""

    columns: int
    live: dict[int, Life] = field(default_factory=dict)
    dead: dict[int, Life] = field(default_factory=dict)
    is_emptied: bool = False

    def follow(
        self,
        keys: Ids,
        moved_from: Ids,
        ops: pa.ChunkedArray,
        in_event: npt.NDArray[np.bool_],
        order: Ids,
        *,
        first: int,
        asked: Flags | None = None,
    ) -> list[Life | None]:
        """Follows events that come after all others, in this order. `keys`: of each event, its key's number;
        `moved_from`: that of the key which the row of a c had before, or -1; `in_event`: by event and column, whether
        the value is there; `first`: the number of the first event.

        Returns the life that each event of `asked` continues; None where its key had no row.
        """
        lives: list[Life | None] = []
        kinds = np.full(len(keys), _CHANGE)
        kinds[np.asarray(pc.equal(ops, CREATE))] = _BIRTH
        kinds[np.asarray(pc.equal(ops, DELETE))] = _DEATH
        whole: Flags = np.logical_and.reduce(in_event, axis=1)
        rows = zip(order.tolist(), keys[order].tolist(), kinds[order].tolist(), strict=True)
        for event, key, kind in rows:
            old = int(moved_from[event]) if kind == _BIRTH else key
            if asked is not None and asked[event]:
                lives.append(self._life_before(key, old, born=kind == _BIRTH))
            if kind == _DEATH:
                self.record_death(key)
            elif whole[event]:
                self.record_whole_row(key, first + event)
            else:
                self.record_partial_row(key, old, first + event, in_event[event].tolist(), born=kind == _BIRTH)
        return lives

    def empty(self) -> None:
        """A TRUNCATE: no key has a row, in the lake neither."""
        self.live.clear()
        self.dead.clear()
        self.is_emptied = True

    def add_columns(self, count: int) -> None:
        """More columns are left out from now on; so far their values stand where that of the first column does."""
        self.columns += count
        for lives in (self.live, self.dead):
            for key, (origin, events) in lives.items():
                lives[key] = (origin, (*events, *([events[0]] * count)))

    def places(self, count: int) -> tuple[Ids, Ids]:
        """For each of `count` keys and each column the event that has its value; and for each key the one whose row in
        the lake has what no event has. -1: nobody has it, or the key does not live."""
        value_events = np.full((count, self.columns), _NOWHERE, np.int64)
        lake = np.full(count, _NOWHERE, np.int64)
        for key, (origin, life_events) in self.live.items():
            value_events[key] = life_events
            lake[key] = origin
        return value_events, lake

    def value_events(self) -> Ids:
        """The events with a value that a later one may keep."""
        lives = (*self.live.values(), *self.dead.values())
        events = np.fromiter((event for _, life_events in lives for event in life_events), np.int64)
        return np.unique(events[events >= 0])

    def move_events(self, numbers: Ids) -> None:
        """Gives the events other numbers: by their present ones."""
        # A number of -1 is the last one of the list.
        new_numbers = [*numbers.tolist(), _NOWHERE]
        for lives in (self.live, self.dead):
            for key, (origin, life_events) in lives.items():
                lives[key] = (origin, tuple([new_numbers[event] for event in life_events]))

    def record_death(self, key: int) -> None:
        self.dead[key] = self._unknown_life() if key in self.dead else self.live.pop(key, self._of_lake(key))

    def record_whole_row(self, key: int, event: int) -> None:
        """All columns are in the event."""
        self.dead.pop(key, None)
        self.live[key] = (_NOWHERE, (event,) * self.columns)

    def record_partial_row(self, key: int, old: int, event: int, in_event: list[bool], *, born: bool) -> None:
        """What is not in the event is as it was in the life of the key `old`."""
        origin, old_events = self._life_before(key, old, born=born) or self._unknown_life()
        self.dead.pop(key, None)
        # A tuple of numbers costs the garbage collector nothing; a list would.
        places = [event if is_in_event else place for is_in_event, place in zip(in_event, old_events, strict=True)]
        self.live[key] = (origin, tuple(places))

    def _life_before(self, key: int, old: int, *, born: bool) -> Life | None:
        """The life that an event of a key continues: that of the key `old`, which has just ended, where a row is born
        with its values; None: the key has no row."""
        if born:
            return None if old < 0 else self.dead.get(old) or self.live.get(old) or self._of_lake(old)
        if key in self.dead:
            return None
        return self.live.get(key) or (None if self.is_emptied else self._of_lake(key))

    def _of_lake(self, key: int) -> Life:
        return (_NOWHERE if self.is_emptied else key), (_NOWHERE,) * self.columns

    def _unknown_life(self) -> Life:
        return _NOWHERE, (_NOWHERE,) * self.columns


class PortionWalk:
    """The walk over the events of one table, which `schema` is the shape of.

    Events have their key as k0, k1, … (before a change of it: m0, m1, …), and their image as v0, v1, …
    """

    def __init__(self, schema: TableSchema, columns: int) -> None:
        """`columns`: how many the log may leave out (`Walk`)."""
        self.walk = Walk(columns)
        self.keys = pa.table({f"k{i}": pa.array([], c.type) for i, c in enumerate(schema.key_columns)})
        """By number, those too that rows had before a change."""
        self.events: pa.Table | None = None
        """Those that are held, by number."""
        self._old_columns = [f"m{i}" for i in range(len(schema.key))]

    @property
    def nbytes(self) -> int:
        """Bytes of the events that are held."""
        return 0 if self.events is None else int(self.events.nbytes)

    def hold(self, portion: pa.Table) -> int:
        """Holds the events of a portion; the number of the first one."""
        first = 0 if self.events is None else len(self.events)
        self.events = portion if self.events is None else pa.concat_tables([self.events, portion])
        return first

    def drop_events(self, last: Ids | None = None) -> Ids:
        """Drops the events that have no value which may still be kept, and are not of the numbers `last`. Returns by
        their present numbers the new ones, or -1."""
        assert self.events is not None
        used = np.zeros(len(self.events), np.bool_)
        used[self.walk.value_events()] = True
        if last is not None:
            used[last] = True
        places = np.flatnonzero(used)
        moved_to = np.full(len(used), -1, np.int64)
        moved_to[places] = np.arange(len(places))
        self.walk.move_events(moved_to)
        self.events = self.events.take(pa.array(places)).combine_chunks()
        return moved_to

    def number_keys(self, portion: pa.Table) -> tuple[Ids, Ids]:
        """The numbers of the portion's keys, and of those that rows had before; -1: they had none."""
        names = self.keys.column_names
        new_keys = [portion[name] for name in names]
        old_keys = [portion[name] for name in self._old_columns]
        earlier_keys = [self.keys[name] for name in names]
        has_old: Flags = np.asarray(portion["moved"])
        codes = np.concatenate(number_keys(earlier_keys, new_keys, old_keys))
        in_use = np.concatenate([np.ones(len(self.keys) + len(portion), np.bool_), has_old])
        # What is known comes first, so that each keeps its number; the others get theirs in the order of their codes.
        distinct, first = np.unique(codes[in_use], return_index=True)
        places = np.flatnonzero(in_use)[first]
        numbers = np.full(int(codes.max()) + 1, -1, np.int64)
        is_known = places < len(self.keys)
        numbers[distinct[is_known]] = places[is_known]
        new = places[~is_known]
        numbers[distinct[~is_known]] = len(self.keys) + np.arange(len(new))
        every = {
            name: pa.chunked_array([*a.chunks, *b.chunks, *c.chunks], b.type)
            for name, a, b, c in zip(names, earlier_keys, new_keys, old_keys, strict=True)
        }
        split = len(self.keys)
        self.keys = pa.concat_tables([self.keys, pa.table(every).take(pa.array(new))]).combine_chunks()
        own_numbers = numbers[codes[split : split + len(portion)]]
        old_numbers = np.where(has_old, numbers[codes[split + len(portion) :]], -1)
        return own_numbers, old_numbers


def number_keys(*groups: Sequence[pa.ChunkedArray]) -> list[Ids]:
    """The numbers of keys, equal for equal ones, over several lists of them: each is the columns of a key."""
    sizes = [len(columns[0]) for columns in groups]
    numbers = np.zeros(sum(sizes), np.int64)
    for parts in zip(*groups, strict=True):
        column = pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)
        encoded = _with_equal_bytes(column).combine_chunks().dictionary_encode(null_encoding="encode")
        encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        codes = np.asarray(encoded.indices, np.int64)
        _, numbers = np.unique(numbers * (len(encoded.dictionary) + 1) + codes, return_inverse=True)
    return np.split(numbers.astype(np.int64), np.cumsum(sizes)[:-1])


def _with_equal_bytes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of a key in which equal values have the same bytes: to the sources -0.0 is 0.0, and NaN equals NaN."""
    if not pa.types.is_floating(column.type):
        return column
    zero, nan = (pa.scalar(value, column.type) for value in (0.0, float("nan")))
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))


def list_names(named: dict[str, Flags], count: int) -> pa.Array:
    """By row the names of the masks that it is in; NULL without one."""
    if not any(mask.any() for mask in named.values()):
        return pa.nulls(count, pa.list_(pa.string()))
    names = np.array(list(named), np.object_)
    masks: npt.NDArray[np.bool_] = np.stack([np.zeros(count, np.bool_), *named.values()], axis=1)[:, 1:]
    return pa.array([names[mask].tolist() or None for mask in masks], pa.list_(pa.string()))
