"""Tables that cannot be read, or that change, while a dump of them is planned."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.dumps import filing
from dblog_core.dumps.dry_run import plan
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import (
    DblogError,
    RequestError,
    ServerNotSafe,
    SourceError,
    SourceForbids,
    SourceReadOnly,
    SourceUnavailable,
    TableGone,
    ValueOutOfRange,
)
from dblog_core.interfaces import ReadPlan
from dblog_core.model.schema import TableSchema
from tests.unit import requests_world
from tests.unit.requests_world import ORDERS, World, file_dump


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return requests_world.make(tmp_path, monkeypatch, chunk_size=10, workers=2)


@pytest.mark.parametrize(
    "server_error", [SourceError("Unknown column"), RequestError("a column of this shape is gone")]
)
def test_a_table_that_is_altered_while_it_is_planned_is_planned_anew(
    world: World, monkeypatch: pytest.MonkeyPatch, server_error: DblogError
) -> None:
    explain = requests_world.Reader.explain
    shapes_seen = []

    def alter_and_explain(self: requests_world.Reader, schema: TableSchema, **arguments: Any) -> ReadPlan:
        database_schema = world.database.schemas[schema.table]
        if len(shapes_seen) < 2:
            shapes_seen.append(schema)
            world.database.schemas[schema.table] = requests_world.table(
                "orders", paid=pa.bool_(), **{f"c{len(shapes_seen)}": pa.int64()}
            )
        if schema != world.database.schemas[schema.table] or database_schema != schema:
            raise server_error
        return explain(self, schema, **arguments)

    monkeypatch.setattr(requests_world.Reader, "explain", alter_and_explain)
    assert file_dump(world, DumpRequest(("shop.orders",))).tables == ("shop.orders",)
    assert len(shapes_seen) == 2


@pytest.mark.parametrize("fault", [ValueOutOfRange, SourceForbids])
def test_a_table_that_cannot_be_read_is_left_out_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, fault: type[SourceError]
) -> None:
    """Its key holds a value without an exact form, or a right is missing."""
    explain = requests_world.Reader.explain

    def read(self: requests_world.Reader, schema: TableSchema, **arguments: Any) -> ReadPlan:
        if schema == ORDERS:
            raise fault("column paid: a value is no date", where="shop.orders", fix="correct the value")
        return explain(self, schema, **arguments)

    monkeypatch.setattr(requests_world.Reader, "explain", read)
    status = file_dump(world, DumpRequest(None))
    assert status.tables == ("shop.customers", "shop.customs", "shop.lines")
    refusals_by_table = {r.table: (r.reason, r.fix) for r in status.refused}
    assert refusals_by_table["shop.orders"] == ("shop.orders: column paid: a value is no date", "correct the value")
    assert {task.table for task in status.tasks} == set(status.tables)
    dump_plan = plan(world.config, DumpRequest(None))
    assert [t.table for t in dump_plan.tables] == list(status.tables) and "shop.orders" in {
        r.table for r in dump_plan.refused
    }
    with pytest.raises(RequestError, match="column paid") as refused:
        file_dump(world, DumpRequest(("shop.orders",)))
    assert refused.value.fix == "correct the value"
    with pytest.raises(RequestError, match="column paid: a value is no date"):
        file_dump(world, DumpRequest(("shop.order*",)))


@pytest.mark.parametrize("error", [TableGone("is gone"), SourceError("Table doesn't exist (1146)")])
def test_tables_that_are_dropped_all_the_time_are_left_out_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, error: DblogError
) -> None:
    """Each look at them finds another one gone, and a new one there."""
    explain = requests_world.Reader.explain
    looks = count()
    fleeting = requests_world.table("fleeting0")
    world.database.schemas[fleeting.table] = fleeting

    def drop_one(self: requests_world.Reader, schema: TableSchema, **arguments: Any) -> ReadPlan:
        if schema.table.name.startswith("fleeting"):
            del world.database.schemas[schema.table]
            another = requests_world.table(f"fleeting{next(looks) + 1}")
            world.database.schemas[another.table] = another
            raise error
        return explain(self, schema, **arguments)

    monkeypatch.setattr(requests_world.Reader, "explain", drop_one)
    status = file_dump(world, DumpRequest(None))
    assert status.tables == ("shop.customers", "shop.customs", "shop.lines", "shop.orders")
    (refusal,) = [r for r in status.refused if "fleeting" in r.table]
    assert refusal.reason == error.message
    assert next(looks) > 2, "it has looked again before"


def test_a_server_that_refuses_the_same_table_twice_is_believed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_plan(self: requests_world.Reader, schema: TableSchema, **_: Any) -> ReadPlan:
        raise SourceError("no right to it")

    monkeypatch.setattr(requests_world.Reader, "explain", refuse_plan)
    with pytest.raises(RequestError, match="no right to it"):
        filing.submit(world.config, DumpRequest(("shop.orders",)))


def test_a_table_that_the_server_cannot_open_is_left_out_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    explain = requests_world.Reader.explain

    def read(self: requests_world.Reader, schema: TableSchema, **arguments: Any) -> ReadPlan:
        if schema == ORDERS:
            raise SourceError("Tablespace is discarded for table, 'orders' (1814)", where="mysql")
        return explain(self, schema, **arguments)

    monkeypatch.setattr(requests_world.Reader, "explain", read)
    status = file_dump(world, DumpRequest(None))
    assert status.tables == ("shop.customers", "shop.customs", "shop.lines")
    assert {r.table: r.reason for r in status.refused}["shop.orders"].endswith("(1814)")


@pytest.mark.parametrize("error", [ServerNotSafe("no order"), SourceReadOnly("a standby"), SourceUnavailable("gone")])
def test_a_fault_of_the_server_is_no_fault_of_a_table(
    world: World, monkeypatch: pytest.MonkeyPatch, error: SourceError
) -> None:
    def fail(self: requests_world.Reader, schema: TableSchema, **_: Any) -> ReadPlan:
        raise error

    monkeypatch.setattr(requests_world.Reader, "explain", fail)
    with pytest.raises(type(error)):
        filing.submit(world.config, DumpRequest(None))
