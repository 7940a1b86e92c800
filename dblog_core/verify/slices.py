"""The full state in slices: slice I of N of every table's keys, whose keys stay in it for as long as the table lives.

A table is cut into ranges at keys that the state store remembers; range J belongs to slice (first + J) % N, where
`first` differs from table to table. Cuts are only added behind the last of them, once the range behind it has been
compared whole. So any N slices in a row, wherever they begin, have compared every key, however the table grows.

A small table, of fewer ranges than there are slices, is whole in the first slice, so that who takes a few slices knows
which of them look at it. It stays there until the first slice has compared it whole and cut it to more ranges.

A table whose key the lake orders otherwise than the database is one range.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import orjson

from dblog_core.dumps import key_ranges
from dblog_core.dumps.key_ranges import Range
from dblog_core.errors import RequestError, VersionConflict
from dblog_core.interfaces import ChunkReader, StateStore
from dblog_core.model.schema import TableName, TableSchema

MAX_SLICES = 200
"""Slices."""

# ZooKeeper takes a million bytes in a node.
_MAX_CUTS = 5_000
"""Of one table: its ranges grow from then on."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Slice `number` (from 1) `of` so many."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of <= MAX_SLICES:
            raise RequestError(
                f"there is no slice {self.number} of {self.of}", fix=f"give 1 to N of N, which is {MAX_SLICES} at most"
            )

    @classmethod
    def parse(cls, text: str) -> Slice:
        """`I/N`. Raises RequestError."""
        number, slash, of = text.partition("/")
        if not (slash and number.isdecimal() and of.isdecimal()):
            raise RequestError(f"{text!r} is no slice", fix="write I/N, such as 3/30")
        return cls(int(number), int(of))


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where a table is cut: JSON `keys`, `step` rows apart at first. They hold for so many slices, and for one order
    of one key (`order`). `small`: all of it is in the first slice."""

    of: int
    order: str
    step: int
    keys: tuple[Any, ...]
    small: bool

    @property
    def ranges(self) -> list[Range]:
        ends = [None, *self.keys, None]
        return [Range(after=after, key_to=upto) for after, upto in pairwise(ends)]


class Slices:
    """One slice of each table; `smallest`: rows of a range at least."""

    def __init__(self, state: StateStore, slice_: Slice, *, smallest: int) -> None:
        self._state = state
        self._slice = slice_
        self._smallest = smallest

    def ranges(self, reader: ChunkReader, schema: TableSchema) -> list[Range]:
        """The slice's ranges of a table, in key order. Cuts the table where it has no cuts that hold."""
        cuts = self._cuts(reader, schema)
        return [part for place, part in enumerate(cuts.ranges) if self._is_here(schema.table, cuts, place)]

    def record_compared_slice(self, reader: ChunkReader, schema: TableSchema) -> None:
        """The slice has been compared whole: if the table's last range is in it and has grown, it is cut."""
        cuts = self._cuts(reader, schema)
        whole = not key_ranges.ordered_alike(schema) or len(cuts.keys) >= _MAX_CUTS
        if whole or not self._is_here(schema.table, cuts, len(cuts.keys)):
            return
        last = cuts.keys[-1] if cuts.keys else None
        boundaries, _ = key_ranges.sample(reader, schema, Range(after=last), every=cuts.step)
        if len(boundaries) > 1:  # twice as many rows as it had, at least
            keys = (*cuts.keys, *key_ranges.as_json(boundaries))
            small = cuts.small and len(keys) + 1 < cuts.of
            self._put(schema.table, replace(cuts, keys=keys, small=small))

    def _is_here(self, table: TableName, cuts: Cuts, place: int) -> bool:
        if cuts.small:
            return self._slice.number == 1
        # By the name and not by `hash`, which differs from process to process.
        first = zlib.crc32(str(table).encode())
        return (first + place) % self._slice.of == self._slice.number - 1

    def _cuts(self, reader: ChunkReader, schema: TableSchema) -> Cuts:
        order = f"{reader.key_order(schema)} {[str(c.type) for c in schema.key_columns]}"
        if (entry := self._state.get(_path(schema.table))) is not None:
            record = orjson.loads(entry.data)
            small = record.get("small", False)  # a version before this one spread small tables too
            cuts = Cuts(record["of"], record["order"], record["step"], tuple(record["keys"]), small)
            # Other cuts no longer hold: the number of slices, the key, or its collation has changed.
            if (cuts.of, cuts.order) == (self._slice.of, order):
                return cuts
        cuts = self._cut_table(reader, schema, order)
        self._put(schema.table, cuts)
        return cuts

    def _cut_table(self, reader: ChunkReader, schema: TableSchema, order: str) -> Cuts:
        plan = reader.explain(schema)
        of = self._slice.of
        small = plan.rows < of * self._smallest
        # Without an index each boundary would be a scan of the table.
        if plan.index is None or not key_ranges.ordered_alike(schema):
            return Cuts(of, order, self._smallest, (), small)
        # `rows` is an estimate of the server's statistics; a wrong one makes slices uneven and loses no key.
        every = max(self._smallest, -(-plan.rows // of))
        keys, step = key_ranges.sample(reader, schema, Range(), every=every)
        small = small and step == self._smallest and len(keys) + 1 < of
        return Cuts(of, order, step, tuple(key_ranges.as_json(keys)), small)

    def _put(self, table: TableName, cuts: Cuts) -> None:
        path = _path(table)
        data = orjson.dumps(asdict(cuts))
        entry = self._state.get(path)
        try:
            if entry is None:
                self._state.create(path, data)
            else:
                self._state.update(path, data, entry.version)
        except VersionConflict as error:
            raise RequestError(
                "two verifications cut the table at one time", where=str(table), fix="run one slice after the other"
            ) from error


def to_json_ranges(parts: Sequence[Range]) -> tuple[tuple[Any, Any], ...]:
    """Ranges as a task of the judge has them; none: the whole table."""
    # A range open at both ends is the whole table, whatever else is listed.
    if any(part.after is None and part.key_to is None for part in parts):
        return ()
    return tuple((part.after, part.key_to) for part in parts)


def _path(table: TableName) -> str:
    return f"slices/{quote(str(table), safe='')}"
