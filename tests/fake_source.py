"""A database in memory behind the Source protocol, for interleavings that no server shows on demand.

Rows are dicts; a transaction is a list of steps, applied and logged at once by `commit`. Commits are visible in log
order. Tests drive the capture's parts by hand, or whole through `wiring`.
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pyarrow as pa

from dblog_core.config.source import ColumnRules
from dblog_core.errors import RequestError
from dblog_core.interfaces import (
    Chunk,
    ChunkTooLarge,
    Hashes,
    KeyOf,
    Problem,
    RangeHash,
    ReadPlan,
    Strain,
    WatermarkTable,
)
from dblog_core.model.events import (
    LogBatch,
    Rewritten,
    SchemaSeen,
    Signal,
    TableChanges,
    Transaction,
    Truncated,
    Unreadable,
    WatermarkSeen,
    changes_schema,
)
from dblog_core.model.filters import Filter
from dblog_core.model.position_spec import Place
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.table_identity import Origin
from dblog_core.model.values import Key
from dblog_core.rows.column_rules import Rules
from tests import plain_hashes

ORDERS = TableSchema(
    TableName("shop", "orders"),
    (Column("id", "bigint", pa.int64()), Column("name", "text", pa.string()), Column("big", "text", pa.string())),
    ("id",),
)
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """A step of a transaction: op c, u, d, t (truncate), p (partitions dropped: `dropped_keys` vanish), x (its log
    cannot be told from here on) or w (watermark, `after["payload"]`)."""

    op: str
    table: TableName
    before: Row | None = None
    after: Row | None = None
    unchanged: tuple[str, ...] = ()
    dropped_keys: tuple[Key, ...] = ()


@dataclass(slots=True)
class FakeDatabase:
    """Tables and their log."""

    schemas: dict[TableName, TableSchema] = field(default_factory=lambda: {ORDERS.table: ORDERS})
    rows: dict[TableName, dict[Key, Row]] = field(default_factory=dict)
    log: list[list[Change]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)  # of each commit in the log, microseconds since 1970 UTC
    orders: dict[TableName, str] = field(default_factory=dict)  # of keys, where a DDL has changed it
    rules: dict[str, ColumnRules] = field(default_factory=dict)  # of columns, as the source's configuration has them
    lock: threading.RLock = field(default_factory=threading.RLock)

    def key(self, table: TableName, row: Row) -> Key:
        return tuple(row[name] for name in self.schemas[table].key)

    def put(self, row: Row, table: TableName = ORDERS.table, unchanged: tuple[str, ...] = ()) -> Change:
        """An insert, or an update of the row with that key."""
        before = self.rows.get(table, {}).get(self.key(table, row))
        return Change("c" if before is None else "u", table, before, row, unchanged)

    def move(self, key: Key, row: Row, table: TableName = ORDERS.table, unchanged: tuple[str, ...] = ()) -> Change:
        return Change("u", table, self.rows[table][key], row, unchanged)

    def remove(self, key: Key, table: TableName = ORDERS.table) -> Change:
        return Change("d", table, self.rows[table][key], None)

    def commit(self, *changes: Change) -> None:
        with self.lock:
            for change in changes:
                self._apply(change)
            self.times.append(time.time_ns() // 1000)
            self.log.append(list(changes))

    def _apply(self, change: Change) -> None:
        rows = self.rows.setdefault(change.table, {})
        if change.op == "t":
            rows.clear()
        for key in change.dropped_keys:
            rows.pop(key, None)
        if change.before is not None and change.op in "ud":
            del rows[self.key(change.table, change.before)]
        if change.after is not None and change.op in "cu":
            rows[self.key(change.table, change.after)] = change.after


class FakeSource:
    """The Source protocol over a `FakeDatabase`; positions are indexes of the log."""

    kind = "mysql"

    def __init__(
        self, database: FakeDatabase, *, batch: int = 1000, wants: Callable[[TableName], bool] = lambda table: True
    ) -> None:
        self.database = database
        self._batch = batch
        self.wants = wants
        self.acknowledged = 0
        self.ahead = 0  # of the server's clock before ours, microseconds
        self.load = Strain(replication_lag=None, running=0, retained_bytes=0)

    def check(self) -> list[Problem]:
        return []

    def prepare(self) -> frozenset[str]:
        return frozenset()

    def keep_watermark_table(self) -> WatermarkTable:
        return WatermarkTable("")

    def write_witness(self, after: str) -> None:
        """None is needed: nobody puts this database back."""

    def require_witness(self, text: str) -> None:
        raise AssertionError("none was written")

    def list_refusals(self) -> tuple[Problem, ...]:
        return ()

    def shows_whole_logs(self) -> bool:
        return True

    def identities(self) -> frozenset[str] | None:
        return None if self.kind != "postgres" else frozenset(f"{t.table}@1" for t in self.tables())

    def origins(self, tables: Collection[TableName]) -> dict[TableName, Origin] | None:
        return None

    def tables(self) -> tuple[TableSchema, ...]:
        return tuple(s for s in self.database.schemas.values() if self.wants(s.table))

    def current_position(self) -> str:
        return str(len(self.database.log))

    start_position = current_position

    def begin(self, place: Place) -> str:
        return place.text.rpartition(":")[2]

    def find_target(self, place: Place) -> str:
        return place.text.rpartition(":")[2]

    def time(self) -> int:
        return time.time_ns() // 1000 + self.ahead

    def has_reached(self, position: str, target: str) -> bool:
        return int(position) >= int(target)

    def lies_before(self, transaction: Transaction, position: str) -> bool:
        return int(transaction.id) <= int(position)

    def place(self, position: str) -> str:
        return position

    def has_passed(self, position: str, end: str) -> bool:
        return int(position) >= int(end)

    def show(self, position: str) -> str:
        return f"fake:{position}"

    def succeed(self, name: str, before: frozenset[str]) -> None:
        """Nobody's connection is in another's way."""

    def open_log(self, position: str, *, skip: int = 0, keys: KeyOf | None = None) -> FakeStream:
        return FakeStream(self, int(position), skip, self._batch)

    def open_reader(self, *, lock_seconds: float | None = None) -> FakeReader:
        return FakeReader(self.database)

    def open_watermarks(self, worker: str) -> FakeWatermarks:
        return FakeWatermarks(self.database)

    def strain(self) -> Strain:
        return self.load

    def find_lock_holder(self, table: TableName) -> str | None:
        return None

    def stamps(self) -> None:
        """The log tells all."""

    def moment(self) -> None:
        """The log tells all."""

    def horizon(self) -> str | None:
        return None


class FakeStream:
    """Reads one stretch of at most `size` changes a call; a transaction may take several."""

    def __init__(self, source: FakeSource, at: int, skip: int, size: int) -> None:
        self._source = source
        self._at = at
        self._skip = skip
        self._size = size
        self._seen: dict[TableName, str] = {}

    def read(self, timeout: float, *, linger: float = 0.0) -> LogBatch | None:
        log = self._source.database.log
        if self._at >= len(log):
            return None
        changes = [c for c in log[self._at] if c.op == "w" or self._source.wants(c.table)]
        part = changes[self._skip : self._skip + self._size]
        transaction = Transaction(f"tx{self._at}", f"fake:{self._at}", self._source.database.times[self._at])
        self._skip += len(part)
        if whole := self._skip >= len(changes):
            self._at += 1
            self._skip = 0
        return self._batch(part, transaction, 0 if whole else self._skip)

    def _batch(self, part: list[Change], transaction: Transaction, partial: int) -> LogBatch:
        signals: list[Signal] = []
        rows: dict[TableName, list[tuple[int, Change]]] = {}
        for sequence, change in enumerate(part):
            if change.op == "w":
                signals.append(WatermarkSeen(sequence, 0, (change.after or {})["payload"]))
            elif change.op == "t":
                signals.append(Truncated(sequence, 0, change.table))
            elif change.op == "x":
                signals.append(Unreadable(sequence, 0, change.table, "a value is none", "correct the value"))
            elif change.op == "p":
                signals.append(Rewritten(sequence, 0, change.table))
            else:
                schema = self._source.database.schemas[change.table]
                if self._seen.get(change.table) != schema.fingerprint:
                    self._seen[change.table] = schema.fingerprint
                    signals.append(SchemaSeen(sequence, 0, schema))
                rows.setdefault(change.table, []).append((sequence, change))
        tables = tuple(self._changes(self._source.database.schemas[t], of) for t, of in rows.items())
        return LogBatch(tables, tuple(signals), (transaction,), str(self._at), partial)

    @staticmethod
    def _changes(schema: TableSchema, rows: list[tuple[int, Change]]) -> TableChanges:
        return changes_batch(
            schema, [(s, 0, c.op, c.before if c.op != "c" else None, c.after, c.unchanged) for s, c in rows]
        )

    def acknowledge(self, position: str) -> None:
        self._source.acknowledged = int(position)

    def close(self) -> None:
        return None


def changes_batch(
    schema: TableSchema, rows: Sequence[tuple[int, int, str, Row | None, Row | None, tuple[str, ...]]]
) -> TableChanges:
    """A change batch from (sequence, transaction, op, before, after, unchanged)."""
    target = changes_schema(schema)
    after = [None if r[4] is None else {k: None if k in r[5] else v for k, v in r[4].items()} for r in rows]
    columns = [
        [r[0] for r in rows],
        [r[1] for r in rows],
        [r[2] for r in rows],
        [False] * len(rows),
        [list(r[5]) or None for r in rows],
        [r[3] for r in rows],
        after,
    ]
    arrays = [pa.array(values, f.type) for values, f in zip(columns, target, strict=True)]
    return TableChanges(schema, pa.RecordBatch.from_arrays(arrays, schema=target))


class FakeReader:
    """Reads the committed state, keys in Python's order."""

    def __init__(self, database: FakeDatabase) -> None:
        self._database = database

    def origin(self, table: TableName) -> Origin | None:
        return None

    def schema(self, table: TableName) -> TableSchema:
        if table not in self._database.schemas:
            raise RequestError(f"{table} does not exist", fix="name another")
        return self._database.schemas[table]

    def key_order(self, schema: TableSchema) -> str:
        return self._database.orders.get(schema.table, f"Python's order of {schema.key}")

    def last_key(self, schema: TableSchema) -> Key | None:
        return max(self._database.rows.get(schema.table, {}), default=None)

    def estimated_rows(self, table: TableName) -> int:
        return len(self._database.rows.get(table, {}))

    def explain(self, schema: TableSchema, *, filters: Sequence[Filter] = ()) -> ReadPlan:
        with self._database.lock:
            rows = self._database.rows.get(schema.table, {}).values()
            return ReadPlan("PRIMARY", sum(passes(row, filters) for row in rows))

    def boundaries(self, schema: TableSchema, *, after: Key | None, upto: Key | None, every: int) -> Iterator[Key]:
        with self._database.lock:
            keys = self._keys(schema, after, upto)
        yield from keys[every - 1 :: every]

    def read(
        self,
        schema: TableSchema,
        *,
        after: Key | None,
        upto: Key | None,
        limit: int,
        filters: Sequence[Filter] = (),
        most: int | None = None,
    ) -> Chunk:
        with self._database.lock:
            rows = self._database.rows.get(schema.table, {})
            rows_read = [rows[k] for k in self._keys(schema, after, upto) if passes(rows[k], filters)]
            return self._chunk(schema, rows_read[:limit], most)

    def read_keys(
        self, schema: TableSchema, keys: Sequence[Key], *, filters: Sequence[Filter] = (), most: int | None = None
    ) -> Chunk:
        with self._database.lock:
            rows = self._database.rows.get(schema.table, {})
            rows_read = [rows[k] for k in sorted(keys) if k in rows and passes(rows[k], filters)]
            return self._chunk(schema, rows_read, most)

    def column_names(self, table: TableName) -> tuple[str, ...]:
        return tuple(column.name for column in self.schema(table).columns)

    def hashes(self, schema: TableSchema, *, after: Key | None, upto: Key | None, limit: int) -> Hashes:
        return self._hashed(self.read(schema, after=after, upto=upto, limit=limit))

    def hashes_of(self, schema: TableSchema, keys: Sequence[Key]) -> Hashes:
        return self._hashed(self.read_keys(schema, keys))

    def range_hash(self, schema: TableSchema, *, after: Key | None, upto: Key | None, limit: int) -> RangeHash:
        return plain_hashes.total(self.hashes(schema, after=after, upto=upto, limit=limit))

    def _hashed(self, chunk: Chunk) -> Hashes:
        return plain_hashes.of_rows(chunk, Rules(self._database.rules))

    def _keys(self, schema: TableSchema, after: Key | None, upto: Key | None) -> list[Key]:
        keys = self._database.rows.get(schema.table, {})
        return sorted(k for k in keys if (after is None or k > after) and (upto is None or k <= upto))

    @staticmethod
    def _chunk(schema: TableSchema, rows: list[Row], most: int | None) -> Chunk:
        ends = list(accumulate(sum(len(str(value)) for value in row.values()) for row in rows))
        received = ends[-1] if ends else 0
        if most is not None and received > most:
            raise ChunkTooLarge(sum(end <= most for end in ends))
        return Chunk(schema, pa.RecordBatch.from_pylist(rows, schema.arrow), None, received)

    def sees(self, place: str) -> bool:
        return True

    def log_end(self) -> str:
        return str(len(self._database.log))

    def close(self) -> None:
        return None


_COMPARISONS = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def passes(row: Row, filters: Sequence[Filter]) -> bool:
    """Whether a row passes all filters, compared as Python does; NULL passes none."""
    return all(_passes(row.get(f.column), f) for f in filters)


def _passes(value: Any, condition: Filter) -> bool:
    if value is None:
        return False
    if condition.op == "in":
        return value in condition.values
    return bool(_COMPARISONS[condition.op](value, condition.values[0]))


class FakeWatermarks:
    """Writes watermarks as transactions of their own."""

    def __init__(self, database: FakeDatabase) -> None:
        self._database = database

    def write(self, payload: str) -> None:
        self._database.commit(Change("w", TableName("shop", "dblog_watermark"), after={"payload": payload}))

    def close(self) -> None:
        return None
