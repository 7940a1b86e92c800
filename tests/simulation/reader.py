"""The simulated tables as a dump worker reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from dblog_core.errors import RequestError, SourceForbids, SourceRefused
from dblog_core.interfaces import Chunk, Hashes, RangeHash, ReadPlan
from dblog_core.model.filters import Filter
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.table_identity import Origin
from dblog_core.model.values import Key
from dblog_core.rows.column_rules import Rules
from tests import plain_hashes
from tests.simulation import database as db
from tests.simulation.connection import Connection
from tests.simulation.scheduler import Simulation


class SimReader(Connection):
    """SELECTs: each sees what is visible at its own moment. Keys have Python's order."""

    def __init__(self, simulation: Simulation, database: db.Database) -> None:
        super().__init__(simulation, "reader")
        self._database = database

    def origin(self, table: TableName) -> Origin | None:
        self._before(f"origin {table}")
        return self._database.origin(table)

    def schema(self, table: TableName) -> TableSchema:
        self._before(f"schema {table}")
        if table not in self._database.schemas:
            raise RequestError(f"{table} does not exist", fix="name another")
        return self._database.schemas[table]

    def key_order(self, schema: TableSchema) -> str:
        return ", ".join(schema.key)  # no DDL of the simulation changes it

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
        most: int | None = None,
    ) -> Chunk:
        return self._select(schema, lambda: self._between(schema, after, upto), filters, limit)

    def read_keys(
        self, schema: TableSchema, keys: Sequence[Key], *, filters: Sequence[Filter] = (), most: int | None = None
    ) -> Chunk:
        rows = self._database.rows[schema.table]
        return self._select(schema, lambda: [k for k in sorted(keys) if k in rows], filters, None)

    def column_names(self, table: TableName) -> tuple[str, ...]:
        return tuple(column.name for column in self.schema(table).columns)

    def hashes(self, schema: TableSchema, *, after: Key | None, upto: Key | None, limit: int) -> Hashes:
        return plain_hashes.of_rows(self.read(schema, after=after, upto=upto, limit=limit), Rules({}))

    def hashes_of(self, schema: TableSchema, keys: Sequence[Key]) -> Hashes:
        return plain_hashes.of_rows(self.read_keys(schema, keys), Rules({}))

    def range_hash(self, schema: TableSchema, *, after: Key | None, upto: Key | None, limit: int) -> RangeHash:
        return plain_hashes.total(self.hashes(schema, after=after, upto=upto, limit=limit))

    def _between(self, schema: TableSchema, after: Key | None, upto: Key | None) -> list[Key]:
        rows = self._database.rows[schema.table]
        return sorted(k for k in rows if (after is None or k > after) and (upto is None or k <= upto))

    def _select(
        self, schema: TableSchema, keys: Callable[[], list[Key]], filters: Sequence[Filter], limit: int | None
    ) -> Chunk:
        self._before(f"select {schema.table}")
        if schema.table in self._database.forbidden:
            raise SourceForbids(f"{schema.table} must not be read", fix="grant SELECT")
        if not {c.name for c in schema.columns} <= {c.name for c in self._database.schemas[schema.table].columns}:
            raise SourceRefused(f"{schema.table} has no such column", fix="read it as it is now")
        table = self._database.rows[schema.table]
        rows = [row for key in keys() if _passes(row := table[key], filters)][:limit]
        chunk = Chunk(schema, pa.RecordBatch.from_pylist(rows, schema.arrow), self._database.snapshot())
        self._after(f"select {schema.table}")
        return chunk

    def sees(self, place: str) -> bool:
        self._before(f"sees {place}")
        return self._database.kind == "postgres" or self._database.visible_before(int(place))

    def log_end(self) -> str:
        self._before("log end")
        return str(len(self._database.log))

    def close(self) -> None:
        return None


_COMPARE: dict[str, Callable[[Any, tuple[Any, ...]], bool]] = {
    "=": lambda value, values: value == values[0],
    "<": lambda value, values: value < values[0],
    "<=": lambda value, values: value <= values[0],
    ">": lambda value, values: value > values[0],
    ">=": lambda value, values: value >= values[0],
    "in": lambda value, values: value in values,
}


def _passes(row: db.Row, filters: Sequence[Filter]) -> bool:
    """All filters hold; NULL passes none."""
    return all(row.get(f.column) is not None and _COMPARE[f.op](row[f.column], f.values) for f in filters)
