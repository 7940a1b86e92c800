"""Rows of prepared XA transactions in memory, within bounds: this spares most of the second readings of the log."""

from __future__ import annotations

from dataclasses import dataclass, field

from dblog_core.sources.mysql.binlog.events import Event

MEMORY_BYTES = 8 << 20
"""Bytes of prepared rows that are kept in memory, over all transactions."""
TRANSACTION_BYTES = 1 << 20
"""Bytes of one transaction's rows beyond which they are not kept."""
_OVERHEAD_BYTES = 200
"""What an event costs besides its body, about."""


@dataclass(slots=True)
class UndecidedRows:
    """The rows of the group being read, of an XA transaction that may still be rolled back.

    `start_offset`: of the group, in its file; `gtids_before`: on MariaDB the GTIDs before the group. `events`: None
    once they are too many to keep.
    """

    start_offset: int
    gtids_before: str | None
    events: list[Event] | None = field(default_factory=list)
    size_bytes: int = 0

    def add(self, event: Event) -> None:
        """Remembers an event, and forgets all once they are too many to keep."""
        self.size_bytes += len(event.body) + _OVERHEAD_BYTES
        if self.size_bytes > TRANSACTION_BYTES:
            self.events = None
        elif self.events is not None:
            self.events.append(event)

    def add_last(self, event: Event) -> None:
        """Adds the event that ends the group, which ends a second reading of it."""
        if self.events is not None:
            self.events.append(event)


class RowMemory:
    """Rows of prepared transactions by xid; the oldest give way."""

    def __init__(self) -> None:
        self._groups: dict[str, UndecidedRows] = {}
        self._size_bytes = 0

    def put(self, xid: str, rows: UndecidedRows) -> None:
        """Remembers the rows of a transaction that is prepared now; the oldest ones give way to them."""
        # An xid may be used again once its transaction has ended.
        self.pop(xid)
        if rows.events is None:
            return
        self._groups[xid] = rows
        self._size_bytes += rows.size_bytes + _OVERHEAD_BYTES
        # Reading them a second time costs time alone; prepared transactions may wait for days.
        while self._size_bytes > MEMORY_BYTES:
            self.pop(next(iter(self._groups)))

    def pop(self, xid: str) -> list[Event] | None:
        """The rows of a transaction that ends, which are forgotten; None where they were too many, or gave way."""
        rows = self._groups.pop(xid, None)
        if rows is None:
            return None
        self._size_bytes -= rows.size_bytes + _OVERHEAD_BYTES
        return rows.events
