"""The verdicts of comparisons: which keys are equal, missing, extra, different, or undecided.

A source's hash counts for every place of the log from `since` to `upto`, unless its key has changed in between. Such a
key is equal if its hash is that of any state which the log has led it through there; otherwise it is undecided: it was
read between two watermarks, and another reading, in a shorter window, will tell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.features import TableRefused
from dblog_core.delta_writer.order_guard import Flags, equal_values
from dblog_core.errors import LakeError, SegmentReplaced
from dblog_core.lake.json_variants import variant_name
from dblog_core.lake.lake_status import table_location
from dblog_core.model.schema import TableSchema
from dblog_core.rows.arrow_hashes import NotHashable, sum_exactly
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.rows.disk_spool import SpooledRows
from dblog_core.rows.row_hashes import HASH
from dblog_core.staging import Staging
from dblog_core.storage.location import Location
from dblog_core.verify.judge.compared_table import SOURCE_VALUE, ComparedTable
from dblog_core.verify.judge.comparison import Comparison, Sum, UnequalKeys, Verdict, json_keys
from dblog_core.verify.judge.hashed_rows import Numbers, read_in_pieces
from dblog_core.verify.judge.history_comparison import compare_history
from dblog_core.verify.judge.lake_columns import OTHER
from dblog_core.verify.judge.sides import Sides, is_upto
from dblog_core.verify.pinned_version import Pin
from dblog_core.verify.report import HistoryReport
from dblog_core.verify.window_positions import Interrupted

MAX_TABLES = 6
"""Tables that are kept, hashed, for later comparisons."""

# More would only wait: the source is read for one table at a time.
TABLES_TOGETHER = 2
"""Tables that are compared at the same time: while the source is read for one of them, the other is compared."""

_ATTEMPTS = 3

Result = TypeVar("Result")


class Judge:
    """Compares tables of one lake with their sources, some at the same time; read-only. A context."""

    def __init__(self, staging: Staging, lake: Location, *, stop: threading.Event | None = None) -> None:
        """Once `stop` is set, Interrupted is raised."""
        self._staging = staging
        self._lake = lake
        self._stop = stop or threading.Event()
        self._tables: dict[TableSchema, ComparedTable] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._reading_ahead = ThreadPoolExecutor(TABLES_TOGETHER, thread_name_prefix="lake")

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True  # nothing waits for a table that is read ahead: its reading raises Interrupted
        self._reading_ahead.shutdown(cancel_futures=True)

    def begin_reading(self, schema: TableSchema, pin: Pin) -> None:
        """Begins to read and hash lake and log for a comparison that follows, and waits for nothing: a fault of that is
        met again, and raised, by the comparison."""
        self._reading_ahead.submit(self.read_ahead, schema, pin)

    def read_ahead(self, schema: TableSchema, pin: Pin) -> None:
        """Reads and hashes lake and log for a comparison that follows. Raises as `compare` does."""
        self._ask_table(schema, pin, lambda table: table.read_ahead(pin))

    def compare(self, comparison: Comparison) -> Verdict:
        """Every key of either side, those within the ranges, or the chosen ones.

        Raises LakeError for a table that cannot be compared, Interrupted, or what staging and lake raise.
        """
        return self._ask_table(
            comparison.schema, comparison.pin, lambda table: _compare(comparison, table), comparison.rows
        )

    def find_differing_columns(self, comparison: Comparison) -> list[tuple[Any, tuple[str, ...]]]:
        """The keys (JSON) of the read rows that the lake has too, without those that change meanwhile, with the columns
        in which they differ. `comparison.rows`: rows as they are staged, of chosen keys. Raises as `compare` does."""

        def find(table: ComparedTable) -> list[tuple[Any, tuple[str, ...]]]:
            table.read_on(comparison)
            spooled = pa.concat_tables([spooled.read() for spooled in comparison.rows])
            rows = spooled.cast(comparison.schema.arrow).combine_chunks()
            source = table.sort_source([(rows, pa.array(np.arange(len(rows))))])
            return [pair for sides in table.parts(comparison, source) for pair in _columns_of_part(sides, rows)]

        return self._ask_table(comparison.schema, comparison.pin, find, comparison.rows)

    def sum_hashes(self, schema: TableSchema, pin: Pin, bounds: tuple[Any, ...]) -> tuple[Sum, ...]:
        """Rows and hashes of the pinned version only, between the bounds (JSON keys) and beyond them. Raises as
        `compare` does."""
        return self._ask_table(schema, pin, lambda table: _sum_ranges(table, schema, pin, bounds))

    def draw_keys(self, schema: TableSchema, pin: Pin, count: int, seed: int) -> tuple[list[Any], int]:
        """At most `count` keys (JSON) of the pinned version, drawn at random; and of how many. Raises as `compare`
        does."""
        return self._ask_table(schema, pin, lambda table: _draw_keys(table, pin, count, seed))

    def compare_history(self, schema: TableSchema) -> HistoryReport:
        """The last line of each key of the table's history with the table. Raises LakeError for data that cannot be
        read."""
        return compare_history(self._lake, schema, self._check)

    def _ask_table(
        self,
        schema: TableSchema,
        pin: Pin | None,
        ask: Callable[[ComparedTable], Result],
        rows: Sequence[SpooledRows] = (),
    ) -> Result:
        """Asks a table; again where segments were joined with others meanwhile: their rows are found in their new
        place."""
        location = table_location(self._lake, schema.table)
        try:
            table = self._table(schema, pin, location, sum(map(len, rows)))
            with table.in_use():
                for _ in range(_ATTEMPTS - 1):
                    try:
                        return ask(table)
                    except SegmentReplaced:
                        table.staged.start_again()
                return ask(table)
        except TableRefused as error:
            raise LakeError(
                f"the table cannot be compared: {error.feature}",
                where=error.where,
                fix="take that out of the table (such as by ALTER TABLE … DROP FEATURE), or run "
                "`dblog reset` for the table",
            ) from error
        except (NotHashable, pa.ArrowException) as error:
            raise LakeError(
                f"the table cannot be compared: {error}", where=str(location), fix="this is a defect: report it"
            ) from error

    def _table(self, schema: TableSchema, pin: Pin | None, location: Location, source_rows: int) -> ComparedTable:
        with self._lock:
            table = self._tables.pop(schema, None)
        if table is None:
            table = ComparedTable(self._staging, location, schema, rows=source_rows, pin=pin, check=self._check)
        with self._lock:
            table = self._tables.setdefault(schema, table)  # reading ahead may have made one meanwhile
            # The table that was not used for longest goes first; a comparison that uses it still has it.
            while len(self._tables) > MAX_TABLES:
                del self._tables[next(iter(self._tables))]
            return table

    def _check(self) -> None:
        if self._stop.is_set() or self._is_closed:
            raise Interrupted


def _compare(comparison: Comparison, table: ComparedTable) -> Verdict:
    table.read_on(comparison)
    source = table.sort_source((rows, rows[HASH]) for rows in (spooled.read() for spooled in comparison.rows))
    unequal = UnequalKeys(comparison.schema)
    rows = lake_rows = 0
    for sides in table.parts(comparison, source):
        of_source, of_lake = _compare_part(sides, unequal)
        rows += of_source
        lake_rows += of_lake
    staged = table.staged.count(comparison.merged_offset, comparison.upto)
    keys = {kind: tuple(key for key, _ in pairs) for kind, pairs in unequal.by_kind().items()}
    return Verdict(rows, lake_rows, staged, **keys, more=unequal.more)


@dataclass(frozen=True, slots=True)
class _SourceState:
    """By the number of a key what the source has said: whether it `is_requested`, whether it has it, and its hash."""

    is_requested: Flags
    exists: Flags
    hashes: Numbers

    @classmethod
    def of(cls, sides: Sides) -> _SourceState:
        hashes = join_chunks(sides.source.rows[SOURCE_VALUE])
        has_hash = np.asarray(hashes.is_valid())
        is_requested = np.zeros(sides.count, np.bool_)
        is_requested[sides.source_keys] = True
        exists = np.zeros(sides.count, np.bool_)
        exists[sides.source_keys[has_hash]] = True
        by_number = np.zeros(sides.count, np.int64)
        by_number[sides.source_keys[has_hash]] = np.asarray(hashes.drop_null())
        return cls(is_requested, exists, by_number)


def _compare_part(sides: Sides, unequal: UnequalKeys) -> tuple[int, int]:
    """Adds the keys that are not equal; how many rows of the source and of the lake were compared."""
    comparison = sides.comparison
    source = _SourceState.of(sides)
    seen = source.is_requested if comparison.for_chosen_keys else np.ones(sides.count, np.bool_)
    now = sides.state_at(comparison.upto, seen)
    alike = (source.exists == now.exists) & (~now.exists | ((now.hashes == source.hashes) & (now.copies == 1)))
    odd = np.flatnonzero(seen & ~alike)
    kinds: npt.NDArray[np.str_] = np.select(
        [now.copies[odd] > 1, ~source.exists[odd], ~now.exists[odd]], ["twice", "extra", "missing"], "different"
    )
    if comparison.follows_log:
        changed = _changed_keys(sides)
        kinds = np.where(changed[odd], "undecided", kinds)
        counts = ~(changed & _equal_meanwhile(sides, source, odd[changed[odd]]))[odd]
        odd = odd[counts]
        kinds = kinds[counts]
    unequal.add(sides.keys_of(odd), kinds)
    return int(source.exists.sum()), int(now.copies[seen].sum())


def _changed_keys(sides: Sides) -> Flags:
    """The keys with an event that the source's SELECTs may not have seen."""
    since = sides.comparison.since
    changed = np.full(sides.count, sides.has_truncate_after(since))
    changed[sides.event_keys[(sides.events.offsets > since) & sides.events.array("logged")]] = True
    return changed


def _equal_meanwhile(sides: Sides, source: _SourceState, changed: Numbers) -> Flags:
    """The keys of which the source has said what some event has made of them, or what they were before all events.
    `changed`: the keys for which that is asked."""
    comparison = sides.comparison
    events = sides.events
    equal = np.zeros(sides.count, np.bool_)
    late = np.flatnonzero((events.offsets > comparison.since) & events.array("logged") & events.array("whole"))
    keys = sides.event_keys[late]
    same = (source.exists[keys] == events.array("lives")[late]) & (
        ~source.exists[keys] | (source.hashes[keys] == events.hashes[late])
    )
    equal[keys[same]] = True
    # A TRUNCATE is a change of every key, after which it has no row.
    if sides.has_truncate_after(comparison.since):
        equal |= ~source.exists
    if comparison.merged_offset <= comparison.since and len(changed):
        relevant = np.zeros(sides.count, np.bool_)
        relevant[changed] = True
        then = sides.state_at(comparison.since, relevant)
        equal |= (source.exists == then.exists) & (~then.exists | (then.hashes == source.hashes)) & relevant
    return equal


def _columns_of_part(sides: Sides, rows: pa.Table) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Of keys of the source that do not change meanwhile the columns in which they differ from the lake."""
    comparison = sides.comparison
    in_source = np.zeros(sides.count, np.bool_)
    in_source[sides.source_keys] = True
    now = sides.state_at(comparison.upto, in_source)
    chosen = np.flatnonzero(now.exists[sides.source_keys] & ~_changed_keys(sides)[sides.source_keys])

    def read_lake(piece: Numbers, max_bytes: int) -> pa.Table:
        return sides.images(comparison.upto, sides.source_keys[piece], max_bytes=max_bytes)

    for piece, lake_rows in read_in_pieces(chosen, read_lake):
        source_rows = rows.take(sides.source.rows[SOURCE_VALUE].take(pa.array(piece))).combine_chunks()
        differ: dict[str, Flags] = {}
        for column in comparison.schema.columns:
            source = source_rows[column.name]
            lake = lake_rows[column.name]
            differ[column.name] = ~equal_values(source, lake)
            if pa.types.is_string(column.type):
                # A text of which only the VARIANT is another is named by that.
                marked = pc.binary_join_element_wise(pc.fill_null(source, ""), OTHER, "")
                is_variant = np.asarray(pc.fill_null(pc.equal(lake, marked), False))
                differ[variant_name(column.name)] = is_variant
                differ[column.name] &= ~is_variant
        for row, key in enumerate(json_keys(source_rows.select(list(comparison.schema.key)))):
            yield key, tuple(name for name, mask in differ.items() if mask[row])


def _sum_ranges(table: ComparedTable, schema: TableSchema, pin: Pin, bounds: tuple[Any, ...]) -> tuple[Sum, ...]:
    table.open_lake(pin)
    counts = [0] * (len(bounds) + 1)
    sums = [0] * (len(bounds) + 1)
    for lake in table.lake.parts():
        ranges = np.zeros(len(lake), np.int64)
        for bound in bounds:
            ranges += ~is_upto(lake.keys, schema, bound)
        for number in np.unique(ranges).tolist():
            hashes = lake.hashes[ranges == number]
            counts[number] += len(hashes)
            sums[number] += sum_exactly(hashes)
    return tuple(Sum(count, total) for count, total in zip(counts, sums, strict=True))


def _draw_keys(table: ComparedTable, pin: Pin, count: int, seed: int) -> tuple[list[Any], int]:
    table.open_lake(pin)
    rows = table.lake.count
    drawn = np.sort(np.random.default_rng(seed).choice(rows, min(count, rows), replace=False))
    keys: list[Any] = []
    first = 0
    for lake in table.lake.parts():
        chosen = drawn[(drawn >= first) & (drawn < first + len(lake))] - first
        keys += json_keys(lake.keys.take(pa.array(chosen)))
        first += len(lake)
    return keys, rows
