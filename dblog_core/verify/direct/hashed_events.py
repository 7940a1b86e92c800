"""Hashed events of one table, in the order of their offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.verify.direct.exact_cast import Flags
from dblog_core.verify.direct.key_numbers import Numbers

NAMES = pa.list_(pa.string())
KEY = "key "
OLD_KEY = "old key "


@dataclass(frozen=True, slots=True)
class Events:
    """By growing offset: keys, offsets, whether the row lives after it (`lives`), whether it is `born` by it, whether
    the source's log has it (`logged`), whether its image is `whole` (the log may have left columns out: `unchanged`),
    and the hash of that image. `files`: where the images are.

    `moved`: partial rows that had another key before, and `old_keys`: that key, of each of those alone.
    """

    keys: pa.Table
    offsets: Numbers
    lives: Flags
    born: Flags
    logged: Flags
    whole: Flags
    moved: Flags
    hashes: Numbers
    files: Numbers
    unchanged: pa.Array
    old_keys: pa.Table
    truncates: Numbers

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def of(cls, rows: pa.Table, kind: pa.Schema, truncates: Numbers) -> Events:
        """The events of rows as they wait on the disk (`event_schema`), in any order. `kind`: the columns of a key."""
        rows = rows.sort_by("offsets").combine_chunks()  # files and chunks of a segment interleave
        arrays = {name: np.asarray(rows[name]) for name in ARRAYS}
        old_keys = pa.table([rows[OLD_KEY + name] for name in kind.names], schema=kind)
        return cls(
            pa.table([rows[KEY + name] for name in kind.names], schema=kind),
            **arrays,
            unchanged=join_chunks(rows["unchanged"]),
            old_keys=old_keys.filter(rows["moved"]),
            truncates=truncates,
        )

    def rows(self) -> pa.Table:
        """As they wait on the disk."""
        columns: dict[str, pa.Array | pa.ChunkedArray] = {
            KEY + name: self.keys[name] for name in self.keys.column_names
        }
        places = pa.array(np.where(self.moved, np.cumsum(self.moved) - 1, 0), mask=~self.moved)
        for name in self.old_keys.column_names:
            columns[OLD_KEY + name] = self.old_keys[name].take(places)
        columns |= {name: pa.array(getattr(self, name)) for name in ARRAYS}
        return pa.table({**columns, "unchanged": self.unchanged})

    def between(self, after: int, upto: int) -> Events:
        """Those with after < offset <= upto."""
        chosen = (self.offsets > after) & (self.offsets <= upto)
        truncates = self.truncates[(self.truncates > after) & (self.truncates <= upto)]
        return replace(self.where(chosen), truncates=truncates)

    def where(self, chosen: Flags) -> Events:
        """Some of them, with all TRUNCATEs."""
        if chosen.all():
            return self
        mask = pa.array(chosen)
        arrays = {name: getattr(self, name)[chosen] for name in ARRAYS}
        return replace(
            self,
            **arrays,
            keys=self.keys.filter(mask),
            unchanged=self.unchanged.filter(mask),
            old_keys=self.old_keys.filter(pa.array(chosen[self.moved])),
        )

    def lacks(self, chosen: Numbers, names: Sequence[str]) -> Flags:
        """Which of these columns the images of chosen events leave out: a row for each event."""
        unchanged = self.unchanged.take(pa.array(chosen))
        return np.stack([mask_named(unchanged, name) for name in names], axis=1)


FLAGS = ("lives", "born", "logged", "whole", "moved")
ARRAYS = ("offsets", *FLAGS, "hashes", "files")
_KINDS = {"offsets": pa.int64(), "hashes": pa.int64(), "files": pa.int64(), **dict.fromkeys(FLAGS, pa.bool_())}


def event_schema(kind: pa.Schema) -> pa.Schema:
    """The columns of events that wait on the disk."""
    keys = [pa.field(prefix + field.name, field.type) for prefix in (KEY, OLD_KEY) for field in kind]
    return pa.schema([*keys, *(pa.field(name, _KINDS[name]) for name in ARRAYS), pa.field("unchanged", NAMES)])


def mask_named(lists: pa.Array, name: str) -> Flags:
    """The rows whose list has that name."""
    mask = np.zeros(len(lists), np.bool_)
    if lists.null_count < len(lists):
        named = pc.equal(pc.list_flatten(lists), name)
        mask[np.asarray(pc.list_parent_indices(lists).filter(named))] = True
    return mask
