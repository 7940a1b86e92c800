"""Tables without an entry in [source.columns] that may hold rows of one whose rules hide columns.

    RENAME, swapped partitions  -> the log names the tables among which rows change places (`RowsMoved`)
    PostgreSQL                  -> a shape of the log comes with its table's oid, which stays when the name changes

Rules are of a name: under another one the rows would be staged in the open. So the table of the other name
stops alone until it has an entry of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dblog_core.config.source import ColumnRules
from dblog_core.interfaces import Problem
from dblog_core.model.events import RowsMoved, SchemaSeen, Signal
from dblog_core.model.schema import TableName
from dblog_core.rows import column_rule_faults


class InheritedRules:
    """What the log has shown of that, since the configuration came into force."""

    def __init__(self, rules: Mapping[str, ColumnRules]) -> None:
        self._rules = rules
        self._ruled = {TableName.parse(table) for table in rules if column_rule_faults.hidden_columns(rules[table])}
        self._owners: dict[int, str] = {}
        self._heirs: dict[TableName, str] = {}
        self._heirs_in_any_case: dict[TableName, str] = {}

    def note_owners(self, owners: Mapping[int, str]) -> None:
        """What tables, and partitions, are called by oid."""
        self._owners |= {oid: table for oid, table in owners.items() if TableName.parse(table) in self._ruled}

    def follow(self, signals: Iterable[Signal]) -> None:
        """Rows of a batch of the log may come under other names than before."""
        for signal in signals if self._ruled else ():
            if isinstance(signal, RowsMoved):
                self._pass_on(signal)
            elif isinstance(signal, SchemaSeen) and signal.oid is not None:
                self._recognise(signal.schema.table, signal.oid)

    def find_origin(self, table: TableName) -> str | None:
        """The table with rules whose rows this one may hold; None for one that has an entry, or holds none."""
        origin = self._heirs.get(table)
        if origin is None and self._heirs_in_any_case:
            origin = self._heirs_in_any_case.get(table.in_lower_case)
        return None if origin is None or str(table) in self._rules else origin

    def find_misfit(self, table: TableName) -> Problem | None:
        """Why the table is stopped for that; None where it is not."""
        origin = self.find_origin(table)
        return None if origin is None else explain(str(table), origin, self._rules[origin])

    def _pass_on(self, moved: RowsMoved) -> None:
        if moved.any_case:
            ruled = {table.in_lower_case: table for table in self._ruled}
            origins = [ruled[table.in_lower_case] for table in moved.tables if table.in_lower_case in ruled]
        else:
            origins = [table for table in moved.tables if table in self._ruled]
        for table in moved.left if origins else ():
            heirs = self._heirs_in_any_case if moved.any_case else self._heirs
            heirs[table.in_lower_case if moved.any_case else table] = str(origins[0])

    def _recognise(self, table: TableName, oid: int) -> None:
        if table in self._ruled:
            self._owners[oid] = str(table)
        elif str(table) in self._rules:
            self._owners.pop(oid, None)  # somebody has decided that nothing of it is to be hidden
        elif (origin := self._owners.get(oid)) is not None:
            self._heirs[table] = origin


def explain(table: str, origin: str, rules: ColumnRules) -> Problem:
    """Why a table without an entry that may hold rows of `origin`, which has these rules, is stopped."""
    hidden = ", ".join(column_rule_faults.hidden_columns(rules))
    what = f"{table} has no rules, and is what {origin} was, or has rows of it: the rules there hide {hidden}"
    return Problem(what, column_rule_faults.entry_fix(table), table=table)
