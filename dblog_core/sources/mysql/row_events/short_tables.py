"""Rows of many tables with few rows each: values of one type are decoded together, whatever tables they are of.

What a column costs beside its values, it costs once a type then, and not once a table. Arrays of the tables are parts
of those of the types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.rows import row_faults
from dblog_core.sources.mysql.row_events.row_decoder import Int64s, Places, RowEvents
from dblog_core.sources.mysql.row_events.table_map import TableVersion
from dblog_core.sources.mysql.values import binary_values
from dblog_core.sources.mysql.values.binary_values import Values
from dblog_core.sources.mysql.values.types import ColumnType

_ROWS = 1_000
_BYTES = 256 << 10
"""What a table has at most. Of a larger one nothing is saved, and part of an array keeps the whole in memory."""
_CELLS = 500_000
"""Values that are decoded together: the place of each takes 16 bytes."""

Bytes = npt.NDArray[np.uint8]
Images = tuple[pa.StructArray, pa.StructArray]
"""Those before and those after the change, of all rows."""


@dataclass(frozen=True, slots=True, eq=False)
class _Type:
    """How values are decoded. Keys have arrays of their own, since some outlive the other values (`ChangeTouches`)."""

    column: ColumnType
    in_key: bool


@dataclass(slots=True)
class _Pile:
    """Where values of one type begin, and the lengths of those of variable width."""

    starts: list[Int64s] = field(default_factory=list)
    lengths: list[Int64s] = field(default_factory=list)
    size: int = 0
    nulls: int = 0

    def to_arrow(self, kind: _Type, raw: Bytes, zero_dates: str) -> pa.Array:
        starts = np.concatenate(self.starts)
        lengths = np.concatenate(self.lengths) if self.lengths else starts  # which nobody reads of a fixed width
        values = Values(raw, starts, lengths, starts >= 0 if self.nulls else None)
        return binary_values.to_arrow(kind.column, values, zero_dates=zero_dates, in_key=kind.in_key)


def decode_together(tables: Sequence[RowEvents], zero_dates: str) -> dict[int, Images]:
    """The images of those of the tables that have few rows, by their numbers. Where a value has no exact form, some
    tables are left out: each of them has to be decoded alone, which tells whose value it is."""
    images: dict[int, Images] = {}
    group: list[int] = []
    cells = 0
    for number, events in enumerate(tables):
        if not 0 < events.rows <= _ROWS or events.size > _BYTES:
            continue
        group.append(number)
        cells += 2 * events.rows * len(events.version.columns)
        if cells >= _CELLS:
            images.update(_decode_group(tables, group, zero_dates))
            group = []
            cells = 0
    return {**images, **_decode_group(tables, group, zero_dates)}


def _decode_group(tables: Sequence[RowEvents], group: list[int], zero_dates: str) -> dict[int, Images]:
    if len(group) < 2:
        return {}
    raw = np.frombuffer(b"".join([tables[number].raw for number in group]), dtype=np.uint8)
    piles: dict[_Type, _Pile] = {}
    placed: list[tuple[Places | None, list[tuple[_Type, int]]]] = []
    base = 0
    for number in group:
        events = tables[number]
        for images in events.images:
            places = events.locate(raw, images, base)
            placed.append((places, [] if places is None else _pile_up(piles, events, places)))
        base += events.size
    try:
        arrays = {kind: pile.to_arrow(kind, raw, zero_dates) for kind, pile in piles.items()}
    except Exception as error:
        if not row_faults.is_of_rows(error):
            raise
        return {}
    structs = []
    for (places, parts), events in zip(placed, [tables[number] for number in group for _ in range(2)], strict=True):
        if places is None:
            structs.append(events.no_images())
            continue
        structs.append(events.to_struct([arrays[kind].slice(at, events.rows) for kind, at in parts], places))
    return dict(zip(group, zip(structs[::2], structs[1::2], strict=True), strict=True))


def _pile_up(piles: dict[_Type, _Pile], events: RowEvents, places: Places) -> list[tuple[_Type, int]]:
    """Adds a table's values to those of the same types; of each column the type, and where its values begin there."""
    parts = []
    rows = events.rows
    nulls = places.nulls.tolist()
    for number, (kind, slot) in enumerate(zip(_types(events.version), events.slots, strict=True)):
        pile = piles.get(kind)
        if pile is None:
            pile = piles[kind] = _Pile()
        parts.append((kind, pile.size))
        pile.starts.append(places.starts[number])
        if slot >= 0:
            pile.lengths.append(places.lengths[slot])
        pile.size += rows
        pile.nulls += nulls[number]
    return parts


@lru_cache(maxsize=4096)
def _types(version: TableVersion) -> list[_Type]:
    key = version.schema.key
    names = [column.name for column in version.schema.columns]
    return [_type(column, name in key) for column, name in zip(version.columns, names, strict=True)]


@lru_cache(maxsize=4096)
def _type(column: ColumnType, in_key: bool) -> _Type:
    return _Type(column, in_key)
