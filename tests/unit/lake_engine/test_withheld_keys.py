"""Rows that wait for a dump: how the merge, which has no access to the source, asks for it, and what it says where none
comes."""

from __future__ import annotations

import datetime as dt
import decimal
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import control, dump_store
from dblog_core.dumps.deferred_planning import DeferredPlanner
from dblog_core.dumps.dump_records import Refusal
from dblog_core.errors import LakeError, LeaseLost, StateUnavailable
from dblog_core.lake.lake_status import lake_at, own_directory
from dblog_core.lake_engine.merging import withheld_keys
from dblog_core.lake_engine.merging.merge_records import Records
from dblog_core.lake_engine.merging.withheld_keys import DumpEnd, StoredDumps, Withheld
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.state.memory import MemoryState
from dblog_core.state.paths import MAX_BYTES
from tests.unit import requests_world
from tests.unit.requests_world import ORDERS, World
from tests.unit.workers_world import DrawnClock

NAME = "shop.orders"
TEXTS = TableSchema(TableName("shop", "texts"), (Column("id", "text", pa.string()),), ("id",))


class FakeDumps:
    """Remembers what was asked for; `faults`: by table, what every request of it raises."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[Any]]] = []
        self.faults: dict[str, Exception] = {}
        self.ends: dict[str, DumpEnd] = {}

    def submit(self, table: str, keys: list[Any]) -> str:
        if table in self.faults:
            raise self.faults[table]
        self.asked.append((table, keys))
        return f"d{len(self.asked)}"

    def await_plan(self, dump: str, check: Callable[[], None]) -> None:
        raise AssertionError("a merge waits for no dump")

    def find_end(self, dump: str) -> DumpEnd | None:
        return self.ends.get(dump)


class Clock:
    """Seconds, drawn."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(own_directory(lake_at(str(tmp_path))))


def _open(records: Records, clock: Clock, epoch: int = 1) -> Withheld:
    withheld = Withheld(records, monotonic=clock, now=clock)
    withheld.load(epoch, lambda: None)
    return withheld


def _ask(withheld: Withheld, dumps: FakeDumps, **more: Any) -> list[LakeError]:
    return withheld.request_dumps(dumps, ended=withheld.find_ended(dumps), **more)


def test_a_table_whose_dump_cannot_be_requested_keeps_no_other_waiting(records: Records, clock: Clock) -> None:
    withheld, dumps = _open(records, clock), FakeDumps()
    for name in ("shop.a", "shop.b", "shop.c"):
        withheld.add(name, [(1,)])
    dumps.faults["shop.b"] = StateUnavailable("no answer")
    (fault,) = _ask(withheld, dumps)
    assert "shop.b" in str(fault) and "1 rows are withheld" in str(fault) and "no answer" in str(fault) and fault.fix
    assert [table for table, _ in dumps.asked] == ["shop.a", "shop.c"]
    dumps.faults.clear()
    assert _ask(withheld, dumps) == []
    assert dumps.asked[2:] == [("shop.b", [1])], "asked for at the next merge, and the others once"


def test_who_has_lost_the_lake_asks_for_nothing_more(records: Records, clock: Clock) -> None:
    withheld, dumps = _open(records, clock), FakeDumps()
    withheld.add(NAME, [(1,)])

    def lose() -> None:
        raise LeaseLost("taken over", fix="nothing")

    withheld._check = lose
    with pytest.raises(LeaseLost):
        _ask(withheld, dumps)


def test_keys_are_asked_for_in_parts_that_a_node_can_hold(records: Records, clock: Clock) -> None:
    withheld, dumps = _open(records, clock), FakeDumps()
    keys = [(f"{number:06}" + "ä" * 1_000,) for number in range(600)]
    withheld.add("shop.texts", keys)
    assert _ask(withheld, dumps) == []
    assert sorted(key for _, part in dumps.asked for key in part) == sorted(key for (key,) in keys)
    assert all(len(orjson.dumps(part)) < MAX_BYTES / 2 for _, part in dumps.asked) and len(dumps.asked) < 10
    withheld.add(NAME, [(number,) for number in range(12_000)])
    dumps.asked.clear()
    _ask(withheld, dumps)
    assert [len(part) for _, part in dumps.asked] == [5_000, 5_000, 2_000]


def test_a_key_that_no_node_can_hold_stands_alone(records: Records, clock: Clock) -> None:
    """The state store refuses it by name, and takes the others."""
    withheld, dumps = _open(records, clock), FakeDumps()
    withheld.add("shop.texts", [("a",), ("b" * 2_000_000,), ("c",)])
    _ask(withheld, dumps)
    assert [[len(key) for key in part] for _, part in dumps.asked] == [[1], [2_000_000], [1]]


def test_a_dump_that_fails_is_asked_for_again_ever_more_rarely(records: Records, clock: Clock) -> None:
    withheld, dumps = _open(records, clock), FakeDumps()
    withheld.add(NAME, [(1,)])
    asked_at = []
    for _ in range(24 * 3_600 // 10):
        before = len(dumps.asked)
        assert _ask(withheld, dumps) == []
        if len(dumps.asked) > before:
            asked_at.append(clock.now)
            dumps.ends[f"d{len(dumps.asked)}"] = DumpEnd(failed=True, requested_at=clock.now)
        clock.now += 10
    waits = [later - earlier for earlier, later in pairwise(asked_at)]
    assert waits[:4] == [60, 120, 240, 480] and max(waits) == 6 * 3_600
    withheld = _open(records, clock, epoch=2)  # another process goes on with these waits
    dumps.ends[f"d{len(dumps.asked)}"] = DumpEnd(failed=True, requested_at=clock.now)
    clock.now += 3_600
    count = len(dumps.asked)
    _ask(withheld, dumps)
    assert len(dumps.asked) == count
    dumps.ends[f"d{count}"] = DumpEnd(failed=False, requested_at=clock.now)  # it brought rows, but not this one
    _ask(withheld, dumps)
    assert len(dumps.asked) == count + 1
    dumps.ends[f"d{count + 1}"] = DumpEnd(failed=True, requested_at=clock.now)
    clock.now += 60
    _ask(withheld, dumps)
    assert len(dumps.asked) == count + 2, "the waits begin anew"


def test_a_dump_that_ends_without_the_row_is_asked_for_again(records: Records, clock: Clock) -> None:
    withheld, dumps = _open(records, clock), FakeDumps()
    withheld.add(NAME, [(1,), (2,)])
    _ask(withheld, dumps)
    withheld.forget(NAME, [(2,)], ORDERS)
    dumps.ends["d1"] = DumpEnd(failed=False, requested_at=clock.now)
    for _ in range(100):
        _ask(withheld, dumps)
        clock.now += 1
    assert [keys for _, keys in dumps.asked] == [[1, 2], [1]]


@pytest.mark.parametrize(
    ("key", "now", "kind"),
    [
        (1, decimal.Decimal("1.00"), pa.decimal128(20, 2)),
        (1, 1.0, pa.float64()),
        (decimal.Decimal("1.50"), decimal.Decimal("1.5000"), pa.decimal128(14, 4)),
        (dt.date(2020, 1, 1), dt.datetime.fromisoformat("2020-01-01"), pa.timestamp("us")),
    ],
)
def test_a_key_is_forgotten_by_the_value_that_it_has_in_a_wider_type(
    records: Records, clock: Clock, key: Any, now: Any, kind: pa.DataType
) -> None:
    withheld = _open(records, clock)
    withheld.add(NAME, [(key,)])
    wider = TableSchema(TableName.parse(NAME), (Column("id", str(kind), kind),), ("id",))
    assert withheld.keys(NAME, wider) == [(now,)]
    withheld.forget(NAME, [(now,)], wider)
    assert not withheld.waits(NAME)


def test_the_file_of_an_earlier_version_is_read(records: Records, clock: Clock) -> None:
    records.write("withheld/000000000003.json", {NAME: {"1": "d7", "2": None}})
    withheld = _open(records, clock, epoch=4)
    assert withheld.keys(NAME, ORDERS) == [(1,), (2,)]
    dumps = FakeDumps()
    _ask(withheld, dumps)
    assert dumps.asked == [(NAME, [2])]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = requests_world.make(tmp_path, monkeypatch)
    world.fill(ORDERS, [(number,) for number in range(1, 20)])
    monkeypatch.setattr(withheld_keys, "open_state", lambda _: MemoryState(shared=world.state))
    return world


@pytest.fixture
def no_source(world: World, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The configuration of a process whose every use of the source fails the test."""
    monkeypatch.setattr(wiring, "open_source", lambda _: pytest.fail("the source is opened"))
    return world.config


def test_a_dump_is_filed_and_looked_at_without_the_source(no_source: Config, world: World) -> None:
    dumps = StoredDumps(no_source)
    dump = dumps.submit(NAME, [3])
    assert dumps.find_end(dump) is None
    control.cancel(world.state, dump)
    end = dumps.find_end(dump)
    assert end is not None and not end.failed
    refused = dumps.submit(NAME, [])
    refusal = Refusal(NAME, "SELECT is denied", "GRANT SELECT")
    dump_store.fail_unplanned(world.state, dump_store.read_dump(world.state, refused), refusal)
    end = dumps.find_end(refused)
    assert end is not None and end.failed and end.requested_at is not None
    dump_store.remove_dump(world.state, refused)
    assert dumps.find_end(refused) == DumpEnd(failed=False, requested_at=None)


def test_a_lake_task_continues_when_its_dump_is_planned(world: World) -> None:
    dumps = StoredDumps(world.config)
    dump = dumps.submit(NAME, [])
    checks = []

    def plan() -> None:
        checks.append(1)
        if len(checks) == 2:
            unfinished = dump_store.list_unfinished_dumps(world.state)
            DeferredPlanner(world.config, world.state, DrawnClock()).plan(unfinished)

    dumps.await_plan(dump, plan)
    assert len(checks) == 2 and dump_store.read_dump(world.state, dump).tasks


def test_a_lake_task_is_told_why_its_dump_cannot_be(world: World) -> None:
    dumps = StoredDumps(world.config)
    dump = dumps.submit("shop.events", [])
    planner = DeferredPlanner(world.config, world.state, DrawnClock())

    with pytest.raises(LakeError, match=r"shop\.events.*has no key") as raised:
        dumps.await_plan(dump, lambda: planner.plan(dump_store.list_unfinished_dumps(world.state)) and None)
    assert "primary key" in raised.value.fix


@pytest.mark.parametrize("moment", ["waiting", "at the end"])
def test_a_lake_task_that_nobody_plans_a_dump_for_ends_and_leaves_none(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(withheld_keys, "_PLAN_SECONDS", 0.5)
    dumps = StoredDumps(world.config)
    dump = dumps.submit(NAME, [])
    if moment == "at the end":  # somebody else has cancelled it between our last look and our own cancel
        real = control.cancel
        monkeypatch.setattr(control, "cancel", lambda state, name: [real(state, name), real(state, name)])
    with pytest.raises(LakeError, match="no process with access to the source has planned") as raised:
        dumps.await_plan(dump, lambda: None)
    assert "dblog work" in raised.value.fix and NAME in str(raised.value)
    assert dump_store.read_dump(world.state, dump).state == "cancelled"


def test_a_lake_task_stops_waiting_where_its_lock_is_lost_or_its_dump_cancelled(world: World) -> None:
    dumps = StoredDumps(world.config)
    dump = dumps.submit(NAME, [])

    def lose() -> None:
        raise LeaseLost("taken over", fix="nothing")

    with pytest.raises(LeaseLost):
        dumps.await_plan(dump, lose)
    threading.Timer(0.3, control.cancel, (world.state, dump)).start()
    with pytest.raises(LakeError, match="was cancelled before it was planned"):
        dumps.await_plan(dump, lambda: None)
