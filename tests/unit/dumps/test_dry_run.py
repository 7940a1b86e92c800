"""A plan says what a dump would read, before anything is filed or read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dblog_core.commands.dump import plan_text
from dblog_core.dumps import dump_store, filing, task_store
from dblog_core.dumps.dry_run import ASSUMED_RATE, plan
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError
from dblog_core.model.task_id import TaskId
from tests.unit import requests_world
from tests.unit.requests_world import CUSTOMERS, ORDERS, World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = requests_world.make(tmp_path, monkeypatch, chunk_size=10, workers=2)
    world.fill(ORDERS, [(k,) for k in range(1_000)])
    world.fill(CUSTOMERS, [(k,) for k in range(35)])
    return world


def finished(world: World, *, rows: int, seconds: int, **options: Any) -> str:
    """A dump of the orders in four ranges by two workers, that took so long."""
    dump_id = filing.submit(world.config, DumpRequest(("shop.orders",), **({"ranges": 4} | options)))
    for number in range(len(dump_store.read_dump(world.state, dump_id).tasks)):
        before = task_store.read_progress(world.state, TaskId(dump_id, number), "shop.orders")
        done = replace(before, rows=rows // 4, done=True, began=1, at=1 + seconds * 1_000_000)
        task_store.put_progress(world.state, TaskId(dump_id, number), done)
    return dump_id


def test_a_plan_counts_rows_ranges_and_chunks_and_files_nothing(world: World) -> None:
    plan_json = plan(world.config, DumpRequest(None)).to_json()
    tables = {t["table"]: t for t in plan_json["tables"]}
    assert {name: (t["rows"], t["ranges"], t["chunks"]) for name, t in tables.items()} == {
        "shop.customers": (35, 1, 4),
        "shop.customs": (0, 1, 1),
        "shop.lines": (0, 1, 1),
        "shop.orders": (1_000, 8, 100),
    }
    assert (plan_json["rows"], plan_json["ranges"], plan_json["chunks"]) == (1_035, 11, 106)
    assert tables["shop.orders"]["index"] == "PRIMARY"
    assert tables["shop.lines"]["key"] == ["id", "line"]
    assert [r["table"] for r in plan_json["refused"]] == ["shop.events"]
    assert (dump_store.list_dumps(world.state), world.walked) == ([], []), "no boundaries are read for a plan"


def test_what_is_planned_is_what_is_filed(world: World) -> None:
    for request in (
        DumpRequest(None),
        DumpRequest(("shop.orders",), ranges=3),
        DumpRequest(("shop.orders",), workers=5, chunk_size=7),
        DumpRequest(("shop.orders",), keys=tuple(range(6_000))),
    ):
        status = dump_store.read_dump(world.state, filing.submit(world.config, request))
        plan_json = plan(world.config, request)
        assert sum(t.ranges for t in plan_json.tables) == len(status.tasks)
        assert plan_json.options == status.options


def test_the_time_is_that_of_the_newest_dump_that_measured_it(world: World) -> None:
    finished(world, rows=1_000, seconds=1)
    newest = finished(world, rows=1_000, seconds=50)  # 20 rows a second by two workers
    finished(world, rows=1_000, seconds=5_000, filters=(("name", "=", "x"),))
    finished(world, rows=1_000, seconds=5_000, keys=(1, 2), ranges=None)
    table = plan(world.config, DumpRequest(("shop.orders",))).tables[0]
    assert (table.rate, table.rate_from) == (pytest.approx(10), f"dump {newest}")
    assert table.seconds == pytest.approx(50)
    assert plan(world.config, DumpRequest(("shop.orders",), workers=1)).seconds == pytest.approx(100)


def test_limits_that_are_asked_for_make_it_longer_and_never_shorter(world: World) -> None:
    finished(world, rows=1_000, seconds=50)
    slow = plan(world.config, DumpRequest(("shop.orders",), rate=5, workers=1))
    assert (slow.seconds, slow.tables[0].rate_from) == (pytest.approx(200), "the rate that is asked for")
    assert plan(world.config, DumpRequest(("shop.orders",), rate=10**6, workers=1)).seconds == pytest.approx(100)
    delayed = plan(world.config, DumpRequest(("shop.orders",), delay=3.0, workers=1))
    assert delayed.seconds == pytest.approx(100 + 100 * 3)


def test_without_a_measurement_the_assumption_is_told(world: World) -> None:
    plan_json = plan(world.config, DumpRequest(("shop.orders",)))
    assert plan_json.tables[0].rate == ASSUMED_RATE
    assert "assumed: 20,000 rows a second" in plan_text(plan_json)


def test_one_table_in_one_range_takes_as_long_as_one_worker(world: World) -> None:
    plan_json = plan(world.config, DumpRequest(("shop.orders", "shop.customers"), ranges=1, rate=10, workers=8))
    assert plan_json.seconds == pytest.approx(100), "the others are done long before"


def test_a_plan_warns_of_what_no_index_serves(world: World) -> None:
    request = DumpRequest(("shop.orders",), filters=(("name", "=", "x"), ("name", ">", "a")))
    world.passing = 40
    assert plan(world.config, request).tables[0].warnings == ()
    world.scans.add(ORDERS.table)
    plan_json = plan(world.config, request)
    assert (plan_json.tables[0].index, plan_json.tables[0].rows, plan_json.tables[0].ranges) == (None, 40, 1)
    assert "no index serves the filter on name " in plan_json.tables[0].warnings[0]
    whole = plan(world.config, DumpRequest(("shop.orders",)))
    assert "no index serves the order of the key" in whole.tables[0].warnings[0]


def test_a_plan_of_a_key_range_says_that_its_numbers_are_the_table_s(world: World) -> None:
    plan_json = plan(world.config, DumpRequest(("shop.orders",), key_from=1))
    assert "the key range may hold fewer" in plan_json.tables[0].warnings[0]


def test_a_plan_refuses_what_a_request_would(world: World) -> None:
    for request in (DumpRequest(("shop.nothing",)), DumpRequest(("shop.events",)), DumpRequest(())):
        with pytest.raises(RequestError):
            plan(world.config, request)


def test_people_read_a_plan_as_a_table(world: World) -> None:
    world.scans.add(CUSTOMERS.table)
    lines = plan_text(plan(world.config, DumpRequest(None, rate=1, workers=1))).splitlines()
    assert lines[0].split() == ["TABLE", "INDEX", "ROWS", "RANGES", "CHUNKS", "TIME"]
    rows = {line.split()[0]: line.split(maxsplit=5)[1:] for line in lines[1:5]}
    assert rows["shop.orders"] == ["PRIMARY", "1,000", "4", "100", "16 min 40 s"]
    assert rows["shop.customers"][0] == "none"
    assert lines[5].split() == ["in", "all", "1,035", "7", "106", "17", "min", "15", "s"]
    assert any(line.startswith("refused: shop.events has no key") for line in lines)
    assert any(line.startswith("warning: shop.customers: no index") for line in lines)
