"""Which changes win against the rows that the table has: those of a dump only where the table's row is older.

What the log tells is always newer than what the table has. A dump's row may be older, or say nothing new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta.bitmaps import Rows
from dblog_core.delta.files import TableFiles
from dblog_core.delta.shape import Shape
from dblog_core.delta.snapshot import LiveFile
from dblog_core.delta.stored_rows import rows_at
from dblog_core.errors import LakeError

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Hits:
    """Live rows of one file whose key is that of a change: `asked` are the changes' numbers, `rows` the file's."""

    file: LiveFile
    asked: Rows
    rows: Rows

    def of(self, wanted: Flags) -> Hits:
        """Those of the wanted changes."""
        chosen = wanted[self.asked]
        return Hits(self.file, self.asked[chosen], self.rows[chosen])


def overtaken(
    files: TableFiles, shape: Shape, hits: Sequence[Hits], guarded: Flags, order: pa.ChunkedArray, column: str
) -> Flags:
    """For each change whether it is guarded, and a live row of its key is not older. `order`: the changes' own.

    A row without an order is older than any change: somebody else has written it.
    """
    lost = np.zeros(len(guarded), np.bool_)
    if (~np.asarray(order.is_valid()) & guarded).any():
        raise LakeError(
            f"a guarded change has no value in {column}", where=str(files), fix="this is a defect: report it"
        )
    own = np.asarray(pc.fill_null(order, 0))
    for hit in (hit.of(guarded) for hit in hits):
        if not len(hit.rows):
            continue
        stored = rows_at(files, hit.file, shape, [column], hit.rows)[column]
        known = np.asarray(stored.is_valid())
        newer = known & (np.asarray(pc.fill_null(stored, 0)) >= own[hit.asked])
        lost[hit.asked[newer]] = True
    return lost


def unchanged(
    files: TableFiles,
    shape: Shape,
    hits: Sequence[Hits],
    wanted: Flags,
    rows: pa.Table,
    columns: Sequence[str],
    *,
    kept: Mapping[str, Flags],
) -> Flags:
    """For each wanted change whether the one live row of its key has the same values in these columns. `kept`: by
    column the changes that keep what that row has."""
    same = np.zeros(len(wanted), np.bool_)
    counts = np.zeros(len(wanted), np.int64)
    for hit in hits:
        np.add.at(counts, hit.asked, 1)
    for hit in (hit.of(wanted & (counts == 1)) for hit in hits):
        if not len(hit.rows):
            continue
        stored = rows_at(files, hit.file, shape, columns, hit.rows)
        own = rows.select(list(columns)).take(pa.array(hit.asked))
        equal = [
            _equal(own[name].cast(shape[name].type), stored[name]) | (kept[name][hit.asked] if name in kept else False)
            for name in columns
        ]
        same[hit.asked[np.logical_and.reduce(equal)]] = True
    return same


def _equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Flags:
    """NULL equals NULL, NaN equals NaN, and 0.0 equals -0.0, as in Spark; nested values equal nothing."""
    if pa.types.is_nested(one.type):
        return np.zeros(len(one), np.bool_)
    equal = pc.equal(one, other)
    if pa.types.is_floating(one.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    return np.asarray(pc.or_(pc.fill_null(equal, False), pc.and_(pc.is_null(one), pc.is_null(other))))
