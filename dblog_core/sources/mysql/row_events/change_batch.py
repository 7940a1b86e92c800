"""Collects row events of many transactions into one LogBatch.

An event is only copied when it comes; what its rows are is found when the batch is built, all events of a table version
in one go. So nobody knows meanwhile how many there are: numbers that order rows are given out by bytes, of which every
row has one at least.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.model.events import (
    THEN_DUMPED,
    LogBatch,
    Signal,
    TableChanges,
    Transaction,
    Unreadable,
    changes_schema,
)
from dblog_core.rows import arrow_buffers, row_faults
from dblog_core.sources.mysql.row_events import short_tables
from dblog_core.sources.mysql.row_events.row_decoder import Buffer, ColumnFault, EventFault, RowEvents
from dblog_core.sources.mysql.row_events.table_map import TableVersion

ROWS = 40_000
BYTES = 4 << 20
EVENTS = 40_000
"""A batch ends after the event that brings it to one of these, or to a multiple of it where it is of many tables."""
_TABLES = 50
_MOST_TIMES = 8
"""What a table costs in a batch beside its rows is as much as a hundred of them: for each so many tables a batch may be
once larger, up to so many times."""
_LOOK = 256 << 10
"""Bytes of a table after which its rows are counted, so that a batch of short rows ends too."""

_CODES = {"c": 0, "u": 1, "d": 2}
_KEY_ONLY = 4
"""Beside the code of the op: images before the change hold the key alone."""
_OPS = pa.array(_CODES, pa.string())
_FALSE = pa.scalar(False)
_NO_NAMES = pa.scalar(None, pa.list_(pa.string()))


@dataclass(slots=True)
class _Table:
    """Events of one table version; `runs`: code, sequence and transaction of each."""

    version: TableVersion
    events: RowEvents
    runs: array[int] = field(default_factory=lambda: array("q"))


class BatchBuilder:
    """A LogBatch in the making. Sequence numbers grow along the log, from 0 and with gaps."""

    def __init__(self, zero_dates: str) -> None:
        self._zero_dates = zero_dates
        self._tables: dict[TableVersion, _Table] = {}
        self._changes: list[TableChanges] | None = None
        self._unreadable: list[Unreadable] = []
        self._signals: list[Signal] = []
        self._transactions: list[Transaction] = []
        self._sequence = self._bytes = self._events = self._counted = 0
        self._body: Buffer = b""
        self._view = memoryview(b"")

    @property
    def empty(self) -> bool:
        """Whether the batch has neither rows nor signals."""
        return not self._sequence

    @property
    def full(self) -> bool:
        """Whether the batch has reached one of its bounds."""
        times = min(1 + len(self._tables) // _TABLES, _MOST_TIMES)
        return self._bytes >= times * BYTES or self._events >= times * EVENTS or self._counted >= times * ROWS

    def transaction(self, transaction: Transaction) -> int:
        """The index of the transaction in this batch; the current one is always the last."""
        if not self._transactions or self._transactions[-1] is not transaction:
            self._transactions.append(transaction)
        return len(self._transactions) - 1

    def signal(self, signal: Signal) -> None:
        """Adds a signal that was made with `next_sequence`."""
        self._signals.append(signal)
        self._sequence += 1
        self._events += 1

    @property
    def next_sequence(self) -> int:
        """The sequence number for a signal that is added now."""
        return self._sequence

    def rows_event(
        self,
        version: TableVersion,
        op: str,
        transaction: Transaction,
        body: Buffer,
        at: int,
        skip: int,
        end: int | None = None,
        *,
        key_only: bool = False,
    ) -> int:
        """Takes the row changes of an event from `at` to `end` without the first `skip`; returns how many it left out.
        `key_only`: images before the change hold the key alone.

        The bytes are copied. Raises EventFault where rows are left out and do not end with their event.
        """
        # Events of one stretch lie in one buffer, of which a new view would cost more than a small event's rows.
        if body is not self._body:
            self._body = body
            self._view = memoryview(body)
        rows = self._view[at:end]
        dropped = 0
        if skip:
            dropped, begin = _skip_rows(version, op, rows, skip)
            rows = rows[begin:]
        size = len(rows)
        if not size:
            return dropped
        table = self._tables.get(version)
        if table is None:
            table = self._tables[version] = _Table(version, RowEvents(version))
        table.runs.extend((_CODES[op] | (_KEY_ONLY if key_only else 0), self._sequence, self.transaction(transaction)))
        # A row has at least a byte, so that each gets a number of its own, though none is counted yet.
        self._sequence += size
        self._bytes += size
        self._events += 1
        # Counting rows costs a pass over the bytes: not after every event.
        if table.events.add(op, rows) >= _LOOK:
            self._count(table)
        return dropped

    def count_rows_of(self, transaction: Transaction) -> int:
        """Row changes of the transaction that this batch holds, if it is the last one."""
        if not self._transactions or self._transactions[-1] is not transaction:
            return 0
        last = len(self._transactions) - 1
        rows = 0
        for table in self._tables.values():
            self._count(table)
            rows += int(table.events.counts[_runs(table)[:, 2] == last].sum())
        return rows

    def decode(self) -> None:
        """Makes columns of all rows up to the first of a table that cannot be read."""
        if self._changes is None:
            tables = list(self._tables.values())
            for table in tables:
                self._count(table)
            together = short_tables.decode_together([table.events for table in tables], self._zero_dates)
            self._changes = []
            for number, table in enumerate(tables):
                images = together.get(number)
                rows = self._readable(table) if images is None else _changes(table, table.events.rows, *images)
                self._changes.append(TableChanges(table.version.schema, rows))

    def build(self, position: str, partial: int) -> LogBatch:
        """The batch."""
        self.decode()
        assert self._changes is not None
        # A value that nobody can read is found when columns are made, after later signals: its signal belongs where its
        # row stands.
        signals = sorted([*self._signals, *self._unreadable], key=lambda signal: signal.sequence)
        return LogBatch(tuple(self._changes), tuple(signals), tuple(self._transactions), position, partial)

    def _count(self, table: _Table) -> None:
        before = table.events.rows
        while True:
            try:
                table.events.count()
                break
            except EventFault as fault:
                # It counts for no row, here and when it is read again: how many of a transaction's rows are staged is
                # told by number.
                table.events.void(fault.event)
                self._tell(table, fault.event, int(table.runs[3 * fault.event + 1]), fault)
        self._counted += table.events.rows - before

    def _tell(self, table: _Table, event: int, sequence: int, error: Exception) -> None:
        """From this row on nothing of the table can be read."""
        name = table.version.schema.table
        fault = row_faults.explain(error, name)
        why = f"{self._where(table, event)}: {fault.message}"
        transaction = int(table.runs[3 * event + 2])
        self._unreadable.append(Unreadable(sequence, transaction, name, why, f"{fault.fix}; {THEN_DUMPED}"))

    def _readable(self, table: _Table) -> pa.RecordBatch:
        """The rows before the first one with a value that has no exact form. From that one on the table is unreadable:
        columns are decoded as wholes, so the fault that is met first may be that of a later row."""
        end = table.events.rows
        fault: ColumnFault | None = None
        other: Exception | None = None
        while True:
            try:
                before, after = self._images(table, end)
                break
            except ColumnFault as met:
                # Only rows before the fault are decoded again: another column may have one in an earlier row.
                end = met.fault.row
                fault, other = met, None
            except Exception as met:  # noqa: BLE001 - `row_faults` says which errors are of the rows
                row_faults.explain(met, table.version.schema.table)
                end = self._find_readable(table, end)
                fault, other = None, met
        if fault is not None:
            self._unreadable.append(self._unreadable_from(table, fault))
        elif other is not None:
            self._tell(table, *self._find_row(table, end), other)
        return _changes(table, end, before, after)

    def _images(self, table: _Table, end: int) -> tuple[pa.StructArray, pa.StructArray]:
        return table.events.before(self._zero_dates, end), table.events.after(self._zero_dates, end)

    def _find_readable(self, table: _Table, end: int) -> int:
        """How many of the first `end` rows can be decoded together; not all can."""
        low = 0
        while end - low > 1:
            middle = (low + end) // 2
            try:
                self._images(table, middle)
                low = middle
            except ColumnFault as met:
                end = max(min(met.fault.row, middle), low + 1)
            except Exception as met:  # noqa: BLE001 - as above
                row_faults.explain(met, table.version.schema.table)
                end = middle
        return low

    def _find_row(self, table: _Table, row: int) -> tuple[int, int]:
        """The event that a row is of, and the row's sequence number."""
        counts = table.events.counts
        event = int(np.searchsorted(np.cumsum(counts), row, side="right"))
        return event, int(_runs(table)[event, 1] + row - counts[:event].sum())

    def _unreadable_from(self, table: _Table, fault: ColumnFault) -> Unreadable:
        event, sequence = self._find_row(table, fault.fault.row)
        column = table.version.schema.columns[fault.column].name
        why = f"{self._where(table, event)}: column {column}: a value {fault.fault.why}"
        fix = f"{fault.fault.fix}; {THEN_DUMPED}"
        return Unreadable(sequence, int(table.runs[3 * event + 2]), table.version.schema.table, why, fix)

    def _where(self, table: _Table, event: int) -> str:
        transaction = self._transactions[table.runs[3 * event + 2]]
        return f"{table.version.schema.table} at {transaction.position} (transaction {transaction.id})"


def _changes(table: _Table, end: int, before: pa.StructArray, after: pa.StructArray) -> pa.RecordBatch:
    """The change batch of the table's first `end` rows, whose images these are."""
    runs = _runs(table)
    counts = table.events.counts
    total = table.events.rows
    # The rows of a run are numbered on from its first: a run has at least as many bytes as rows.
    if len(runs) == 1:  # as of each of many tables
        sequence = np.arange(runs[0, 1], runs[0, 1] + total)
        transaction = np.full(total, runs[0, 2], dtype=np.int32)
    else:
        starts = np.cumsum(counts) - counts
        sequence = np.repeat(runs[:, 1] - starts, counts) + np.arange(total)
        transaction = np.repeat(runs[:, 2].astype(np.int32), counts)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(sequence[:end]),
            pa.array(transaction[:end]),
            _ops(runs[:, 0] & ~_KEY_ONLY, counts, total).slice(0, end),
            _key_only(runs[:, 0], counts, end),
            arrow_buffers.repeat_value(_NO_NAMES, end),
            before,
            after,
        ],
        schema=_schema(table.version),
    )


@lru_cache(maxsize=4096)
def _schema(version: TableVersion) -> pa.Schema:
    return changes_schema(version.schema)


def _skip_rows(version: TableVersion, op: str, rows: memoryview, skip: int) -> tuple[int, int]:
    """How many of the event's rows are among the first `skip`, and where the others begin. Raises EventFault."""
    event_rows = RowEvents(version)
    event_rows.add(op, rows)
    event_rows.count()
    return (skip, event_rows.start(skip)) if skip < event_rows.rows else (event_rows.rows, len(rows))


def _runs(table: _Table) -> npt.NDArray[np.int64]:
    return np.array(table.runs, dtype=np.int64).reshape(-1, 3)


def _key_only(codes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], end: int) -> Any:
    has_key_only = codes & _KEY_ONLY != 0
    if not has_key_only.any():
        return arrow_buffers.repeat_value(_FALSE, end)
    return pa.array(np.repeat(has_key_only, counts)[:end])


def _ops(codes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], total: int) -> Any:
    # A batch of one kind of change, as most are, needs no array of them.
    if (codes == codes[0]).all():
        return arrow_buffers.repeat_value(_OPS[int(codes[0])], total)
    return _OPS.take(pa.array(np.repeat(codes, counts)))
