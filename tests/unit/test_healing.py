"""Dumps that the capture asks for: one look at the catalogue, one dump, and one line about those that have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core import control, healing
from dblog_core.requests import WHOLE
from dblog_core.schema import TableName, TableSchema
from tests.fake_source import ORDERS
from tests.unit.test_engine import World


def test_tables_that_are_gone_or_have_no_key_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, looks = World(tmp_path, monkeypatch), []
    keyless = TableSchema(TableName("shop", "events"), ORDERS.columns, ())

    def tables() -> tuple[TableSchema, ...]:
        looks.append(1)
        return ORDERS, keyless

    monkeypatch.setattr(world.source, "tables", tables)
    gone = [f"shop.gone{number}" for number in range(200)]
    asked = healing.request(world.config, WHOLE, [str(ORDERS.table), "shop.events", *gone], state=world.state)
    (dump,) = control.dumps(world.state)
    assert asked.dumps == {str(ORDERS.table): dump.id} and asked.left_out == [*gone, "shop.events"]
    assert "\n" not in asked.told and "and 190 more" in asked.told and "1 without a key (shop.events)" in asked.told
    assert len(looks) <= 3
