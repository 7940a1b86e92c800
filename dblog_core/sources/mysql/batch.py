"""Collects row events of many transactions into one LogBatch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog_core.errors import ValueOutOfRange
from dblog_core.events import (
    CREATE,
    DELETE,
    UPDATE,
    LogBatch,
    Signal,
    TableChanges,
    Transaction,
    changes_schema,
    image_type,
)
from dblog_core.sources.mysql.decode import ColumnFault, Images
from dblog_core.sources.mysql.tablemap import TableVersion

ROWS = 10_000
BYTES = 4 << 20
"""A batch ends after the event that brings it to one of these."""


@dataclass(slots=True)
class _Table:
    """Rows of one table version: images by column, and the runs of equal op and transaction in log order."""

    version: TableVersion
    before: Images
    after: Images
    runs: list[tuple[str, int, int, int]] = field(default_factory=list)


class BatchBuilder:
    """A LogBatch in the making. Sequence numbers count rows and signals from 0."""

    def __init__(self, zero_dates: str) -> None:
        self._zero_dates = zero_dates
        self._tables: dict[int, _Table] = {}
        self._signals: list[Signal] = []
        self._transactions: list[Transaction] = []
        self._sequence = 0
        self._bytes = 0
        self.rows = 0

    @property
    def empty(self) -> bool:
        return not self._sequence

    @property
    def full(self) -> bool:
        return self._sequence >= ROWS or self._bytes >= BYTES

    def transaction(self, transaction: Transaction) -> int:
        """The index of the transaction in this batch; the current one is always the last."""
        if not self._transactions or self._transactions[-1] is not transaction:
            self._transactions.append(transaction)
        return len(self._transactions) - 1

    def signal(self, signal: Signal) -> None:
        """Adds a signal that was made with `next_sequence`."""
        self._signals.append(signal)
        self._sequence += 1

    @property
    def next_sequence(self) -> int:
        return self._sequence

    def rows_event(
        self, version: TableVersion, op: str, transaction: Transaction, event: bytes, at: int, skip: int
    ) -> int:
        """Decodes the row changes of an event from `at` on, the first `skip` of them dropped; returns their number."""
        table = self._tables.get(id(version))
        if table is None:
            table = self._tables[id(version)] = _Table(version, Images(version.columns), Images(version.columns))
        dropped, end = 0, len(event)
        if skip:
            scratch = Images(version.columns)
            while dropped < skip and at < end:
                at = scratch.read(event, at)
                at = scratch.read(event, at) if op == UPDATE else at
                dropped += 1
        count = _read_all(table, op, event, at)
        self._bytes += end - at
        self.rows += count
        if count:
            table.runs.append((op, count, self._sequence, self.transaction(transaction)))
            self._sequence += count
        return dropped + count

    def build(self, position: str, partial: int) -> LogBatch:
        """The batch. Raises ValueOutOfRange."""
        changes = tuple(TableChanges(t.version.schema, self._changes(t)) for t in self._tables.values() if t.runs)
        return LogBatch(changes, tuple(self._signals), tuple(self._transactions), position, partial)

    def _changes(self, table: _Table) -> pa.RecordBatch:
        schema = table.version.schema
        ops, counts, sequences, transactions = zip(*table.runs, strict=True)
        lengths = np.array(counts, dtype=np.int64)
        total = int(lengths.sum())
        starts = np.cumsum(lengths) - lengths
        sequence = np.repeat(np.array(sequences, dtype=np.int64) - starts, lengths) + np.arange(total)
        op = np.repeat(np.array(ops, dtype=object), lengths)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(sequence),
                pa.array(np.repeat(np.array(transactions, dtype=np.int32), lengths)),
                pa.array(op, pa.string()),
                pa.repeat(False, total),
                pa.nulls(total, pa.list_(pa.string())),
                self._images(table, table.before, op != CREATE),
                self._images(table, table.after, op != DELETE),
            ],
            schema=changes_schema(schema),
        )

    def _images(self, table: _Table, images: Images, present: npt.NDArray[np.bool_]) -> pa.Array:
        kind = image_type(table.version.schema)
        if not images.rows:
            return pa.nulls(len(present), kind)
        try:
            arrays = images.finish(self._zero_dates)
        except ColumnFault as fault:
            raise self._out_of_range(table, present, fault) from fault
        dense = pa.StructArray.from_arrays(arrays, fields=list(kind))
        if present.all():
            return dense
        return dense.take(pa.array(np.cumsum(present) - 1, mask=~present))

    def _out_of_range(self, table: _Table, present: npt.NDArray[np.bool_], fault: ColumnFault) -> ValueOutOfRange:
        row = int(np.flatnonzero(present)[fault.fault.row])
        starts = np.cumsum([count for _, count, _, _ in table.runs])
        transaction = self._transactions[table.runs[int(np.searchsorted(starts, row, side="right"))][3]]
        column = table.version.schema.columns[fault.column].name
        return ValueOutOfRange(
            f"column {column}: a value {fault.fault.why}",
            where=f"{table.version.schema.table} at {transaction.position} (transaction {transaction.id})",
            fix=fault.fault.fix,
        )


def _read_all(table: _Table, op: str, event: bytes, at: int) -> int:
    """Reads row changes up to the end of the event. Raises IndexError or ValueError where they do not end with it."""
    end, count = len(event), 0
    if op == UPDATE:
        before, after = table.before.read, table.after.read
        while at < end:
            at = after(event, before(event, at))
            count += 1
    else:
        read = table.before.read if op == DELETE else table.after.read
        while at < end:
            at = read(event, at)
            count += 1
    if at != end:
        raise ValueError("the rows do not end where their event ends")
    return count
