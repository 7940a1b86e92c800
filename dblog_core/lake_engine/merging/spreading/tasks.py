"""The tasks of a share that executors carry (`write_spread`). A task has dblog, and of the driver only `SpreadWork`.

  `split`: a part of the staged rows, or a file of the table -> its events, or its keys, by buckets of keys
  `plan`: the events and the keys of a bucket -> the last row of each key -> rows that go, files of rows that come

Both hand over rows with a `bucket`, a `kind`, two numbers, and a `content`, which is an Arrow stream or pickled: so
Spark moves a few large values, whatever a row of the table has.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.keys.key_hash import hash_keys
from dblog_core.delta_writer.keys.key_index import KeyIndex
from dblog_core.delta_writer.keys.key_runs import RunBuilder
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.stored_rows import row_stretches
from dblog_core.delta_writer.upserting.upsert_apart import PlannedKeys, plan_keys
from dblog_core.errors import DblogError
from dblog_core.lake.lake_status import table_location
from dblog_core.lake.merge_plan import Work
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.lake_engine.events.dump_ends import keys_of_ghosts
from dblog_core.lake_engine.events.fold import WITHHOLD, fold_bucket
from dblog_core.lake_engine.events.key_buckets import Bucket, split_bucket
from dblog_core.lake_engine.events.key_chains import KeyHasher
from dblog_core.lake_engine.events.staged_events import read_events
from dblog_core.lake_engine.merging import upsert_rows
from dblog_core.lake_engine.merging.spreading.key_ranges import KeyRanges
from dblog_core.lake_engine.tables.column_types import OFFSET
from dblog_core.model.events import DELETE
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key
from dblog_core.rows.chunked_columns import join_chunks, join_up_to, split_by_number
from dblog_core.rows.disk_spool import TableSpool
from dblog_core.rows.key_spreading import Chains, Words, bucket_numbers
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark
from dblog_core.storage.location import Location

HANDED_OVER = "bucket int, kind string, file long, content binary"
"""`file`: the number of the unit whose keys a content has."""
EVENTS = "events"
KEYS = "keys"
PLAN = "plan"
FAULT = "fault"

SPLIT_BYTES = 32 << 20
"""Decoded bytes that are sorted into buckets at once."""
SPLIT_KEYS = 1 << 20
"""Keys of a file of the table that are."""
CONTENT_BYTES = 4 << 20
MOST_OF_BUCKET = 128 << 20
"""Decoded bytes of events of a bucket, beyond which its keys are folded some at a time."""
MOST_ROWS = 2_000_000
"""Events of a bucket, beyond which they are too."""
IN_MEMORY = 128 << 20
"""Bytes that wait in the memory of a task for the rest of their bucket; more wait on its local disk."""

_ROW = "_dblog_row"
"""The column of handed over keys that says a row's number in its file."""

Contents: TypeAlias = Iterator[pa.RecordBatch]
Opener: TypeAlias = Callable[[], tuple[Staging, Location]]


@dataclass(frozen=True, slots=True)
class SpreadWork:
    """A share that is spread. `version`: of the lake table; `units`: parts of the staged rows, and paths of the table's
    files, which one task each splits; `ends`: of dumps in the share; `ranges`: of the buckets (None: a hash of
    the key says the bucket); `chains`: keys that a change of key leads between; `merged`, `begins`, `below`: as for
    `upsert_rows.write`; `waiting`: keys that wait for a dump."""

    schema: TableSchema
    version: int
    units: tuple[Work | str, ...]
    may_leave_out: bool
    ends: tuple[LogMark, ...]
    buckets: int
    ranges: KeyRanges | None
    secret: bytes
    chains: Chains
    merged: int
    begins: int | None
    below: int | None
    waiting: frozenset[Key]

    def hasher(self, table: OpenTable, shape: Shape) -> KeyHasher:
        """Of keys in the types that the table has: only so are equal ones in the same bucket."""
        return KeyHasher(self.secret, tuple(shape[name].type for name in table.keys))


@dataclass(frozen=True, slots=True)
class PlannedBucket:
    """The plan of some keys. `unknown`: those whose row has an unknown value; `withheld`: how many of them the
    fold has found; `ghosts`: as `keys_of_ghosts` has them; `deleted`, `living`: of
    the keys that wait for a dump those that the work deletes, and those that have a row at its end."""

    keys: PlannedKeys
    unknown: list[Key]
    withheld: int
    ghosts: pa.Table
    deleted: set[Key]
    living: set[Key]


def open_configured(config: str) -> tuple[Staging, Location]:
    """The staging and the lake of a configuration, which is JSON."""
    settings = Config.model_validate_json(config)
    return wiring.open_staging(settings), wiring.open_lake(settings)


def split(opener: Opener, work: bytes, units: Contents) -> Contents:
    """The events and keys of these units (their numbers are in `id`), by buckets. `opener`: gives an executor the
    staging and the lake; `work`: a pickled SpreadWork."""
    yield from _handing_over_faults(partial(_split, opener, work, units))


def _split(opener: Opener, payload: bytes, units: Contents) -> Contents:
    work, staging, table, shape = _open(opener, payload)
    for batch in units:
        for number in batch["id"].to_pylist():
            unit = work.units[number]
            if isinstance(unit, Work):
                yield from _split_events(work, staging, unit, table, shape)
            else:
                yield from _split_keys(work, number, unit, table, shape)


def plan(opener: Opener, work: bytes, contents: Contents) -> Contents:
    """The plan of each bucket whose events are among the contents; `opener` and `work` as for `split`."""
    yield from _handing_over_faults(partial(_plan, opener, work, contents))


def _plan(opener: Opener, payload: bytes, contents: Contents) -> Contents:
    waiting = _Waiting()
    for batch in contents:
        for row in batch.to_pylist() if FAULT in batch["kind"].to_pylist() else ():
            if row["kind"] == FAULT:
                raise _fault(row["content"])
        waiting.add(batch)
    if not waiting.events:
        return
    work, _, table, shape = _open(opener, payload)
    for bucket, events in waiting.events.items():
        table.take_index(_index_of(work, table, shape, waiting.keys.pop(bucket, {})))
        hasher = work.hasher(table, shape)

        def hash_events(rows: pa.Table, hasher: KeyHasher = hasher) -> Words:
            return work.chains.replace(hasher.hash(rows))

        for part in split_bucket(events, hash_events, MOST_ROWS, MOST_OF_BUCKET, spool=waiting.spool):
            yield _row(bucket, PLAN, 0, pickle.dumps(_plan_keys(work, table, shape, part)))


def _handing_over_faults(task: Callable[[], Contents]) -> Contents:
    """What the task gives; the driver raises what is foreseen, and does not find it in a trace of Spark's."""
    try:
        yield from task()
    except DblogError as error:
        yield _row(0, FAULT, 0, pickle.dumps((type(error), error.message, error.where, error.fix)))


def _unpickle(content: bytes) -> Any:
    return pickle.loads(content)  # noqa: S301  # by a process of this very job, as Spark's own tasks are


def _fault(content: bytes) -> DblogError:
    kind, message, where, fix = _unpickle(content)
    fault: DblogError = kind(message, where=where, fix=fix)
    return fault


def check_fault(kind: str, content: bytes) -> None:
    """Raises what a task has failed with."""
    if kind == FAULT:
        raise _fault(content)


_Opened: TypeAlias = tuple[SpreadWork, Staging, OpenTable, Shape]
_opened: dict[bytes, _Opened] = {}
"""The share that this process worked on last: its next task reads neither the work nor the table's log again."""


def _open(opener: Opener, payload: bytes) -> _Opened:
    """`payload`: a pickled SpreadWork. No two shares have the same: each has a secret of its own."""
    if payload not in _opened:
        _opened.clear()
        _opened[payload] = _open_anew(opener, _unpickle(payload))
    return _opened[payload]


def _open_anew(opener: Opener, work: SpreadWork) -> _Opened:
    staging, lake = opener()
    path = table_location(lake, work.schema.table)
    table = OpenTable(path, work.schema.key, order=OFFSET, mark=COMMIT_MARK)
    table.snapshot = snapshot.at_version(table.files, work.version)
    return work, staging, table, table.check_shape()


def _row(bucket: int, kind: str, file: int, content: bytes | pa.Buffer) -> pa.RecordBatch:
    data = pa.py_buffer(content)
    ends = pa.py_buffer(np.array([0, data.size], np.int32))
    columns = {
        "bucket": pa.array([bucket], pa.int32()),
        "kind": pa.array([kind]),
        "file": pa.array([file]),
        "content": pa.Array.from_buffers(pa.binary(), 1, [None, ends, data]),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


# Splitting -----------------------------------------------------------------------------------------------------------


def _split_events(work: SpreadWork, staging: Staging, unit: Work, table: OpenTable, shape: Shape) -> Contents:
    every = read_events(staging, unit, work.schema, with_unchanged=work.may_leave_out)
    hasher = work.hasher(table, shape)
    for events in join_up_to(SPLIT_BYTES, every):
        for bucket, rows in enumerate(_buckets_of(work, events, hasher.columns(events))):
            for some in _slices(rows):
                yield _row(bucket, EVENTS, 0, _stream(some))


def _split_keys(work: SpreadWork, number: int, path: str, table: OpenTable, shape: Shape) -> Contents:
    live = table.snapshot.files[path]
    names = [*table.keys, *([] if work.below is None else [table.order])]
    waiting: list[pa.Table] = []
    for first, rows in row_stretches(table.files, live, shape, names):
        # A row without one of its key's values is equal to no other; older ones go with the TRUNCATE, whatever comes.
        stays = [rows[name].is_valid() for name in table.keys]
        if work.below is not None:
            stays.append(pc.fill_null(pc.greater_equal(rows[table.order], work.below), True))
        rows = rows.select(table.keys).append_column(_ROW, pa.array(np.arange(first, first + len(rows))))
        waiting.append(rows.filter(reduce(pc.and_, stays)))
        if sum(map(len, waiting)) >= SPLIT_KEYS:
            yield from _hand_over_keys(work, number, pa.concat_tables(waiting), table)
            waiting = []
    if waiting:
        yield from _hand_over_keys(work, number, pa.concat_tables(waiting), table)


def _hand_over_keys(work: SpreadWork, number: int, rows: pa.Table, table: OpenTable) -> Contents:
    rows = rows.combine_chunks()
    if not len(rows):  # an array without values may have no buffers
        return
    for bucket, part in enumerate(_buckets_of(work, rows, [join_chunks(rows[name]) for name in table.keys])):
        for some in _slices(part):
            yield _row(bucket, KEYS, number, _stream(some))


def _buckets_of(work: SpreadWork, rows: pa.Table, keys: list[pa.Array]) -> list[pa.Table]:
    """The rows of each bucket. Keys that a change of key leads between are in one, which their hashes say."""
    if work.ranges is None or len(work.chains.keys):
        hashes = hash_keys(keys, work.secret).first
        by_hash = bucket_numbers(work.chains.replace(hashes), work.buckets)
    if work.ranges is None:
        return split_by_number(rows, by_hash, work.buckets)
    numbers = work.ranges.numbers(keys[0])
    if len(work.chains.keys):
        numbers = np.where(np.isin(hashes, work.chains.keys), by_hash, numbers)
    return split_by_number(rows, numbers, work.buckets)


def _slices(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows in contents of a few mebibytes: Spark has several of them in memory at once."""
    if len(rows):
        count = max(1, len(rows) * CONTENT_BYTES // max(rows.nbytes, 1))
        yield from (rows.slice(at, count) for at in range(0, len(rows), count))


def _stream(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    rows = rows.combine_chunks()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue()


# Planning ------------------------------------------------------------------------------------------------------------


class _Waiting:
    """The contents of a task's buckets, in memory or on the local disk: events, and by number of their file the keys of
    the table."""

    def __init__(self) -> None:
        self.spool = TableSpool(memory=IN_MEMORY)
        self.events: dict[int, Bucket] = {}
        self.keys: dict[int, dict[int, Bucket]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        columns = (batch[name] for name in ("bucket", "kind", "file", "content"))
        for number, kind, file, content in zip(*columns, strict=True):
            rows = pa.ipc.open_stream(content.as_buffer()).read_all()
            of_bucket = self.events if kind.as_py() == EVENTS else self.keys.setdefault(number.as_py(), {})
            place = number if kind.as_py() == EVENTS else file
            of_bucket.setdefault(place.as_py(), Bucket()).append(rows, self.spool)


def _index_of(work: SpreadWork, table: OpenTable, shape: Shape, keys: Mapping[int, Bucket]) -> KeyIndex:
    """An index of the bucket's keys, which covers all files."""
    kinds = tuple(shape[name].type for name in table.keys)
    index = KeyIndex(table.snapshot.table_id, table.stored_keys(shape), kinds)
    numbers = {unit: number for number, unit in enumerate(work.units) if isinstance(unit, str)}
    builder = RunBuilder()
    for path, live in table.snapshot.files.items():
        of_file = keys.get(numbers.get(path, -1))
        rows = None if of_file is None else pa.concat_tables(of_file).combine_chunks()
        arrays = [] if rows is None else [join_chunks(rows[name]) for name in table.keys]
        places = np.empty(0, np.int64) if rows is None else np.asarray(rows[_ROW])
        index.add_some(path, live.size, places, arrays, builder)
    index.add_run(builder.finish())
    return index


def _plan_keys(work: SpreadWork, table: OpenTable, shape: Shape, events: Bucket) -> PlannedBucket:
    rows = fold_bucket(events, work.schema, leaves_out=work.may_leave_out, ends=work.ends)
    where = str(table.files)
    changes = upsert_rows.changes_of(rows, work.schema, shape, where, merged=work.merged, begins=work.begins)
    keys, unknown = plan_keys(table, changes, shape)
    lost = rows.filter(pc.equal(rows["op"], WITHHOLD))
    of_table = rows.take(pa.array(np.concatenate(unknown))) if unknown else rows.slice(0, 0)
    return PlannedBucket(
        keys,
        list({*upsert_rows.keys_of(lost, work.schema), *upsert_rows.keys_of(of_table, work.schema)}),
        len(lost),
        keys_of_ghosts(rows, work.schema),
        _among(rows.filter(pc.equal(rows["op"], DELETE)), work.waiting, work.schema),
        _among(rows.filter(pc.not_equal(rows["op"], DELETE)), work.waiting, work.schema),
    )


def _among(rows: pa.Table, waiting: Collection[Key], schema: TableSchema) -> set[Key]:
    return set(waiting).intersection(upsert_rows.keys_of(rows, schema)) if waiting else set()
