"""The comparison of one table, from the pinned version of its lake copy to the keys that differ in the end."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from typing import Any

from dblog_core.config.settings import Config
from dblog_core.dumps import key_ranges
from dblog_core.dumps.dump_records import DumpOptions
from dblog_core.dumps.key_ranges import Range
from dblog_core.dumps.pace.locked_tables import LOCK_SECONDS
from dblog_core.errors import DblogError, LakeError, TableLocked, ValueOutOfRange
from dblog_core.interfaces import ChunkReader, Clock, Json, Source, StateStore
from dblog_core.lake import table_commits
from dblog_core.lake.lake_status import LakeStatus, history_location, read_status, table_location
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.table_names import quote_for_shell
from dblog_core.model.values import has_null
from dblog_core.rows.column_rules import Rules
from dblog_core.staging import Staging
from dblog_core.storage.location import Location
from dblog_core.verify import sample
from dblog_core.verify.certificate import UncertifiedTable, describe_table, find_bounds, join_readings
from dblog_core.verify.compared_columns import NotCompared, SourceColumns, list_not_compared, read_lake_columns
from dblog_core.verify.judge.comparison import Comparison, Verdict
from dblog_core.verify.judge.judge import Judge
from dblog_core.verify.pinned_version import Pin, columns_left_out, pin
from dblog_core.verify.report import HistoryReport, Sample, TableReport
from dblog_core.verify.sample import SampleSize
from dblog_core.verify.slices import Slices, to_json_ranges
from dblog_core.verify.source_reader import PlacedReading, Readers, Reading, place_readings
from dblog_core.verify.suspects import Kind, Suspects
from dblog_core.verify.unreadable_values import UnreadableValues, leave_out
from dblog_core.verify.window_positions import WindowPositions

ROUNDS = 8
"""Readings of the keys that no reading has decided yet, before they are reported as undecided."""

MAX_COLUMN_KEYS = 1_000
"""Keys whose differing columns are looked for: both sides' rows are read for that."""

_COLUMN_ROUNDS = 3
"""Readings of the rows for that, of keys that change meanwhile."""

_SCAN_ATTEMPTS = 3
"""Readings of a whole table that is altered meanwhile."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What every table is compared with. `slices`: None where whole tables are compared."""

    config: Config
    source: Source
    staging: Staging
    lake: Location
    state: StateStore
    slices: Slices | None
    readers: Readers
    positions: WindowPositions
    judge: Judge
    workers: int
    say: Callable[[str], None]
    clock: Clock
    stop: threading.Event

    def open_reader(self) -> AbstractContextManager[ChunkReader]:
        """Raises TableLocked at a table that another session keeps locked, after a moment."""
        return closing(self.source.open_reader(lock_seconds=LOCK_SECONDS))


class TableComparison:
    """Compares one table.

    Each comparison raises TableLocked where another session keeps the table locked. Other errors are in its report.
    """

    def __init__(self, tools: Tools, table: TableName, ranges: Sequence[Range] = ()) -> None:
        """`ranges`: those that a whole comparison is of; none: the table."""
        self._tools = tools
        self._table = table
        self._name = str(table)
        self._ranges = ranges
        self._rules = self._all_rules = Rules.of(tools.config.source)
        self._suspects = Suspects()
        self._unreadable = UnreadableValues()
        self._source_columns = SourceColumns()
        self._evidence: tuple[Comparison, Sequence[PlacedReading]] | None = None

    def compare_all_rows(self) -> TableReport:
        """Every row of either side, in the table or its ranges."""
        return self._measure(self._compare_all_rows)

    def compare_sample(self, size: SampleSize) -> TableReport:
        """Rows drawn at random on either side."""
        return self._measure(lambda: self._compare_sample(size))

    def compare_keys(self, keys: Sequence[Any]) -> TableReport:
        """Chosen keys (JSON) only."""
        return self._measure(lambda: self._compare_keys(keys))

    def certify(self, report: TableReport) -> Json | UncertifiedTable:
        """The table's part of a certificate, once all rows are compared."""
        if self._evidence is None:
            return UncertifiedTable(self._name, report.error or report.outcome)
        comparison, readings = self._evidence
        schema, pinned = comparison.schema, comparison.pin
        try:
            spans = join_readings(readings)
            bounds = find_bounds(spans, schema)
            sums = () if pinned is None else self._tools.judge.sum_hashes(schema, pinned, bounds)
        except DblogError as error:
            return UncertifiedTable(self._name, str(error))
        return describe_table(report, schema, spans, bounds, sums)

    def _measure(self, compare: Callable[[], TableReport]) -> TableReport:
        started_at = time.monotonic()
        try:
            report = compare()
        except TableLocked:
            raise
        except DblogError as error:
            report = TableReport(self._name, error=str(error))
        return replace(report, seconds=time.monotonic() - started_at)

    # All rows -------------------------------------------------------------------------------------------------------

    def _compare_all_rows(self) -> TableReport:
        schema, pinned, verdict = self._scan_table()
        self._suspects.record_verdict(verdict)
        if verdict.more:  # too many to be read by their keys: the whole is read a second time
            schema, pinned, second = self._scan_table()
            self._evidence = None  # for that, each key that differs has to be named
            self._suspects.record_verdict(second)
            self._suspects.decide_open_differences()
            return self._report(schema, pinned, replace(second, undecided=()))
        self._read_open_keys_again(schema)
        return self._with_history(schema, self._report(schema, pinned, verdict))

    def _with_history(self, schema: TableSchema, report: TableReport) -> TableReport:
        """With the last lines of the table's history compared, without keys in which the table itself differs."""
        location = history_location(self._tools.lake, self._table)
        if table_commits.version(location) is not None:
            history = self._tools.judge.compare_history(self._rules.schema(schema))
        elif (gap := explain_lost_history(read_status(self._tools.lake), self._name)) is not None:
            history = HistoryReport(gap=gap)
        else:
            return report
        history = history.without({repr(key) for key in (*report.differing_keys, *report.undecided)})
        fix = f"`dblog reset {quote_for_shell(self._name)}` dumps the table, and its history gets a line of each row"
        return replace(report, history=replace(history, fix=fix if history.is_wrong else None))

    def _scan_table(self) -> tuple[TableSchema, Pin | None, Verdict]:
        """Compares all rows once: the source's shape, the version of the lake, and the verdict."""
        for _ in range(_SCAN_ATTEMPTS):
            with self._tools.readers.turn:  # a version that is pinned before another table is read would be old
                pinned = self._pin()
                with self._tools.open_reader() as reader:
                    schema = self._schema(reader)
                    order = reader.key_order(schema)
                    parts = self._parts(reader, schema)
                if pinned is not None:
                    # The lake is read while the source is.
                    self._tools.judge.begin_reading(self._rules.shape_for_hashes(schema), pinned)
                scanned_ranges = self._tools.readers.read_table(schema, parts, self._row_reporter())
            readings = self._place_readings(schema, scanned_ranges)
            if self._is_unaltered(schema, order):
                comparison = self._comparison(schema, pinned, readings, within=to_json_ranges(self._ranges))
                verdict = self._tools.judge.compare(comparison)
                self._evidence = (comparison, readings)
                return schema, pinned, verdict
        raise DblogError(
            "the table was altered whenever it was read", where=self._name, fix="verify again when nobody alters it"
        )

    def _schema(self, reader: ChunkReader) -> TableSchema:
        """The source's shape, as far as it is compared."""
        schema = reader.schema(self._table)
        ignored: tuple[str, ...] = ()
        if self._tools.config.lake.schema_changes_of(self._table) == "ignore":
            ignored = columns_left_out(self._tools.lake, self._tools.staging, self._all_rules.schema(schema))
        self._source_columns = SourceColumns(
            names=reader.column_names(self._table),
            captured=tuple(column.name for column in schema.columns),
            excluded=self._tools.config.source.rules_of(self._table).exclude,
            ignored=ignored,
        )
        if not ignored:
            return schema
        self._rules = self._all_rules.without(self._table, ignored)
        return replace(schema, columns=tuple(c for c in schema.columns if c.name not in ignored))

    def _parts(self, reader: ChunkReader, schema: TableSchema) -> list[Range]:
        if self._ranges and to_json_ranges(self._ranges):
            return list(self._ranges)
        options = DumpOptions(chunk_size=self._tools.config.dump.chunk_size, workers=self._tools.workers)
        range_count = 1 if self._tools.workers == 1 else None
        return key_ranges.cut(reader, schema, (), Range(), options, number=range_count, sparing=True)

    def _row_reporter(self) -> Callable[[int], None]:
        total = 0

        def count(rows: int) -> None:
            nonlocal total
            total += rows
            self._tools.say(f"{self._name}: {total:,} rows hashed by the source")

        return count

    def _is_unaltered(self, schema: TableSchema, order: str) -> bool:
        with self._tools.open_reader() as reader:
            now = self._schema(reader)
            return now.fingerprint == schema.fingerprint and reader.key_order(now) == order

    # Chosen keys ----------------------------------------------------------------------------------------------------

    def _compare_keys(self, keys: Sequence[Any]) -> TableReport:
        with self._tools.open_reader() as reader:
            schema = self._schema(reader)
        pinned, verdict = self._read_again(schema, keys)
        self._suspects.record_verdict(verdict)
        self._read_open_keys_again(schema)
        return self._report(schema, pinned, verdict)

    def _read_open_keys_again(self, schema: TableSchema) -> None:
        """Reads open keys again until each is decided, or the rounds are used up."""
        for _ in range(ROUNDS):
            if not (keys := self._suspects.open_keys):
                return
            self._tools.say(f"{self._name}: {len(keys):,} keys are read again")
            _, verdict = self._read_again(schema, keys)
            self._suspects.record_verdict(verdict)

    def _read_again(self, schema: TableSchema, keys: Sequence[Any]) -> tuple[Pin | None, Verdict]:
        with self._tools.readers.turn:
            pinned = self._pin()
            hash_readings = self._tools.readers.read_hashes(schema, keys)
        readings = self._place_readings(schema, hash_readings)
        return pinned, self._tools.judge.compare(self._comparison(schema, pinned, readings, for_chosen_keys=True))

    def _differing_columns(self, schema: TableSchema) -> dict[str, tuple[str, ...]]:
        """The columns in which keys differ that differ for certain: of the first MAX_COLUMN_KEYS of them."""
        different_keys = self._suspects.keys_of_kind(Kind.DIFFERENT)[:MAX_COLUMN_KEYS]
        named: dict[str, tuple[str, ...]] = {}
        for _ in range(_COLUMN_ROUNDS):
            open_keys = [key for key in different_keys if repr(key) not in named]
            if not open_keys:
                break
            try:
                named.update(self._compare_columns(schema, open_keys))
            except ValueOutOfRange:
                with self._tools.readers.turn, self._tools.open_reader() as reader:
                    self._unreadable.find(reader, schema, open_keys, self._rules)
                named.update(self._compare_columns(schema, open_keys))
        return self._unreadable.add_columns(named, different_keys)

    def _compare_columns(self, schema: TableSchema, keys: Sequence[Any]) -> dict[str, tuple[str, ...]]:
        """Of rows of these keys the columns that differ, without those that cannot be read. Raises ValueOutOfRange."""
        groups: dict[tuple[str, ...], list[Any]] = {}
        for key in keys:
            groups.setdefault(self._unreadable.columns_of(key), []).append(key)
        named: dict[str, tuple[str, ...]] = {}
        for unreadable, keys_of_group in groups.items():
            readable = leave_out(schema, unreadable)
            rules = self._rules.without(self._table, unreadable)
            with self._tools.readers.turn:
                pinned = self._pin()
                row_readings = self._tools.readers.read_rows(readable, keys_of_group, rules)
            readings = self._place_readings(readable, row_readings)
            comparison = self._comparison(readable, pinned, readings, for_chosen_keys=True, rules=rules)
            columns_by_key = self._tools.judge.find_differing_columns(comparison)
            named.update({repr(key): columns for key, columns in columns_by_key})
        return named

    # A sample -------------------------------------------------------------------------------------------------------

    def _compare_sample(self, size: SampleSize) -> TableReport:
        with self._tools.open_reader() as reader:
            schema = self._schema(reader)
            source_keys = sample.draw_keys(reader, schema, size)
        pinned = self._pin()
        lake_keys: list[Any] = []
        lake_rows = 0
        if pinned is not None:
            shape = self._rules.shape_for_hashes(schema)
            lake_keys, lake_rows = self._tools.judge.draw_keys(
                shape, pinned, max(len(source_keys), 1), secrets.randbits(31)
            )
        drawn_keys = list({repr(key): key for key in (*source_keys, *lake_keys)}.values())  # each once
        report = self._compare_keys(drawn_keys)
        unequal = {repr(key) for key in (*report.differing_keys, *report.undecided)}
        each = 1 - (1 - size.confidence) / 2  # both statements together hold with the confidence that is asked for
        lake_is_empty = pinned is not None and not lake_rows
        drawn = Sample(
            source_rows=len(source_keys),
            lake_rows=len(lake_keys),
            confidence=size.confidence,
            source_at_most=sample.differing_share(source_keys, unequal, each),
            lake_at_most=0.0 if lake_is_empty else sample.differing_share(lake_keys, unequal, each),
        )
        return replace(report, sample=drawn)

    # The end --------------------------------------------------------------------------------------------------------

    def _report(self, schema: TableSchema, pinned: Pin | None, verdict: Verdict) -> TableReport:
        keys_of_kind = self._suspects.keys_of_kind
        columns = self._differing_columns(schema)
        twice = keys_of_kind(Kind.TWICE)
        return TableReport(
            self._name,
            rows=verdict.rows,
            lake_rows=verdict.lake_rows,
            missing=tuple(keys_of_kind(Kind.MISSING)),
            extra=(*keys_of_kind(Kind.EXTRA), *twice),
            different=tuple((key, columns.get(repr(key), ())) for key in keys_of_kind(Kind.DIFFERENT)),
            undecided=tuple(keys_of_kind(Kind.UNDECIDED)),
            twice=tuple(twice),
            more=verdict.more,
            not_compared=self._list_not_compared(schema, pinned),
            note=_explain(pinned, verdict, has_null_keys=any(map(has_null, keys_of_kind(Kind.EXTRA) + twice))),
            pin=pinned,
            staged=verdict.staged,
        )

    def _list_not_compared(self, schema: TableSchema, pinned: Pin | None) -> tuple[NotCompared, ...]:
        hashed = self._rules.shape_for_hashes(schema)
        unknown: tuple[NotCompared, ...] = ()
        lake_columns: list[Json] = []
        if pinned is not None:
            try:
                lake_columns = read_lake_columns(table_location(self._tools.lake, self._table), pinned.version)
            except LakeError as error:
                unknown = (NotCompared("*", f"columns that only the lake has are not known: {error.reason}"),)
        listed = list_not_compared(hashed, self._source_columns, lake_columns)
        return (*listed, *self._unreadable.explain(), *unknown)

    def _pin(self) -> Pin | None:
        return pin(self._tools.lake, self._tools.staging, self._table)

    def _place_readings(self, schema: TableSchema, readings: Sequence[Reading]) -> list[PlacedReading]:
        return place_readings(self._tools.readers, self._tools.positions, schema, readings)

    def _comparison(
        self,
        schema: TableSchema,
        pinned: Pin | None,
        readings: Sequence[PlacedReading],
        *,
        for_chosen_keys: bool = False,
        within: tuple[tuple[Any, Any], ...] = (),
        rules: Rules | None = None,
    ) -> Comparison:
        return Comparison(
            (rules or self._rules).shape_for_hashes(schema),
            pinned,
            tuple(placed.reading.rows for placed in readings),
            min(placed.since for placed in readings),
            max(placed.upto for placed in readings),
            for_chosen_keys,
            within,
        )


def _explain(pinned: Pin | None, verdict: Verdict, *, has_null_keys: bool) -> str | None:
    notes = []
    if has_null_keys:
        notes.append("another program has written rows with NULL in the key: `--repair` dumps the table to remove them")
    if pinned is None:
        notes.append("the lake has no copy of it yet: run `dblog merge`")
    elif pinned.stopped:
        notes.append(f"its merge has stopped at offset {pinned.offset}: `dblog status` says why")
    elif verdict.staged:
        notes.append(f"{verdict.staged:,} staged rows that are not merged yet count as if they were")
    return "; ".join(notes) or None


def explain_lost_history(status: LakeStatus | None, table: str) -> str | None:
    """Why a table that has no history should have one; None: no merge has left it one."""
    left = None if status is None else status.tables.get(table)
    if left is None or not left.told or left.told_version is None:
        return None
    return f"it is gone; a merge left version {left.told_version}"
