"""Row events of one table version, from bytes to columns: gathered as they come, found and split by kernels."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.model.events import CREATE, DELETE, UPDATE, image_type
from dblog_core.rows.row_faults import DamagedRows
from dblog_core.sources.mysql.row_events import row_kernel
from dblog_core.sources.mysql.row_events.table_map import TableVersion
from dblog_core.sources.mysql.values import binary_values, decimals
from dblog_core.sources.mysql.values.binary_values import ValueFault, Values
from dblog_core.sources.mysql.values.types import ColumnType, Kind

Int64s = npt.NDArray[np.int64]
Buffer = Any
"""Bytes, bytearray, memoryview or an array of uint8."""

_IMAGES = {CREATE: row_kernel.CREATED, UPDATE: row_kernel.UPDATED, DELETE: row_kernel.DELETED}
_SHORT = 16
"""Bytes that few rows are shorter than."""
_CELLS = 2_000_000
"""Values that are split at once: the place of each takes 16 bytes."""


class ColumnFault(ValueError):
    """A ValueFault and the number of its column."""

    def __init__(self, column: int, fault: ValueFault) -> None:
        super().__init__(fault.why)
        self.column = column
        self.fault = fault


class EventFault(DamagedRows):
    """Rows that do not end where their event ends: the number of the event."""

    def __init__(self, event: int) -> None:
        super().__init__("the rows do not end where their event ends")
        self.event = event


@dataclass(frozen=True, slots=True)
class Layout:
    """How an image's bytes are laid out, as `row_kernel` wants it.

    By column: `widths` of fixed ones, `prefixes` (bytes of the length) of variable ones, `slots` among
    those (-1: fixed). By variable column: `gaps` of fixed bytes before it (one more: after the last), `sizes` of its
    prefix.
    """

    widths: Int64s
    prefixes: Int64s
    slots: Int64s
    gaps: Int64s
    sizes: Int64s


@lru_cache(maxsize=4096)
def _image(version: TableVersion) -> tuple[pa.StructType, list[pa.Field]]:
    """The type of an image, and its fields."""
    kind = image_type(version.schema)
    return kind, list(kind)


@lru_cache(maxsize=4096)
def layout(version: TableVersion) -> Layout:
    """How the images of a table version are laid out."""
    widths = [_width(column) for column in version.columns]
    prefixes = [column.prefix for column in version.columns]
    slots = []
    gaps = [0]
    for width, prefix in zip(widths, prefixes, strict=True):
        slots.append(len(gaps) - 1 if prefix else -1)
        if prefix:
            gaps.append(0)
        else:
            gaps[-1] += width
    return Layout(*(np.array(n, dtype=np.int64) for n in (widths, prefixes, slots, gaps, [p for p in prefixes if p])))


def _width(column: ColumnType) -> int:
    if column.kind in (Kind.DECIMAL, Kind.LONG_DECIMAL):
        return decimals.width(column.precision, column.scale)
    return 0 if column.prefix else column.width


@dataclass(frozen=True, slots=True)
class Places:
    """Where the values of images lie, as `row_kernel.locate` fills it in. `absent`: rows without an image (None: each
    has one)."""

    starts: Int64s
    lengths: Int64s
    nulls: Int64s
    absent: npt.NDArray[np.bool_] | None


class RowEvents:
    """Row events of one table version in the order of the log, their bytes copied."""

    def __init__(self, version: TableVersion) -> None:
        self.version = version
        self._layout = layout(version)
        self.slots = self._layout.slots.tolist()
        schema = version.schema
        self._in_key = frozenset(i for i, column in enumerate(schema.columns) if column.name in schema.key)
        self._raw = bytearray()
        self._events = array("q")  # pairs: the images of its rows, where it ends
        self._counts: list[Int64s] = []
        self._before: list[Int64s] = []
        self._after: list[Int64s] = []
        self._looked = 0
        self._walked = 0
        self.rows = 0

    def add(self, op: str, rows: memoryview) -> int:
        """Takes the row images of one event; returns how many bytes of events are not counted yet."""
        raw = self._raw
        raw += rows
        end = len(raw)
        self._events.extend((_IMAGES[op], end))
        return end - self._walked

    @property
    def raw(self) -> bytearray:
        """The bytes of all events; while they are looked at, none can be added."""
        return self._raw

    @property
    def size(self) -> int:
        """How many bytes these are."""
        return len(self._raw)

    @property
    def images(self) -> tuple[Int64s, Int64s]:
        """Where the images before and after the change of each row begin, -1 where there is none; after `count`."""
        return _join(self._before), _join(self._after)

    def count(self) -> None:
        """Finds the rows of the events that were added since the last call. Raises EventFault."""
        images, ends = _pairs(self._events[2 * self._looked :])
        if not len(ends):
            return
        # A guess, not a bound: a row of NULLs alone takes a bit a column.
        room = (len(self._raw) - self._walked) // _SHORT + 64
        counts, before, after, row_count = self._walk(ends, images, room)
        while row_count == -1 - len(ends):  # rows that are mostly NULL
            room *= 4
            counts, before, after, row_count = self._walk(ends, images, room)
        if row_count < 0:
            raise EventFault(self._looked - 1 - row_count)
        self._counts.append(counts)
        self._before.append(before[:row_count].copy())
        self._after.append(after[:row_count].copy())
        self._looked += len(ends)
        self._walked = len(self._raw)
        self.rows += row_count

    def void(self, event: int) -> None:
        """Takes the bytes of an event away, which then has no row. It is one that `count` has not counted."""
        begin = self._events[2 * event - 1] if event else 0
        size = self._events[2 * event + 1] - begin
        del self._raw[begin : begin + size]
        for place in range(2 * event + 1, len(self._events), 2):
            self._events[place] -= size

    def _walk(self, ends: Int64s, images: Int64s, room: int) -> tuple[Int64s, Int64s, Int64s, int]:
        """What `row_kernel.walk` fills in and returns, with room for so many rows."""
        plan = self._layout
        counts = np.empty(len(ends), np.int64)
        before = np.empty(room, np.int64)
        after = np.empty(room, np.int64)
        raw = np.frombuffer(self._raw, dtype=np.uint8)  # while it is looked at, it cannot grow
        row_count = row_kernel.walk(
            raw, self._walked, ends, images, plan.widths, plan.prefixes, plan.gaps, plan.sizes, counts, before, after
        )
        return counts, before, after, int(row_count)

    @property
    def counts(self) -> Int64s:
        """Rows of each event, after `count`."""
        return _join(self._counts)

    def start(self, row: int) -> int:
        """Where the images of a row begin in what was added; after `count`."""
        before = int(_join(self._before)[row])
        after = int(_join(self._after)[row])
        return before if before >= 0 else after

    def before(self, zero_dates: str, end: int | None = None) -> pa.StructArray:
        """The images before the change of the rows before `end`, null where there is none. Raises ColumnFault."""
        return self._images(_join(self._before)[:end], zero_dates)

    def after(self, zero_dates: str, end: int | None = None) -> pa.StructArray:
        """The images after the change of the rows before `end`, null where there is none. Raises ColumnFault."""
        return self._images(_join(self._after)[:end], zero_dates)

    def _images(self, images: Int64s, zero_dates: str) -> pa.StructArray:
        if not (images >= 0).any():
            return pa.nulls(len(images), _image(self.version)[0])
        raw = np.frombuffer(self._raw, dtype=np.uint8)
        # In pieces: of a table with a thousand columns the places alone would be gigabytes.
        step = max(_CELLS // len(self.version.columns), 1)
        parts = [self._part(raw, images[at : at + step], at, zero_dates) for at in range(0, len(images), step)]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _part(self, raw: npt.NDArray[np.uint8], images: Int64s, first: int, zero_dates: str) -> pa.StructArray:
        places = self._locate(raw, images)
        arrays = []
        for i, column in enumerate(self.version.columns):
            present = places.starts[i] >= 0 if places.nulls[i] else None
            values = Values(raw, places.starts[i], places.lengths[self.slots[i]], present)
            try:
                arrays.append(binary_values.to_arrow(column, values, zero_dates=zero_dates, in_key=i in self._in_key))
            except ValueFault as fault:
                raise ColumnFault(i, ValueFault(fault.row + first, fault.why, fault.fix)) from fault
        return self.to_struct(arrays, places)

    def locate(self, raw: npt.NDArray[np.uint8], images: Int64s, base: int) -> Places | None:
        """Where the values of all images lie in `raw`, in which those of this table begin at `base`; None where no row
        has such an image."""
        has_image = images >= 0
        if has_image.all():
            return self._locate(raw, images + base)
        return self._locate(raw, np.where(has_image, images + base, images)) if has_image.any() else None

    def _locate(self, raw: npt.NDArray[np.uint8], images: Int64s) -> Places:
        plan = self._layout
        rows = len(images)
        starts = np.empty((len(plan.widths), rows), dtype=np.int64)
        # One row more than there are variable columns: slot -1 of the fixed ones leads there, and nobody reads it.
        lengths = np.empty((len(plan.sizes) + 1, rows), dtype=np.int64)
        nulls = np.zeros(len(plan.widths), dtype=np.int64)
        image_count = row_kernel.locate(raw, images, plan.widths, plan.prefixes, plan.slots, starts, lengths, nulls)
        return Places(starts, lengths, nulls, None if image_count == rows else images < 0)

    def to_struct(self, columns: list[pa.Array], places: Places) -> pa.StructArray:
        """The images whose values these are."""
        absent = None if places.absent is None else pa.array(places.absent)
        return pa.StructArray.from_arrays(columns, fields=_image(self.version)[1], mask=absent)

    def no_images(self) -> pa.StructArray:
        """One for each row, where none has any."""
        return pa.nulls(self.rows, _image(self.version)[0])


def complete_images(
    version: TableVersion, op: str, rows: memoryview, before: npt.NDArray[np.bool_], after: npt.NDArray[np.bool_]
) -> Buffer:
    """The images of one event with all columns, where those before and after a change hold these columns alone: the
    others are NULL. Raises ValueError where the images do not end with the event."""
    plan = layout(version)
    raw = np.frombuffer(rows, dtype=np.uint8)
    out = np.empty(2 * len(raw) + 64, dtype=np.uint8)
    while True:
        size = row_kernel.complete(raw, _IMAGES[op], before, after, plan.widths, plan.prefixes, out)
        if size == row_kernel.BAD_IMAGE:
            raise DamagedRows("the rows do not end where their event ends")
        if size != row_kernel.NO_ROOM:
            return out[:size]
        out = np.empty(4 * len(out), dtype=np.uint8)  # rows that are mostly NULL


def _pairs(numbers: array[int]) -> tuple[Int64s, Int64s]:
    pairs = np.array(numbers, dtype=np.int64).reshape(-1, 2)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


def _join(parts: Sequence[Int64s]) -> Int64s:
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])
