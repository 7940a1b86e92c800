"""Who alters tables, meets values that the log has no form for, and accepts tables that are held.

The column `secret` of `shop.people` is hidden by its name, `big`. What it is stays with the column whatever statements
call it, and its values are marked, so that one in clear is found wherever it is written. Whoever accepts a table looks
at it before: the hidden column has the name that the rule hides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from dblog_core.errors import DblogError, RequestError
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.schema_changes import Step
from dblog_core.monitoring import held_tables
from dblog_core.staging import table_records
from dblog_core.state import accepted_shapes, rule_acceptances
from tests.simulation.database import Change

if TYPE_CHECKING:
    from tests.simulation.stopping_tables import StoppingWorld

PEOPLE = TableSchema(
    TableName("shop", "people"),
    (Column("id", "bigint", pa.int64()), Column("big", "text", pa.string()), Column("note", "text", pa.string())),
    ("id",),
)
HIDDEN = "big"
"""The name that the rule hides."""
SECRET_NUMBER = 2
"""The number of the column that is to be hidden, whatever its name is."""

_TRIES = 10
"""Of a statement that waits for transactions on its table."""
_REPAIR_SECONDS = 30.0
"""Between two repairs of a table."""


class Migrator:
    """Alters tables while things go wrong; then accepts and repairs what has stopped."""

    def __init__(self, world: StoppingWorld) -> None:
        self._world = world
        self._dice = world.simulation.dice
        self._database = world.database
        self._state = world.open_state()
        self._staging = world.open_staging()
        self._names = 0
        self._repaired_at: dict[str, float] = {}

    def run(self) -> None:
        while not self._is_watched():
            self._world.simulation.wait(0.3)
        while True:
            self._world.simulation.wait(self._dice.uniform(0.3, 2.0))
            if not self._world.calm:
                self._try(self._dice.choice((self._alter, self._alter, self._spoil, self._forbid, self._accept)))
            elif self._world.repairs:
                self._try(self._repair)

    def _is_watched(self) -> bool:
        """Whether a manifest has what was accepted when the capture began: whoever writes rules looks at the tables,
        and alters none before they count."""
        try:
            records = table_records.read_newest(self._staging, *accepted_shapes.NODES)
        except DblogError:
            return False
        return accepted_shapes.read(records) is not None

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except RequestError:
            return  # it is not held, or not there, by now
        except DblogError as error:
            if not error.transient:
                raise

    # Statements -----------------------------------------------------------------------------------------------------

    def _columns(self) -> tuple[Column, ...]:
        return self._database.schemas[PEOPLE.table].columns

    def _text_columns(self) -> list[str]:
        return [column.name for column in self._columns() if column.source_type == "text"]

    def _new_name(self) -> str:
        self._names += 1
        return f"c{self._names}"

    def _alter(self) -> None:
        name, other = self._dice.sample(self._text_columns(), 2)
        statement = self._dice.choice((self._rename, self._swap, self._replace, self._add, self._drop))
        for _ in range(_TRIES):
            if statement(name, other):
                self._world.simulation.count(f"statement {statement.__name__[1:]}")
                return
            self._world.simulation.wait(0.05)

    def _rename(self, name: str, _other: str) -> bool:
        taken = {column.name for column in self._columns()}
        new = HIDDEN if HIDDEN not in taken and self._dice.random() < 0.5 else self._new_name()
        return self._reshape({name: new})

    def _swap(self, name: str, other: str) -> bool:
        """Of MySQL, the columns may change places as well: then the table looks as before."""
        in_place = self._database.kind == "mysql" and self._dice.random() < 0.7
        return self._reshape({name: other, other: name}, in_place=in_place)

    def _replace(self, name: str, _other: str) -> bool:
        return self._reshape({name: self._new_name()}, added=name)

    def _add(self, _name: str, _other: str) -> bool:
        return len(self._columns()) < 6 and self._reshape({}, added=self._new_name())

    def _drop(self, name: str, _other: str) -> bool:
        if len(self._text_columns()) < 3 or name in (self._world.secret, HIDDEN):
            return False
        left = tuple(column for column in self._columns() if column.name != name)
        return self._database.reshape(PEOPLE.table, left, Step(dropped=(name,)))

    def _reshape(self, renamed: dict[str, str], *, added: str = "", in_place: bool = False) -> bool:
        columns = self._columns()
        if not in_place:
            columns = tuple(replace(column, name=renamed.get(column.name, column.name)) for column in columns)
        if added:
            columns = (*columns, Column(added, "text", pa.string()))
        step = Step(renamed=renamed, nulls=(added,) if added else ())
        readable = self._dice.random() < 0.7
        return self._database.reshape(PEOPLE.table, columns, step, readable=readable)

    # Rows -----------------------------------------------------------------------------------------------------------

    def _spoil(self) -> None:
        """The log has no form for a value of a row: its table stops alone."""
        schema = self._dice.choice(list(self._database.schemas.values()))
        if self._put_row(schema, unreadable=True):
            self._world.simulation.count("unreadable rows")

    def _put_row(self, schema: TableSchema, *, unreadable: bool = False) -> bool:
        key = self._world.key(schema)
        transaction = self._database.begin()
        if not self._database.lock(transaction, schema.table, key):
            self._database.rollback(transaction)
            return False
        before = self._database.row(transaction, schema.table, key)
        after = self._world.row(schema, key)
        change = Change("c" if before is None else "u", schema, before, after, unreadable=unreadable)
        self._database.change(transaction, change)
        self._database.commit(transaction)
        return True

    def _forbid(self) -> None:
        """For a while our account may not read a table: its dumps fail for good."""
        forbidden = self._database.forbidden
        if forbidden:
            forbidden.clear()
        else:
            forbidden.add(self._dice.choice(list(self._database.schemas)))
            self._world.simulation.count("tables forbidden")

    # Repairs --------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        if rule_acceptances.read(self._state):
            return  # the capture has not taken it up yet
        held = held_tables.find_held(self._staging)
        is_right = self._world.secret == HIDDEN
        tables = [table for table in held if is_right or table != str(PEOPLE.table)]
        if tables:
            held_tables.accept(self._world.config, self._world.open_source(), self._staging, self._state, tables)
            self._world.simulation.count("tables accepted", len(tables))

    def _repair(self) -> None:
        if (secret := self._world.secret) != HIDDEN:
            taken = {column.name for column in self._columns()}
            others = {HIDDEN: self._new_name()} if HIDDEN in taken else {}
            self._reshape({secret: HIDDEN, **others})
            return
        self._accept()
        now = self._world.simulation.now
        for table in self._world.find_repairable():
            # By another shape the log shows that it can be read again, and the capture that a dump may do now.
            if now - self._repaired_at.get(table, 0.0) > _REPAIR_SECONDS and self._alter_and_write(table):
                self._repaired_at[table] = now

    def _alter_and_write(self, table: str) -> bool:
        name = TableName.parse(table)
        return self._database.alter(name) and self._put_row(self._database.schemas[name])
