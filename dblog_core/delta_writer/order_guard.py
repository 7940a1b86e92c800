"""Which changes win against the rows that the table has: those of a dump only where the table's row is older.

What the log tells is always newer than what the table has. A dump's row may be older, or say nothing new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.bitmaps import Rows
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.stored_rows import MOST_BYTES, rows_at
from dblog_core.errors import LakeError
from dblog_core.rows.variant_encoding import VARIANT

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Hits:
    """Live rows of one file whose key is that of a change; `rows`: their numbers in the file."""

    file: LiveFile
    change_numbers: Rows
    rows: Rows

    def of(self, selected: Flags) -> Hits:
        """Those of the wanted changes."""
        chosen = selected[self.change_numbers]
        return Hits(self.file, self.change_numbers[chosen], self.rows[chosen])


def find_overtaken(
    files: TableFiles,
    shape: Shape,
    hits: Sequence[Hits],
    guarded: Flags,
    order: pa.ChunkedArray,
    column: str,
    *,
    mends: bool = False,
) -> Flags:
    """For each change whether it is guarded, and a live row of its key is not older. `order`: the changes' own;
    `mends`: only where such a row is newer.

    A row without an order is older than any change: somebody else has written it.
    """
    lost = np.zeros(len(guarded), np.bool_)
    if (~np.asarray(order.is_valid()) & guarded).any():
        raise LakeError(
            f"a guarded change has no value in {column}", where=str(files), fix="this is a defect: report it"
        )
    change_order = np.asarray(pc.fill_null(order, 0))
    for hit, rows in _stored_rows(files, shape, hits, guarded, [column]):
        stored = rows[column]
        has_order = np.asarray(stored.is_valid())
        # Equal counts as newer: the table has this very change, and a repeated work writes nothing.
        least = change_order[hit.change_numbers] + mends
        newer = has_order & (np.asarray(pc.fill_null(stored, 0)) >= least)
        lost[hit.change_numbers[newer]] = True
    return lost


def find_earlier_lives(
    files: TableFiles, shape: Shape, hits: Sequence[Hits], chosen: Flags, born_at: Rows, column: str
) -> Flags:
    """For each change whether it is chosen, and a live row of its key is older than its birth, or has no order."""
    earlier = np.zeros(len(chosen), np.bool_)
    for hit, rows in _stored_rows(files, shape, hits, chosen, [column]):
        orders = np.asarray(pc.fill_null(rows[column], np.iinfo(np.int64).min))
        earlier[hit.change_numbers[orders < born_at[hit.change_numbers]]] = True
    return earlier


def find_equal(
    files: TableFiles,
    shape: Shape,
    hits: Sequence[Hits],
    compared: Flags,
    rows: pa.Table,
    columns: Sequence[str],
    *,
    unchanged_toast: Mapping[str, Flags],
    most: int = MOST_BYTES,
) -> Flags:
    """For each wanted change whether the one live row of its key has the same values in these columns.
    `unchanged_toast`: by column the changes that keep what that row has. Raises ValuesTooLarge where the rows of a file
    have more than `most` bytes."""
    same = np.zeros(len(compared), np.bool_)
    counts = np.zeros(len(compared), np.int64)
    for hit in hits:
        # `at`, since a key may have several rows in one file: plain `+=` would count one of them.
        np.add.at(counts, hit.change_numbers, 1)
    # Several live rows of one key are another program's doing: such a key is always written, as one row.
    for hit, stored in _stored_rows(files, shape, hits, compared & (counts == 1), columns, most):
        new_rows = rows.select(list(columns)).take(pa.array(hit.change_numbers))
        equal = [
            equal_values(new_rows[name].cast(shape[name].type), stored[name])
            | (unchanged_toast[name][hit.change_numbers] if name in unchanged_toast else False)
            for name in columns
        ]
        same[hit.change_numbers[np.logical_and.reduce(equal)]] = True
    return same


def _stored_rows(
    files: TableFiles,
    shape: Shape,
    hits: Sequence[Hits],
    chosen: Flags,
    columns: Sequence[str],
    most: int = MOST_BYTES,
) -> Iterator[tuple[Hits, pa.Table]]:
    """The hits of the chosen changes, with these columns of their rows. Raises ValuesTooLarge where those of a file
    have more than `most` bytes."""
    for hit in (hit.of(chosen) for hit in hits):
        if len(hit.rows):
            yield hit, rows_at(files, hit.file, shape, columns, hit.rows, most=most)


def equal_values(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Flags:
    """NULL equals NULL, NaN equals NaN, and 0.0 equals -0.0, as in Spark; VARIANTs are equal where their parts are, and
    other nested values equal nothing."""
    if left.type == VARIANT:
        # Those of a NULL are NULL too.
        value, metadata = (equal_values(pc.struct_field(left, i), pc.struct_field(right, i)) for i in (0, 1))
        return value & metadata
    if pa.types.is_nested(left.type):
        return np.zeros(len(left), np.bool_)
    equal = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return np.asarray(pc.or_(pc.fill_null(equal, False), pc.and_(pc.is_null(left), pc.is_null(right))))
