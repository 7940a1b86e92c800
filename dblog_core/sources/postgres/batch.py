"""Collects what a decoder reads into one LogBatch: sequence numbers, transactions, `partial` and `skip`."""

from __future__ import annotations

from typing import Protocol

from dblog_core.errors import UnknownLogEvent
from dblog_core.events import LogBatch, SchemaSeen, Signal, TableChanges, Transaction, Truncated, WatermarkSeen
from dblog_core.schema import TableName, TableSchema
from dblog_core.sources.postgres.catalogue import FRESH_START
from dblog_core.sources.postgres.position import Lsn


class PendingRows(Protocol):
    """Row changes of one table version that wait for the end of the batch."""

    def take(self) -> TableChanges | None:
        """The changes since the last call; None if there were none."""


class Assembly:
    """The batch in the making.

    `skip` row changes, at the head of the first transaction that has any, were delivered before a restart: they are
    counted and left out. A truncation counts as a row change, so that a restart knows on which side of it it stands.
    """

    def __init__(self, position: Lsn, *, skip: int = 0) -> None:
        self.position = position
        self.rows = 0
        self.transaction = -1  # index of the open transaction in this batch, -1 until something of it is
        self.open: Transaction | None = None
        self._skip = skip
        self._in_open = 0
        self._sequence = 0
        self._signals: list[Signal] = []
        self._transactions: list[Transaction] = []
        self._pending: list[PendingRows] = []
        self._replaced: list[PendingRows] = []

    @property
    def ready(self) -> bool:
        """Whether there is anything to hand on. Never while rows are still skipped: their count would go back."""
        return self._skip == 0 and (self.rows > 0 or bool(self._signals))

    def begin(self, transaction: Transaction) -> None:
        self.open = transaction
        self.transaction = -1
        self._in_open = 0

    def commit(self, end: Lsn) -> None:
        """The open transaction is whole; the log goes on at `end`."""
        if self._skip and self._in_open:
            raise UnknownLogEvent(
                f"the transaction holds fewer rows of the wanted tables than were staged of it ({self._in_open})",
                where=f"LSN {end}",
                fix=f"the tables of the configuration changed inside a transaction: {FRESH_START}",
            )
        self.open = None
        self.advance(end)

    def advance(self, position: Lsn) -> None:
        """Nothing for us lies before `position`. Inside a transaction, or before one to be resumed, we stay."""
        if self.open is None and self._skip == 0 and position > self.position:
            self.position = position

    def row(self) -> int:
        """The sequence number of the next row change, 0 if it is to be left out."""
        self._in_open += 1
        if self._skip:
            self._skip -= 1
            return 0
        self.rows += 1
        return self._next()

    def truncated(self, table: TableName) -> None:
        self._in_open += 1
        if self._skip:
            self._skip -= 1
            return
        sequence = self._next()
        self._signals.append(Truncated(sequence, self.transaction, table))

    def watermark(self, payload: str) -> None:
        sequence = self._next()
        self._signals.append(WatermarkSeen(sequence, self.transaction, payload))

    def schema(self, schema: TableSchema, pending: PendingRows, replaced: PendingRows | None) -> None:
        """From here on the table's rows gather in `pending`."""
        sequence = self._next()
        self._signals.append(SchemaSeen(sequence, self.transaction, schema))
        self._pending.append(pending)
        if replaced is not None:
            self._replaced.append(replaced)

    def take(self) -> LogBatch:
        """The batch so far; the next one begins."""
        batch = LogBatch(
            changes=tuple(changes for pending in self._pending if (changes := pending.take()) is not None),
            signals=tuple(self._signals),
            transactions=tuple(self._transactions),
            position=str(self.position),
            partial=self._in_open if self.open is not None else 0,
        )
        self._pending = [pending for pending in self._pending if pending not in self._replaced]
        self._replaced, self._signals, self._transactions = [], [], []
        self._sequence, self.rows, self.transaction = 0, 0, -1
        return batch

    def _next(self) -> int:
        if self.transaction < 0:
            assert self.open is not None  # the protocol sends every change inside a transaction
            self._transactions.append(self.open)
            self.transaction = len(self._transactions) - 1
        self._sequence += 1
        return self._sequence
