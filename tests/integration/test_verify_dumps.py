"""The dumps of a repair: of several tables together, and one that does not come about hinders no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dblog_core.dumps import control, dump_store, work_loop
from dblog_core.dumps.status import DumpStatus
from dblog_core.verify.report import Report
from dblog_core.wiring import open_state
from tests.fix_servers import Database
from tests.integration.verify_shop import Plainly, Shop

pytestmark = [pytest.mark.in_turn, pytest.mark.one_of(3)]


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Iterator[Shop]:
    opened_shop = Shop(database, database.config(tmp_path))
    opened_shop.fill()
    with opened_shop.capturing():
        opened_shop.dump()
        yield opened_shop


def unfinished(shop: Shop) -> list[DumpStatus]:
    with closing(open_state(shop.config)) as state:
        return dump_store.list_unfinished_dumps(state)


def repair(
    shop: Shop,
    verify_plainly: Plainly,
    monkeypatch: pytest.MonkeyPatch,
    happen: Callable[[dict[str, DumpStatus]], None],
) -> Report:
    """Repairs a row of each table; `happen` gets the dumps, by table, right before they are worked on."""
    verify, lake = verify_plainly(shop.config)
    lake.do(shop.a, (7,), None)
    lake.do(shop.b, ("Code 7",), None)
    work = work_loop.work

    def happen_and_work(*arguments: Any, **options: Any) -> None:
        happen({table: dump for dump in unfinished(shop) for table in dump.tables})
        work(*arguments, **options)

    monkeypatch.setattr(work_loop, "work", happen_and_work)
    return verify(shop.config, repair=True)


def test_all_dumps_are_requested_before_one_is_worked_on(
    shop: Shop, verify_plainly: Plainly, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[dict[str, DumpStatus]] = []
    report = repair(shop, verify_plainly, monkeypatch, looks.append)
    assert report.equal, report.to_json()
    (dumps,) = looks
    assert {dump.requested_by.split(":")[0] for dump in dumps.values()} == {"verify"}
    repaired = {table.table: table.repaired for table in report.tables}
    assert {name: each.dump_id for name, each in repaired.items() if each} == {n: d.id for n, d in dumps.items()}
    assert set(dumps) == {shop.a, shop.b} and not unfinished(shop)


@pytest.mark.parametrize("fault", ["cancelled", "dropped"])
def test_a_dump_that_does_not_come_about_keeps_its_own_table_alone_from_being_mended(
    shop: Shop, verify_plainly: Plainly, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def happen(dumps: dict[str, DumpStatus]) -> None:
        if fault == "dropped":
            shop.database.execute("DROP TABLE b")
            return
        with closing(open_state(shop.config)) as state:
            control.cancel(state, dumps[shop.b].id)

    report = repair(shop, verify_plainly, monkeypatch, happen)
    mended, other = report.tables
    assert mended.equal and mended.repaired is not None, report.to_json()
    assert mended.repaired.differences.missing == (7,)
    assert other.missing == ("Code 7",) and other.repaired is None and not report.equal
    assert other.error is not None and ("it was ended" in other.error) == (fault == "cancelled")
