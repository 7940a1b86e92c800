"""Lake, log and source of one task, as far as some of its keys go, with the numbers of these keys."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.features import ValuesTooLarge
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_from_json
from dblog_core.rows.arrow_hashes import hash_rows
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.rows.row_hashes import HASH
from dblog_core.verify.direct.exact_cast import MISFITS, Flags, turn_misfits
from dblog_core.verify.direct.expected_state import NOWHERE, State, apply_events
from dblog_core.verify.direct.hashed_events import Events
from dblog_core.verify.direct.key_numbers import Numbers, number_keys
from dblog_core.verify.direct.lake_hashes import LakeHashes, LakeRows
from dblog_core.verify.direct.staged_hashes import StagedHashes
from dblog_core.verify.direct.unchanged_toast import Walk, related_keys
from dblog_core.verify.exchange import Task

IMAGE_BYTES = 64 << 20
"""Of rows that are in memory at once, to be hashed or compared column by column, unless a single one has more."""
_ANY = 1 << 62


@dataclass(frozen=True, slots=True)
class Sides:
    """`events`: those that the lake's version or the source's SELECTs may not have seen; `staged_rows`: how many staged
    rows come on top of that version; `count`: of all keys. `source`: keys, with hashes or what stands for rows."""

    task: Task
    hashed_lake: LakeHashes
    staged: StagedHashes
    lake: LakeRows
    events: Events
    source: pa.Table
    lake_keys: Numbers
    event_keys: Numbers
    old_keys: Numbers
    source_keys: Numbers
    staged_rows: int
    count: int

    @classmethod
    def of(
        cls,
        task: Task,
        hashed_lake: LakeHashes,
        staged: StagedHashes,
        lake: LakeRows,
        events: Events,
        source: pa.Table,
        left_out: int = 0,
    ) -> Sides:
        """`left_out`: staged rows that are not among the events, since no answer needs them."""
        schema = task.shape
        pin = task.pin
        if task.within:
            lake = lake.where(is_within(lake.keys, schema, task))
            events = events.where(is_within(events.keys, schema, task))
        merged = 0 if pin is None else pin.offset
        staged_rows = int((events.offsets > merged).sum()) + left_out
        requested = source.select(lake.keys.column_names)
        # A row that came from another key needs that key's rows too.
        if task.for_chosen_keys and not events.moved.any():
            lake = lake.where(may_be_among(lake.keys, requested))
            events = events.where(may_be_among(events.keys, requested))
        groups = [lake.keys, events.keys, events.old_keys, requested]
        (lake_keys, event_keys, old_keys, source_keys), count = number_keys(groups)
        return cls(
            task,
            hashed_lake,
            staged,
            lake,
            events,
            source,
            lake_keys=lake_keys,
            event_keys=event_keys,
            old_keys=old_keys,
            source_keys=source_keys,
            staged_rows=staged_rows,
            count=count,
        )

    @property
    def follows_log(self) -> bool:
        """Whether what is staged comes into the lake: it never does into that of a stopped table."""
        return self.task.pin is not None and not self.task.pin.stopped

    def state_at(self, upto: int, relevant: Flags) -> State:
        """What the lake is to hold at that place of the log; of keys that are not `relevant` the hashes may mean
        nothing."""
        state = apply_events(self.count, self.lake, self.lake_keys, *self._events_above_pin(upto))
        return self._fill_partial(state, upto, relevant)

    def _events_above_pin(self, upto: int) -> tuple[Events, Numbers]:
        """The events that come on top of the pinned version up to that place, and the numbers of their keys."""
        pin = self.task.pin
        above = pin.offset if pin is not None and self.follows_log else upto
        chosen = (self.events.offsets > above) & (self.events.offsets <= upto)
        return self.events.between(above, upto), self.event_keys[chosen]

    def keys_of(self, numbers: Numbers) -> pa.Table:
        """The keys of these numbers."""
        every = self._all_keys()
        place = np.zeros(self.count, np.int64)
        place[np.concatenate([self.lake_keys, self.event_keys, self.source_keys])] = np.arange(len(every))
        return every.take(pa.array(place[numbers])).combine_chunks()

    def _all_keys(self) -> pa.Table:
        requested = self.source.select(self.lake.keys.column_names)
        return pa.concat_tables([self.lake.keys, self.events.keys, requested])

    # Rows -----------------------------------------------------------------------------------------------------------

    def images(self, state: State, upto: int, numbers: Numbers, *, most: int = _ANY) -> pa.Table:
        """The rows of these keys at that place, in their order; each of them has one in `state`. Raises ValuesTooLarge
        where they have more than `most` bytes."""
        events, _ = self._events_above_pin(upto)
        by_event = state.events[numbers]
        lake = np.flatnonzero(by_event == NOWHERE)
        changed = np.flatnonzero(by_event != NOWHERE)
        is_whole = events.whole[by_event[changed]]
        whole = changed[is_whole]
        partial = changed[~is_whole]
        parts = [self.hashed_lake.images(self.lake, state.lake_rows[numbers[lake]], most=most)]
        parts.append(self.staged.images(events, by_event[whole], most=most))
        places = [lake, whole]
        if len(partial):
            values = self._find_values(upto, numbers[partial])
            parts.append(values.images(values.rows, most=most))
            places.append(partial[values.has_row])
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_tables(parts).take(pa.array(order)).combine_chunks()

    def _fill_partial(self, state: State, upto: int, relevant: Flags) -> State:
        """The state with the hashes of rows whose last event leaves columns out; those that lack a value are not
        there."""
        events, _ = self._events_above_pin(upto)
        by_event = np.flatnonzero((state.events >= 0) & relevant)
        partial = by_event[~events.whole[state.events[by_event]]]
        if not len(partial):
            return state
        values = self._find_values(upto, partial)
        # In the order of the lake's files: what is read together lies together.
        order = np.argsort(values.rows.min(axis=1), kind="stable") if len(values.rows) else np.empty(0, np.int64)
        hashes = state.hashes.copy()
        hashes[partial[values.has_row][order]] = values.hash_rows(values.rows[order])
        copies = state.copies.copy()
        copies[partial[~values.has_row]] = 0
        return replace(state, hashes=hashes, copies=copies)

    def _find_values(self, upto: int, numbers: Numbers) -> _Values:
        """Where the values of the rows of these keys are."""
        events, event_keys = self._events_above_pin(upto)
        above = np.isin(self._moved_offsets(), events.offsets[events.moved])
        old_keys = self.old_keys[above]
        related = np.zeros(self.count, np.bool_)
        related[related_keys(events, event_keys, old_keys, numbers, self.count)] = True
        emptied = int(events.truncates.max()) if len(events.truncates) else NOWHERE
        followed = np.flatnonzero(related[event_keys] & (events.offsets > emptied))
        in_lake = np.flatnonzero(related[self.lake_keys] & (self.lake.offsets >= emptied))
        names = [column.name for column in self.task.shape.columns]
        walk = Walk(len(names), self._lake_places(in_lake))
        old_by_event = np.full(len(events), NOWHERE, np.int64)
        old_by_event[events.moved] = old_keys
        walk.follow(
            zip(
                event_keys[followed].tolist(),
                events.offsets[followed].tolist(),
                range(len(in_lake), len(in_lake) + len(followed)),
                events.lives[followed].tolist(),
                events.born[followed].tolist(),
                old_by_event[followed].tolist(),
                (~events.lacks(followed, names)).tolist(),
                strict=True,
            )
        )
        rows = [walk.row_of(number) for number in numbers.tolist()]
        has_row = np.array([row is not None for row in rows], np.bool_)
        places = np.array([row for row in rows if row is not None], np.int64).reshape(-1, len(names))
        return _Values(self, events, in_lake, followed, places, has_row)

    def _moved_offsets(self) -> Numbers:
        return self.events.offsets[self.events.moved]

    def _lake_places(self, rows: Numbers) -> dict[int, tuple[int, int]]:
        """By key the number of its row among these, and its offset: of several the newest."""
        order = np.argsort(self.lake.offsets[rows], kind="stable")
        keys = self.lake_keys[rows[order]].tolist()
        return dict(zip(keys, zip(order.tolist(), self.lake.offsets[rows[order]].tolist(), strict=True), strict=True))


@dataclass(frozen=True, slots=True)
class _Values:
    """Rows that take each value from some image. `rows`: for each that `has_row` the image of each column, as a number
    among those of the lake's rows `in_lake`, and of the events `followed` behind them."""

    sides: Sides
    events: Events
    in_lake: Numbers
    followed: Numbers
    rows: npt.NDArray[np.int64]
    has_row: Flags

    def images(self, rows: npt.NDArray[np.int64], *, most: int) -> pa.Table:
        """Rows of this kind with their values. Raises ValuesTooLarge where they have more than `most` bytes."""
        needed, places = np.unique(rows, return_inverse=True)
        places = places.reshape(rows.shape)
        is_lake = needed < len(self.in_lake)
        lake = self.sides.hashed_lake.images(self.sides.lake, self.in_lake[needed[is_lake]], most=most)
        events = self.followed[needed[~is_lake] - len(self.in_lake)]
        staged = self.sides.staged.images(self.events, events, most=most)
        values = pa.concat_tables([lake, staged])  # in the order of `needed`
        names = [column.name for column in self.sides.task.shape.columns]
        columns = {name: values[name].take(pa.array(places[:, i])) for i, name in enumerate(names)}
        # Of a row that takes values from an image with a misfit it is not known whether this is among them.
        misfits = np.asarray(values[MISFITS])[places].any(axis=1)
        return pa.table({**columns, MISFITS: pa.array(misfits)}, schema=values.schema)

    def hash_rows(self, rows: npt.NDArray[np.int64]) -> Numbers:
        """The hashes of rows of this kind: of as many at once as have room."""
        if not len(rows):
            return np.empty(0, np.int64)
        try:
            images = self.images(rows, most=IMAGE_BYTES if len(rows) > 1 else _ANY)
        except ValuesTooLarge:
            half = len(rows) // 2
            return np.concatenate([self.hash_rows(rows[:half]), self.hash_rows(rows[half:])])
        columns = {column.name: join_chunks(images[column.name]) for column in self.sides.task.shape.columns}
        hashes = hash_rows(columns, self.sides.task.shape)
        turn_misfits(hashes, np.asarray(images[MISFITS]))
        return hashes


@dataclass(frozen=True, slots=True)
class SourceState:
    """By the number of a key what the source has said: whether it `is_requested`, whether it has it, and its hash."""

    is_requested: Flags
    exists: Flags
    hashes: Numbers

    @classmethod
    def of(cls, sides: Sides) -> SourceState:
        hashes = sides.source[HASH].combine_chunks()
        has_hash = np.asarray(hashes.is_valid())
        is_requested = np.zeros(sides.count, np.bool_)
        is_requested[sides.source_keys] = True
        exists = np.zeros(sides.count, np.bool_)
        exists[sides.source_keys[has_hash]] = True
        by_number = np.zeros(sides.count, np.int64)
        by_number[sides.source_keys[has_hash]] = np.asarray(hashes.drop_null())
        return cls(is_requested, exists, by_number)


def is_within(keys: pa.Table, schema: TableSchema, task: Task) -> Flags:
    """Which keys lie in one of the task's ranges."""
    inside = np.zeros(len(keys), np.bool_)
    for after, upto in task.within:
        part = np.ones(len(keys), np.bool_) if after is None else ~is_upto(keys, schema, after)
        inside |= part if upto is None else part & is_upto(keys, schema, upto)
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
