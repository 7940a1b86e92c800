"""What each event of a merge found: the row as the events before it in the span, or else the lake, have it.

With it a row of a dump that changes nothing is left out, and a value that the log left out of a change is filled in.
Where the values stand is found without them (`unchanged_values`); then they are compared and copied by the
numbers of the events, and of the lake's rows, that have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.features import ValuesTooLarge
from dblog_core.delta_writer.order_guard import equal_values
from dblog_core.lake_engine.events.unchanged_values import (
    Flags,
    Ids,
    Life,
    PortionWalk,
    list_names,
    number_keys,
)
from dblog_core.lake_engine.tables.column_types import OFFSET
from dblog_core.model.events import CREATE, DELETE, REFRESH
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key
from dblog_core.rows.chunked_columns import join_chunks, mask_named

RowsOf = Callable[[Sequence[pa.Array], Sequence[str]], tuple[pa.Table, Ids]]
"""The lake's rows of some keys, some columns and OFFSET, in the types of the events, and the number of each one's key;
of several rows of one key the newest comes last. Raises ValuesTooLarge, but not for a single key."""


@dataclass(frozen=True, slots=True)
class LakeBefore:
    """How a table stood before its events: its rows in the lake (None: there is no table), the keys that wait for a
    dump, and the offset up to which changes were in."""

    rows_of: RowsOf | None
    withheld: Sequence[Key]
    upto: int


@dataclass(frozen=True, slots=True)
class _Dependents:
    """Events of a portion whose lines depend on former values, by growing offset: those of a dump, and those that leave
    values out.

    `at`: where they stand in the portion; `numbers`: theirs in the walk; `keys`: the numbers of their keys;
    `has_row`: whether the key may have had a row; `origins`: the key whose row in the lake the event's row continues,
    or -1; `places`: by event and column of the walk the event that has the value before it, or -1.
    """

    at: Ids
    numbers: Ids
    keys: Ids
    has_row: Flags
    origins: Ids
    places: Ids

    def __len__(self) -> int:
        return len(self.at)

    def part(self, begin: int, end: int) -> _Dependents:
        return _Dependents(*(values[begin:end] for values in astuple(self)))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of the lake, and by dependent event the one that its row continues, or -1."""

    rows: pa.Table
    at: Ids


class FormerValues:
    """The events of some keys in portions, each with the values that were known before it.

    Portions come in the order of the log; events have the columns that `staged_events.read_events` gives them for a
    history.
    """

    def __init__(
        self, schema: TableSchema, truncates: Sequence[int], before: LakeBefore, *, gone: Sequence[str] = ()
    ) -> None:
        """`truncates`: the offsets of TRUNCATEs; `gone`: columns of the events that the table no longer has, of which
        nothing is filled in."""
        self._schema = schema
        self._gone = gone
        self._truncates = np.sort(np.asarray(truncates, np.int64))
        self._before = before
        self._columns = {c.name: f"v{i}" for i, c in enumerate(schema.columns) if c.name not in schema.key}
        self._names: list[str] = []  # left out by some event so far; the walk's first column is all the others
        self._portions = PortionWalk(schema, 1)
        self._emptied = 0

    def fill(self, portion: pa.Table, *, is_last: bool = True) -> pa.Table:
        """The events but those of a dump that change nothing, in another order; what was left out is filled in, and
        `unchanged` names what nobody knew. `is_last`: no portion follows."""
        portion = portion.combine_chunks()
        masks = {name: mask for name in self._columns if (mask := mask_named(portion["unchanged"], name)).any()}
        depends: Flags = np.logical_or.reduce([np.asarray(pc.equal(portion["origin"], "dump")), *masks.values()])
        if is_last and not depends.any():
            return portion
        new_names = [name for name in masks if name not in self._names]
        self._names += new_names
        self._portions.walk.add_columns(len(new_names))
        dependents = self._walk(portion, masks, depends, is_last=is_last)
        parts = [portion.filter(pa.array(~depends)), *self._judge(portion, masks, dependents)]
        if not is_last:
            self._portions.drop_events()
        return pa.concat_tables(parts)

    def _walk(self, portion: pa.Table, masks: Mapping[str, Flags], depends: Flags, *, is_last: bool) -> _Dependents:
        keys, olds = self._portions.number_keys(portion)
        in_event = np.ones((len(portion), 1 + len(self._names)), np.bool_)
        for name, mask in masks.items():
            in_event[:, 1 + self._names.index(name)] = ~mask
        first = self._portions.hold(portion)
        offsets = np.asarray(portion["offset"])
        order = np.argsort(offsets, kind="stable")
        if is_last:  # nobody asks for the other keys any more
            concerned = np.isin(keys, np.concatenate([keys[depends], olds[depends]]))
            order = order[concerned[order]]
        at = order[depends[order]]
        # What the only event of a key found is in the lake, and such are most events of a dump.
        single = (np.bincount(keys)[keys] == 1) & (olds < 0) & ~np.isin(keys, olds) & depends & is_last & (first == 0)
        born = np.asarray(pc.equal(portion["op"], CREATE))
        has_row = ~born[at] & (np.searchsorted(self._truncates, offsets[at]) == 0)
        origins = np.where(has_row, keys[at], -1)
        places = np.full((len(at), 1 + len(self._names)), -1, np.int64)
        follow = partial(self._portions.walk.follow, keys, olds, portion["op"], in_event, first=first, asked=depends)
        if lives := list(self._follow(order[~single[order]], offsets, follow)):
            nothing: Life = (-1, (-1,) * (1 + len(self._names)))
            walked = ~single[at]
            has_row[walked] = [life is not None for life in lives]
            origins[walked] = [(life or nothing)[0] for life in lives]
            places[walked] = [(life or nothing)[1] for life in lives]
        return _Dependents(at, first + at, keys[at], has_row, origins, places)

    def _follow(self, order: Ids, offsets: Ids, follow: Callable[[Ids], list[Life | None]]) -> Iterator[Life | None]:
        """Follows the events in this order, with the TRUNCATEs between them."""
        emptied = np.searchsorted(self._truncates, offsets[order])
        for count in np.unique(emptied).tolist():
            if count > self._emptied:
                self._portions.walk.empty()
                self._emptied = count
            yield from follow(order[emptied == count])

    def _judge(self, portion: pa.Table, masks: Mapping[str, Flags], dependents: _Dependents) -> Iterator[pa.Table]:
        """The dependent events, as `fill` returns them; some at a time where the lake's rows of all are too large."""
        if not len(dependents):
            return
        events = portion.take(pa.array(dependents.at))
        dumped: Flags = np.asarray(pc.equal(events["origin"], "dump"))
        try:
            lake = self._find_rows(dependents, [*self._columns] if dumped.any() else self._names)
        except ValuesTooLarge:
            half = len(dependents) // 2
            yield from self._judge(portion, masks, dependents.part(0, half))
            yield from self._judge(portion, masks, dependents.part(half, len(dependents)))
            return
        left_out = {name: mask[dependents.at] for name, mask in masks.items()}
        nothing = self._change_nothing(events, dumped, left_out, dependents, lake)
        yield self._fill_values(events, left_out, dependents, lake).filter(pa.array(~nothing))

    def _find_rows(self, dependents: _Dependents, names: Sequence[str]) -> _Rows:
        """Those of the lake that events take values from, or are compared with."""
        in_lake = (dependents.origins >= 0) & (dependents.places < 0).any(axis=1)
        needed = np.unique(dependents.origins[in_lake])
        at = np.full(len(dependents), -1, np.int64)
        if self._before.rows_of is None or not len(needed):
            kinds = {c.name: c.type for c in self._schema.columns}
            return _Rows(pa.table({name: pa.array([], kinds[name]) for name in names}), at)
        key_columns = self._portions.keys.take(pa.array(needed)).combine_chunks()
        rows, numbers = self._before.rows_of([join_chunks(column) for column in key_columns.columns], names)
        row_of_key = np.full(len(self._portions.keys), -1, np.int64)
        row_of_key[needed[numbers]] = np.arange(len(rows))  # of several of one key the last one stays
        at[in_lake] = row_of_key[dependents.origins[in_lake]]
        # A row of another key that is newer than all of these events' forerunners is another row.
        newer = np.append(np.asarray(pc.fill_null(rows[OFFSET], -1)) > self._before.upto, False)
        return _Rows(rows, np.where(newer[at] & (dependents.origins != dependents.keys), -1, at))

    def _change_nothing(
        self, events: pa.Table, dumped: Flags, left_out: Mapping[str, Flags], dependents: _Dependents, lake: _Rows
    ) -> Flags:
        """By event whether a dump says a row again that stood like that, or that one is gone which was not there."""
        alive = dependents.has_row & (
            (dependents.places[:, 0] >= 0) | (lake.at >= 0) | self._wait_for_dump(dependents.keys)
        )
        nothing: Flags = dumped & ~alive & np.asarray(pc.equal(events["op"], DELETE))
        compared = np.flatnonzero(dumped & alive & np.asarray(pc.equal(events["op"], REFRESH)))
        for name, column in self._columns.items():
            if not len(compared):
                break
            sources = self._sources(name, dependents, lake)[compared]
            values = self._values(name, lake).take(pa.array(sources, mask=sources < 0))
            same = (sources >= 0) & equal_values(events[column].take(pa.array(compared)), values)
            compared = compared[same | left_out[name][compared] if name in left_out else same]
        nothing[compared] = True
        return nothing

    def _fill_values(
        self, events: pa.Table, left_out: Mapping[str, Flags], dependents: _Dependents, lake: _Rows
    ) -> pa.Table:
        # Of a row that goes nothing is filled in: its line says what the log has of it.
        stays = np.asarray(pc.not_equal(events["op"], DELETE))
        lost = {name: mask_named(events["unchanged"], name) for name in self._gone}
        for name, mask in left_out.items():
            sources = self._sources(name, dependents, lake)
            takes = mask & stays & (sources >= 0)
            lost[name] = mask & ~takes
            at = events.column_names.index(self._columns[name])
            values = self._values(name, lake).take(pa.array(np.where(takes, sources, dependents.numbers)))
            events = events.set_column(at, self._columns[name], values)
        return events.set_column(events.column_names.index("unchanged"), "unchanged", list_names(lost, len(events)))

    def _sources(self, name: str, dependents: _Dependents, lake: _Rows) -> Ids:
        """By event where in `_values` the value before it stands; -1: nobody knows it."""
        places = dependents.places[:, 1 + self._names.index(name) if name in self._names else 0]
        assert self._portions.events is not None
        in_lake = np.where(lake.at >= 0, len(self._portions.events) + lake.at, -1)
        return np.where(places >= 0, places, in_lake)

    def _values(self, name: str, lake: _Rows) -> pa.ChunkedArray:
        """The values of the events that are held, and then those of the lake's rows."""
        assert self._portions.events is not None
        of_events = self._portions.events[self._columns[name]]
        return pa.chunked_array([*of_events.chunks, *lake.rows[name].chunks], of_events.type)

    def _wait_for_dump(self, keys: Ids) -> Flags:
        """Which of these keys wait for a dump: their rows live, and nothing of them is known."""
        if not (withheld := self._before.withheld):
            return np.zeros(len(keys), np.bool_)
        columns = enumerate(self._schema.key_columns)
        waiting = [pa.chunked_array([pa.array([key[i] for key in withheld], c.type)]) for i, c in columns]
        codes, waiting_codes = number_keys(self._portions.keys.columns, waiting)
        is_waiting: Flags = np.isin(codes, waiting_codes)
        return is_waiting[keys]
