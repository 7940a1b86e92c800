"""Rows of the signal table: taken from the log, and put into the inbox before a manifest goes past them."""

from __future__ import annotations

from dblog_core.interfaces import Clock, StateStore
from dblog_core.model.events import SignalSeen
from dblog_core.signals.table import put_refusal_of_rest, put_row

MOST_OF_A_TRANSACTION = 1_000
"""Rows of the signal table that one transaction may bring: who may write there asks for dumps, and stops nothing."""


class SignalRows:
    """What the log has brought since somebody took it."""

    def __init__(self) -> None:
        self._rows: list[SignalSeen] = []
        self._overfull: list[str] = []
        self._transaction = ""  # whose rows are counted, over all batches that it comes in
        self._count = 0

    @property
    def waiting(self) -> int:
        """How many `take` would give: they may be taken at any time before the manifest that goes past them."""
        return len(self._rows)

    def add(self, row: SignalSeen, transaction: str) -> None:
        """The next row in log order."""
        if transaction != self._transaction:
            self._transaction = transaction
            self._count = 0
        self._count += 1
        if self._count <= MOST_OF_A_TRANSACTION:
            self._rows.append(row)
        elif self._count == MOST_OF_A_TRANSACTION + 1:
            self._overfull.append(transaction)

    def take(self) -> list[SignalSeen]:
        """Rows that were put into the signal table since the last call, in log order."""
        rows = self._rows
        self._rows = []
        return rows

    def take_overfull(self) -> list[str]:
        """Transactions that had more rows than a transaction may have, since the last call; the first rows count."""
        transactions = self._overfull
        self._overfull = []
        return transactions


class SignalDelivery:
    """Puts signals of the log into the inbox, each at a time of its own in microseconds."""

    def __init__(self, state: StateStore, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._last_us = 0

    def deliver(self, rows: SignalRows) -> None:
        """At the latest before the manifest that goes past them: a crash in between has them read again, and their ids
        are known then."""
        for row in rows.take():
            put_row(self._state, row, at_us=self._next_us())
        for transaction in rows.take_overfull():
            put_refusal_of_rest(self._state, transaction, MOST_OF_A_TRANSACTION, at_us=self._next_us())

    def _next_us(self) -> int:
        # A clock that was set back must not give two signals one time: they are carried out in this order.
        self._last_us = max(self._last_us + 1, int(self._clock.time() * 1e6))
        return self._last_us
