"""The Source protocol over `Database`: connections that break, a log that is read from an acknowledged place on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from dblog_core.errors import LogPositionLost, RequestError, SourceUnavailable
from dblog_core.events import (
    LogBatch,
    SchemaSeen,
    TableChanges,
    Transaction,
    Truncated,
    WatermarkSeen,
    changes_schema,
)
from dblog_core.filters import Filter
from dblog_core.interfaces import Chunk, Problem, ReadPlan, Strain
from dblog_core.schema import TableName, TableSchema
from dblog_core.values import Key
from tests.simulation import database as db
from tests.simulation.scheduler import Process, Simulation

MARKS = TableSchema(TableName("shop", "dblog_watermark"), (), ())
_SENDER_TIMEOUT = 3.0  # seconds after which the server ends the log stream of a client that does not answer


def broken() -> SourceUnavailable:
    return SourceUnavailable("the connection broke", where="the simulated source", fix="it is tried again")


class Connection:
    """Every call is a step; after a fault all calls fail."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self._simulation, self._name, self._broken = simulation, name, False

    def _fail(self) -> SourceUnavailable:
        self._broken = True
        return broken()

    def _before(self, what: str) -> None:
        self._simulation.step(f"{self._name} {what}", self._fail)
        if self._broken:
            raise broken()

    def _after(self, what: str) -> None:
        self._simulation.after(f"{self._name} {what}", self._fail)


class SimSource(Connection):
    """The database as one process reaches it."""

    def __init__(self, simulation: Simulation, database: db.Database, *, batch: int = 20) -> None:
        super().__init__(simulation, "source")
        self.database, self.batch = database, batch
        self.kind = database.kind

    def _fail(self) -> SourceUnavailable:
        return broken()  # each call makes a connection of its own

    def check(self) -> list[Problem]:
        return []

    def prepare(self) -> None:
        self._before("prepare")

    def tables(self) -> tuple[TableSchema, ...]:
        self._before("tables")
        return tuple(self.database.schemas.values())

    def current_position(self) -> str:
        self._before("position")
        return str(len(self.database.log))

    def start_position(self) -> str:
        self._before("start position")
        return str(len(self.database.log))

    def reached(self, position: str, target: str) -> bool:
        return int(position) >= int(target)

    def show(self, position: str) -> str:
        return f"sim:{position}"

    def open_log(self, position: str, *, skip: int = 0) -> SimStream:
        self._before(f"open log at {position}+{skip}")
        return SimStream(self._simulation, self.database, int(position), skip, self.batch)

    def open_reader(self) -> SimReader:
        self._before("open reader")
        return SimReader(self._simulation, self.database)

    def open_watermarks(self, worker: str) -> SimWatermarks:
        self._before("open watermarks")
        return SimWatermarks(self._simulation, self.database)

    def strain(self) -> Strain:
        self._before("strain")
        return Strain(0.0, 1, len(self.database.log) - self.database.acknowledged)

    def horizon(self) -> str | None:
        if self.kind != "postgres":
            return None
        self._before("horizon")
        return self.database.snapshot(begun=True)


class SimStream(Connection):
    """The log from a place on. PostgreSQL has one reader at a time, and knows what was acknowledged."""

    def __init__(self, simulation: Simulation, database: db.Database, at: int, skip: int, size: int) -> None:
        super().__init__(simulation, "log")
        self._database, self._at, self._skip, self._size = database, at, skip, size
        if at < database.purged:
            raise LogPositionLost(f"the log begins at {database.purged}, and {at} is asked for", fix="start afresh")
        assert simulation.current is not None
        self._seen: dict[TableName, str] = {}
        self._process: Process = simulation.current.process
        if database.kind == "postgres":
            if database.reader is not None:
                raise SourceUnavailable("another reads the log", fix="it is tried again")
            database.reader = self
            self._process.on_stop.append(self._stopped)

    def _stopped(self, until: float | None) -> None:
        """Our process is gone, or paused: the server notices after its timeout."""
        simulation, paused = self._simulation, until is not None
        timeout = _SENDER_TIMEOUT if paused else simulation.dice.uniform(0, _SENDER_TIMEOUT)

        def end() -> None:
            if not paused or self._process.paused_until >= simulation.now:
                self._broken = True
                self._let_go()

        simulation.at(simulation.now + timeout, end)

    def _let_go(self) -> None:
        if self._database.reader is self:
            self._database.reader = None

    def read(self, timeout: float) -> LogBatch | None:
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
        assembly = _Batch(self._seen, full=self._database.kind != "postgres")
        room = self._size
        for _ in range(self._simulation.dice.randint(1, 12)):
            transaction = self._database.log[self._at]
            part = transaction.changes[self._skip : self._skip + room]
            assembly.add(transaction, part)
            room -= len(part)
            self._skip += len(part)
            if self._skip < len(transaction.changes):
                break
            self._at, self._skip = self._at + 1, 0
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
            if self._stopped in self._process.on_stop:
                self._process.on_stop.remove(self._stopped)


class _Batch:
    """Gathers transactions into one batch."""

    def __init__(self, seen: dict[TableName, str], *, full: bool) -> None:
        self._seen, self._full = seen, full
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
            else:
                self._row(change, number)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _row(self, change: db.Change, number: int) -> None:
        schema = change.schema
        if self._seen.get(schema.table) != schema.fingerprint:
            self._seen[schema.table] = schema.fingerprint
            self._signals.append(SchemaSeen(self._next(), number, schema))
        rows = self._rows.setdefault(schema.fingerprint, (schema, []))[1]
        rows.append((self._next(), number, change))

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


class SimReader(Connection):
    """SELECTs: each sees what is visible at its own moment. Keys have Python's order."""

    def __init__(self, simulation: Simulation, database: db.Database) -> None:
        super().__init__(simulation, "reader")
        self._database = database

    def schema(self, table: TableName) -> TableSchema:
        self._before(f"schema {table}")
        if table not in self._database.schemas:
            raise RequestError(f"{table} does not exist", fix="name another")
        return self._database.schemas[table]

    def last_key(self, schema: TableSchema) -> Key | None:
        self._before(f"last key {schema.table}")
        return max(self._database.rows[schema.table], default=None)

    def estimated_rows(self, table: TableName) -> int:
        self._before(f"estimate {table}")
        return len(self._database.rows[table])

    def explain(self, schema: TableSchema, *, filters: Sequence[Filter] = ()) -> ReadPlan:
        self._before(f"explain {schema.table}")
        return ReadPlan("primary", len(self._database.rows[schema.table]))

    def boundaries(self, schema: TableSchema, *, after: Key | None, upto: Key | None, every: int) -> Iterator[Key]:
        self._before(f"boundaries {schema.table}")
        yield from self._between(schema, after, upto)[every - 1 :: every]

    def read(
        self,
        schema: TableSchema,
        *,
        after: Key | None,
        upto: Key | None,
        limit: int,
        filters: Sequence[Filter] = (),
    ) -> Chunk:
        return self._select(schema, lambda: self._between(schema, after, upto), filters, limit)

    def read_keys(self, schema: TableSchema, keys: Sequence[Key], *, filters: Sequence[Filter] = ()) -> Chunk:
        rows = self._database.rows[schema.table]
        return self._select(schema, lambda: [k for k in sorted(keys) if k in rows], filters, None)

    def _between(self, schema: TableSchema, after: Key | None, upto: Key | None) -> list[Key]:
        rows = self._database.rows[schema.table]
        return sorted(k for k in rows if (after is None or k > after) and (upto is None or k <= upto))

    def _select(
        self, schema: TableSchema, keys: Callable[[], list[Key]], filters: Sequence[Filter], limit: int | None
    ) -> Chunk:
        self._before(f"select {schema.table}")
        table = self._database.rows[schema.table]
        rows = [row for key in keys() if _passes(row := table[key], filters)][:limit]
        chunk = Chunk(schema, pa.RecordBatch.from_pylist(rows, schema.arrow), self._database.snapshot())
        self._after(f"select {schema.table}")
        return chunk

    def close(self) -> None:
        return None


_COMPARE: dict[str, Callable[[Any, tuple[Any, ...]], bool]] = {
    "=": lambda value, given: value == given[0],
    "<": lambda value, given: value < given[0],
    "<=": lambda value, given: value <= given[0],
    ">": lambda value, given: value > given[0],
    ">=": lambda value, given: value >= given[0],
    "in": lambda value, given: value in given,
}


def _passes(row: db.Row, filters: Sequence[Filter]) -> bool:
    """All filters hold; NULL passes none."""
    return all(row.get(f.column) is not None and _COMPARE[f.op](row[f.column], f.values) for f in filters)


class SimWatermarks(Connection):
    """Watermarks as transactions of their own; `write` returns once its commit is visible, as any client's does."""

    def __init__(self, simulation: Simulation, database: db.Database) -> None:
        super().__init__(simulation, "watermark")
        self._database = database

    def write(self, payload: str) -> None:
        self._before("write")
        transaction = self._database.begin()
        self._database.change(transaction, db.Change("w", MARKS, payload=payload))
        self._database.commit(transaction)
        while not self._database.is_over(transaction):
            self._simulation.wait(None, self._database.shown)
        self._after("write")

    def close(self) -> None:
        return None
