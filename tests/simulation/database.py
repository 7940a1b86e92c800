"""A database in memory with transactions, a log, and a moment between the two: logged, and not yet visible.

Writers hold a lock on every key (or table) that they change, from the change until it is visible. A commit first
enters the log, where the capture reads it at once; it becomes visible to SELECTs later. In which order is the rule of
the kind: `postgres`: any order; `mysql`: that of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.schema_changes import Step
from dblog_core.model.table_identity import Origin, digest
from dblog_core.model.values import Key
from tests.simulation.scheduler import EPOCH, Signal, Simulation

Row = dict[str, Any]
Lock = tuple[TableName, Key | None]


@dataclass(frozen=True, slots=True)
class Change:
    """A step of a transaction: op c, u, d, t (truncate), w (watermark, `payload`) or a (the table is altered by `step`;
    None: by a statement that nobody can read). `unreadable`: the log has no form for a value of the row."""

    op: str
    schema: TableSchema
    before: Row | None = None
    after: Row | None = None
    unchanged: tuple[str, ...] = ()
    payload: str = ""
    step: Step | None = None
    unreadable: bool = False

    @property
    def table(self) -> TableName:
        return self.schema.table


@dataclass(slots=True)
class Transaction:
    """`rows`: what it has changed so far, by table and key (None: gone); `index`: its place in the log."""

    xid: int
    changes: list[Change] = field(default_factory=list)
    rows: dict[tuple[TableName, Key], Row | None] = field(default_factory=dict)
    locks: set[Lock] = field(default_factory=set)
    truncated: set[TableName] = field(default_factory=set)
    index: int = -1
    committed_at: int = 0  # microseconds since 1970 UTC
    visible: bool = False

    @property
    def name(self) -> str:
        """As the log names it: PostgreSQL's 32-bit id."""
        return str(self.xid & 0xFFFFFFFF)


@dataclass(slots=True)
class _Columns:
    """What stays with a column whatever its name is: `numbers`, by the name that it has now. `version`: how often the
    table was altered."""

    numbers: dict[str, int]
    newest: int
    version: int = 0

    @classmethod
    def of(cls, schema: TableSchema) -> _Columns:
        return cls({column.name: number for number, column in enumerate(schema.columns, 1)}, len(schema.columns))

    def change(self, names: set[str], step: Step) -> None:
        numbers = {step.renamed.get(name, name): number for name, number in self.numbers.items()}
        self.numbers = {name: number for name, number in numbers.items() if name in names}
        for name in step.nulls:
            self.newest += 1
            self.numbers[name] = self.newest
        self.version += 1


def key_of(schema: TableSchema, row: Row) -> Key:
    return tuple(row[name] for name in schema.key)


class Database:
    """Tables as SELECTs see them, the log as the capture reads it, and what is between them."""

    def __init__(self, simulation: Simulation, kind: str, schemas: list[TableSchema], *, gap: float) -> None:
        self.kind = kind
        self._simulation = simulation
        self._gap = gap
        self.schemas = {schema.table: schema for schema in schemas}
        self.rows: dict[TableName, dict[Key, Row]] = {table: {} for table in self.schemas}
        self.columns = {table: _Columns.of(schema) for table, schema in self.schemas.items()}
        self.forbidden: set[TableName] = set()  # tables that our account may not read now
        self.logs_statements = False
        self.log: list[Transaction] = []
        self.acknowledged = 0
        self.purged = 0
        self.durable: Callable[[], int] = lambda: len(self.log)
        self.reader: object | None = None  # PostgreSQL: who reads the slot
        self.grown = Signal(simulation)
        self.shown = Signal(simulation)
        # Near the wrap of the log's 32-bit ids, now and then.
        self._next_xid = simulation.dice.choice((700, (1 << 32) - 40, (5 << 32) - 90, (7 << 32) + 3))
        self._completed = self._next_xid - 1
        self._running: set[int] = set()
        self._locks: dict[Lock, Transaction] = {}
        self._hidden: list[Transaction] = []  # logged and not visible, in log order

    # Writing --------------------------------------------------------------------------------------------------------

    def begin(self) -> Transaction:
        transaction = Transaction(self._next_xid)
        self._running.add(transaction.xid)
        self._next_xid += 1
        return transaction

    def lock(self, transaction: Transaction, table: TableName, key: Key | None) -> bool:
        """Takes the lock of a key (None: of the whole table) if nobody else has one in its way."""
        for (held_table, held_key), holder in self._locks.items():
            if held_table == table and holder is not transaction and (key is None or held_key in (None, key)):
                return False
        self._locks[(table, key)] = transaction
        transaction.locks.add((table, key))
        return True

    def row(self, transaction: Transaction, table: TableName, key: Key) -> Row | None:
        """The row as the transaction sees it, once it has the lock."""
        if (table, key) in transaction.rows:
            return transaction.rows[(table, key)]
        return None if table in transaction.truncated else self.rows[table].get(key)

    def change(self, transaction: Transaction, change: Change) -> None:
        """A step of a transaction that holds the locks for it."""
        transaction.changes.append(change)
        if change.op == "t":
            transaction.truncated.add(change.table)
            for table, key in [k for k in transaction.rows if k[0] == change.table]:
                transaction.rows[(table, key)] = None
        if change.op in "ud" and change.before is not None:
            transaction.rows[(change.table, key_of(change.schema, change.before))] = None
        if change.op in "cu" and change.after is not None:
            transaction.rows[(change.table, key_of(change.schema, change.after))] = change.after

    def rollback(self, transaction: Transaction) -> None:
        self._end(transaction)

    def commit(self, transaction: Transaction, *, at_once: bool = False) -> None:
        """Enters the log now, and becomes visible after a drawn moment; the server sees to that, whoever waits."""
        transaction.index = len(self.log)
        transaction.committed_at = int((EPOCH + self._simulation.now) * 1e6)
        self.log.append(transaction)
        self._hidden.append(transaction)
        self.grown.fire()
        dice = self._simulation.dice
        gap = dice.uniform(0, self._gap) if not at_once and dice.random() < 0.3 else 0.0
        if gap:
            self._simulation.at(self._simulation.now + gap, lambda: self._show(transaction))
        else:
            self._show(transaction)

    def _show(self, transaction: Transaction) -> None:
        """The commit is visible; in the log's order it waits for those before it."""
        transaction.visible = True
        if self.kind == "postgres":
            self._hidden.remove(transaction)
            self._apply(transaction)
        else:
            while self._hidden and self._hidden[0].visible:
                self._apply(self._hidden.pop(0))
        self.shown.fire()

    def _apply(self, transaction: Transaction) -> None:
        for table in transaction.truncated:
            self.rows[table].clear()
        for (table, key), row in transaction.rows.items():
            if row is None:
                self.rows[table].pop(key, None)
            else:
                self.rows[table][key] = row
        self._end(transaction)

    def _end(self, transaction: Transaction) -> None:
        self._running.discard(transaction.xid)
        self._completed = max(self._completed, transaction.xid)
        for lock in transaction.locks:
            self._locks.pop(lock, None)

    def is_over(self, transaction: Transaction) -> bool:
        return transaction.xid not in self._running

    def alter(self, table: TableName) -> bool:
        """Adds a column, if no transaction is at work on the table."""
        if any(locked_table == table for locked_table, _ in self._locks):
            return False
        old = self.schemas[table]
        number = max(len(old.columns), self.columns[table].newest)
        column = Column(f"extra{number}", "bigint", pa.int64())
        return self.reshape(table, (*old.columns, column), Step(nulls=(column.name,)))

    def reshape(self, table: TableName, columns: Sequence[Column], step: Step, *, readable: bool = True) -> bool:
        """Gives the table other columns by one statement, if no transaction is at work on it. `readable`: whether the
        log shows what the statement did."""
        if any(locked_table == table for locked_table, _ in self._locks):
            return False
        names = {column.name for column in columns}
        for key, row in self.rows[table].items():  # the log has the rows as they were
            moved = {step.renamed.get(name, name): value for name, value in row.items()}
            self.rows[table][key] = {name: value for name, value in moved.items() if name in names}
        self.schemas[table] = TableSchema(table, tuple(columns), self.schemas[table].key)
        self.columns[table].change(names, step)
        if self.logs_statements:
            transaction = self.begin()
            self.change(transaction, Change("a", self.schemas[table], step=step if readable else None))
            self.commit(transaction, at_once=True)
        return True

    def origin(self, table: TableName) -> Origin:
        """What PostgreSQL's catalogue says of the table now."""
        columns = self.columns[table]
        shape = [[column.name, str(column.type)] for column in self.schemas[table].columns]
        numbers = digest([[*column, columns.numbers[column[0]]] for column in shape])
        oid = 1 + sorted(self.schemas).index(table)
        return Origin(oid, "", "", numbers, digest(shape), f"v{columns.version}", is_as_made=not columns.version)

    # Reading --------------------------------------------------------------------------------------------------------

    def snapshot(self, *, begun: bool = False) -> str | None:
        """PostgreSQL's `pg_current_snapshot()`; None where visibility follows the log.

        It ends after the newest transaction that has completed; `begun`: after every one that has begun.
        """
        if self.kind != "postgres":
            return None
        xmax = self._next_xid if begun else self._completed + 1
        running = sorted(x for x in self._running if x < xmax)
        xmin = min(running, default=xmax)
        return f"{xmin}:{xmax}:{','.join(map(str, running))}"

    def visible_before(self, place: int) -> bool:
        """Whether SELECTs see all that is logged before a place."""
        return all(transaction.index >= place for transaction in self._hidden)

    def acknowledge(self, position: int) -> None:
        """The log before `position` goes. Raises AssertionError where the client has less of it `durable`."""
        if position > self.durable():
            raise AssertionError(f"{position} is acknowledged, and {self.durable()} is published")
        self.acknowledged = max(self.acknowledged, position)
        self.purged = max(self.purged, self.acknowledged)

    def log_state(self, upto: int) -> dict[TableName, dict[Key, Row]]:
        """The tables after the first `upto` transactions of the log: the truth at that place."""
        state: dict[TableName, dict[Key, Row]] = {table: {} for table in self.schemas}
        for transaction in self.log[:upto]:
            for change in transaction.changes:
                apply(state, change)
        return state


def apply(state: dict[TableName, dict[Key, Row]], change: Change) -> None:
    """A change's effect on tables."""
    if change.op == "w":
        return
    rows = state[change.table]
    if change.op == "t":
        rows.clear()
    if change.op in "ud" and change.before is not None:
        rows.pop(key_of(change.schema, change.before), None)
    if change.op in "cu" and change.after is not None:
        rows[key_of(change.schema, change.after)] = change.after
