"""The answers to tasks: which keys are equal, missing, extra, different, or undecided.

A source's hash counts for every place of the log from `since` to `upto`, unless its key has changed in between. Such a
key is equal if its hash is that of any state which the log has led it through there; otherwise it is undecided: it was
read between two watermarks, and another reading, in a shorter window, will tell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.features import TableRefused, ValuesTooLarge
from dblog_core.errors import LakeError, SegmentReplaced
from dblog_core.lake.json_variants import variant_name
from dblog_core.lake.lake_status import table_location
from dblog_core.model.values import key_to_json, keys_of
from dblog_core.rows.arrow_hashes import NotHashable, sum_exactly
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.rows.row_hashes import HASH
from dblog_core.staging import Staging
from dblog_core.storage.location import Location
from dblog_core.verify.direct.compared_table import ROW, ComparedTable
from dblog_core.verify.direct.exact_cast import Flags, same_values
from dblog_core.verify.direct.expected_state import State
from dblog_core.verify.direct.history import compare_history
from dblog_core.verify.direct.key_numbers import Numbers
from dblog_core.verify.direct.lake_columns import OTHER
from dblog_core.verify.direct.sides import IMAGE_BYTES, Sides, SourceState, is_upto
from dblog_core.verify.direct.unequal_keys import Kinds, UnequalKeys, one_batch
from dblog_core.verify.exchange import MAX_KEYS_NAMED, Answer, Ask, Desk, Sum, Task
from dblog_core.verify.window_positions import Interrupted

MOST_TABLES = 6
"""Tables that are kept, hashed, for later tasks."""

_TRIES = 3


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
        self._tables: dict[str, ComparedTable] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def prepare(self, task: Task) -> None:
        """Reads and hashes lake and log for tasks like this one. Raises as `answer` does."""

        def read_ahead(table: ComparedTable) -> Answer:
            table.read_ahead(task)
            return Answer()

        self._try(task, read_ahead)

    def answer(self, task: Task) -> Answer:
        """Raises LakeError for a table that cannot be compared, Interrupted, or what staging and lake raise."""
        if task.ask is Ask.HISTORY:
            return compare_history(self._lake, task, most=self._most, check=self._check)
        asks: dict[Ask, Callable[[Task, ComparedTable], Answer]] = {
            Ask.COMPARE: self._compare,
            Ask.COLUMNS: self._columns,
            Ask.SUMS: _sum_ranges,
            Ask.SAMPLE: _draw_keys,
        }
        return self._try(task, lambda table: asks[task.ask](task, table))

    def _try(self, task: Task, work: Callable[[ComparedTable], Answer]) -> Answer:
        where = str(table_location(self._lake, task.shape.table))
        try:
            table = self._table(task)
            with table.lock:
                return _try_again(table, work)
        except TableRefused as error:
            raise LakeError(
                f"the table cannot be compared: {error.feature}",
                where=error.where,
                fix="take that out of the table (such as by ALTER TABLE … DROP FEATURE), or run "
                "`dblog reset` for the table",
            ) from error
        except (NotHashable, pa.ArrowException) as error:
            raise LakeError(
                f"the table cannot be compared: {error}", where=where, fix="this is a defect: report it"
            ) from error

    def _table(self, task: Task) -> ComparedTable:
        schema = task.shape
        # The source's types too: they tell which texts are JSON.
        name = f"{schema.table} {schema.fingerprint} {[column.source_type for column in schema.columns]}"
        with self._lock:
            table = self._tables.pop(name, None)
        if table is None:
            rows = sum(map(self._desk.count, task.files))
            version = None if task.pin is None else task.pin.version
            place = table_location(self._lake, schema.table)
            table = ComparedTable(self._staging, place, schema, rows=rows, version=version, check=self._check)
        with self._lock:
            table = self._tables.setdefault(name, table)  # `prepare` may have made one meanwhile
            # What was not used for longest goes first; a task that uses it still has it.
            while len(self._tables) > MOST_TABLES:
                del self._tables[next(iter(self._tables))]
            return table

    def close(self) -> None:
        """Ends all reading and hashing: it raises Interrupted."""
        self._is_closed = True

    def _check(self) -> None:
        if self._stop.is_set() or self._is_closed:
            raise Interrupted

    def _compare(self, task: Task, table: ComparedTable) -> Answer:
        """Every key of either side, those within the ranges, or the asked ones."""
        table.read_on(task)
        rows = ((batch, batch[HASH]) for batch in self._desk.tables(task.files))
        source = table.sort_source(rows, HASH)
        answer = Answer()
        unequal = UnequalKeys(task.shape, self._most)
        for sides in table.parts(task, source, HASH, pa.int64()):
            self._check()
            part, odd, kinds = _compare_part(task, sides)
            answer = replace(
                answer,
                rows=answer.rows + part.rows,
                lake_rows=answer.lake_rows + part.lake_rows,
                staged=answer.staged + part.staged,
            )
            unequal.add(sides.keys_of(odd), kinds)
        if task.for_chosen_keys:
            merged = 0 if task.pin is None else task.pin.offset
            answer = replace(answer, staged=table.staged.count(merged, task.upto))
        return unequal.name_keys(answer)

    def _columns(self, task: Task, table: ComparedTable) -> Answer:
        """The columns in which rows differ, for those of the asked keys that both sides have and that do not change."""
        table.read_on(task)
        rows = pa.concat_tables(list(self._desk.tables(task.files))).cast(task.shape.arrow).combine_chunks()
        source = table.sort_source([(rows, pa.array(np.arange(len(rows))))], ROW)
        pairs: list[tuple[Any, tuple[str, ...]]] = []
        for sides in table.parts(task, source, ROW, pa.int64()):
            self._check()
            pairs += _columns_of_part(task, sides, rows)
        return Answer(rows=len(pairs), different=tuple(pairs))


def _try_again(table: ComparedTable, work: Callable[[ComparedTable], Answer]) -> Answer:
    """The work, again where segments were joined with others meanwhile: their rows are found in their new place."""
    for _ in range(_TRIES - 1):
        try:
            return work(table)
        except SegmentReplaced:
            table.staged.start_again()
    return work(table)


def _compare_part(task: Task, sides: Sides) -> tuple[Answer, Numbers, Kinds]:
    """Counts, and the keys that are not equal, with what they are."""
    source = SourceState.of(sides)
    seen = source.is_requested if task.for_chosen_keys else np.ones(sides.count, np.bool_)
    now = sides.state_at(task.upto, seen)
    exists = now.copies > 0
    alike = (source.exists == exists) & (~exists | ((now.hashes == source.hashes) & (now.copies == 1)))
    odd = np.flatnonzero(seen & ~alike)
    answer = Answer(rows=int(source.exists.sum()), lake_rows=int(now.copies[seen].sum()), staged=sides.staged_rows)
    kinds = np.select(
        [now.copies[odd] > 1, ~source.exists[odd], ~exists[odd]], ["twice", "extra", "missing"], "different"
    )
    return answer, *_judge_changed(sides, source, odd, kinds)


def _columns_of_part(task: Task, sides: Sides, rows: pa.Table) -> Iterator[tuple[Any, tuple[str, ...]]]:
    in_source = np.zeros(sides.count, np.bool_)
    in_source[sides.source_keys] = True
    now = sides.state_at(task.upto, in_source)
    changed = _changed_keys(sides)
    chosen = np.flatnonzero((now.copies[sides.source_keys] > 0) & ~changed[sides.source_keys])
    yield from _differing_columns(sides, now, chosen, rows)


def _differing_columns(
    sides: Sides, now: State, chosen: Numbers, rows: pa.Table
) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Of chosen keys of the source the columns that differ: of as many at once as have room."""
    task = sides.task
    numbers = sides.source_keys[chosen]
    try:
        lake_rows = sides.images(now, task.upto, numbers, most=IMAGE_BYTES if len(chosen) > 1 else 1 << 62)
    except ValuesTooLarge:
        half = len(chosen) // 2
        yield from _differing_columns(sides, now, chosen[:half], rows)
        yield from _differing_columns(sides, now, chosen[half:], rows)
        return
    source_rows = rows.take(sides.source[ROW].take(pa.array(chosen))).combine_chunks()
    differ: dict[str, Flags] = {}
    for column in task.shape.columns:
        source = join_chunks(source_rows[column.name])
        lake = join_chunks(lake_rows[column.name])
        differ[column.name] = ~same_values(source, lake)
        if pa.types.is_string(column.type):
            # A text whose VARIANT alone is another is named by that.
            marked = pc.binary_join_element_wise(pc.fill_null(source, ""), OTHER, "")
            is_variant = np.asarray(pc.fill_null(pc.equal(lake, marked), False))
            differ[variant_name(column.name)] = is_variant
            differ[column.name] &= ~is_variant
    keys = keys_of(one_batch(source_rows.select(list(task.shape.key))), task.shape)
    for row, key in enumerate(keys):
        yield key_to_json(key), tuple(name for name, mask in differ.items() if mask[row])


def _sum_ranges(task: Task, table: ComparedTable) -> Answer:
    """Rows and hashes of the pinned version alone, between the bounds and beyond them."""
    table.open_lake(task)
    counts = [0] * (len(task.bounds) + 1)
    sums = [0] * (len(task.bounds) + 1)
    for lake in table.lake_parts(task):
        places = np.zeros(len(lake), np.int64)
        for bound in task.bounds:
            places += ~is_upto(lake.keys, task.shape, bound)
        for place in np.unique(places).tolist():
            hashes = lake.hashes[places == place]
            counts[place] += len(hashes)
            sums[place] += sum_exactly(hashes)
    return Answer(sums=tuple(Sum(count, total) for count, total in zip(counts, sums, strict=True)))


def _draw_keys(task: Task, table: ComparedTable) -> Answer:
    """At most `rows` keys of the pinned version, drawn at random; `lake_rows`: of how many."""
    table.open_lake(task)
    count = table.lake.count if task.pin is not None else 0
    drawn = np.sort(np.random.default_rng(task.seed).choice(count, min(task.rows, count), replace=False))
    keys: list[Any] = []
    first = 0
    for lake in table.lake_parts(task):
        chosen = drawn[(drawn >= first) & (drawn < first + len(lake))] - first
        keys += map(key_to_json, keys_of(one_batch(lake.keys.take(pa.array(chosen))), task.shape))
        first += len(lake)
    return Answer(lake_rows=count, keys=tuple(keys))


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
