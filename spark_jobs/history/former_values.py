"""What each event of a merge found, on the driver: `previous_rows` and `moved_unchanged_toast` with Arrow.

Rows of the lake, keys that wait for a dump, and events are records with numbers, in this order. It is found by record
and column in which record the value stands that was known before; values are compared and copied by these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.order_guard import equal_values
from dblog_core.model.events import CREATE, DELETE, REFRESH
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key
from spark_jobs.delta_tables.column_types import OFFSET
from spark_jobs.events.fold_unchanged_toast import Flags, Ids, mask_unchanged, number_keys
from spark_jobs.events.moved_unchanged_toast import Place, Step, find_places
from spark_jobs.events.portion_fold import list_names

RowsOf = Callable[[Sequence[pa.Array]], tuple[pa.Table, Ids]]
"""The lake's rows of some keys, in the shape of the events with their OFFSET, and the number of each one's key."""


@dataclass(frozen=True, slots=True)
class Before:
    """How a table stood before its events: its rows in the lake (None: there is no table), and the keys that wait for
    a dump."""

    rows_of: RowsOf | None
    withheld: Sequence[Key]


@dataclass(frozen=True, slots=True)
class _Records:
    """By record: the key's number, offset, and what it is. `before`: how many records come before the events;
    `waiting`: those of which no value is known. `values`: by column; `left_out`: by column the records that leave it
    out, where some event does; `stands_in`: by such a column the record that has a record's own value."""

    keys: Ids
    offsets: Ids
    deleted: Flags
    born: Flags
    waiting: Flags
    before: int
    values: Mapping[str, pa.ChunkedArray]
    left_out: Mapping[str, Flags]
    stands_in: Mapping[str, Ids]


@dataclass(frozen=True, slots=True)
class _Lives:
    """Records by key and offset (`order`); of each place there: where the life begins, and whether the key had a row
    before."""

    order: Ids
    begins: Ids
    alive: Flags

    def find_former(self, is_set: Flags) -> Ids:
        """By record the last record before it, of its key's life, that is set; -1: there is none."""
        places = np.arange(len(self.order))
        last = np.maximum.accumulate(np.where(is_set[self.order], places, -1))
        former = np.concatenate([np.full(1, -1), last[:-1]])
        in_life = former >= self.begins
        by_record = np.full(len(self.order), -1, np.int64)
        by_record[self.order[in_life]] = self.order[former[in_life]]
        return by_record


def fill_events(events: pa.Table, schema: TableSchema, truncates: Sequence[int], before: Before) -> pa.Table:
    """The events (`fold_on_driver.read_events`) except for those of a dump that change nothing, with the values that
    were known before them; `unchanged` then names what nobody knew. `truncates`: their offsets."""
    events = events.combine_chunks()
    masks = {c.name: mask for c in schema.columns if (mask := mask_unchanged(events["unchanged"], c.name)).any()}
    left_out: Flags = np.logical_or.reduce([np.zeros(len(events), np.bool_), *masks.values()])
    dumped = np.asarray(pc.equal(events["origin"], "dump"))
    if not (left_out | dumped).any():
        return events
    keys = [events[f"k{i}"] for i in range(len(schema.key))]
    olds = [events[f"m{i}"] for i in range(len(schema.key))]
    numbers, old_numbers, waiting = number_keys(keys, olds, _key_columns(before.withheld, schema))
    places = _find_moved_values(events, numbers, old_numbers, masks, left_out)
    asked_keys = np.unique(
        np.concatenate([numbers[left_out | dumped], [place.key[0] for place in places if place.key is not None]])
    ).astype(np.int64)
    rows, row_keys = _rows_of_keys(before.rows_of, asked_keys, [numbers, old_numbers], [keys, olds], schema)
    records = _make_records(events, schema, numbers, rows, row_keys, waiting[np.isin(waiting, asked_keys)], masks)
    _resolve_moves(records, places, np.asarray(pc.fill_null(rows[OFFSET], -1)))
    return _judge_events(events, schema, records, _find_lives(records, truncates), dumped)


def _key_columns(keys: Sequence[Key], schema: TableSchema) -> list[pa.ChunkedArray]:
    return [pa.chunked_array([pa.array([key[i] for key in keys], c.type)]) for i, c in enumerate(schema.key_columns)]


def _rows_of_keys(
    rows_of: RowsOf | None,
    asked_keys: Ids,
    numbers: Sequence[Ids],
    columns: Sequence[Sequence[pa.ChunkedArray]],
    schema: TableSchema,
) -> tuple[pa.Table, Ids]:
    """The lake's rows of the keys of these numbers, and the number of each row's key."""
    if rows_of is None or not len(asked_keys):
        no_rows = {**{c.name: pa.nulls(0, c.type) for c in schema.columns}, OFFSET: pa.nulls(0, pa.int64())}
        return pa.table(no_rows), np.empty(0, np.int64)
    every, first = np.unique(np.concatenate(numbers), return_index=True)
    at = pa.array(first[np.searchsorted(every, asked_keys)])
    parts = zip(*columns, strict=True)
    whole = [pa.chunked_array([c for part in both for c in part.chunks], both[0].type) for both in parts]
    keys = [column.take(at).combine_chunks() for column in whole]
    rows, places = rows_of(keys)
    return rows, asked_keys[places]


def _make_records(
    events: pa.Table,
    schema: TableSchema,
    numbers: Ids,
    rows: pa.Table,
    row_keys: Ids,
    waiting: Ids,
    masks: Mapping[str, Flags],
) -> _Records:
    before = len(rows) + len(waiting)
    is_waiting = np.zeros(before + len(events), np.bool_)
    is_waiting[len(rows) : before] = True
    none = np.zeros(before, np.bool_)
    values = {
        c.name: pa.chunked_array(
            [*rows[c.name].chunks, pa.nulls(len(waiting), c.type), *events[f"v{i}"].chunks], c.type
        )
        for i, c in enumerate(schema.columns)
    }
    return _Records(
        keys=np.concatenate([row_keys, waiting, numbers]),
        offsets=np.concatenate([np.full(before, -1), np.asarray(events["offset"])]),
        deleted=np.concatenate([none, np.asarray(pc.equal(events["op"], DELETE))]),
        born=np.concatenate([none, np.asarray(pc.equal(events["op"], CREATE))]),
        waiting=is_waiting,
        before=before,
        values=values,
        left_out={name: np.concatenate([none, mask]) for name, mask in masks.items()},
        stands_in={name: np.arange(len(is_waiting)) for name in masks},
    )


def _find_moved_values(
    events: pa.Table, numbers: Ids, old_numbers: Ids, masks: Mapping[str, Flags], left_out: Flags
) -> list[Place]:
    """Where the values stand that changes of key left out; keys are their numbers."""
    moved = np.asarray(events["moved"])
    moves = moved & left_out & np.asarray(pc.equal(events["op"], CREATE))
    if not moves.any():
        return []
    ends = np.unique(np.concatenate([numbers[moves], old_numbers[moves]]))
    concerned = np.flatnonzero(np.isin(numbers, ends))
    offsets = np.asarray(events["offset"])
    ops = events["op"].take(pa.array(concerned)).to_pylist()
    histories: dict[Key, list[Step]] = {}
    for i in np.argsort(offsets[concerned], kind="stable").tolist():
        event = int(concerned[i])
        unchanged = frozenset(name for name, mask in masks.items() if mask[event])
        old = (int(old_numbers[event]),) if moved[event] else None
        step = Step(int(offsets[event]), ops[i], unchanged, old)
        histories.setdefault((int(numbers[event]),), []).append(step)
    return list(find_places(histories))


def _resolve_moves(records: _Records, places: Sequence[Place], lake_offsets: Ids) -> None:
    """Notes for the moves where their values stand, and that they have them. `lake_offsets`: of the lake's rows."""
    if not places:
        return
    by_offset = {offset: i for i, offset in enumerate(records.offsets.tolist()) if i >= records.before}
    lake = {key: i for i, key in enumerate(records.keys[: records.before].tolist()) if not records.waiting[i]}
    for place in places:
        source = by_offset[place.event] if place.event is not None else lake.get(place.key[0]) if place.key else None
        # A later row of the old key is another one.
        is_later = place.event is None and source is not None and lake_offsets[source] >= place.before
        if source is not None and not is_later:
            move = by_offset[place.offset]
            records.stands_in[place.column][move] = source
            records.left_out[place.column][move] = False


def _find_lives(records: _Records, truncates: Sequence[int]) -> _Lives:
    """A life begins with a row's birth, and ends with its delete or with a TRUNCATE; an earlier life says nothing about
    a later one."""
    order = np.lexsort((records.offsets, records.keys))
    keys = records.keys[order]
    emptied = np.searchsorted(np.sort(np.asarray(truncates, np.int64)), records.offsets[order], side="left")
    follows = np.zeros(len(order), np.bool_)  # one of the same key, with no TRUNCATE between
    follows[1:] = (keys[1:] == keys[:-1]) & (emptied[1:] == emptied[:-1])
    deleted = records.deleted[order]
    alive = follows.copy()
    alive[1:] &= ~deleted[:-1]
    begins = np.where(~follows | deleted | records.born[order], np.arange(len(order)), 0)
    by_record = np.zeros(len(order), np.bool_)
    by_record[order] = alive
    return _Lives(order, np.maximum.accumulate(begins), by_record)


def _judge_events(events: pa.Table, schema: TableSchema, records: _Records, lives: _Lives, dumped: Flags) -> pa.Table:
    has_row = ~(records.deleted | records.waiting)
    whole = lives.find_former(has_row)
    former = {name: lives.find_former(has_row & ~mask) for name, mask in records.left_out.items()}
    alive = lives.alive[records.before :]
    refreshed = dumped & alive & np.asarray(pc.equal(events["op"], REFRESH))
    nothing = dumped & ~alive & records.deleted[records.before :]
    compared = records.before + np.flatnonzero(refreshed)
    for column in schema.columns:
        if not len(compared):
            break
        name = column.name
        compared = compared[_is_equal(records, name, compared, former.get(name, whole))]
    nothing[compared - records.before] = True
    filled = events
    for i, column in enumerate(schema.columns):
        if (mask := records.left_out.get(column.name)) is None:
            continue
        event_records = np.arange(records.before, len(mask))
        before = former[column.name][event_records]
        sources = records.stands_in[column.name][np.where(mask[event_records] & (before >= 0), before, event_records)]
        values = records.values[column.name].take(pa.array(sources))
        filled = filled.set_column(filled.column_names.index(f"v{i}"), f"v{i}", values)
    lost = {
        c.name: records.left_out[c.name][records.before :] & (former[c.name][records.before :] < 0)
        for c in schema.columns
        if c.name in records.left_out
    }
    at = filled.column_names.index("unchanged")
    filled = filled.set_column(at, "unchanged", list_names(lost, len(events)))
    return filled.filter(pa.array(~nothing)) if nothing.any() else filled


def _is_equal(records: _Records, name: str, compared: Ids, former: Ids) -> Flags:
    """For these records whether they leave the column out, or have the value in it that was known before."""
    before = former[compared]
    at = records.stands_in.get(name)
    sources = before if at is None else np.where(before >= 0, at[before], -1)
    sources_of_own = compared if at is None else at[compared]
    values = records.values[name]
    same: Flags = (before >= 0) & equal_values(
        values.take(pa.array(sources_of_own)), values.take(pa.array(sources, mask=sources < 0))
    )
    return same | records.left_out[name][compared] if name in records.left_out else same
