"""The answers to tasks, as `spark_jobs.verifying.compare_hashes` gives them: which keys are equal, missing, extra,
different, or undecided."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.features import TableRefused
from dblog_core.errors import SegmentReplaced
from dblog_core.lake.lake_status import table_location
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_to_json, keys_of
from dblog_core.rows.arrow_hashes import NotHashable, sum_exactly
from dblog_core.rows.row_hashes import hashed_shape
from dblog_core.staging import Staging
from dblog_core.storage.location import Location
from dblog_core.verify.direct.hashed_events import Flags
from dblog_core.verify.direct.key_numbers import Numbers, check_keys
from dblog_core.verify.direct.lake_hashes import LakeHashes, LakeRows
from dblog_core.verify.direct.not_direct import NotDirect, TooManyStaged
from dblog_core.verify.direct.sides import Sides, SourceState, is_upto
from dblog_core.verify.direct.staged_hashes import StagedHashes
from dblog_core.verify.exchange import MAX_KEYS_NAMED, Answer, Ask, Desk, Sum, Task
from dblog_core.verify.window_positions import Interrupted

MEMORY = 512 << 20
"""Bytes of hashes that are kept of tables that may be asked for again."""

_TRIES = 3

Kinds = npt.NDArray[np.str_]


@dataclass(slots=True)
class _Table:
    """What is kept of a table from one task to the next."""

    lake: LakeHashes
    staged: StagedHashes
    lock: threading.Lock
    has_too_many: bool = False
    """Whether the staged rows of all keys take too much memory: `staged` has those of keys that were asked for then."""

    @property
    def memory(self) -> int:
        return self.lake.memory + self.staged.memory


class DirectJudge:
    """Answers tasks about tables of one lake, some at the same time; read-only."""

    def __init__(
        self,
        staging: Staging,
        lake: Location,
        desk: Desk,
        *,
        stop: threading.Event | None = None,
        most: int = MAX_KEYS_NAMED,
    ) -> None:
        """`most`: keys that an answer names; once `stop` is set, Interrupted is raised."""
        self._staging = staging
        self._lake = lake
        self._desk = desk
        self._most = most
        self._stop = stop or threading.Event()
        self._tables: dict[str, _Table] = {}
        self._lock = threading.Lock()

    def prepare(self, task: Task) -> None:
        """Reads and hashes the lake's rows for tasks like this one. Raises as `answer` does."""
        self._try(task, lambda table: Answer(rows=len(_lake_rows(task, table))))

    def answer(self, task: Task) -> Answer:
        """Raises NotDirect where Spark must answer, or what staging and lake raise."""
        asks: dict[Ask, Callable[[Task, _Table], Answer]] = {
            Ask.COMPARE: self._compare,
            Ask.COLUMNS: self._columns,
            Ask.SUMS: _sum_ranges,
            Ask.SAMPLE: _draw_keys,
        }
        return self._try(task, lambda table: asks[task.ask](task, table))

    def _try(self, task: Task, work: Callable[[_Table], Answer]) -> Answer:
        check_keys(task.shape)
        table = self._table(task.shape)
        with table.lock:
            for attempt in range(_TRIES):
                try:
                    return work(table)
                except (NotHashable, TableRefused, pa.ArrowException) as error:
                    raise NotDirect(str(error)) from error
                except SegmentReplaced:  # its rows were joined with others meanwhile: they are found in their new place
                    if attempt == _TRIES - 1:
                        raise
        raise AssertionError("the last attempt returns or raises")

    def _table(self, schema: TableSchema) -> _Table:
        # The source's types too: they tell which texts are JSON.
        name = f"{schema.table} {schema.fingerprint} {[column.source_type for column in schema.columns]}"
        with self._lock:
            table = self._tables.pop(name, None)
            if table is None:
                # What was not used for longest goes first; a task that uses it still has it.
                while self._tables and sum(each.memory for each in self._tables.values()) > MEMORY:
                    del self._tables[next(iter(self._tables))]
                location = table_location(self._lake, schema.table)
                lake = LakeHashes(location, schema, self._check_stop)
                table = _Table(lake, self._staged_of(schema, None), threading.Lock())
            self._tables[name] = table
            return table

    def _source_rows(self, task: Task) -> pa.Table:
        if task.files:
            return self._desk.rows(task.files)
        return pa.schema([pa.field(column.name, column.type) for column in hashed_shape(task.shape)]).empty_table()

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise Interrupted

    def _read_sides(self, task: Task, table: _Table, source: pa.Table) -> Sides:
        """Raises TooManyStaged where the staged rows of all keys are asked for, and take too much memory."""
        if not table.has_too_many:
            try:
                return Sides.read(task, table.lake, table.staged, source)
            except TooManyStaged:
                table.has_too_many = True
                table.staged = self._staged_of(task.shape, LakeRows.none(task.shape).keys)
                if not task.for_chosen_keys:
                    raise
        if not task.for_chosen_keys:
            raise TooManyStaged("too many of its staged rows are not merged")
        kind = LakeRows.none(task.shape).keys.schema
        keys = source.select(kind.names).cast(kind)
        # A later reading is of the same keys as a rule, or of fewer: what is staged of them is read once, too.
        if not table.staged.has_keys(keys):
            table.staged = self._staged_of(task.shape, keys)
        return Sides.read(task, table.lake, table.staged, source)

    def _staged_of(self, schema: TableSchema, keys: pa.Table | None) -> StagedHashes:
        return StagedHashes(self._staging, schema, self._check_stop, keys=keys)

    def _compare(self, task: Task, table: _Table) -> Answer:
        """Every key of either side, those within the ranges, or the asked ones."""
        sides = self._read_sides(task, table, self._source_rows(task))
        source = SourceState.of(sides)
        seen = source.is_requested if task.for_chosen_keys else np.ones(sides.count, np.bool_)
        now = sides.state_at(task.upto, seen)
        exists = now.copies > 0
        alike = (source.exists == exists) & (~exists | ((now.hashes == source.hashes) & (now.copies == 1)))
        odd = np.flatnonzero(seen & ~alike)
        answer = Answer(rows=int(source.exists.sum()), lake_rows=int(now.copies[seen].sum()), staged=sides.staged_rows)
        if not len(odd):
            return answer
        kinds = np.select(
            [now.copies[odd] > 1, ~source.exists[odd], ~exists[odd]], ["twice", "extra", "missing"], "different"
        )
        odd, kinds = _judge_changed(sides, source, odd, kinds)
        return _name_keys(answer, sides.keys_of(odd), kinds, task.shape, self._most)

    def _columns(self, task: Task, table: _Table) -> Answer:
        """The columns in which rows differ, for those of the asked keys that both sides have and that do not change."""
        schema = task.shape
        sides = self._read_sides(task, table, self._desk.rows(task.files))
        in_source = np.zeros(sides.count, np.bool_)
        in_source[sides.source_keys] = True
        now = sides.state_at(task.upto, in_source)
        changed = _changed_keys(sides)
        chosen = np.flatnonzero((now.copies[sides.source_keys] > 0) & ~changed[sides.source_keys])
        source_rows = sides.source.take(pa.array(chosen)).combine_chunks()
        lake_rows = sides.images(now, task.upto, sides.source_keys[chosen])
        differ = {c.name: ~_same_values(source_rows[c.name], lake_rows[c.name]) for c in schema.columns}
        keys = keys_of(_one_batch(source_rows.select(list(schema.key))), schema)
        named = [tuple(name for name, mask in differ.items() if mask[row]) for row in range(len(keys))]
        pairs = zip(map(key_to_json, keys), named, strict=True)
        return Answer(rows=len(keys), different=tuple(pairs))


def _lake_rows(task: Task, table: _Table) -> LakeRows:
    """The rows of the pinned version alone."""
    if task.pin is None:
        return LakeRows.none(task.shape)
    return table.lake.rows_of(task.pin.version, task.pin.newest)


def _sum_ranges(task: Task, table: _Table) -> Answer:
    """Rows and hashes of the pinned version alone, between the bounds and beyond them."""
    lake = _lake_rows(task, table)
    places = np.zeros(len(lake), np.int64)
    for bound in task.bounds:
        places += ~is_upto(lake.keys, task.shape, bound)
    by_place = (lake.hashes[places == place] for place in range(len(task.bounds) + 1))
    return Answer(sums=tuple(Sum(len(hashes), sum_exactly(hashes)) for hashes in by_place))


def _draw_keys(task: Task, table: _Table) -> Answer:
    """At most `rows` keys of the pinned version, drawn at random; `lake_rows`: of how many."""
    lake = _lake_rows(task, table)
    drawn = np.random.default_rng(task.seed).permutation(len(lake))[: task.rows]
    keys = keys_of(_one_batch(lake.keys.take(pa.array(drawn))), task.shape)
    return Answer(lake_rows=len(lake), keys=tuple(map(key_to_json, keys)))


# Keys that changed meanwhile ------------------------------------------------------------------------------------------


def _changed_keys(sides: Sides) -> Flags:
    """The keys with an event that the source's SELECTs may not have seen."""
    since = sides.task.since
    changed = np.zeros(sides.count, np.bool_)
    changed[sides.event_keys[(sides.events.offsets > since) & sides.events.logged]] = True
    if (sides.events.truncates > since).any():
        changed[:] = True
    return changed


def _judge_changed(sides: Sides, source: SourceState, odd: Numbers, kinds: Kinds) -> tuple[Numbers, Kinds]:
    """Of the odd keys those that are not equal after all, and what they are."""
    if not sides.follows_log:
        return odd, kinds
    task = sides.task
    changed = _changed_keys(sides)[odd]
    equal = np.zeros(sides.count, np.bool_)
    events = sides.events
    late = np.flatnonzero((events.offsets > task.since) & events.logged & events.whole)
    keys = sides.event_keys[late]
    same = (source.exists[keys] == events.lives[late]) & (
        ~source.exists[keys] | (source.hashes[keys] == events.hashes[late])
    )
    equal[keys[same]] = True
    # A TRUNCATE is a change of every key, after which it has no row.
    if (events.truncates > task.since).any():
        equal |= ~source.exists
    assert task.pin is not None  # or nothing would follow the log
    if task.pin.offset <= task.since and changed.any():
        relevant = np.zeros(sides.count, np.bool_)
        relevant[odd[changed]] = True
        then = sides.state_at(task.since, relevant)
        exists = then.copies > 0
        equal |= (source.exists == exists) & (~exists | (then.hashes == source.hashes)) & relevant
    left = ~(equal[odd] & changed)
    return odd[left], np.where(changed, "undecided", kinds)[left]


# Answers --------------------------------------------------------------------------------------------------------------


def _name_keys(answer: Answer, keys: pa.Table, kinds: Kinds, schema: TableSchema, most: int) -> Answer:
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])[:most]
    named = keys_of(_one_batch(keys.take(order)), schema)
    by_kind: dict[str, list[Any]] = {}
    for key, kind in zip(named, kinds[np.asarray(order)].tolist(), strict=True):
        by_kind.setdefault(kind, []).append(key_to_json(key))
    return replace(
        answer,
        missing=tuple(by_kind.get("missing", ())),
        extra=tuple(by_kind.get("extra", ())),
        undecided=tuple(by_kind.get("undecided", ())),
        twice=tuple(by_kind.get("twice", ())),
        different=tuple((key, ()) for key in by_kind.get("different", ())),
        more=len(kinds) > most,
    )


def _one_batch(rows: pa.Table) -> pa.RecordBatch:
    arrays = [pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)]) for column in rows.columns]
    return pa.RecordBatch.from_arrays(arrays, names=rows.column_names)


def _same_values(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Flags:
    """NULL equals NULL, NaN equals NaN, and 0.0 equals -0.0."""
    equal = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return np.asarray(pc.or_(pc.fill_null(equal, False), pc.and_(pc.is_null(left), pc.is_null(right))))
