"""The driver's fold where the log left columns out (unchanged TOAST of PostgreSQL): where the value of each stands.

Events are followed in their order, once, without their values. Of each key that lives it is known for every column that
the log may leave out where its value stands: in an event, in the lake's row that a key had before all events, or
nowhere. A change of key takes the places of the old key along, so that chains of them cost no more than their length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.model.events import CREATE, DELETE

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_NOWHERE = -1
_CHANGE = 0
_BIRTH = 1
_DEATH = 2
_LIST = pa.list_(pa.string())


@dataclass(frozen=True, slots=True)
class Places:
    """For each key, and each column that may be left out, the event that has its value; -1: no event has. `lake`: the
    key whose row in the lake has what no event has; -1: nobody has it. Keys are numbers."""

    events: Mapping[str, Ids]
    lake: Ids


def find_places(
    keys: Ids, count: int, ops: pa.ChunkedArray, unchanged_toast: Mapping[str, Flags], moved_from: Ids, order: Ids
) -> Places:
    """`keys`: of each event, its key's number below `count`; `moved_from`: the number of the key that the row of a c
    had before, or -1; `unchanged_toast`: by column, the events that leave it out; `order`: the events by offset."""
    if not unchanged_toast:
        return Places({}, np.full(count, _NOWHERE, np.int64))
    names = list(unchanged_toast)
    in_event = ~np.stack([unchanged_toast[name] for name in names], axis=1)
    kinds = np.full(len(keys), _CHANGE)
    kinds[np.asarray(pc.equal(ops, CREATE))] = _BIRTH
    kinds[np.asarray(pc.equal(ops, DELETE))] = _DEATH
    whole: Flags = np.logical_and.reduce(in_event, axis=1)
    walk = _Walk(len(names))
    rows = zip(order.tolist(), keys[order].tolist(), kinds[order].tolist(), strict=True)
    for event, key, kind in rows:
        if kind == _DEATH:
            walk.record_death(key)
        elif whole[event]:
            walk.record_whole_row(key, event)
        else:
            old = int(moved_from[event]) if kind == _BIRTH else key
            walk.record_partial_row(key, old, event, in_event[event].tolist(), born=kind == _BIRTH)
    value_events = np.full((count, len(names)), _NOWHERE, np.int64)
    lake = np.full(count, _NOWHERE, np.int64)
    for key, (origin, life_events) in walk.live.items():
        value_events[key] = life_events
        lake[key] = origin
    return Places({name: value_events[:, i] for i, name in enumerate(names)}, lake)


_Life = tuple[int, Sequence[int]]
"""The key whose row in the lake it continues, or -1; and for each column the event that has its value, or -1."""


@dataclass(slots=True)
class _Walk:
    """The keys that live, and those whose last event was their death, with the life that it ended."""

    columns: int
    live: dict[int, _Life] = field(default_factory=dict)
    dead: dict[int, _Life] = field(default_factory=dict)

    def record_death(self, key: int) -> None:
        self.dead[key] = self._unknown_life() if key in self.dead else self.live.pop(key, self._of_lake(key))

    def record_whole_row(self, key: int, event: int) -> None:
        """All columns are in the event."""
        self.dead.pop(key, None)
        self.live[key] = (_NOWHERE, (event,) * self.columns)

    def record_partial_row(self, key: int, old: int, event: int, in_event: list[bool], *, born: bool) -> None:
        """What is not in the event is as it was in the life of the key `old`."""
        if born:
            before = self._unknown_life() if old < 0 else self._last_life(old)
        else:
            before = self._unknown_life() if key in self.dead else self.live.get(key) or self._of_lake(key)
        self.dead.pop(key, None)
        origin, old_events = before
        self.live[key] = (
            origin,
            [event if is_in_event else place for is_in_event, place in zip(in_event, old_events, strict=True)],
        )

    def _last_life(self, key: int) -> _Life:
        """The life of a key that has just ended, or continues."""
        return self.dead.get(key) or self.live.get(key) or self._of_lake(key)

    def _of_lake(self, key: int) -> _Life:
        return key, (_NOWHERE,) * self.columns

    def _unknown_life(self) -> _Life:
        return _NOWHERE, (_NOWHERE,) * self.columns


def number_keys(*groups: Sequence[pa.ChunkedArray]) -> list[Ids]:
    """The numbers of keys, equal for equal ones, over several lists of them: each is the columns of a key."""
    sizes = [len(columns[0]) for columns in groups]
    numbers = np.zeros(sum(sizes), np.int64)
    for parts in zip(*groups, strict=True):
        column = pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        codes = np.asarray(encoded.indices, np.int64)
        _, numbers = np.unique(numbers * (len(encoded.dictionary) + 1) + codes, return_inverse=True)
    return np.split(numbers.astype(np.int64), np.cumsum(sizes)[:-1])


def mask_unchanged(unchanged: pa.ChunkedArray, name: str) -> Flags:
    """The events that leave a column out. `unchanged`: by event the names, or NULL."""
    mask = np.zeros(len(unchanged), np.bool_)
    lists = unchanged.cast(_LIST).combine_chunks()
    lists = pa.concat_arrays(lists.chunks) if isinstance(lists, pa.ChunkedArray) else lists
    parents = pc.list_parent_indices(lists)
    mask[np.asarray(parents.filter(pc.equal(pc.list_flatten(lists), name)))] = True
    return mask
