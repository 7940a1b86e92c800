"""A dump whose key gets another order fails, whenever that happens: no row is skipped in silence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.dumps import dump_store, filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError, SourceRefused, SourceUnavailable
from dblog_core.model.key_order import has_one_order, order_text
from dblog_core.model.schema import Column, TableSchema
from tests.fake_source import ORDERS
from tests.unit import requests_world
from tests.unit.workers_world import Reader, World, world

__all__ = ["world"]

KEYS = list(range(1, 31))
OLD: dict[str, Any] = {"order": "old"}


@pytest.fixture
def ordered_world(world: World) -> World:
    """Thirty rows in the old order."""
    world.fill(*KEYS)
    world.database.orders[ORDERS.table] = "old"
    return world


def change(world: World) -> None:
    world.database.orders[ORDERS.table] = "new"


def at_read(world: World, number: int, act: Callable[[], None]) -> None:
    """Right before the SELECT of that number, from 1, after its low watermark and the look at the shape."""

    def look() -> None:
        if len(world.source.reads) == number:
            act()

    world.source.on_read = look


def fails(world: World) -> None:
    with pytest.raises(RequestError, match=r"order of the key of shop\.orders has changed") as raised:
        world.work()
    assert "was old, and is new" in str(raised.value)
    assert raised.value.fix == "request it again: `dblog dump --table shop.orders`"
    status = world.status()
    assert status.state == "failed"
    assert "fix: request it again: `dblog dump" in (status.error or "")
    assert not any(h.final for h in world.highs())


def test_a_key_that_keeps_its_order_is_dumped(ordered_world: World) -> None:
    ordered_world.request(OLD)
    ordered_world.work()
    assert (ordered_world.status().state, ordered_world.placed_keys()) == ("done", KEYS)


def test_a_task_of_an_older_version_that_remembers_no_order_goes_on(ordered_world: World) -> None:
    ordered_world.request({})
    at_read(ordered_world, 2, lambda: change(ordered_world))
    ordered_world.work()
    assert ordered_world.placed_keys() == KEYS


@pytest.mark.parametrize("task", [{}, {"keys": KEYS}, {"key_from": 1, "key_to": 30}], ids=["whole", "keys", "range"])
def test_a_change_before_the_first_chunk_fails_the_task(ordered_world: World, task: dict[str, Any]) -> None:
    ordered_world.request({**OLD, **task})
    change(ordered_world)
    fails(ordered_world)
    assert ordered_world.highs() == []


def test_a_change_between_two_chunks_keeps_what_was_read_before(ordered_world: World) -> None:
    ordered_world.request(OLD, delay=1.0)
    ordered_world.clock.hooks.append(lambda: change(ordered_world) if len(ordered_world.highs()) == 2 else None)
    fails(ordered_world)
    assert ordered_world.placed_keys() == KEYS[:20]


def test_a_change_between_the_look_at_the_shape_and_the_select_is_noticed(ordered_world: World) -> None:
    ordered_world.request(OLD)
    at_read(ordered_world, 2, lambda: change(ordered_world))
    fails(ordered_world)
    assert len(ordered_world.highs()) == 1, "what that SELECT has read reaches nobody"


def test_a_change_between_the_first_select_and_the_look_at_the_largest_key_is_noticed(
    ordered_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered_world.request(OLD)
    real = Reader.last_key

    def change_and_look(self: Reader, schema: TableSchema) -> Any:
        change(ordered_world)
        return real(self, schema)

    monkeypatch.setattr(Reader, "last_key", change_and_look)
    fails(ordered_world)
    assert ordered_world.highs() == []


def test_a_select_that_the_change_makes_impossible_is_told_as_the_change(ordered_world: World) -> None:
    """As one with an ENUM label that is gone: otherwise people read of a value that is none."""
    ordered_world.request(OLD)

    def refuse() -> None:
        change(ordered_world)
        raise SourceRefused("no such label")

    at_read(ordered_world, 2, refuse)
    fails(ordered_world)


def test_a_look_that_a_lost_connection_prevents_is_taken_again(
    ordered_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered_world.request(OLD)
    real = Reader.key_order
    left = [SourceUnavailable("gone", fix="none")]

    def fail_then_look(self: Reader, schema: TableSchema) -> str:
        if left:
            raise left.pop()
        return real(self, schema)

    monkeypatch.setattr(Reader, "key_order", fail_then_look)
    ordered_world.work()
    assert (ordered_world.status().state, ordered_world.placed_keys()) == ("done", KEYS)


@pytest.mark.parametrize(
    "request_",
    [DumpRequest(("shop.orders",)), DumpRequest(("shop.orders",), keys=(1, 2)), DumpRequest(None)],
    ids=["table", "keys", "all"],
)
def test_each_task_remembers_the_order_of_the_time_before_it_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: DumpRequest
) -> None:
    shop = requests_world.make(tmp_path, monkeypatch, chunk_size=10, workers=2)
    shop.fill(requests_world.ORDERS, [(n,) for n in range(1_000)])
    shop.database.orders = dict.fromkeys(shop.database.schemas, "old")
    real = requests_world.Reader.boundaries

    def alter_and_cut(self: requests_world.Reader, schema: TableSchema, **more: Any) -> Any:
        shop.database.orders[schema.table] = "new"
        return real(self, schema, **more)

    monkeypatch.setattr(requests_world.Reader, "boundaries", alter_and_cut)
    status = dump_store.read_dump(shop.state, filing.submit(shop.config, request_))
    assert {t.record.order for t in status.tasks} == {"old"}
    assert len(status.tasks) >= len(status.tables)


@pytest.mark.parametrize(
    ("left", "other"),
    [
        ([["a", "int"], ["b", "int"]], [["b", "int"], ["a", "int"]]),
        ([["a", "int"]], [["a", "int", {"collname": "C"}]]),
        ([["a", "x" * 5_000 + "y"]], [["a", "x" * 5_000 + "z"]]),
    ],
)
def test_different_columns_have_different_short_texts(left: Sequence[Any], other: Sequence[Any]) -> None:
    assert order_text(left) != order_text(other)
    assert order_text(left) == order_text(list(left))
    assert max(len(order_text(left)), len(order_text(other))) <= 1_000


IN_ORDER = {"bigint": pa.int64(), "bigint unsigned": pa.decimal128(20, 0), "date": pa.date32(), "bytea": pa.binary()}
IN_ORDER |= {"varbinary(20)": pa.binary(), "binary(16)": pa.binary(), "bit(12)": pa.binary()}
IN_ORDER |= {"timestamp(6)": pa.timestamp("us")}
OTHERS = {"varchar(9)": pa.string(), "float": pa.float32(), "double": pa.float64(), "boolean": pa.bool_()}
OTHERS |= {
    "uuid": pa.string(),
    "inet6": pa.string(),
    "longblob": pa.binary(),
    "blob": pa.binary(),
    "point": pa.binary(),
}


def test_only_types_that_every_database_and_the_lake_order_alike_have_one_order() -> None:
    """MariaDB orders UUIDs by other octets first, and of a BLOB only a beginning."""
    assert [name for name, kind in IN_ORDER.items() if not has_one_order(Column("k", name, kind))] == []
    assert [name for name, kind in OTHERS.items() if has_one_order(Column("k", name, kind))] == []
