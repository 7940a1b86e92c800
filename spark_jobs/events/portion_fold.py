"""The driver's fold where the log left columns out, portion by portion: it holds as many events as there are keys.

Portions come in the order of the log. Of all events that came before it holds those alone that something can still
become of: the last one of each key, and those in which a value stands that a later event may keep
(`fold_unchanged_toast`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.model.events import DELETE
from dblog_core.model.schema import TableSchema
from dblog_core.rows.chunked_columns import join_chunks
from spark_jobs.events.fold import PUT, WITHHOLD
from spark_jobs.events.fold_unchanged_toast import Flags, Ids, Walk, mask_unchanged, number_keys

_META = ("offset", "position", "commit_time", "origin")


class PortionFold:
    """The fold of the events of one table, which `schema` is the shape of.

    Events have their key as k0, k1, … (before a change of it: m0, m1, …), and their image as v0, v1, …
    """

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._key_columns = [f"k{i}" for i in range(len(schema.key))]
        self._old_columns = [f"m{i}" for i in range(len(schema.key))]
        self._names = [c.name for c in schema.columns if c.name not in schema.key]
        self._walk = Walk(len(self._names))
        self._keys: pa.Table | None = None  # by number
        self._events: pa.Table | None = None  # those that are held
        self._last = np.empty(0, np.int64)  # by the key's number, the place of its last event; -1: it has none
        self._born = np.empty(0, np.bool_)

    @property
    def keys(self) -> int:
        """Keys so far, those too that rows had before a change."""
        return 0 if self._keys is None else len(self._keys)

    @property
    def nbytes(self) -> int:
        """Bytes of the events that are held."""
        return 0 if self._events is None else int(self._events.nbytes)

    def add_portion(self, portion: pa.Table) -> None:
        """Takes in the events that follow those before; their own order does not matter."""
        if not len(portion):
            return
        portion = portion.combine_chunks()
        keys, old = self._number_keys(portion)
        event_count = 0 if self._events is None else len(self._events)
        in_event = np.stack(
            [~mask_unchanged(portion["unchanged"], name) for name in self._names] or [np.ones(len(portion), np.bool_)],
            axis=1,
        )
        order = np.argsort(np.asarray(portion["offset"]), kind="stable")
        self._walk.follow(keys, old, portion["op"], in_event, order, first=event_count)
        self._last[keys[order]] = event_count + order
        self._born[keys[np.asarray(portion["created"])]] = True
        self._events = portion if self._events is None else pa.concat_tables([self._events, portion])
        self._drop_events()

    def fold_rows(self) -> pa.Table:
        """The folded rows; `origin_key` is the key whose row in the lake has the columns of `unchanged_toast`."""
        assert self._events is not None and self._keys is not None
        keys = np.flatnonzero(self._last >= 0)
        rows = self._events.take(pa.array(self._last[keys])).combine_chunks()
        value_events, lake = self._walk.places(self.keys)
        deleted = np.asarray(pc.equal(rows["op"], DELETE))
        places = dict(zip(self._names, value_events[keys].T, strict=False))
        left_out = {name: (at < 0) & ~deleted for name, at in places.items()}
        lost = np.logical_or.reduce([np.zeros(len(keys), np.bool_), *left_out.values()]) & (lake[keys] < 0)
        for i, column in enumerate(self._schema.columns):
            if (at := places.get(column.name)) is not None and (at != self._last[keys]).any():
                # A deleted row keeps the image of its delete.
                at = np.where(deleted, self._last[keys], at)
                values = self._events[f"v{i}"].take(pa.array(at, mask=at < 0))
                rows = rows.set_column(rows.column_names.index(f"v{i}"), f"v{i}", values)
        ops = np.where(deleted, DELETE, np.where(lost, WITHHOLD, PUT))
        images = [f"v{i}" for i in range(len(self._schema.columns))]
        key_names = list(self._schema.key)
        return pa.table(
            {
                "key": struct_of(rows, self._key_columns, key_names),
                "op": pa.array(ops.tolist(), pa.string()),
                **{name: rows[name] for name in _META},
                "inserted": pa.array(self._born[keys] & ~deleted),
                "unchanged_toast": list_names({name: mask & ~lost for name, mask in left_out.items()}, len(keys)),
                "row": struct_of(rows, images, [c.name for c in self._schema.columns]),
                "origin_key": struct_of(
                    self._keys.take(pa.array(lake[keys], mask=lake[keys] < 0)), self._key_columns, key_names
                ),
            }
        )

    def _number_keys(self, portion: pa.Table) -> tuple[Ids, Ids]:
        """The numbers of the portion's keys, and of those that rows had before; -1: they had none."""
        new_keys = [portion[name] for name in self._key_columns]
        old_keys = [portion[name] for name in self._old_columns]
        if self._keys is None:
            self._keys = pa.table(
                {name: column.slice(0, 0) for name, column in zip(self._key_columns, new_keys, strict=True)}
            )
        earlier_keys = [self._keys[name] for name in self._key_columns]
        has_old = np.asarray(portion["moved"])
        codes = np.concatenate(number_keys(earlier_keys, new_keys, old_keys))
        in_use = np.concatenate([np.ones(len(self._keys) + len(portion), np.bool_), has_old])
        # What is known comes first, so that each keeps its number; the others get theirs in the order of their codes.
        distinct, first = np.unique(codes[in_use], return_index=True)
        places = np.flatnonzero(in_use)[first]
        numbers = np.full(int(codes.max()) + 1, -1, np.int64)
        is_known = places < len(self._keys)
        numbers[distinct[is_known]] = places[is_known]
        new = places[~is_known]
        numbers[distinct[~is_known]] = len(self._keys) + np.arange(len(new))
        every = {
            name: pa.chunked_array([*a.chunks, *b.chunks, *c.chunks], b.type)
            for name, a, b, c in zip(self._key_columns, earlier_keys, new_keys, old_keys, strict=True)
        }
        added_keys = pa.table(every).take(pa.array(new))
        self._keys = pa.concat_tables([self._keys, added_keys]).combine_chunks()
        self._last = np.concatenate([self._last, np.full(len(new), -1, np.int64)])
        self._born = np.concatenate([self._born, np.zeros(len(new), np.bool_)])
        split = len(earlier_keys[0])
        own_numbers = numbers[codes[split : split + len(portion)]]
        old_numbers = np.where(has_old, numbers[codes[split + len(portion) :]], -1)
        return own_numbers, old_numbers

    def _drop_events(self) -> None:
        """Holds on to the last event of each key, and to those that have a value which may still be kept."""
        assert self._events is not None
        used = np.zeros(len(self._events), np.bool_)
        used[self._last[self._last >= 0]] = True
        used[self._walk.value_events()] = True
        places = np.flatnonzero(used)
        moved_to = np.full(len(used), -1, np.int64)
        moved_to[places] = np.arange(len(places))
        self._walk.move_events(moved_to)
        self._last = np.where(self._last >= 0, moved_to[self._last], -1)
        self._events = self._events.take(pa.array(places)).combine_chunks()


def struct_of(rows: pa.Table, columns: Sequence[str], names: Sequence[str]) -> pa.Array:
    """A struct of these columns under other names."""
    parts = [join_chunks(rows[name]) for name in columns]
    return pa.StructArray.from_arrays(parts, names=list(names))


def list_names(named: dict[str, Flags], count: int) -> pa.Array:
    """By row the names of the masks that it is in; NULL without one."""
    names = np.array(list(named), np.object_)
    masks: npt.NDArray[np.bool_] = np.stack([np.zeros(count, np.bool_), *named.values()], axis=1)[:, 1:]
    return pa.array([names[mask].tolist() or None for mask in masks], pa.list_(pa.string()))
