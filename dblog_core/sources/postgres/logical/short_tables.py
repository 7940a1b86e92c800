"""Rows of many tables with few rows each: values of one type are decoded together, whatever tables they are of.

What a column costs beside its values, it costs once a type then, and not once a table. Arrays of the tables are parts
of those of the types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dblog_core.model.schema import Column, TableSchema
from dblog_core.rows import row_faults
from dblog_core.sources.postgres.logical import tuples
from dblog_core.sources.postgres.logical.tuples import Bytes, Image, Placed, Places

_ROWS = 1_000
_BYTES = 256 << 10
"""What a table has at most. Of a larger one nothing is saved, and part of an array keeps the whole in memory."""
_CELLS = 500_000
"""Values that are decoded together: the place of each takes 16 bytes."""

_Type = tuple[str, pa.DataType, bool, int, bool]
"""All that says how values are decoded: source type, type, `or_null`, the forms in which they came. The last: whether
they are of a key. Keys have arrays of their own, since some outlive the other values (`ChangeTouches`)."""


@dataclass(slots=True)
class _Pile:
    """Where values of one type lie. `column` and `schema`: one of those that have it."""

    column: Column
    schema: TableSchema
    starts: list[Places] = field(default_factory=list)
    lengths: list[Places] = field(default_factory=list)
    size: int = 0

    def to_arrow(self, raw: Bytes, form: int) -> pa.Array:
        starts = np.concatenate(self.starts)
        return tuples.to_arrow(raw, starts, np.concatenate(self.lengths), self.column, self.schema, form)


def decode_together(tables: Sequence[tuple[TableSchema, Places, int]], raw: Bytes) -> dict[int, pa.RecordBatch]:
    """The change batches of those tables that have few rows (columns of `row_messages.scan`'s array, and the bytes of
    their messages), by their numbers. Where anything is wrong, some are left out: each of them has to be decoded
    alone, which tells what it is, and of which table."""
    batches: dict[int, pa.RecordBatch] = {}
    group: list[int] = []
    cells = 0
    for number, (schema, rows, size) in enumerate(tables):
        if rows.shape[1] > _ROWS or size > _BYTES:
            continue
        group.append(number)
        cells += 2 * rows.shape[1] * len(schema.columns)
        if cells >= _CELLS:
            batches.update(_decode_group(tables, group, raw))
            group = []
            cells = 0
    return {**batches, **_decode_group(tables, group, raw)}


def _decode_group(
    tables: Sequence[tuple[TableSchema, Places, int]], group: list[int], raw: Bytes
) -> dict[int, pa.RecordBatch]:
    if len(group) < 2:
        return {}
    piles: dict[_Type, _Pile] = {}
    try:
        placed = [tuples.place(schema, raw, rows) for schema, rows, _ in (tables[number] for number in group)]
        parts = [(_pile_up(piles, table, table.old), _pile_up(piles, table, table.new)) for table in placed]
        arrays = {kind: pile.to_arrow(raw, kind[3]) for kind, pile in piles.items()}
    except Exception as error:
        if not row_faults.is_of_rows(error):
            raise
        return {}
    batches = {}
    for number, table, (old, new) in zip(group, placed, parts, strict=True):
        images = (_cut(table.schema, table.old, old, arrays), _cut(table.schema, table.new, new, arrays))
        batches[number] = tuples.to_batch(table, *images)
    return batches


def _pile_up(piles: dict[_Type, _Pile], table: Placed, image: Image) -> list[tuple[_Type, int]]:
    """Adds a table's values to those of the same types; of each column the type, and where its values begin there."""
    if not image.rows.any():
        return []
    parts = []
    key = table.schema.key
    for number, (column, form) in enumerate(zip(table.schema.columns, table.forms.tolist(), strict=True)):
        kind = (column.source_type, column.type, column.or_null, form, column.name in key)
        pile = piles.get(kind)
        if pile is None:
            pile = piles[kind] = _Pile(column, table.schema)
        parts.append((kind, pile.size))
        pile.starts.append(image.starts[number])
        pile.lengths.append(image.lengths[number])
        pile.size += len(image.rows)
    return parts


def _cut(
    schema: TableSchema, image: Image, parts: list[tuple[_Type, int]], arrays: dict[_Type, pa.Array]
) -> pa.StructArray:
    """The table's images from the values of all tables."""
    if not parts:
        return tuples.no_images(schema, image)
    rows = len(image.rows)
    return tuples.to_struct(schema, image, [arrays[kind].slice(at, rows) for kind, at in parts])
