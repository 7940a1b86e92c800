"""How the captured tables are stored at the place of the log, as far as that is known.

The catalogue says how a table is stored now, which is a later place of the log than the one that is read. Its answer
holds at a place behind the end that the log had when it was asked, and before that only if no statement about the table
lies in between. From there on each statement that is read leads to the next form.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.ddl.column_forms import TableForm
from dblog_core.sources.mysql.position import Position


@dataclass(frozen=True, slots=True)
class Answer:
    """How the catalogue stores tables, and the `end` of the log after it was asked (None: it was not)."""

    forms: Mapping[TableName, TableForm]
    end: Position | None


Ask = Callable[[Collection[TableName] | None], Answer]
"""Asks the catalogue about these tables; None: about each that is captured."""


def ask_nobody(_: Collection[TableName] | None) -> Answer:
    """Where there is no catalogue: nothing is known."""
    return Answer({}, None)


class KnownForms:
    """The forms of tables by their names as statements have them (`fold`)."""

    def __init__(self, ask: Ask, fold: Callable[[TableName], TableName]) -> None:
        """Asks about all tables."""
        self._ask = ask
        self._fold = fold
        self._forms: dict[TableName, tuple[TableForm, Position | None]] = {}
        self._missing: set[TableName] = set()
        self._asked: set[TableName] = set()
        self._learn(None)

    def ask_again(self) -> None:
        """What was known does not count from here on: all tables are asked about."""
        self._forms.clear()
        self._learn(None)

    def newest(self, table: TableName, columns: Collection[str]) -> TableForm | None:
        """How the table is stored at the present place, or when the catalogue was asked last. It is asked now, once
        between two calls of `ask_missing` or `put`, where that does not tell how these columns are (names in lower
        case). None: there is no such table, or somebody keeps it locked."""
        name = self._fold(table)
        entry = self._forms.get(name)
        is_told = entry is not None and all(entry[0].columns.get(column) is not None for column in columns)
        if not is_told and name not in self._asked:
            self._asked.add(name)
            self._learn([table])
            entry = self._forms.get(name)
        return None if entry is None else entry[0]

    def at(self, table: TableName, place: Position) -> TableForm | None:
        """How the table is stored at this place, behind all statements about it that `put` has had; None: nobody
        knows."""
        form, end = self._forms.get(table, (None, None))
        return form if end is None or place.has_reached(end) else None

    def put(self, table: TableName, form: TableForm | None) -> None:
        """A statement has led to this form; None: it is not known to which."""
        self._asked.discard(table)
        if form is None:
            self._forms.pop(table, None)
        else:
            self._forms[table] = form, None

    def forget_schema(self, schema: str) -> None:
        """All tables of a schema are gone."""
        for table in [table for table in self._forms if table.schema == schema]:
            del self._forms[table]

    def note_rows(self, table: TableName) -> None:
        """The table has rows: it is asked about with the next `ask_missing` if nothing is known of it."""
        if self._fold(table) not in self._forms:
            self._missing.add(table)

    def ask_missing(self) -> None:
        """Asks about all tables at once that `note_rows` has missed."""
        self._asked.clear()
        if self._missing:
            self._learn(sorted(self._missing))
            self._missing.clear()

    def _learn(self, tables: Collection[TableName] | None) -> None:
        answer = self._ask(tables)
        for table, form in answer.forms.items():
            self._forms[self._fold(table)] = form, answer.end
