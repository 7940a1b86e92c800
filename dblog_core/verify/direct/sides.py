"""Lake, log and source of one task, with the numbers of their keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_from_json
from dblog_core.rows.arrow_hashes import hash_rows
from dblog_core.rows.row_hashes import HASH
from dblog_core.verify.direct.expected_state import NOWHERE, State, apply_events
from dblog_core.verify.direct.hashed_events import Events, Flags
from dblog_core.verify.direct.key_numbers import Numbers, number_keys
from dblog_core.verify.direct.lake_hashes import LakeHashes, LakeRows
from dblog_core.verify.direct.not_direct import NotDirect
from dblog_core.verify.direct.staged_hashes import UNCHANGED, StagedHashes, mask_named, may_be_among
from dblog_core.verify.direct.unchanged_toast import Walk, related_keys
from dblog_core.verify.exchange import Task

MAX_PARTIAL = 300_000
"""Events that are followed one by one for the columns that the log has left out; beyond them Spark does."""


@dataclass(frozen=True, slots=True)
class Sides:
    """`events`: those that the lake's version or the source's SELECTs may not have seen; `staged_rows`: how many staged
    rows come on top of that version; `count`: of all keys."""

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
    def read(cls, task: Task, hashed_lake: LakeHashes, staged: StagedHashes, source: pa.Table) -> Sides:
        """What the task is about. `source`: keys with hashes or rows, as the source has answered."""
        schema = task.shape
        pin = task.pin
        after = task.since if pin is None else min(pin.offset, task.since)
        events = staged.between(after, task.upto, settled=task.since)
        lake = LakeRows.none(schema) if pin is None else hashed_lake.rows_of(pin.version, pin.newest)
        if task.within:
            lake = lake.where(is_within(lake.keys, schema, task))
            events = events.where(is_within(events.keys, schema, task))
        merged = 0 if pin is None else pin.offset
        staged_rows = int((events.offsets > merged).sum()) + staged.count_dropped(merged)
        kind = lake.keys.schema
        requested = source.select(kind.names).cast(kind)
        # A row that came from another key needs that key's rows too.
        if task.for_chosen_keys and not events.moved.any():
            lake = lake.where(may_be_among(lake.keys, requested))
            events = events.where(may_be_among(events.keys.cast(kind), requested))
        groups = [lake.keys, events.keys.cast(kind), events.old_keys.cast(kind), requested]
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
        kind = self.lake.keys.schema
        return pa.concat_tables(
            [self.lake.keys, self.events.keys.cast(kind), self.source.select(kind.names).cast(kind)]
        )

    # Rows -----------------------------------------------------------------------------------------------------------

    def images(self, state: State, upto: int, numbers: Numbers) -> pa.Table:
        """The rows of these keys at that place, in their order; each of them has one in `state`."""
        events, _ = self._events_above_pin(upto)
        by_event = state.events[numbers]
        lake = np.flatnonzero(by_event == NOWHERE)
        changed = np.flatnonzero(by_event != NOWHERE)
        is_whole = events.whole[by_event[changed]]
        whole = changed[is_whole]
        partial = changed[~is_whole]
        names = [column.name for column in self.task.shape.columns]
        parts = [self.hashed_lake.images(self.lake, state.lake_rows[numbers[lake]])]
        parts.append(self.staged.images(events, by_event[whole]).select(names))
        places = [lake, whole]
        if len(partial):
            rows, has_row = self._partial_images(upto, numbers[partial])
            parts.append(rows)
            places.append(partial[has_row])
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
        rows, has_row = self._partial_images(upto, partial)
        columns = {name: rows[name].combine_chunks() for name in rows.column_names}
        hashes = state.hashes.copy()
        hashes[partial[has_row]] = hash_rows(columns, self.task.shape)
        copies = state.copies.copy()
        copies[partial[~has_row]] = 0
        return replace(state, hashes=hashes, copies=copies)

    def _partial_images(self, upto: int, numbers: Numbers) -> tuple[pa.Table, Flags]:
        """The rows of these keys, and which of them have all values; the others have no row."""
        events, event_keys = self._events_above_pin(upto)
        above = np.isin(self._moved_offsets(), events.offsets[events.moved])
        old_keys = self.old_keys[above]
        related = np.zeros(self.count, np.bool_)
        related[related_keys(events, event_keys, old_keys, numbers, self.count)] = True
        emptied = int(events.truncates.max()) if len(events.truncates) else NOWHERE
        followed = np.flatnonzero(related[event_keys] & (events.offsets > emptied))
        in_lake = np.flatnonzero(related[self.lake_keys] & (self.lake.offsets >= emptied))
        if len(followed) > MAX_PARTIAL:
            raise NotDirect(f"more than {MAX_PARTIAL:,} staged changes leave columns out")
        staged = self.staged.images(events, followed)
        names = [column.name for column in self.task.shape.columns]
        values = pa.concat_tables([self.hashed_lake.images(self.lake, in_lake), staged.select(names)])
        walk = Walk(len(names), self._lake_places(in_lake))
        old_by_event = np.full(len(events), NOWHERE, np.int64)
        old_by_event[events.moved] = old_keys
        unchanged = staged[UNCHANGED].combine_chunks()
        has_value = ~np.stack([mask_named(unchanged, name) for name in names], axis=1)
        walk.follow(
            zip(
                event_keys[followed].tolist(),
                events.offsets[followed].tolist(),
                range(len(in_lake), len(values)),
                events.lives[followed].tolist(),
                events.born[followed].tolist(),
                old_by_event[followed].tolist(),
                has_value.tolist(),
                strict=True,
            )
        )
        rows = [walk.row_of(number) for number in numbers.tolist()]
        has_row = np.array([row is not None for row in rows], np.bool_)
        places = np.array([row for row in rows if row is not None], np.int64).reshape(-1, len(names))
        columns = {name: values[name].take(pa.array(places[:, i])) for i, name in enumerate(names)}
        return pa.table(columns, schema=values.schema), has_row

    def _moved_offsets(self) -> Numbers:
        return self.events.offsets[self.events.moved]

    def _lake_places(self, rows: Numbers) -> dict[int, tuple[int, int]]:
        """By key the number of its row among these, and its offset: of several the newest."""
        order = np.argsort(self.lake.offsets[rows], kind="stable")
        keys = self.lake_keys[rows[order]].tolist()
        return dict(zip(keys, zip(order.tolist(), self.lake.offsets[rows[order]].tolist(), strict=True), strict=True))


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
        bound_value = pa.scalar(value, column.type)
        values = keys[column.name]
        less = np.asarray(pc.fill_null(pc.less(values, bound_value), True))
        return less | (np.asarray(pc.fill_null(pc.equal(values, bound_value), False)) & condition)

    return reduce(refine, reversed(parts), np.ones(len(keys), np.bool_))
