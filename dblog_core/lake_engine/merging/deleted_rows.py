"""Rows that go without an event of their own: those before a TRUNCATE, and ghosts.

Ghosts are lake rows whose key a finished dump of the table has not seen, and that nothing has touched since: no line of
the log, and no row of another dump, also where that one says what the lake has already.

A dump of a key range says nothing about other keys. It says so only where the lake orders the key as the database does.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.changes import Upserted
from dblog_core.delta_writer.keys.key_hash import hash_keys
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.order_guard import Flags
from dblog_core.delta_writer.rewriting.unseen_rows import find_unseen
from dblog_core.delta_writer.table_log import ATTEMPTS
from dblog_core.delta_writer.upserting.deletes import commit_deletes
from dblog_core.delta_writer.upserting.deletes import remove_older as remove_rows_below
from dblog_core.errors import LakeError
from dblog_core.lake.merge_plan import Work, chunks_seen
from dblog_core.lake.task_plans import Past
from dblog_core.lake_engine.events.key_buckets import Bucket, KeyBuckets
from dblog_core.lake_engine.events.staged_events import read_events
from dblog_core.lake_engine.history.history_table import History
from dblog_core.lake_engine.history.last_lines import HistoryLines, LastLines
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.model.events import DELETE
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_from_json
from dblog_core.rows.chunked_columns import join_chunks, join_up_to
from dblog_core.schema_evolution.renames import Renames
from dblog_core.staging import Staging, parquet
from dblog_core.staging.manifest import ChunkRef, LogMark, Manifest

_ANY_OFFSET = (1 << 63) - 1
_BUCKETS = 64
_FIRST, _SECOND = "_dblog_first", "_dblog_second"
_LOOKED_UP_BYTES = 4 << 20
"""Of keys that are looked up at once."""


def remove_ghosts(
    staging: Staging,
    lake: LakeTable,
    schema: TableSchema,
    mark: LogMark,
    *,
    last: int,
    history: History | None = None,
) -> int:
    """Removes the ghosts that the dump of `mark` shows, which the history tells first; how many. Again, it removes
    nothing more. `last`: the segment up to which chunks count."""
    if mark.since is None or mark.since_segment is None:
        raise LakeError(
            f"the end of dump {mark.dump} has no `since` offset: an older capture wrote it",
            where=mark.table,
            fix="upgrade the capture, and dump the table again",
        )
    since = mark.since
    chunks, renames = _find_seen_chunks(staging.manifests(after=mark.since_segment - 1, upto=last), mark)

    def commit(table: OpenTable, app: str) -> Upserted | None:
        for _ in range(ATTEMPTS):
            shape = table.refresh()
            seen = join_up_to(_LOOKED_UP_BYTES, _read_keys(staging, chunks, renames, schema))
            ghosts = find_unseen(table, shape, seen, upto=since, is_wanted=lambda rows: _is_within(rows, mark, schema))
            if not ghosts.gone.count:
                return None
            if history is not None:
                _append_to_history(history, ghosts.keys, mark)
            if (done := commit_deletes(table, ghosts.gone, f"{app}:gone", mark.offset)) is not None:
                return done
        raise table.overtaken_error()

    lake.check()
    done = lake.commit(commit)
    return 0 if done is None else done.deleted


def _append_to_history(history: History, keys: Iterable[pa.Table], mark: LogMark) -> None:
    every = pa.concat_tables(keys)
    # Rows of another program that have NULL in the key were never in the history, and a key may have several rows.
    distinct = every.group_by(every.column_names).aggregate([]).drop_null()
    if len(distinct):
        history.append_ghosts([distinct], mark)


def _is_within(rows: pa.Table, mark: LogMark, schema: TableSchema) -> Flags:
    """Whether the key of a row lies in the range that the dump of `mark` was of."""
    within = np.ones(len(rows), np.bool_)
    for end, compare in ((mark.key_from, pc.greater), (mark.key_to, pc.less)):
        if end is not None:
            within &= _is_beyond(rows, schema, end, compare)
    return within


def _is_beyond(rows: pa.Table, schema: TableSchema, end: Any, compare: Callable[..., pa.ChunkedArray]) -> Flags:
    """Whether the key of a row is equal to `end`, or beyond it: the first column that differs decides."""
    inside = np.ones(len(rows), np.bool_)
    for column, part in reversed(list(zip(schema.key_columns, key_from_json(end, schema), strict=True))):
        values = rows[column.name]
        bound = pa.scalar(part, values.type)
        is_beyond, is_equal = (np.asarray(pc.fill_null(test(values, bound), False)) for test in (compare, pc.equal))
        inside = is_beyond | (is_equal & inside)
    return inside


def remove_older(lake: LakeTable, offset: int) -> None:
    """TRUNCATE at `offset`: what came before goes."""
    lake.check()
    lake.commit(lambda table, app: remove_rows_below(table, offset, f"{app}:truncated", offset))


def append_ghosts_before(staging: Staging, history: History, schema: TableSchema, work: Work, *, last: int) -> None:
    """Tells the history which rows the full dumps show to be gone that end before the lake table begins: what came
    before the newest of them, which it begins with, is only in the history. `work`: without that. As in a lake, rows
    with an unknown value do not count."""
    assert work.floor is not None
    ends = [m for m in work.finished if m.since is not None and m.since <= work.floor and _is_full(m)]
    ends.sort(key=lambda mark: mark.offset)
    upto = max(mark.offset for mark in ends if mark.since == work.floor)
    truncate, _ = HistoryLines(history.path).find_newest(_ANY_OFFSET)
    for mark in ends:
        assert mark.since is not None and mark.since_segment is not None
        lines = LastLines(history.path, schema, Past(truncate, upto), work.renames)
        chunks, renames = _find_seen_chunks(staging.manifests(after=mark.since_segment - 1, upto=last), mark)
        later = (_keys_of_events(events, schema) for events in read_events(staging, work, schema))
        others = chain(later, _read_keys(staging, chunks, renames, schema))
        before = (_keys_of_events(_whole_rows_upto(events, mark.since), schema) for events in lines)
        history.append_ghosts(_without_others(before, others, schema), mark)


def _keys_of_events(events: pa.Table, schema: TableSchema) -> pa.Table:
    return pa.table({name: events[f"k{i}"] for i, name in enumerate(schema.key)})


def _whole_rows_upto(events: pa.Table, offset: int) -> pa.Table:
    is_whole = pc.and_(pc.not_equal(events["op"], DELETE), events["unchanged"].is_null())
    return events.filter(pc.and_(is_whole, pc.less_equal(events["offset"], offset)))


def _without_others(keys: Iterable[pa.Table], others: Iterable[pa.Table], schema: TableSchema) -> Iterator[pa.Table]:
    """Those of the keys that are not among the others; both lie on the local disk meanwhile, some keys of them at a
    time in memory."""
    secret = secrets.token_bytes(16)
    sides: list[list[Bucket]] = []
    for side in (keys, others):
        buckets = KeyBuckets(_BUCKETS, lambda rows: np.asarray(rows[_FIRST]))
        for rows in join_up_to(_LOOKED_UP_BYTES, side):
            columns = [join_chunks(rows[c.name].cast(c.type)) for c in schema.key_columns]
            hashes = hash_keys(columns, secret)
            second = hashes.first if hashes.second is None else hashes.second
            named = dict(zip(schema.key, columns, strict=True))
            buckets.add(pa.table({**named, _FIRST: hashes.first, _SECOND: second}))
        sides.append(buckets.all)
    for mine, theirs in zip(*sides, strict=True):
        if not mine.rows:
            continue
        left = pa.concat_tables(mine)
        if theirs.rows:
            right = pa.concat_tables(theirs).select([_FIRST, _SECOND])
            left = left.join(right, [_FIRST, _SECOND], join_type="left anti")
        yield left.select(list(schema.key))


def _is_full(mark: LogMark) -> bool:
    return mark.key_from is None and mark.key_to is None


def _find_seen_chunks(manifests: Iterable[Manifest], mark: LogMark) -> tuple[list[ChunkRef], Renames]:
    """The chunks whose keys are no ghosts, and the table's renames since the first of the manifests."""
    chunks: list[ChunkRef] = []
    marks: list[LogMark] = []
    for manifest in manifests:  # one after the other: they may hold rows
        chunks += chunks_seen([manifest], mark)
        marks += [m for m in manifest.marks if m.table == mark.table]
    return chunks, Renames.of(marks)


def _read_keys(
    staging: Staging, chunks: Sequence[ChunkRef], renames: Renames, schema: TableSchema
) -> Iterator[pa.Table]:
    """The keys in the files of chunks, by the key's columns of today; of evicted rows too."""
    for chunk in chunks:
        later = renames.after(chunk.first_offset)
        then = {later.current_name(c.name): c.name for c in staging.schema(chunk.schema).columns}
        names = [then.get(name, name) for name in schema.key]
        where = staging.storage.url(chunk.path)
        with staging.open_file(chunk) as opened:
            for rows in parquet.batches(opened, where=where, columns=names):
                yield pa.table([rows.column(name) for name in names], names=list(schema.key))
