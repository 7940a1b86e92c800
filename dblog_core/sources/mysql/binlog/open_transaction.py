"""The transaction that is being read."""

from __future__ import annotations

from dblog_core.model.events import Transaction
from dblog_core.sources.mysql.binlog import xa


class Group:
    """A group of events that began at `start`. `begun`: it is a transaction, not a single statement.

    `rows`: its row changes that were flushed, or are not to be delivered again; `changed`: it has any. `held`: in an XA
    transaction that is being prepared, what becomes of its rows is not known yet. `undone`: its statement has only
    begun, or has failed.
    """

    __slots__ = ("_place", "_transaction", "begun", "changed", "gtid", "held", "rows", "start", "time", "undone")

    def __init__(self, gtid: str | None, place: str, start: int, commit_time: int, *, begun: bool) -> None:
        self.gtid, self._place, self.time, self.start, self.begun = gtid, place, commit_time, start, begun
        self.rows, self.changed, self.undone = 0, False, False
        self.held: xa.Held | None = None
        self._transaction: Transaction | None = None

    @property
    def id(self) -> str:
        return self.gtid or self._place

    @property
    def transaction(self) -> Transaction:
        """Made when it is first asked for: most transactions of a server may be about tables that nobody wants."""
        if self._transaction is None:
            self._transaction = Transaction(self.id, self._place, self.time)
        return self._transaction
