"""Dumps that the capture asks for: one look at the catalogue, one dump, and one line about those that have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.capture.healing import dump_requests
from dblog_core.dumps import dump_store
from dblog_core.dumps.requests import WHOLE
from dblog_core.errors import SourceForbids
from dblog_core.model.schema import TableName, TableSchema
from tests.fake_source import ORDERS, FakeReader
from tests.unit.engine_world import World


def test_tables_that_are_gone_or_have_no_key_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    looks = []
    keyless = TableSchema(TableName("shop", "events"), ORDERS.columns, ())

    def tables() -> tuple[TableSchema, ...]:
        looks.append(1)
        return ORDERS, keyless

    monkeypatch.setattr(world.source, "tables", tables)
    dropped_tables = [f"shop.gone{number}" for number in range(200)]
    requested = dump_requests.request_dumps(
        world.config, WHOLE, [str(ORDERS.table), "shop.events", *dropped_tables], state=world.state
    )
    (dump,) = dump_store.list_dumps(world.state)
    assert requested.dumps == {str(ORDERS.table): dump.id} and requested.left_out == [*dropped_tables, "shop.events"]
    assert (
        "\n" not in requested.reasons
        and "and 190 more" in requested.reasons
        and "1 without a key (shop.events)" in requested.reasons
    )
    assert len(looks) <= 3


def test_a_table_that_goes_while_its_dump_is_requested_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    others = [TableSchema(TableName("shop", f"t{number}"), ORDERS.columns, ("id",)) for number in range(50)]
    looks = iter([(ORDERS, *others)])
    monkeypatch.setattr(world.source, "tables", lambda: next(looks, (ORDERS, others[0])))
    requested = dump_requests.request_dumps(
        world.config, WHOLE, [str(t.table) for t in (ORDERS, *others)], state=world.state
    )
    (dump,) = dump_store.list_dumps(world.state)
    assert set(requested.dumps) == {str(ORDERS.table), "shop.t0"} and dump.tables == ("shop.orders", "shop.t0")
    assert len(requested.gone) == 49 and requested.reasons.startswith("49 no longer there (shop.t1, ")


def test_one_table_that_may_not_be_read_is_found_in_few_looks_at_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    schemas = [TableSchema(TableName("shop", f"t{number}"), ORDERS.columns, ("id",)) for number in range(64)]
    looks = []

    def tables() -> tuple[TableSchema, ...]:
        looks.append(1)
        return tuple(schemas)

    def forbid(reader: FakeReader, schema: TableSchema) -> str:
        if schema == schemas[40]:
            raise SourceForbids("permission denied for table t40", where="shop")
        return ""

    monkeypatch.setattr(world.source, "tables", tables)
    monkeypatch.setattr(FakeReader, "key_order", forbid)
    requested = dump_requests.request_dumps(world.config, WHOLE, [str(s.table) for s in schemas], state=world.state)
    assert requested.refused.keys() == {"shop.t40"} and len(requested.dumps) == 63
    assert len(looks) < 40 and len(dump_store.list_dumps(world.state)) == 6
