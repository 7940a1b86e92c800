"""What the log asks of the capture for single tables: dumps and looks at shapes, before a manifest goes past the place.

Each `take_…` gives what has come since its last call. What is not taken before a crash is read again from the log.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from dblog_core.capture.passed_over import PassedOver
from dblog_core.model.events import ChangedByStatement, Transaction
from dblog_core.model.schema import TableName


@dataclass(frozen=True, slots=True)
class UnloggedChange:
    """Changes of rows without row events: the first of several, its place in the log, and the tables of all."""

    change: ChangedByStatement
    place: str
    tables: frozenset[str]


class FollowUps:
    """What was asked for and is not taken yet; a table that is passed over asks for nothing."""

    def __init__(self, passed_over: PassedOver) -> None:
        self._passed_over = passed_over
        self._rewritten: dict[TableName, Transaction] = {}
        self._reshaped: set[TableName] = set()
        self._unproven: dict[TableName, Transaction] = {}
        self._altered: set[str] = set()
        self._unlogged: UnloggedChange | None = None

    @property
    def any_waits(self) -> bool:
        """Whether the capture must request something before the log's place moves past it."""
        return bool(self._rewritten or self._reshaped or self._unproven)

    def add_rewritten(self, table: TableName, since: Transaction) -> None:
        """Rows of the table came or went without row events: only a dump tells which it has."""
        self._rewritten[table] = since

    def add_reshaped(self, table: TableName) -> None:
        """The table may have another shape, and no row may come to show it."""
        self._reshaped.add(table)

    def add_unproven(self, table: TableName, at: Transaction) -> None:
        """The table has shown its first shape, and nobody knows whether it had rows before."""
        self._unproven[table] = at

    def add_altered(self, table: TableName) -> None:
        """The table was altered, as far as the log says so."""
        self._altered.add(str(table))

    def add_unlogged(self, change: ChangedByStatement, place: str, tables: Set[str]) -> None:
        """Rows were changed without row events, at a place of the log, so that these tables are dumped."""
        first = self._unlogged or UnloggedChange(change, place, frozenset())
        self._unlogged = replace(first, tables=first.tables | tables)

    def take_unlogged(self) -> UnloggedChange | None:
        """The first such change since the last call, with the tables of all."""
        change = self._unlogged
        self._unlogged = None
        return change

    def drop_reshaped(self, table: TableName) -> None:
        """The table has shown its shape."""
        self._reshaped.discard(table)

    def take_rewritten(self) -> dict[TableName, Transaction]:
        """Tables whose rows came or went without row events: the capture requests a dump of each."""
        rewritten = self._rewritten
        self._rewritten = {}
        # With these, dumps of what can be read again are requested: who stops such a table later has seen its repair.
        self._passed_over.forget_readable_again()
        return {table: since for table, since in rewritten.items() if str(table) not in self._passed_over}

    def take_altered(self) -> set[str]:
        """Tables that were altered."""
        altered = self._altered
        self._altered = set()
        return altered

    def take_unproven(self) -> dict[TableName, Transaction]:
        """Tables that have shown their first shape, and of which nobody knows whether they had rows before. Those that
        are to be dumped anyway are left out."""
        unproven = self._unproven
        self._unproven = {}
        return {table: at for table, at in unproven.items() if self._asks_for_no_dump(table)}

    def take_reshaped(self) -> set[TableName]:
        """Tables whose shape nobody has shown since they were altered: a window is to show it. Those that are to be
        dumped anyway are left out."""
        reshaped = self._reshaped
        self._reshaped = set()
        return {table for table in reshaped if self._asks_for_no_dump(table)}

    def _asks_for_no_dump(self, table: TableName) -> bool:
        return table not in self._rewritten and str(table) not in self._passed_over
