"""Hashed events of one table, in the order of their offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.verify.direct.key_numbers import Numbers

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Events:
    """By growing offset: keys, offsets, whether the row lives after it (`lives`), whether it is `born` by it, whether
    the source's log has it (`logged`), whether its image is `whole` (the log may have left columns out), and the hash
    of that image. `files`: where the images stand.

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
    old_keys: pa.Table
    truncates: Numbers

    def __len__(self) -> int:
        return len(self.offsets)

    def between(self, after: int, upto: int) -> Events:
        """Those with after < offset <= upto."""
        chosen = (self.offsets > after) & (self.offsets <= upto)
        truncates = self.truncates[(self.truncates > after) & (self.truncates <= upto)]
        return replace(self.where(chosen), truncates=truncates)

    def where(self, chosen: Flags) -> Events:
        """Some of them, with all TRUNCATEs."""
        if chosen.all():
            return self
        arrays = {name: getattr(self, name)[chosen] for name in ARRAYS}
        keys = self.keys.filter(pa.array(chosen))
        return replace(self, **arrays, keys=keys, old_keys=self.old_keys.filter(pa.array(chosen[self.moved])))


FLAGS = ("lives", "born", "logged", "whole", "moved")
ARRAYS = ("offsets", *FLAGS, "hashes", "files")


def join_events(parts: Sequence[Events]) -> Events:
    """All of these."""
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in (*ARRAYS, "truncates")}
    order = np.argsort(joined["offsets"], kind="stable")  # files and chunks of a segment interleave
    # The number of each moved row among those that moved, in the new order.
    numbers = np.cumsum(joined["moved"]) - 1
    old_keys = pa.concat_tables([part.old_keys for part in parts])
    return Events(
        pa.concat_tables([part.keys for part in parts]).take(pa.array(order)).combine_chunks(),
        **{name: joined[name][order] for name in ARRAYS},
        old_keys=old_keys.take(pa.array(numbers[order][joined["moved"][order]])).combine_chunks(),
        truncates=np.sort(joined["truncates"]),
    )
