"""Watching and controlling dumps through the state store: what its nodes mean, and who may still change what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.clock import SystemClock
from dblog_core.dumps import control, dump_records, dump_store, filing, task_store
from dblog_core.dumps.requests import DumpRequest
from dblog_core.dumps.status import DumpStatus
from dblog_core.errors import RequestError
from dblog_core.interfaces import Entry
from dblog_core.model.task_id import TaskId
from dblog_core.state.memory import MemoryState
from tests.unit import requests_world
from tests.unit.requests_world import ORDERS, World

SECOND = 1_000_000  # microseconds


class TickingClock(SystemClock):
    """A second has a thousand ticks."""

    def __init__(self) -> None:
        self._now = 1_000_000.0

    def time(self) -> float:
        self._now += 0.001
        return self._now


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = requests_world.make(tmp_path, monkeypatch, chunk_size=10, workers=2)
    world.fill(ORDERS, [(k,) for k in range(1_000)])
    return world


@pytest.fixture
def dump_id(world: World) -> str:
    """A dump of four ranges."""
    return filing.submit(world.config, DumpRequest(("shop.orders",), ranges=4))


def place(state: MemoryState, dump_id: str, number: int, **fields: Any) -> None:
    """What the capture mirrors."""
    before = task_store.read_progress(state, TaskId(dump_id, number), "shop.orders")
    task_store.put_progress(state, TaskId(dump_id, number), replace(before, **fields))


def test_dumps_are_listed_oldest_first_also_within_a_second(world: World) -> None:
    clock = TickingClock()
    requests = [
        filing.submit(world.config, DumpRequest(("shop.orders",)), clock=clock, new_id=lambda name=name: name)
        for name in "cab"
    ]
    assert [d.id for d in dump_store.list_dumps(world.state)] == requests
    assert [d.id for d in dump_store.list_unfinished_dumps(world.state)] == requests


def test_a_new_dump_is_requested_and_knows_how_much_there_is_to_do(world: World, dump_id: str) -> None:
    status = dump_store.read_dump(world.state, dump_id)
    assert (status.state, status.rows, status.tasks_done, len(status.tasks)) == ("requested", 0, 0, 4)
    assert status.estimated_rows == 1_000
    assert (status.rows_per_second, status.seconds_left, status.held, status.error) == (None, None, None, None)


def test_rate_and_time_left_come_from_the_log_s_own_times(world: World, dump_id: str) -> None:
    begun = {"attempt": 1, "began": 100 * SECOND}
    place(world.state, dump_id, 0, **begun, rows=250, ordinal=25, evicted=3, done=True, at=105 * SECOND)
    place(world.state, dump_id, 1, **begun, rows=150, ordinal=15, evicted=1, at=110 * SECOND)
    place(world.state, dump_id, 2, attempt=1, began=110 * SECOND)
    status = dump_store.read_dump(world.state, dump_id)
    assert (status.state, status.rows, status.chunks, status.evicted, status.tasks_done) == ("running", 400, 40, 4, 1)
    assert status.rows_per_second == pytest.approx(40)
    assert status.seconds_left == pytest.approx(600 / 40, rel=0.05)
    control.pause(world.state, dump_id)
    assert dump_store.read_dump(world.state, dump_id).seconds_left is None, "it stands"


def test_what_is_not_known_is_null(world: World, dump_id: str) -> None:
    for number in range(4):
        place(world.state, dump_id, number, attempt=1, began=SECOND, at=2 * SECOND, rows=5_000, ordinal=500)
    assert dump_store.read_dump(world.state, dump_id).seconds_left is None, "the estimate is used up"
    ranged = filing.submit(world.config, DumpRequest(("shop.orders",), key_from=5, ranges=1))
    assert dump_store.read_dump(world.state, ranged).estimated_rows is None
    dump_json = dump_store.read_dump(world.state, ranged).to_json()
    assert (dump_json["estimated_rows"], dump_json["rows_per_second"], dump_json["seconds_left"]) == (None, None, None)


def test_done_needs_every_task(world: World, dump_id: str) -> None:
    for number in range(4):
        assert not dump_store.is_dump_over(world.state, dump_id)
        place(world.state, dump_id, number, attempt=1, done=True, rows=1)
    status = dump_store.read_dump(world.state, dump_id)
    assert (status.state, status.seconds_left) == ("done", 0.0)
    assert dump_store.is_dump_over(world.state, dump_id)


def test_the_capture_learns_cheaply_that_a_dump_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    dump_id = filing.submit(world.config, DumpRequest(("shop.orders",), ranges=64))
    for number in range(60):
        place(world.state, dump_id, number, done=True)
    reads = []
    get = world.state.get

    def counting(path: str) -> Entry | None:
        reads.append(path)
        return get(path)

    monkeypatch.setattr(world.state, "get", counting)
    assert not dump_store.is_dump_over(world.state, dump_id)
    assert len(reads) <= 3


def test_a_fault_ends_its_own_task_and_the_dump_fails_when_the_others_are_done(world: World, dump_id: str) -> None:
    place(world.state, dump_id, 0, attempt=1, rows=1)
    task_store.fail_task(world.state, TaskId(dump_id, 1), "the table is gone")
    task_store.fail_task(world.state, TaskId(dump_id, 1), "said later")
    status = dump_store.read_dump(world.state, dump_id)
    assert (status.state, status.error) == ("running", "shop.orders: the table is gone")
    assert [t.over for t in status.tasks] == [False, True, False, False]
    assert [d.id for d in dump_store.list_unfinished_dumps(world.state)] == [dump_id]
    for number in (0, 2, 3):
        assert not dump_store.is_dump_over(world.state, dump_id)
        place(world.state, dump_id, number, attempt=1, done=True, rows=1)
    status = dump_store.read_dump(world.state, dump_id)
    assert (status.state, status.error) == ("failed", "shop.orders: the table is gone")
    with pytest.raises(RequestError, match="is failed"):
        control.resume(world.state, dump_id)


@pytest.mark.parametrize(
    ("requested_by", "ends_as", "error"),
    [("user", "failed", "shop.orders: shop.orders is not there"), (dump_records.SYSTEM, "done", None)],
)
def test_a_dropped_table_fails_the_dump_of_those_who_asked_for_it_and_is_counted_in_the_systems(
    world: World, requested_by: str, ends_as: str, error: str | None
) -> None:
    dump_id = filing.submit(world.config, DumpRequest(("shop.orders",), ranges=1))
    dump_store.change_record(world.state, dump_id, lambda record: replace(record, requested_by=requested_by))
    fails = dump_store.fail_task_of_gone_table(world.state, TaskId(dump_id, 0), "shop.orders is not there")
    status = dump_store.read_dump(world.state, dump_id)
    assert (fails, status.state, status.error) == (ends_as == "failed", ends_as, error)
    assert list(status.tables_gone) == ["shop.orders"]


def test_ranges_that_fail_alike_are_told_once(world: World) -> None:
    dump_id = filing.submit(world.config, DumpRequest(("shop.orders", "shop.customers"), ranges=4))
    for number in range(5):
        task_store.fail_task(world.state, TaskId(dump_id, number), "gone")
    assert dump_store.read_dump(world.state, dump_id).error == "shop.orders: gone; shop.customers: gone"


def test_a_task_that_is_done_has_no_error_whoever_came_late(world: World, dump_id: str) -> None:
    task_store.fail_task(world.state, TaskId(dump_id, 0), "a zombie's last word")
    for number in range(4):
        place(world.state, dump_id, number, attempt=1, done=True)
    status = dump_store.read_dump(world.state, dump_id)
    assert (status.state, status.error) == ("done", None)


def test_unfinished_leaves_out_what_is_over_and_records_how_it_ended(world: World, dump_id: str) -> None:
    cancelled = filing.submit(world.config, DumpRequest(("shop.orders",)))
    control.cancel(world.state, cancelled)
    failed = filing.submit(world.config, DumpRequest(("shop.orders",), ranges=1))
    task_store.fail_task(world.state, TaskId(failed, 0), "gone")
    done = filing.submit(world.config, DumpRequest(("shop.orders",), ranges=1))
    place(world.state, done, 0, done=True)
    assert [d.id for d in dump_store.list_unfinished_dumps(world.state)] == [dump_id]
    assert dump_store.read_settings(world.state, failed)[0] == "failed"
    assert dump_store.read_settings(world.state, done)[0] == "done"
    assert dump_store.read_settings(world.state, cancelled)[0] == "cancelled"
    assert dump_store.read_dump(world.state, failed).error == "shop.orders: gone"


def test_a_dump_that_has_ended_is_shown_as_it_ended_by_reading_one_node(
    world: World, dump_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = filing.submit(world.config, DumpRequest(("shop.orders",), keys=(1, 2, 3)))
    task_store.fail_task(world.state, TaskId(dump_id, 2), "gone")
    for number in (0, 1, 3):
        place(world.state, dump_id, number, done=True, rows=7, ordinal=2, evicted=1, began=1, at=10**6, attempt=2)
    place(world.state, keys, 0, done=True, rows=3)
    before = [dump_store.read_dump(world.state, name).to_json() for name in (dump_id, keys)]
    assert dump_store.list_unfinished_dumps(world.state) == []
    reads = []
    get = world.state.get

    def counting(path: str) -> Entry | None:
        reads.append(path)
        return get(path)

    monkeypatch.setattr(world.state, "get", counting)
    assert [dump_store.read_dump(world.state, name).to_json() for name in (dump_id, keys)] == before
    assert reads == [f"dumps/{dump_id}/request", f"dumps/{keys}/request"]


def test_a_dump_of_very_many_tasks_does_not_fill_its_node(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_store, "_LARGEST_BYTES", 1_000)
    dump_id = filing.submit(world.config, DumpRequest(("shop.orders",), ranges=64))
    for number in range(64):
        place(world.state, dump_id, number, done=True, rows=1)
    assert dump_store.list_unfinished_dumps(world.state) == []
    entry = world.state.get(f"dumps/{dump_id}/request")
    assert entry is not None and len(entry.data) < 2_000
    assert dump_store.read_dump(world.state, dump_id).rows == 64


def test_what_holds_a_worker_back_is_shown_while_it_does(world: World, dump_id: str) -> None:
    lag = "the replicas are 7 s behind"
    for number in (0, 1):
        task_store.put_pace(world.state, TaskId(dump_id, number), held=lag, factor=0.5)
    assert dump_store.read_dump(world.state, dump_id).held == lag, "once, however many workers say it"
    assert dump_store.read_dump(world.state, dump_id).to_json()["tasks"][1]["held"] == lag
    task_store.put_pace(world.state, TaskId(dump_id, 0), held=None, factor=1.0)
    place(world.state, dump_id, 1, done=True)
    assert dump_store.read_dump(world.state, dump_id).held is None


def test_options_change_for_the_next_chunk_and_the_others_stay(world: World, dump_id: str) -> None:
    before = dump_store.read_settings(world.state, dump_id)[1]
    control.retune(world.state, dump_id, adaptive=True, max_retained=10 << 30, rate=0, delay=None)
    state, options = dump_store.read_settings(world.state, dump_id)
    assert state == "requested"
    assert options == replace(before, adaptive=True, max_retained=10 << 30, rate=0)
    control.retune(world.state, dump_id, adaptive=False)
    assert dump_store.read_settings(world.state, dump_id)[1].adaptive is False


@pytest.mark.parametrize(
    "changes", [{"workers": 65}, {"chunk_size": 0}, {"delay": -1}, {"max_retained": -1}, {"in_flight": 3}, {"x": 1}]
)
def test_an_option_out_of_range_changes_nothing(world: World, dump_id: str, changes: dict[str, Any]) -> None:
    before = dump_store.read_settings(world.state, dump_id)
    with pytest.raises(RequestError, match=next(iter(changes))):
        control.retune(world.state, dump_id, rate=5, **changes)
    assert dump_store.read_settings(world.state, dump_id) == before


@pytest.mark.parametrize("end", ["done", "cancelled", "failed"])
def test_a_dump_that_is_over_takes_no_orders(world: World, dump_id: str, end: str) -> None:
    if end == "cancelled":
        control.cancel(world.state, dump_id)
    for number in range(4):
        if end == "done":
            place(world.state, dump_id, number, done=True)
        else:
            task_store.fail_task(world.state, TaskId(dump_id, number), "gone")
    for order in (control.pause, control.resume, control.cancel, lambda s, d: control.retune(s, d, rate=1)):
        with pytest.raises(RequestError, match=f"is {end}"):
            order(world.state, dump_id)
    assert dump_store.read_dump(world.state, dump_id).state == end


def test_an_order_that_meets_a_cancel_changes_nothing(
    world: World, dump_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody cancels between the look at the dump and the write."""
    other = MemoryState(shared=world.state)
    look = dump_store.read_dump

    def read_dump(state: MemoryState, name: str) -> DumpStatus:
        status = look(state, name)
        monkeypatch.setattr(control, "read_dump", look)
        control.cancel(other, name)
        return status

    monkeypatch.setattr(control, "read_dump", read_dump)
    with pytest.raises(RequestError, match="is cancelled"):
        control.resume(world.state, dump_id)
    assert dump_store.read_dump(world.state, dump_id).state == "cancelled"


def test_an_unknown_dump_is_told_apart_from_one_that_is_over(world: World) -> None:
    for name in ("nothing", "", "../capture", "a/b"):
        with pytest.raises(RequestError, match="there is no dump"):
            dump_store.read_settings(world.state, name)
        with pytest.raises(RequestError, match="there is no dump"):
            control.cancel(world.state, name)
        assert dump_store.is_dump_over(world.state, name), "nothing is to be done for it"


def test_a_task_of_an_earlier_version_can_still_be_read(world: World) -> None:
    old = {"table": "shop.orders", "keys": None, "key_from": None, "key_to": None, "attempt": 2}
    request = {"tables": ["shop.orders"], "options": {}, "state": "requested", "error": None}
    request |= {"requested_at": "2026-11-01T00:00:00+00:00", "requested_by": "user"}
    world.state.create("dumps/old/tasks/0/task", orjson.dumps(old))
    world.state.create("dumps/old/request", orjson.dumps(request))
    status = dump_store.read_dump(world.state, "old")
    assert (status.tasks[0].record.parts, status.tasks[0].record.heals, status.refused) == (1, None, ())


def test_every_task_is_shown_with_its_range_and_what_became_of_it(world: World, dump_id: str) -> None:
    place(
        world.state, dump_id, 1, attempt=3, broken=2, reason="the capture was restarted", rows=20, ordinal=2, evicted=1
    )
    task_store.begin_attempt(world.state, TaskId(dump_id, 1))
    dump_json = dump_store.read_dump(world.state, dump_id).to_json()["tasks"][1]
    assert {k: dump_json[k] for k in ("number", "table", "rows", "chunks", "evicted", "attempt", "done", "broken")} == {
        "number": 1,
        "table": "shop.orders",
        "rows": 20,
        "chunks": 2,
        "evicted": 1,
        "attempt": 3,
        "done": False,
        "broken": "the capture was restarted",
    }
    assert (dump_json["after"], dump_json["key_from"], dump_json["estimated_rows"], dump_json["error"]) == (
        249,
        None,
        250,
        None,
    )
    assert dump_json["key_to"] == pytest.approx(499, abs=10)


def test_a_progress_that_is_done_is_not_undone_by_an_earlier_leader(world: World, dump_id: str) -> None:
    place(world.state, dump_id, 0, done=True, rows=9)
    task_store.put_progress(world.state, TaskId(dump_id, 0), TaskProgress("shop.orders", rows=5))
    assert task_store.read_progress(world.state, TaskId(dump_id, 0), "shop.orders").rows == 9


def test_a_dump_is_reopened_for_tasks_that_were_done_alone(world: World, dump_id: str) -> None:
    """A task that failed is not done here either, and a dump that nobody can finish would be reopened for ever."""
    assert not dump_store.reopen_dump(world.state, "no-such-dump", [0])
    assert not dump_store.reopen_dump(world.state, dump_id, [0, 1, 2, 3]), "it has not ended"
    for number in range(3):
        place(world.state, dump_id, number, done=True)
    task_store.fail_task(world.state, TaskId(dump_id, 3), "its disk is broken")
    assert dump_store.is_dump_over(world.state, dump_id)
    assert not dump_store.reopen_dump(world.state, dump_id, [3])
    assert dump_store.read_settings(world.state, dump_id)[0] == "failed"
    dump_store.record_end_time(world.state, dump_id, 5.0)
    assert dump_store.reopen_dump(world.state, dump_id, [1, 3])
    (record,) = dump_store.read_records(world.state, [dump_id])
    assert record is not None and (record.state, record.over_at, record.ended) == ("requested", None, None)
    cancelled = filing.submit(world.config, DumpRequest(("shop.orders",)))
    control.cancel(world.state, cancelled)
    assert not dump_store.reopen_dump(world.state, cancelled, [0])
