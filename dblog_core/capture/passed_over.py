"""Tables whose rows the capture leaves out: stopped ones, those whose log holds what no form can hold, and those that
wait until the log is read up to where they were accepted."""

from __future__ import annotations

from collections.abc import Iterable

from dblog_core.interfaces import Problem
from dblog_core.model.events import Unreadable
from dblog_core.model.schema import TableName


class PassedOver:
    """The tables (SCHEMA.TABLE) that are passed over now, in the sequencer's memory."""

    def __init__(self, stopped: Iterable[str]) -> None:
        self._stopped = set(stopped)
        self._unreadable: set[str] = set()
        self._held: set[str] = set()
        self._waiting: set[str] = set()
        self._readable_again: set[str] = set()  # since the last dumps were requested
        self._reasons: dict[str, Unreadable] = {}

    def __contains__(self, table: str) -> bool:
        return any(table in tables for tables in (self._stopped, self._unreadable, self._held, self._waiting))

    @property
    def has_reasons(self) -> bool:
        """Whether `take_reasons` would give any."""
        return bool(self._reasons)

    def stop(self, tables: Iterable[str]) -> set[str]:
        """Passes these tables over; returns those that were not stopped before. One that the log has just shown to be
        repaired is left out: who stopped it may have looked before, and looks again."""
        new = set(tables) - self._stopped - self._readable_again
        self._stopped |= new
        return new

    def add_unreadable(self, signal: Unreadable) -> None:
        """The log holds something of the table that cannot be read; the signal says why."""
        table = str(signal.table)
        self._unreadable.add(table)
        self._reasons[table] = signal

    def add_held(self, table: str, problem: Problem) -> bool:
        """Nothing of the table passes until a person accepts it; whether it has passed so far."""
        if table in self._held:
            return False
        self._held.add(table)
        self._unreadable.discard(table)
        self._reasons[table] = Unreadable(0, 0, TableName.parse(table), problem.what, problem.fix, is_held=True)
        return True

    def is_unreadable(self, table: str) -> bool:
        return table in self._unreadable

    def wait(self, table: str) -> None:
        """Leaves out the rows of the table until it is released."""
        self._waiting.add(table)

    def is_waiting(self, table: str) -> bool:
        """Whether that is all that keeps its rows out."""
        return table in self._waiting and not (self._stopped | self._unreadable | self._held) & {table}

    def release(self, table: str) -> bool:
        """The log is read up to where the table was accepted; whether its rows count from here on."""
        self._waiting.discard(table)
        return table not in self

    def read_again(self, table: str) -> bool:
        """The log of the table can be read again; whether its rows count from here on."""
        self._unreadable.discard(table)
        if table in self._stopped:
            return False
        self._readable_again.add(table)
        return True

    def forget_readable_again(self) -> None:
        """Dumps of what can be read again are requested: who stops a table from here on has seen it since."""
        self._readable_again.clear()

    def take_reasons(self) -> dict[str, Unreadable]:
        """Tables whose rows are passed over since the last call, and why, as the log says."""
        reasons = self._reasons
        self._reasons = {}
        return reasons
