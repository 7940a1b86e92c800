"""Rows that go without an event of their own: those before a TRUNCATE, and ghosts.

Ghosts are lake rows whose key a finished dump of the table has not seen, and that nothing has touched since: no line of
the log, and no row of another dump, also where that one says what the lake has already. The commit of the batch with
the dump's end removes them. The fold of the batch has a DELETE in place of its own ghosts (`events.dump_ends`). The
others are searched for among the rows that the batch leaves in the table.

A dump of a key range says nothing about other keys. It says so only where the lake orders the key as the database does.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.keys.key_hash import hash_keys
from dblog_core.delta_writer.rewriting.unseen_rows import Reading
from dblog_core.delta_writer.upserting.upsert import remove_rows
from dblog_core.errors import LakeError
from dblog_core.lake.merge_plan import Work, chunks_seen
from dblog_core.lake.task_plans import Past
from dblog_core.lake_engine.events.dump_ends import SHOWN_BY, are_within
from dblog_core.lake_engine.events.exact_casts import cast
from dblog_core.lake_engine.events.key_buckets import Bucket, KeyBuckets
from dblog_core.lake_engine.events.staged_events import read_events
from dblog_core.lake_engine.history.history_table import History
from dblog_core.lake_engine.history.last_lines import HistoryLines, LastLines
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.model.events import DELETE
from dblog_core.model.schema import TableSchema
from dblog_core.rows.chunked_columns import join_chunks, join_up_to
from dblog_core.rows.disk_spool import SpooledTables
from dblog_core.schema_evolution.renames import Renames
from dblog_core.staging import Staging, parquet
from dblog_core.staging.manifest import ChunkRef, LogMark, Manifest, is_full

_ANY_OFFSET = (1 << 63) - 1
_BUCKETS = 64
_FIRST, _SECOND = "_dblog_first", "_dblog_second"
_LOOKED_UP_BYTES = 4 << 20
"""Of keys that are looked up at once."""


@dataclass(frozen=True, slots=True)
class Ghosts:
    """The ghosts of the dumps that end in a table's share of a merge, at `marks`. `last`: the segment up to which
    chunks count; `history`: gets a line for each ghost before the commit that removes it."""

    staging: Staging
    schema: TableSchema
    marks: Sequence[LogMark]
    last: int
    history: History | None

    def readings(self, of_batch: Sequence[pa.Table] = ()) -> list[Reading]:
        """The readings of the dumps, in their order. `of_batch`: the keys of ghosts among the batch's own rows, with
        the column `SHOWN_BY`. Raises LakeError for the end of a dump that does not say where the dump began."""
        in_order = sorted(self.marks, key=lambda mark: mark.offset)  # a ghost of several dumps is the first one's
        return [self._reading(mark, of_batch) for mark in in_order]

    def _reading(self, mark: LogMark, of_batch: Sequence[pa.Table]) -> Reading:
        if mark.since is None or mark.since_segment is None:
            raise LakeError(
                f"the end of dump {mark.dump} has no `since` offset: an older capture wrote it",
                where=mark.table,
                fix="upgrade the capture, and dump the table again",
            )
        return Reading(
            partial(_read_seen_keys, self.staging, mark, self.schema, last=self.last),
            upto=mark.since,
            is_wanted=lambda rows: are_within(rows.columns, mark, self.schema),
            tell=partial(self._append_to_history, mark, of_batch),
        )

    def _append_to_history(self, mark: LogMark, of_batch: Sequence[pa.Table], of_table: SpooledTables) -> None:
        if self.history is None:
            return
        ghosts_of_batch = (rows.filter(pc.equal(rows[SHOWN_BY], mark.offset)) for rows in of_batch)
        keys = [rows.select(self.schema.key) for rows in chain(ghosts_of_batch, of_table) if len(rows)]
        if not keys:
            return
        kinds = [(name, keys[-1].schema.field(name).type) for name in self.schema.key]
        every = pa.concat_tables(rows.cast(pa.schema(kinds)) for rows in keys)
        # Rows of another program that have NULL in the key were never in the history, and a key may have several rows.
        distinct = every.group_by(every.column_names).aggregate([]).drop_null()
        if len(distinct):
            self.history.append_ghosts([distinct], mark)


def remove(lake: LakeTable, number: int, *, below: int | None = None, readings: Sequence[Reading] = ()) -> None:
    """Removes rows in a commit of their own, `number` in the lake's log: those before a TRUNCATE at `below`, and ghosts
    by `readings`. Again, it removes nothing more."""
    lake.check()
    lake.commit(lambda table, app: remove_rows(table, f"{app}:gone", number, below=below, readings=readings))


def append_ghosts_before(staging: Staging, history: History, schema: TableSchema, work: Work, *, last: int) -> None:
    """Tells the history which rows the full dumps show to be gone that end before the lake table begins: what came
    before the newest of them, which it begins with, is only in the history. `work`: without that."""
    assert work.floor is not None
    ends = [m for m in work.finished if m.since is not None and m.since <= work.floor and is_full(m)]
    ends.sort(key=lambda mark: mark.offset)
    upto = max(mark.offset for mark in ends if mark.since == work.floor)
    truncate, _ = HistoryLines(history.path).find_newest(_ANY_OFFSET)
    for mark in ends:
        assert mark.since is not None
        lines = LastLines(history.path, schema, Past(truncate, upto), work.renames)
        later = (_keys_of_events(events, schema) for events in read_events(staging, work, schema))
        others = chain(later, _read_seen_keys(staging, mark, schema, last=last))
        before = (_keys_of_events(_rows_upto(events, mark.since), schema) for events in lines)
        history.append_ghosts(_without_others(before, others, schema), mark)


def _keys_of_events(events: pa.Table, schema: TableSchema) -> pa.Table:
    return pa.table({name: events[f"k{i}"] for i, name in enumerate(schema.key)})


def _rows_upto(events: pa.Table, offset: int) -> pa.Table:
    return events.filter(pc.and_(pc.not_equal(events["op"], DELETE), pc.less_equal(events["offset"], offset)))


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
    for keys_of_bucket, others_of_bucket in zip(*sides, strict=True):
        if not keys_of_bucket.rows:
            continue
        left = pa.concat_tables(keys_of_bucket)
        if others_of_bucket.rows:
            right = pa.concat_tables(others_of_bucket).select([_FIRST, _SECOND])
            left = left.join(right, [_FIRST, _SECOND], join_type="left anti")
        yield left.select(list(schema.key))


def _read_seen_keys(staging: Staging, mark: LogMark, schema: TableSchema, *, last: int) -> Iterator[pa.Table]:
    """The keys that are no ghosts of the dump that `mark` ends, some at a time; `last`: as for `Ghosts`."""
    assert mark.since_segment is not None
    chunks, renames = _find_seen_chunks(staging.manifests(after=mark.since_segment - 1, upto=last), mark)
    return join_up_to(_LOOKED_UP_BYTES, _read_keys(staging, chunks, renames, schema))


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
                # A chunk from before the key has grown wider has narrower values.
                columns = [pa.chunked_array([rows.column(name)]) for name in names]
                kinds = [column.type for column in schema.key_columns]
                yield pa.table(list(map(cast, columns, kinds)), names=list(schema.key))
