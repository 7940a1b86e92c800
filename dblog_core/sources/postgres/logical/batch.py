"""Collects what a decoder reads into one LogBatch: sequence numbers, transactions, `partial` and `skip`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dblog_core.errors import UnknownLogEvent
from dblog_core.model.events import (
    LogBatch,
    SchemaSeen,
    Signal,
    SignalSeen,
    TableChanges,
    Transaction,
    Truncated,
    Unreadable,
    WatermarkSeen,
)
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.schema_changes import Layout
from dblog_core.sources.postgres.position import Lsn, Point
from dblog_core.sources.postgres.sql import typed_names
from dblog_core.sources.postgres.sql.catalogue import FRESH_START

MAX_ROWS = 10_000
"""Row changes in one batch."""


def no_key_fix(table: TableName) -> str:
    """What makes the log identify old rows of a table by its key again."""
    return f"give {table} its key again, or ALTER TABLE {typed_names.table(table)} REPLICA IDENTITY FULL"


class Assembly:
    """The batch in the making.

    `skip` row changes, at the head of the first transaction that has any, were delivered before a restart: they are
    counted and left out. A truncation counts as a row change, so that a restart knows on which side of it it stands.
    `timeline`: the server's, once the log is open.
    """

    def __init__(self, position: Lsn, *, skip: int = 0) -> None:
        self.position = position
        self.timeline: int | None = None
        self.rows = 0
        self.sequence = 0  # the last one given
        self.transaction = -1  # index of the open transaction in this batch, -1 until something of it is
        self.in_open = 0  # row changes of the open transaction so far, delivered ones included
        self.open: Transaction | None = None
        self.transactions: list[Transaction] = []
        self.skip = skip
        self._owed = skip > 0  # whether the last batch, perhaps before a restart, ended inside a transaction
        self._signals: list[Signal] = []

    @property
    def ready(self) -> bool:
        """Whether there is anything to hand on: changes, or that the transaction of the last batch is whole now. Never
        while rows are still skipped: their count would go back."""
        # Without a row of its own: what staging holds of the transaction is whole now, and staging must learn that.
        ended = self._owed and self.open is None
        return self.skip == 0 and (self.rows > 0 or bool(self._signals) or ended)

    @property
    def full(self) -> bool:
        """Whether the batch has as many rows as it may."""
        return self.rows >= MAX_ROWS

    def begin(self, transaction: Transaction) -> None:
        """A transaction begins. Raises UnknownLogEvent inside another one."""
        if self.open is not None:
            raise UnknownLogEvent(
                "a transaction begins inside another one", where=f"LSN {self.open.position}", fix="report this"
            )
        self.open = transaction
        self.transaction = -1
        self.in_open = 0

    def commit(self, end: Lsn) -> None:
        """The open transaction is whole; the log continues at `end`."""
        if self.skip and self.in_open:
            raise UnknownLogEvent(
                f"the transaction holds fewer rows of the wanted tables than were staged of it ({self.in_open})",
                where=f"LSN {end}",
                fix=f"the tables of the configuration changed inside a transaction: {FRESH_START}",
            )
        self.open = None
        self.advance(end)

    def advance(self, position: Lsn) -> None:
        """Nothing for us lies before `position`. Inside a transaction, or before one to be resumed, we stay."""
        if self.open is None and self.skip == 0 and position > self.position:
            self.position = position

    def row(self) -> int:
        """The sequence number of the next row change, 0 if the batch leaves it out."""
        if self._skip_if_delivered():
            return 0
        sequence = self._next()
        self.rows += 1
        return sequence

    def truncate(self, table: TableName) -> None:
        """All rows of the table are gone."""
        if not self._skip_if_delivered():
            sequence = self._next()
            self._signals.append(Truncated(sequence, self.transaction, table))

    def watermark(self, payload: str) -> None:
        """A row of the watermark table."""
        sequence = self._next()
        self._signals.append(WatermarkSeen(sequence, self.transaction, payload))

    def signal(self, row: Sequence[Any]) -> None:
        """A row of the signal table, its values in column order."""
        sequence = self._next()
        self._signals.append(SignalSeen.of(sequence, self.transaction, row))

    def schema(
        self,
        schema: TableSchema,
        layout: Layout | None = None,
        *,
        oid: int | None = None,
        listed: tuple[tuple[str, int, int], ...] | None = None,
    ) -> None:
        """From here on the rows of the table with this oid have this shape, as `SchemaSeen` has it."""
        sequence = self._next()
        self._signals.append(SchemaSeen(sequence, self.transaction, schema, layout, oid, listed))

    def unreadable(self, table: TableName, why: str, fix: str, *, refused: bool = False) -> None:
        """From here on the table's rows are passed over. `refused`: the catalogue refuses the table for that too."""
        sequence = self._next()
        self._signals.append(Unreadable(sequence, self.transaction, table, why, fix, refused))

    def unreadable_since(self, signal: Unreadable) -> None:
        """A row that was taken has proven to be one that nobody can read."""
        self._signals.append(signal)

    def pass_over(self) -> None:
        """A row change of a table that cannot be read: counted, since after a restart it may be one that can."""
        self._skip_if_delivered()

    def take(self, changes: Sequence[TableChanges]) -> LogBatch:
        """The batch so far, whose rows the decoder gives; the next one begins."""
        batch = LogBatch(
            changes=tuple(changes),
            signals=tuple(sorted(self._signals, key=lambda signal: signal.sequence)),
            transactions=tuple(self.transactions),
            position=str(Point(self.position, self.timeline)),
            partial=self.in_open if self.open is not None else 0,
        )
        self._owed = self.open is not None
        self._signals = []
        self.transactions = []
        self.sequence = 0
        self.rows = 0
        self.transaction = -1
        return batch

    def where(self) -> str:
        """The place in the log, for messages."""
        return f"LSN {self.open.position}" if self.open else f"after LSN {self.position}"

    def _skip_if_delivered(self) -> bool:
        """Counts a row change; whether it was delivered before."""
        self.in_open += 1
        if not self.skip:
            return False
        self.skip -= 1
        return True

    def _next(self) -> int:
        # A transaction without anything for us never comes into a batch.
        if self.transaction < 0:
            if self.open is None:
                raise UnknownLogEvent("a change outside of a transaction", where=self.where(), fix="report this")
            self.transactions.append(self.open)
            self.transaction = len(self.transactions) - 1
        self.sequence += 1
        return self.sequence
