"""The simulated log as a capture reads it: in batches, transactions in parts, from an acknowledged place on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from dblog_core.errors import LogPositionLost, SourceUnavailable
from dblog_core.model.events import (
    Altered,
    LogBatch,
    SchemaSeen,
    TableChanges,
    Transaction,
    Truncated,
    Unreadable,
    WatermarkSeen,
    changes_schema,
)
from dblog_core.model.schema import TableName, TableSchema
from tests.simulation import database as db
from tests.simulation.connection import Connection
from tests.simulation.scheduler import Process, Simulation

_SENDER_TIMEOUT = 3.0  # seconds after which the server ends the log stream of a client that does not answer


class SimStream(Connection):
    """The log from a place on. PostgreSQL has one reader at a time, and knows what was acknowledged."""

    def __init__(self, simulation: Simulation, database: db.Database, at: int, skip: int, size: int) -> None:
        super().__init__(simulation, "log")
        self._database = database
        self._at = at
        self._skip = skip
        self._size = size
        if at < database.purged:
            raise LogPositionLost(f"the log begins at {database.purged}, and {at} is asked for", fix="start afresh")
        assert simulation.current is not None
        self._seen: dict[TableName, str] = {}
        self._process: Process = simulation.current.process
        if database.kind == "postgres":
            if database.reader is not None:
                raise SourceUnavailable("another reads the log", fix="it is tried again")
            database.reader = self
            self._process.on_stop.append(self._end_later)

    def _end_later(self, until: float | None) -> None:
        """Our process is gone, or paused: the server notices after its timeout."""
        simulation = self._simulation
        paused = until is not None
        timeout = _SENDER_TIMEOUT if paused else simulation.dice.uniform(0, _SENDER_TIMEOUT)

        def end() -> None:
            if not paused or self._process.paused_until >= simulation.now:
                self._broken = True
                self._let_go()

        simulation.at(simulation.now + timeout, end)

    def _let_go(self) -> None:
        if self._database.reader is self:
            self._database.reader = None

    def read(self, timeout: float, *, linger: float = 0.0) -> LogBatch | None:
        self._before("read")
        if self._at >= len(self._database.log):
            self._simulation.wait(timeout, self._database.grown)
            if self._at >= len(self._database.log):
                return None
            self._before("read on")
        batch = self._next()
        self._after("read")
        return batch

    def _next(self) -> LogBatch:
        is_postgres = self._database.kind == "postgres"
        tables = self._database.schemas if is_postgres else ()
        oids = {table: self._database.origin(table).oid for table in tables}
        assembly = _Batch(self._seen, oids, full=not is_postgres)
        room = self._size
        for _ in range(self._simulation.dice.randint(1, 12)):
            transaction = self._database.log[self._at]
            part = transaction.changes[self._skip : self._skip + room]
            assembly.add(transaction, part)
            room -= len(part)
            self._skip += len(part)
            if self._skip < len(transaction.changes):
                break
            self._at += 1
            self._skip = 0
            if room <= 0 or self._at >= len(self._database.log):
                break
        return assembly.batch(str(self._at), self._skip)

    def acknowledge(self, position: str) -> None:
        self._before(f"acknowledge {position}")
        self._database.acknowledge(int(position))
        self._after("acknowledge")

    def close(self) -> None:
        if not self._process.dead:
            self._let_go()
            if self._end_later in self._process.on_stop:
                self._process.on_stop.remove(self._end_later)


class _Batch:
    """Gathers transactions into one batch."""

    def __init__(self, seen: dict[TableName, str], oids: Mapping[TableName, int], *, full: bool) -> None:
        """`oids`: of a log that has them."""
        self._seen = seen
        self._oids = oids
        self._full = full
        self._sequence = 0
        self._signals: list[Any] = []
        self._rows: dict[str, tuple[TableSchema, list[Any]]] = {}
        self._transactions: list[Transaction] = []

    def add(self, transaction: db.Transaction, part: Sequence[db.Change]) -> None:
        number = len(self._transactions)
        at = f"sim:{transaction.index}"
        self._transactions.append(
            Transaction(transaction.name, at, transaction.committed_at, transaction.xid & 0xFFFFFFFF)
        )
        for change in part:
            if change.op == "w":
                self._signals.append(WatermarkSeen(self._next(), number, change.payload))
            elif change.op == "t":
                self._signals.append(Truncated(self._next(), number, change.table))
            elif change.op == "a":
                self._signals.append(Altered(self._next(), number, change.table, change.step, shows=True))
            elif change.unreadable:
                self._show_shape(change.schema, number)
                unreadable = Unreadable(self._next(), number, change.table, "a value has no form", "alter the table")
                self._signals.append(unreadable)
            else:
                self._row(change, number)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _row(self, change: db.Change, number: int) -> None:
        schema = change.schema
        self._show_shape(schema, number)
        rows = self._rows.setdefault(schema.fingerprint, (schema, []))[1]
        rows.append((self._next(), number, change))

    def _show_shape(self, schema: TableSchema, number: int) -> None:
        if self._seen.get(schema.table) != schema.fingerprint:
            self._seen[schema.table] = schema.fingerprint
            oid = self._oids.get(schema.table)
            self._signals.append(SchemaSeen(self._next(), number, schema, oid=oid))

    def batch(self, position: str, partial: int) -> LogBatch:
        changes = tuple(_changes(schema, rows, full=self._full) for schema, rows in self._rows.values())
        return LogBatch(changes, tuple(self._signals), tuple(self._transactions), position, partial)


def _changes(schema: TableSchema, rows: list[tuple[int, int, db.Change]], *, full: bool) -> TableChanges:
    """A change batch; `full`: images before have all columns (MySQL), else they hold the key alone, and only where it
    goes away (PostgreSQL's default identity)."""
    target = changes_schema(schema)
    columns: list[list[Any]] = [[] for _ in target]
    for sequence, number, change in rows:
        before = _before(change, full=full)
        key_only = before is not None and not full
        values = (sequence, number, change.op, key_only, list(change.unchanged) or None, before, _after(change))
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    arrays = [pa.array(values, f.type) for values, f in zip(columns, target, strict=True)]
    return TableChanges(schema, pa.RecordBatch.from_arrays(arrays, schema=target))


def _before(change: db.Change, *, full: bool) -> db.Row | None:
    if change.before is None or full:
        return change.before
    key = {name: change.before[name] for name in change.schema.key}
    if change.after is not None and all(change.after[name] == value for name, value in key.items()):
        return None
    return key


def _after(change: db.Change) -> db.Row | None:
    if change.after is None or not change.unchanged:
        return change.after
    return {name: None if name in change.unchanged else value for name, value in change.after.items()}
