"""The tasks of a share that executors carry (`write_spread`). A task has dblog, and of the driver only `SpreadWork`.

  `split`: a part of the staged rows, or a file of the table -> its events, or its keys, by buckets of keys
  `plan`: the events and the keys of a bucket -> the last row of each key -> rows that go, files of rows that come

Both hand over rows with a `bucket`, a `kind`, two numbers, and a `content`, which is an Arrow stream or pickled: so
Spark moves a few large values, whatever a row of the table has.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate
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
from dblog_core.lake_engine.events import fold_on_driver
from dblog_core.lake_engine.events.event_buckets import Chains, join_up_to
from dblog_core.lake_engine.events.folded_rows import WITHHOLD
from dblog_core.lake_engine.events.key_buckets import KeyRanges, bucket_numbers, split_by_number
from dblog_core.lake_engine.events.portion_fold import PortionFold
from dblog_core.lake_engine.merging import upsert_rows
from dblog_core.lake_engine.tables.column_types import OFFSET
from dblog_core.model.events import DELETE
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.rows.table_spool import TableSpool
from dblog_core.staging import Staging
from dblog_core.storage.location import Location

HANDED_OVER = "bucket int, kind string, first long, last long, content binary"
EVENTS = "events"
KEYS = "keys"
PLAN = "plan"
FAULT = "fault"

SPLIT_BYTES = 32 << 20
"""Decoded bytes that are sorted into buckets at once."""
SPLIT_KEYS = 1 << 20
"""Keys of a file of the table that are."""
PORTION_BYTES = 32 << 20
"""Decoded bytes of events that are folded at a time."""
CONTENT_BYTES = 4 << 20
MOST_OF_BUCKET = 128 << 20
"""Decoded bytes of events of a bucket, beyond which its keys are folded some at a time."""
IN_MEMORY = 128 << 20
"""Bytes that wait in the memory of a task for the rest of their bucket; more wait on its local disk."""

Contents: TypeAlias = Iterator[pa.RecordBatch]
Opener: TypeAlias = Callable[[], tuple[Staging, Location]]


@dataclass(frozen=True, slots=True)
class SpreadWork:
    """A share that is spread. `version`: of the lake table; `units`: parts of the staged rows, and paths of the table's
    files, which one task each splits; `ranges`: of the buckets (None: a hash of the key says the bucket); `chains`:
    keys that a change of key leads between; `merged`, `begins`, `below`: as for `upsert_rows.write`; `waiting`:
    keys that wait for a dump."""

    schema: TableSchema
    version: int
    units: tuple[Work | str, ...]
    may_leave_out: bool
    buckets: int
    ranges: KeyRanges | None
    secret: bytes
    chains: Chains
    merged: int
    begins: int | None
    below: int | None
    waiting: frozenset[Key]


@dataclass(frozen=True, slots=True)
class PlannedBucket:
    """The plan of some keys. `unknown`: those whose row has a value that nobody knows; `withheld`: how many of them the
    fold has found; `deleted`, `living`: of the keys that wait for a dump those that the work deletes, and those that
    have a row at its end."""

    keys: PlannedKeys
    unknown: list[Key]
    withheld: int
    deleted: set[Key]
    living: set[Key]


def open_configured(config: str) -> tuple[Staging, Location]:
    """The staging and the lake of a configuration, which is JSON."""
    settings = Config.model_validate_json(config)
    return wiring.open_staging(settings), wiring.open_lake(settings)


def split(opener: Opener, work: bytes, units: Contents) -> Contents:
    """The events and keys of these units (their numbers are in `id`), by buckets. `opener`: gives an executor the
    staging and the lake; `work`: a pickled SpreadWork."""
    yield from _handing_over_faults(partial(_split, opener, _unpickle(work), units))


def _split(opener: Opener, work: SpreadWork, units: Contents) -> Contents:
    staging, table, shape = _open(opener, work)
    for batch in units:
        for number in batch["id"].to_pylist():
            unit = work.units[number]
            if isinstance(unit, Work):
                yield from _split_events(work, staging, unit, table, shape)
            else:
                yield from _split_keys(work, number, unit, table, shape)


def plan(opener: Opener, work: bytes, contents: Contents) -> Contents:
    """The plan of each bucket whose events are among the contents; `opener` and `work` as for `split`."""
    yield from _handing_over_faults(partial(_plan, opener, _unpickle(work), contents))


def _plan(opener: Opener, work: SpreadWork, contents: Contents) -> Contents:
    waiting = _Waiting()
    for batch in contents:
        for row in batch.to_pylist() if FAULT in batch["kind"].to_pylist() else ():
            if row["kind"] == FAULT:
                raise _fault(row["content"])
        waiting.add(batch)
    if not waiting.events:
        return
    _, table, shape = _open(opener, work)
    for bucket, events in waiting.events.items():
        table.take_index(_index_of(work, table, shape, waiting.keys.pop(bucket, []), waiting))
        for part in _split_again(work, table, shape, events, waiting):
            yield _row(bucket, PLAN, 0, 0, pickle.dumps(_plan_keys(work, table, shape, part, waiting)))


def _handing_over_faults(task: Callable[[], Contents]) -> Contents:
    """What the task gives; the driver raises what is foreseen, and does not find it in a trace of Spark's."""
    try:
        yield from task()
    except DblogError as error:
        yield _row(0, FAULT, 0, 0, pickle.dumps((type(error), error.message, error.where, error.fix)))


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


def _open(opener: Opener, work: SpreadWork) -> tuple[Staging, OpenTable, Shape]:
    staging, lake = opener()
    path = table_location(lake, work.schema.table)
    table = OpenTable(path, work.schema.key, order=OFFSET, mark=COMMIT_MARK)
    table.snapshot = snapshot.at_version(table.files, work.version)
    return staging, table, table.check_shape()


def _row(bucket: int, kind: str, first: int, last: int, content: bytes | pa.Buffer) -> pa.RecordBatch:
    data = pa.py_buffer(content)
    ends = pa.py_buffer(np.array([0, data.size], np.int32))
    columns = {
        "bucket": pa.array([bucket], pa.int32()),
        "kind": pa.array([kind]),
        "first": pa.array([first]),
        "last": pa.array([last]),
        "content": pa.Array.from_buffers(pa.binary(), 1, [None, ends, data]),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


# Splitting -----------------------------------------------------------------------------------------------------------


def _split_events(work: SpreadWork, staging: Staging, unit: Work, table: OpenTable, shape: Shape) -> Contents:
    every = fold_on_driver.read_events(staging, unit, work.schema, with_unchanged=work.may_leave_out)
    for events in join_up_to(SPLIT_BYTES, every):
        for bucket, rows in enumerate(_buckets_of(work, events, _key_arrays(events, table, shape))):
            for some in _slices(rows):
                ends = pc.min_max(some["offset"]).as_py()
                yield _row(bucket, EVENTS, ends["min"], ends["max"], _stream(some))


def _split_keys(work: SpreadWork, number: int, path: str, table: OpenTable, shape: Shape) -> Contents:
    live = table.snapshot.files[path]
    names = [*table.keys, *([] if work.below is None else [table.order])]
    waiting: list[pa.Table] = []
    for first, rows in row_stretches(table.files, live, shape, names):
        # A row without one of its key's values is equal to no other; older ones go with the TRUNCATE, whatever comes.
        stays = [rows[name].is_valid() for name in table.keys]
        if work.below is not None:
            stays.append(pc.fill_null(pc.greater_equal(rows[table.order], work.below), True))
        rows = rows.select(table.keys).append_column("row", pa.array(np.arange(first, first + len(rows))))
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
            yield _row(bucket, KEYS, number, number, _stream(some))


def _key_arrays(events: pa.Table, table: OpenTable, shape: Shape) -> list[pa.Array]:
    """The keys of events in the types that the table has: only so are equal ones in the same bucket."""
    return [join_chunks(events[f"k{i}"].cast(shape[name].type)) for i, name in enumerate(table.keys)]


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
    """The contents of a task's buckets, in memory or on the local disk."""

    def __init__(self) -> None:
        self.events: dict[int, list[_Content]] = {}
        self.keys: dict[int, list[_Content]] = {}
        self._spool = TableSpool()
        self._size = 0

    def add(self, batch: pa.RecordBatch) -> None:
        columns = (batch[name] for name in ("bucket", "kind", "first", "last", "content"))
        for bucket, kind, first, last, content in zip(*columns, strict=True):
            rows = pa.ipc.open_stream(content.as_buffer()).read_all()
            of_kind = self.events if kind.as_py() == EVENTS else self.keys
            content_rows = self.hold(rows)
            waiting = _Content(first.as_py(), last.as_py(), rows.nbytes, content_rows)
            of_kind.setdefault(bucket.as_py(), []).append(waiting)

    def hold(self, rows: pa.Table) -> Any:
        """What `_Content` has of them."""
        self._size += rows.nbytes
        return rows if self._size <= IN_MEMORY else self._spool.write(rows)

    def read(self, content: _Content) -> pa.Table:
        rows = content.rows
        return rows if isinstance(rows, pa.Table) else self._spool.read(rows)


@dataclass(frozen=True, slots=True)
class _Content:
    """Rows of a bucket; `first`, `last`: their lowest and highest offset, or the number of the file that has them."""

    first: int
    last: int
    nbytes: int
    rows: Any


def _index_of(work: SpreadWork, table: OpenTable, shape: Shape, keys: list[_Content], waiting: _Waiting) -> KeyIndex:
    """An index of the bucket's keys, which covers all files."""
    kinds = tuple(shape[name].type for name in table.keys)
    index = KeyIndex(table.snapshot.table_id, table.stored_keys(shape), kinds)
    by_file: dict[int, list[_Content]] = {}
    for content in keys:
        by_file.setdefault(content.first, []).append(content)
    numbers = {unit: number for number, unit in enumerate(work.units) if isinstance(unit, str)}
    builder = RunBuilder()
    for path, live in table.snapshot.files.items():
        contents = by_file.get(numbers.get(path, -1), [])
        rows = pa.concat_tables(map(waiting.read, contents)).combine_chunks() if contents else None
        arrays = [] if rows is None else [join_chunks(rows[name]) for name in table.keys]
        places = np.empty(0, np.int64) if rows is None else np.asarray(rows["row"])
        index.add_some(path, live.size, places, arrays, builder)
    index.add_run(builder.finish())
    return index


def _split_again(
    work: SpreadWork, table: OpenTable, shape: Shape, events: list[_Content], waiting: _Waiting
) -> Iterator[list[_Content]]:
    """The events of a bucket; where they are far more than others have, by some keys at a time."""
    count = -(-sum(content.nbytes for content in events) // MOST_OF_BUCKET)
    if count <= 1:
        yield events
        return
    parts: list[list[_Content]] = [[] for _ in range(count)]
    for content in events:
        rows = waiting.read(content)
        hashes = work.chains.replace(hash_keys(_key_arrays(rows, table, shape), work.secret).first)
        for part, some in zip(parts, split_by_number(rows, bucket_numbers(hashes, count, level=1), count), strict=True):
            if len(some):
                part.append(_Content(content.first, content.last, some.nbytes, waiting.hold(some)))
    yield from filter(None, parts)


def _plan_keys(
    work: SpreadWork, table: OpenTable, shape: Shape, events: list[_Content], waiting: _Waiting
) -> PlannedBucket:
    fold = PortionFold(work.schema) if work.may_leave_out else LastFold(work.schema)
    for portion in _portions(sorted(events, key=lambda content: content.first), waiting):
        fold.add_portion(portion)
    rows = fold.fold_rows()
    where = str(table.files)
    changes = upsert_rows.changes_of(rows, work.schema, shape, where, merged=work.merged, begins=work.begins)
    keys, unknown = plan_keys(table, changes, shape)
    lost = rows.filter(pc.equal(rows["op"], WITHHOLD))
    of_table = rows.take(pa.array(np.concatenate(unknown))) if unknown else rows.slice(0, 0)
    return PlannedBucket(
        keys,
        list({*upsert_rows.keys_of(lost, work.schema), *upsert_rows.keys_of(of_table, work.schema)}),
        len(lost),
        _among(rows.filter(pc.equal(rows["op"], DELETE)), work.waiting, work.schema),
        _among(rows.filter(pc.not_equal(rows["op"], DELETE)), work.waiting, work.schema),
    )


def _among(rows: pa.Table, waiting: Collection[Key], schema: TableSchema) -> set[Key]:
    return set(waiting).intersection(upsert_rows.keys_of(rows, schema)) if waiting else set()


def _portions(events: list[_Content], waiting: _Waiting) -> Iterator[pa.Table]:
    """The events in portions that follow one another: one ends only where all its events are older than all that come
    after."""
    portion: list[pa.Table] = []
    size = 0
    ends = accumulate(events, lambda last, content: max(last, content.last), initial=-1)
    for content, last_before in zip(events, ends, strict=False):
        if size >= PORTION_BYTES and last_before < content.first:
            yield pa.concat_tables(portion)
            portion = []
            size = 0
        portion.append(waiting.read(content))
        size += content.nbytes
    yield pa.concat_tables(portion)


class LastFold:
    """The fold where no event leaves a column out, portion by portion: it holds the last event of each key."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._last: pa.Table | None = None

    def add_portion(self, portion: pa.Table) -> None:
        """Takes in some events."""
        events = portion if self._last is None else pa.concat_tables([self._last, portion])
        last, born = fold_on_driver.last_events(events.combine_chunks(), self._schema)
        self._last = last.set_column(last.column_names.index("created"), "created", born)

    def fold_rows(self) -> pa.Table:
        """The folded rows."""
        assert self._last is not None
        return fold_on_driver.folded_rows(self._last, self._last["created"], self._schema)
