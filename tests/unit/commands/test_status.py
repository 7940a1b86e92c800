"""The status as people read it."""

from __future__ import annotations

from dblog_core.commands import status
from dblog_core.monitoring.source_status import TableInStatus


def test_a_table_that_is_not_well_says_why_and_how_it_is_mended() -> None:
    assert status._table(TableInStatus("shop.orders", "ok")) == "table     shop.orders: ok"
    table = TableInStatus("shop.orders", "incomplete", cause="it waits for a dump", fix="run one", captured=False)
    assert status._table(table) == (
        "table     shop.orders: incomplete, no longer captured: it waits for a dump\n  fix: run one"
    )
