"""Portions of the events of a table, followed one after the other: memory holds one portion, and what of those before
it a later event may still keep.

Portions come in the order of the log. Of all events that came before, those are held that have a value which a later
event may keep (`fold_unchanged_toast`), and those that the caller names.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dblog_core.lake_engine.events.fold_unchanged_toast import Flags, Ids, Walk, number_keys
from dblog_core.model.schema import TableSchema


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
