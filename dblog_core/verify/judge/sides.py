"""Lake, log and source of one comparison, as far as some of its keys go, with the numbers of these keys."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.order_guard import Flags
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_from_json
from dblog_core.rows.chunked_columns import join_chunks, mask_named
from dblog_core.verify.judge.comparison import Comparison
from dblog_core.verify.judge.exact_values import MISFITS, hash_values
from dblog_core.verify.judge.expected_state import NOWHERE, State, apply_events
from dblog_core.verify.judge.hashed_rows import (
    ANY_SIZE,
    HashedRows,
    Numbers,
    keys_of_numbers,
    number_keys,
    read_in_pieces,
)
from dblog_core.verify.judge.lake_hashes import LakeHashes
from dblog_core.verify.judge.staged_hashes import StagedHashes
from dblog_core.verify.judge.value_origins import Walk, related_keys


@dataclass(frozen=True, slots=True)
class _Applied:
    """Events that come on top of the pinned version up to a place of the log, the numbers of their keys, and of the
    keys that `moved` ones had before (NOWHERE: others). `truncated_at`: the offset of the last TRUNCATE."""

    events: HashedRows
    keys: Numbers
    old_keys: Numbers
    truncated_at: int


class Sides:
    """`lake`, `events` and `source`: their rows; `events` are those that the lake's version or the source's SELECTs may
    not have seen. `lake_keys`, `event_keys`, `source_keys`: the number of each row's key; `count`: of all keys."""

    def __init__(
        self,
        comparison: Comparison,
        hashed_lake: LakeHashes,
        staged: StagedHashes,
        lake: HashedRows,
        events: HashedRows,
        source: HashedRows,
    ) -> None:
        self.comparison = comparison
        self._hashed_lake = hashed_lake
        self._staged = staged
        if comparison.within:
            lake = lake.where(is_within(lake.keys, comparison))
            events = events.where(is_within(events.keys, comparison))
        # A row that came from another key needs that key's rows too.
        if comparison.for_chosen_keys and not events.array("moved").any():
            lake = lake.where(may_be_among(lake.keys, source.keys))
            events = events.where(may_be_among(events.keys, source.keys))
        self.lake = lake
        self.events = events
        self.source = source
        numbers, self.count = number_keys([lake.keys, events.keys, events.moved_from, source.keys])
        self.lake_keys, self.event_keys, moved_from, self.source_keys = numbers
        self._old_keys = np.full(len(events), NOWHERE, np.int64)
        self._old_keys[events.array("moved")] = moved_from

    def has_truncate_after(self, offset: int) -> bool:
        return bool(len(self._staged.truncates(offset, self.comparison.upto)))

    def state_at(self, upto: int, relevant: Flags) -> State:
        """The rows that the lake is to hold at that place of the log; of keys that are not `relevant` the hashes may
        mean nothing."""
        applied = self._apply_upto(upto)
        events = applied.events
        state = apply_events(self.count, self.lake, self.lake_keys, events, applied.keys, applied.truncated_at)
        # The last event of some rows leaves columns out. Those that lack a value are not there.
        by_event = np.flatnonzero((state.events >= 0) & relevant)
        partial = by_event[~events.array("whole")[state.events[by_event]]]
        if not len(partial):
            return state
        values = self._find_values(applied, partial)
        # In the order of the lake's files: rows that are read together are close to each other.
        order = np.argsort(values.rows.min(axis=1), kind="stable") if len(values.rows) else np.empty(0, np.int64)
        hashes = state.hashes.copy()
        hashes[partial[values.has_row][order]] = self._hash_partial(values, values.rows[order])
        copies = state.copies.copy()
        copies[partial[~values.has_row]] = 0
        return replace(state, hashes=hashes, copies=copies)

    def keys_of(self, numbers: Numbers) -> pa.Table:
        """The keys of these numbers."""
        groups = [self.lake.keys, self.events.keys, self.source.keys]
        return keys_of_numbers(groups, [self.lake_keys, self.event_keys, self.source_keys], numbers)

    def images(self, upto: int, numbers: Numbers, *, max_bytes: int = ANY_SIZE) -> pa.Table:
        """The rows of these keys at that place, in their order; each of them has one in `state_at`. Raises
        ValuesTooLarge where they have more than `max_bytes`."""
        values = self._find_values(self._apply_upto(upto), numbers)
        return self._images_of(values, values.rows, max_bytes=max_bytes)

    def _apply_upto(self, upto: int) -> _Applied:
        above = self.comparison.merged_offset if self.comparison.follows_log else upto
        chosen = (self.events.offsets > above) & (self.events.offsets <= upto)
        truncated_at = int(self._staged.truncates(above, upto).max(initial=NOWHERE))
        return _Applied(self.events.where(chosen), self.event_keys[chosen], self._old_keys[chosen], truncated_at)

    # Rows with values of several images -----------------------------------------------------------------------------

    def _find_values(self, applied: _Applied, numbers: Numbers) -> _Values:
        """Where the values of the rows of these keys are."""
        events = applied.events
        moved = applied.old_keys != NOWHERE
        related = np.zeros(self.count, np.bool_)
        related[related_keys(applied.keys[moved], applied.old_keys[moved], numbers, self.count)] = True
        followed = np.flatnonzero(related[applied.keys] & (events.offsets > applied.truncated_at))
        in_lake = np.flatnonzero(related[self.lake_keys] & (self.lake.offsets >= applied.truncated_at))
        names = [column.name for column in self.comparison.schema.columns]
        unchanged = events.rows["unchanged"].take(pa.array(followed))
        has_value = ~np.stack([mask_named(unchanged, name) for name in names], axis=1)
        walk = Walk(len(names), self._lake_images(in_lake))
        walk.follow(
            zip(
                applied.keys[followed].tolist(),
                events.offsets[followed].tolist(),
                range(len(in_lake), len(in_lake) + len(followed)),
                events.array("lives")[followed].tolist(),
                events.array("born")[followed].tolist(),
                applied.old_keys[followed].tolist(),
                has_value.tolist(),
                strict=True,
            )
        )
        origins = [walk.row_of(number) for number in numbers.tolist()]
        has_row = np.array([row is not None for row in origins], np.bool_)
        rows = np.array([row for row in origins if row is not None], np.int64).reshape(-1, len(names))
        return _Values(events, in_lake, followed, rows, has_row)

    def _lake_images(self, rows: Numbers) -> dict[int, tuple[int, int]]:
        """By key the number of its row among these, and its offset: of several the newest."""
        order = np.argsort(self.lake.offsets[rows], kind="stable")
        keys = self.lake_keys[rows[order]].tolist()
        return dict(zip(keys, zip(order.tolist(), self.lake.offsets[rows[order]].tolist(), strict=True), strict=True))

    def _images_of(self, values: _Values, rows: npt.NDArray[np.int64], *, max_bytes: int) -> pa.Table:
        """Some of the rows with their values. Raises ValuesTooLarge where they have more than `max_bytes`."""
        needed, positions = np.unique(rows, return_inverse=True)
        positions = positions.reshape(rows.shape)
        is_lake = needed < len(values.in_lake)
        lake = self._hashed_lake.images(self.lake, values.in_lake[needed[is_lake]], max_bytes=max_bytes)
        events = values.followed[needed[~is_lake] - len(values.in_lake)]
        staged = self._staged.images(values.events, events, max_bytes=max_bytes)
        images = pa.concat_tables([lake, staged])  # in the order of `needed`
        names = [column.name for column in self.comparison.schema.columns]
        columns = {name: images[name].take(pa.array(positions[:, i])) for i, name in enumerate(names)}
        # Of a row that takes values from an image with a misfit it is not known whether this is among them.
        misfits = np.asarray(images[MISFITS])[positions].any(axis=1)
        return pa.table({**columns, MISFITS: pa.array(misfits)}, schema=images.schema)

    def _hash_partial(self, values: _Values, rows: npt.NDArray[np.int64]) -> Numbers:
        """The hashes of some of the rows."""
        schema = self.comparison.schema
        hashes = [np.empty(0, np.int64)]
        for _, images in read_in_pieces(rows, lambda piece, most: self._images_of(values, piece, max_bytes=most)):
            columns = {column.name: join_chunks(images[column.name]) for column in schema.columns}
            hashes.append(hash_values(columns, np.asarray(images[MISFITS]), schema))
        return np.concatenate(hashes)


@dataclass(frozen=True, slots=True)
class _Values:
    """Rows that take each value from some image. `rows`: for each that `has_row` the image of each column, as a number
    among those of the lake's rows `in_lake`, and of the events `followed` behind them."""

    events: HashedRows
    in_lake: Numbers
    followed: Numbers
    rows: npt.NDArray[np.int64]
    has_row: Flags


def is_within(keys: pa.Table, comparison: Comparison) -> Flags:
    """Which keys are in one of the comparison's ranges."""
    inside = np.zeros(len(keys), np.bool_)
    for after, upto in comparison.within:
        part = np.ones(len(keys), np.bool_) if after is None else ~is_upto(keys, comparison.schema, after)
        inside |= part if upto is None else part & is_upto(keys, comparison.schema, upto)
    return inside


def is_upto(keys: pa.Table, schema: TableSchema, bound: Any) -> Flags:
    """Which keys are at most `bound` (JSON); of types that Arrow orders as the source does. NULL is less than all."""
    parts = list(zip(schema.key_columns, key_from_json(bound, schema), strict=True))

    def refine(condition: Flags, part: tuple[Any, Any]) -> Flags:
        column, value = part
        less, equal = _compare(keys[column.name], pa.scalar(value, column.type))
        return less | (equal & condition)

    return reduce(refine, reversed(parts), np.ones(len(keys), np.bool_))


def _compare(values: pa.ChunkedArray, bound: pa.Scalar) -> tuple[Flags, Flags]:
    """Which values are less than the bound, and which are equal to it. NaN is equal to itself, and more than all."""
    less = pc.fill_null(pc.less(values, bound), True)
    equal = pc.fill_null(pc.equal(values, bound), False)
    if pa.types.is_floating(bound.type) and math.isnan(bound.as_py()):
        equal = pc.fill_null(pc.is_nan(values), False)
        less = pc.invert(equal)
    return np.asarray(less), np.asarray(equal)


def may_be_among(keys: pa.Table, requested: pa.Table) -> Flags:
    """Which keys have in each column a value of some requested key: all that are requested, and few others."""
    among = np.ones(len(keys), np.bool_)
    for name in keys.column_names:
        among &= np.asarray(pc.is_in(keys[name], value_set=requested[name].combine_chunks()))
    return among
