"""The driver's fold where the log left columns out, portion by portion: it holds as many events as there are keys.

Portions come in the order of the log. Of all events that came before it holds those alone that something can still
become of: the last one of each key, and those in which a value stands that a later event may keep (`portion_walk`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.lake_engine.events.fold_unchanged_toast import Flags, mask_unchanged
from dblog_core.lake_engine.events.folded_rows import PUT, WITHHOLD
from dblog_core.lake_engine.events.portion_walk import PortionWalk
from dblog_core.model.events import DELETE
from dblog_core.model.schema import TableSchema
from dblog_core.rows.chunked_columns import join_chunks

_META = ("offset", "position", "commit_time", "origin")


class PortionFold:
    """The fold of the events of one table, which `schema` is the shape of.

    Events have their key as k0, k1, … (before a change of it: m0, m1, …), and their image as v0, v1, …
    """

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
        portion = portion.combine_chunks()
        keys, old = self._portions.number_keys(portion)
        new = self.keys - len(self._last)
        self._last = np.concatenate([self._last, np.full(new, -1, np.int64)])
        self._born = np.concatenate([self._born, np.zeros(new, np.bool_)])
        in_event = np.stack(
            [~mask_unchanged(portion["unchanged"], name) for name in self._names] or [np.ones(len(portion), np.bool_)],
            axis=1,
        )
        order = np.argsort(np.asarray(portion["offset"]), kind="stable")
        first = self._portions.hold(portion)
        self._portions.walk.follow(keys, old, portion["op"], in_event, order, first=first)
        self._last[keys[order]] = first + order
        self._born[keys[np.asarray(portion["created"])]] = True
        moved_to = self._portions.drop_events(self._last[self._last >= 0])
        self._last = np.where(self._last >= 0, moved_to[self._last], -1)

    def fold_rows(self) -> pa.Table:
        """The folded rows; `origin_key` is the key whose row in the lake has the columns of `unchanged_toast`."""
        events = self._portions.events
        assert events is not None
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
        images = [f"v{i}" for i in range(len(self._schema.columns))]
        key_names = list(self._schema.key)
        key_columns = self._portions.keys.column_names
        return pa.table(
            {
                "key": struct_of(rows, key_columns, key_names),
                "op": pa.array(ops.tolist(), pa.string()),
                **{name: rows[name] for name in _META},
                "inserted": pa.array(self._born[keys] & ~deleted),
                "unchanged_toast": list_names({name: mask & ~lost for name, mask in left_out.items()}, len(keys)),
                "row": struct_of(rows, images, [c.name for c in self._schema.columns]),
                "origin_key": struct_of(
                    self._portions.keys.take(pa.array(lake[keys], mask=lake[keys] < 0)), key_columns, key_names
                ),
            }
        )


def struct_of(rows: pa.Table, columns: Sequence[str], names: Sequence[str]) -> pa.Array:
    """A struct of these columns under other names."""
    parts = [join_chunks(rows[name]) for name in columns]
    return pa.StructArray.from_arrays(parts, names=list(names))


def list_names(named: dict[str, Flags], count: int) -> pa.Array:
    """By row the names of the masks that it is in; NULL without one."""
    if not any(mask.any() for mask in named.values()):
        return pa.nulls(count, pa.list_(pa.string()))
    names = np.array(list(named), np.object_)
    masks: npt.NDArray[np.bool_] = np.stack([np.zeros(count, np.bool_), *named.values()], axis=1)[:, 1:]
    return pa.array([names[mask].tolist() or None for mask in masks], pa.list_(pa.string()))
