"""Columns under a rule that have another name now, while another column has theirs: the rule would hide the wrong one.

    MySQL, MariaDB  -> the log's statements say which columns get other names (`Altered`)
    PostgreSQL      -> a shape of the log comes with its columns' numbers, which stay when names change (`SchemaSeen`)

A rule that no column fits is another matter (`column_rule_faults`): there the name alone shows that something is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from dblog_core.config.source import ColumnRules
from dblog_core.interfaces import Problem
from dblog_core.model.events import Altered, Created, RowsMoved, SchemaSeen, Signal
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.schema_changes import Step
from dblog_core.rows import column_rule_faults

Numbers = Mapping[str, Mapping[str, str]]
"""Of tables (SCHEMA.TABLE): what stays of each column when its name changes, and is of this table alone."""


class MovedColumns:
    """Where the columns are that the rules of tables hide, as far as the log shows."""

    def __init__(self, rules: Mapping[str, ColumnRules]) -> None:
        self._hidden = {table: hidden for table in rules if (hidden := column_rule_faults.hidden_columns(rules[table]))}
        self._names: dict[str, dict[str, str]] = {}  # of columns that have another name now, by the rule's
        self._taken: set[tuple[str, str]] = set()  # tables, and names of theirs that another column has got
        self._numbers: dict[str, dict[str, str]] = {}

    @property
    def has_any(self) -> bool:
        """Whether any column has another name."""
        return any(self._names.values())

    def note_numbers(self, numbers: Numbers) -> None:
        """The columns' numbers by the names that they had when the rules came into force."""
        for table in numbers.keys() & self._hidden.keys():
            self._numbers[table] = dict(numbers[table])

    def note_steps(self, table: str, steps: Iterable[Step]) -> None:
        """Statements that the table has had since its last shape."""
        for step in steps if table in self._hidden else ():
            self._apply(table, step)

    def follow(self, signals: Iterable[Signal]) -> None:
        """Columns of a batch of the log may have other names than before."""
        for signal in signals if self._hidden else ():
            match signal:
                case Altered(step=Step() as step):
                    for table in self._find_meant(signal):
                        self._apply(table, step)
                case Created():
                    self._names.pop(str(signal.table), None)
                case RowsMoved():
                    for name in signal.tables:
                        self._names.pop(str(name), None)
                case SchemaSeen(numbers=dict() as numbers):
                    self._compare(str(signal.schema.table), numbers)

    def find_misfit(self, schema: TableSchema) -> Problem | None:
        """Why the rules of a table with this shape would hide the wrong column; None where they do not."""
        if not self._names or not (moved := self._names.get(str(schema.table))):
            return None
        columns = {column.name.lower() for column in schema.columns}
        hidden = {name.lower() for name in self._hidden[str(schema.table)]}
        for name, now in moved.items():
            if now.lower() not in hidden and columns >= {name.lower(), now.lower()}:
                return explain(str(schema.table), name, now)
        return None

    def find_taken(self, table: TableName) -> Problem | None:
        """The same by the statements alone, before any shape."""
        moved = self._names.get(str(table), {})
        hidden = {name.lower() for name in self._hidden.get(str(table), ())}
        for name, now in moved.items():
            if now.lower() not in hidden and (str(table), name) in self._taken:
                return explain(str(table), name, now)
        return None

    def _find_meant(self, signal: Altered) -> list[str]:
        if not signal.any_case:
            return [table] if (table := str(signal.table)) in self._hidden else []
        return [t for t in self._hidden if TableName.parse(t).in_lower_case == signal.table.in_lower_case]

    def _apply(self, table: str, step: Step) -> None:
        names = self._names.setdefault(table, {})
        renamed = {old.lower(): new for old, new in step.renamed.items()}
        dropped = {name.lower() for name in step.dropped}
        for name in self._hidden[table]:
            before = names.pop(name, name)
            now = name if before.lower() in dropped else renamed.get(before.lower(), before)
            if now.lower() != name.lower():
                names[name] = now
                if step.takes(name):
                    self._taken.add((table, name))
            else:
                self._taken.discard((table, name))

    def _compare(self, table: str, numbers: Mapping[str, str]) -> None:
        """The columns that have these numbers now; a column of a new number is another one."""
        if table not in self._hidden:
            return
        known_numbers = self._numbers.setdefault(table, dict(numbers))
        moved = dict(find_moved(self._hidden[table], known_numbers, numbers))
        self._names[table] = moved
        for name in self._hidden[table]:
            if name in numbers and name not in moved:
                known_numbers[name] = numbers[name]


def find_moved(hidden: Collection[str], before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Columns of `hidden` that have another name now, and that name."""
    names = {number: name for name, number in now.items()}
    for name in hidden:
        if (is_now := names.get(before.get(name, ""), name)) != name:
            yield name, is_now


def explain(table: str, name: str, now: str) -> Problem:
    """Why a table stops whose rule for `name` would hide another column than the one that is called `now`."""
    place = column_rule_faults.place(table)
    what = f"{place}: what {table} had in the column {name} is in {now} now, which no rule hides; {name} is another one"
    fix = f"name {now} in the rules, and leave {name} out where nothing of it is to be hidden"
    return Problem(what, fix, table=table)
