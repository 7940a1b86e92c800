"""A source of several tables in memory, whose estimates are as wrong as a test wants, and a state store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store, filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.dumps.status import DumpStatus
from dblog_core.interfaces import ReadPlan
from dblog_core.model.filters import Filter
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.values import Key
from dblog_core.state.memory import MemoryState
from tests.fake_source import FakeDatabase, FakeReader, FakeSource


def table(called: str, key: tuple[str, ...] = ("id",), /, **columns: pa.DataType) -> TableSchema:
    """A table of the schema `shop`; the columns are `id` (bigint) and those that are given."""
    every = {"id": pa.int64(), **columns}
    return TableSchema(TableName("shop", called), tuple(Column(n, str(t), t) for n, t in every.items()), key)


CUSTOMERS = table("customers", name=pa.string(), born=pa.date32(), balance=pa.decimal128(20, 2))
CUSTOMS = table("customs", ("code",), code=pa.string(), name=pa.string())
ORDERS = table("orders", name=pa.string(), paid=pa.bool_())
EVENTS = table("events", (), name=pa.string())
LINES = table("lines", ("id", "line"), line=pa.string())


@dataclass
class World:
    """`estimates`: what the server believes, by table, where it is wrong; `scans`: tables whose key order no index
    serves; `passing`: estimated rows that pass filters; `walked`: boundary reads, by table and stride."""

    state: MemoryState
    config: Config
    database: FakeDatabase
    estimates: dict[TableName, int] = field(default_factory=dict)
    scans: set[TableName] = field(default_factory=set)
    passing: int = 0
    walked: list[tuple[TableName, int]] = field(default_factory=list)

    def fill(self, schema: TableSchema, keys: Sequence[Key]) -> None:
        rows = [dict(zip(schema.key, key, strict=True)) for key in keys]
        empty = dict.fromkeys(c.name for c in schema.columns)
        self.database.rows[schema.table] = {k: {**empty, **row} for k, row in zip(keys, rows, strict=True)}


class Reader(FakeReader):
    """A reader whose server estimates badly."""

    def __init__(self, world: World) -> None:
        super().__init__(world.database)
        self._world = world

    def estimated_rows(self, table: TableName) -> int:
        return self._world.estimates.get(table, super().estimated_rows(table))

    def explain(self, schema: TableSchema, *, filters: Sequence[Filter] = ()) -> ReadPlan:
        rows = self._world.passing if filters else self.estimated_rows(schema.table)
        return ReadPlan(None if schema.table in self._world.scans else "PRIMARY", rows)

    def boundaries(self, schema: TableSchema, *, after: Key | None, upto: Key | None, every: int) -> Iterator[Key]:
        self._world.walked.append((schema.table, every))
        keys = sorted(self._database.rows.get(schema.table, {}))
        inside = [k for k in keys if (after is None or k > after) and (upto is None or k <= upto)]
        yield from inside[every - 1 :: every]


def make(path: Path, monkeypatch: pytest.MonkeyPatch, **dump: Any) -> World:
    """A world with five empty tables; `dump`: options of the configuration."""
    config = Config.model_validate(
        {
            "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
            "staging": {"path": str(path / "staging")},
            "state": {"url": "sqlite:///unused"},
            "lake": {"path": str(path / "lake")},
            "dump": dump,
        }
    )
    shapes = {s.table: s for s in (CUSTOMERS, CUSTOMS, EVENTS, LINES, ORDERS)}
    world = World(MemoryState(), config, FakeDatabase(schemas=shapes))
    source = FakeSource(world.database)
    monkeypatch.setattr(source, "open_reader", lambda **_: Reader(world))
    monkeypatch.setattr(wiring, "open_source", lambda _: source)
    monkeypatch.setattr(wiring, "open_state", lambda _: MemoryState(shared=world.state))
    return world


def file_dump(world: World, request: DumpRequest) -> DumpStatus:
    return dump_store.read_dump(world.state, filing.submit(world.config, request))
