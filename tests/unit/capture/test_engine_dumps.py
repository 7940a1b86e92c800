"""Dumps through a whole capture and its workers: they bring what is there, and writes win."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dblog_core.algorithm import arriving_rows
from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.capture import term_start
from dblog_core.capture.run_capture import run_capture
from dblog_core.dumps import control, dump_records, dump_store, filing, task_store, work_loop
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError
from dblog_core.interfaces import Chunk
from dblog_core.model import watermark
from dblog_core.model.schema import TableSchema
from dblog_core.model.task_id import TaskId
from dblog_core.model.watermark import Heals, High, Low, Mark
from dblog_core.staging import Staging
from tests.fake_source import ORDERS, Change, FakeReader
from tests.unit.engine_world import World, running, world
from tests.waiting import PATIENCE_SECONDS, wait_until

__all__ = ["running", "world"]


def test_a_dump_brings_rows_that_the_log_never_showed(running: World) -> None:
    with running.database.lock:
        running.database.rows[ORDERS.table] = {(i,): {"id": i, "name": "old", "big": "b"} for i in range(95)}
    dump_id = filing.submit(running.config, DumpRequest(("shop.orders",), chunk_size=10))
    work_loop.work(running.config, stop=threading.Event(), dump_id=dump_id)
    status = dump_store.read_dump(running.state, dump_id)
    assert (status.state, status.rows, status.chunks) == ("done", 95, 10)
    assert running.replay() == running.rows()
    assert [line["op"] for line in running.lines()][-1] == "f"


def test_listed_keys_that_are_gone_become_deletes(running: World) -> None:
    running.put(1, 2, 3)
    with running.database.lock:
        del running.database.rows[ORDERS.table][(2,)]  # a delete that the log lost
    dump_id = filing.submit(running.config, DumpRequest(("shop.orders",), keys=(1, 2)))
    work_loop.work(running.config, stop=threading.Event(), dump_id=dump_id)
    assert running.replay() == running.rows()


def test_a_full_dump_removes_ghosts(running: World) -> None:
    running.put(1, 2, 3)
    with running.database.lock:
        del running.database.rows[ORDERS.table][(3,)]
    dump_id = filing.submit(running.config, DumpRequest(None))
    work_loop.work(running.config, stop=threading.Event(), dump_id=dump_id)
    assert running.replay() == running.rows()


def test_a_key_range_includes_both_ends(running: World) -> None:
    with running.database.lock:
        running.database.rows[ORDERS.table] = {(i,): {"id": i, "name": "old", "big": "b"} for i in range(30)}
    request = DumpRequest(("shop.orders",), key_from=5, key_to=17, chunk_size=4)
    dump_id = filing.submit(running.config, request)
    work_loop.work(running.config, stop=threading.Event(), dump_id=dump_id)
    assert set(running.replay()) == set(range(5, 18))


def test_writes_during_a_dump_always_win(running: World) -> None:
    with running.database.lock:
        running.database.rows[ORDERS.table] = {(i,): {"id": i, "name": "old", "big": "b"} for i in range(300)}
    dump_id = filing.submit(running.config, DumpRequest(("shop.orders",), chunk_size=7))
    done = threading.Event()

    def write() -> None:
        number = 0
        while not done.wait(0.001):  # slower than the capture reads: a faster writer would never let it catch up
            number += 1
            key = number * 37 % 300
            with running.database.lock:
                if (key,) not in running.database.rows[ORDERS.table] or number % 5:
                    running.put(key, name=f"new{number}")
                elif (key + 1000,) in running.database.rows[ORDERS.table]:
                    running.database.commit(running.database.remove((key,)))
                else:
                    moved = {"id": key + 1000, "name": f"moved{number}", "big": "b"}
                    running.database.commit(running.database.move((key,), moved))

    writer = threading.Thread(target=write)
    writer.start()
    work_loop.work(running.config, stop=threading.Event(), dump_id=dump_id)
    done.set()
    writer.join()
    status = dump_store.read_dump(running.state, dump_id)
    assert status.state == "done" and status.evicted > 0
    target = running.source.current_position()
    deadline = threading.Event()
    for _ in range(1200):
        head = running.staging.head()
        if head is not None and int(head.position) >= int(target):
            break
        deadline.wait(0.05)
    assert running.replay() == running.rows()


def test_a_key_in_another_spelling_is_not_absent(running: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a case-insensitive collation: here 1005 is 5 to the database, and it has nothing for 1007."""
    running.put(5)
    real = FakeReader.read_keys

    def read_respelled(self: FakeReader, schema: Any, keys: Any, **more: Any) -> Any:
        return real(self, schema, [(key[0] % 1000,) for key in keys], **more)

    monkeypatch.setattr(FakeReader, "read_keys", read_respelled)
    dump_id = filing.submit(running.config, DumpRequest(("shop.orders",), keys=(1005, 1007)))
    work_loop.work(running.config, stop=threading.Event(), dump_id=dump_id)
    dumped = [(line["op"], line["key"]["id"]) for line in running.lines() if line["origin"] == "dump"]
    assert dumped == [("r", 5), ("d", 1007)]


def test_a_dump_during_which_more_rows_arrive_than_are_remembered_is_followed_by_another(
    running: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the row's last column, which a consumer may have wrong."""
    running.put(1, 2, 3, 4)
    real = FakeReader.read
    moved = list[Change]()

    def read(self: FakeReader, schema: Any, **bounds: Any) -> Any:
        chunk = real(self, schema, **bounds)
        if not moved:
            moved.append(running.database.move((4,), {"id": 0, "name": "m", "big": "b"}, unchanged=("big",)))
            running.database.commit(*moved)
        return chunk

    monkeypatch.setattr(FakeReader, "read", read)
    monkeypatch.setattr(arriving_rows, "ARRIVED", 0)
    dump_id = filing.submit(running.config, DumpRequest(("shop.orders",), chunk_size=2))
    work_loop.work(running.config, stop=threading.Event(), dump_id=dump_id)
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = threading.Event()
    while [d.state for d in dump_store.list_dumps(running.state)] != ["done", "done"]:
        assert time.monotonic() < deadline, dump_store.list_dumps(running.state)
        pause.wait(0.05)
    (second_id,) = {d.id for d in dump_store.list_dumps(running.state)} - {dump_id}
    lines = running.lines()
    assert [line["dump"] for line in lines if line["op"] == "f"] == [second_id], "the first one tells nothing of ghosts"
    last_rows = [line["after"] for line in lines if line["op"] == "r"][-4:]
    assert last_rows == [running.rows()[key] for key in (0, 1, 2, 3)]


def test_rows_that_vanish_without_row_events_are_healed_by_a_dump(world: World) -> None:
    world.capture()
    world.put(1, 2, 3)
    world.capture()
    world.database.commit(Change("p", ORDERS.table, dropped_keys=((2,), (3,))))
    world.capture_until_dumped(fresh_start=False)
    assert [d.requested_by for d in dump_store.list_dumps(world.state)] == [dump_records.SYSTEM]
    assert world.replay() == world.rows() == {1: {"id": 1, "name": "n", "big": "b"}}


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (DumpRequest(("shop.nothing",)), "not a captured table"),
        (DumpRequest(("shop.orders; DROP TABLE x",)), "not a captured table"),
        (DumpRequest(()), "no table"),
        (DumpRequest(("shop.orders",), keys=("1 OR 1=1",)), "not a value of key column id"),
        (DumpRequest(("shop.orders",), keys=([1, 2],)), "not a value"),
        (DumpRequest(("shop.orders",), keys=(1,), key_from=1), "both keys and a key range"),
        (DumpRequest(("shop.orders",), chunk_size=0), "chunk_size"),
    ],
)
def test_a_request_that_cannot_be_carried_out_is_refused_by_name(
    world: World, request_: DumpRequest, words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        filing.submit(world.config, request_)
    assert dump_store.list_dumps(world.state) == []


def test_a_paused_or_cancelled_dump_reads_nothing_while_the_log_goes_on(
    running: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each order is given inside a SELECT, whose chunk is the last one."""
    with running.database.lock:
        running.database.rows[ORDERS.table] = {(i,): {"id": i, "name": "old", "big": "b"} for i in range(40)}
    first, second = (
        filing.submit(running.config, DumpRequest(("shop.orders",), chunk_size=1, workers=1)) for _ in range(2)
    )
    limits = list[int]()
    read = FakeReader.read
    order = {3: functools.partial(control.pause, running.state, first)}

    def read_and_order(reader: FakeReader, schema: TableSchema, **place: Any) -> Chunk:
        limits.append(place["limit"])
        if (give := order.pop(len(limits), None)) is not None:
            give()
        return read(reader, schema, **place)

    monkeypatch.setattr(FakeReader, "read", read_and_order)
    with working(running, first):
        wait_until(lambda: dump_store.read_dump(running.state, first).state == "paused", "a pause")
        stage_each(running, range(100, 104))
        assert limits == [1, 1, 1]
        control.retune(running.state, first, chunk_size=20)
        control.resume(running.state, first)
    assert dump_store.read_dump(running.state, first).state == "done"
    assert limits[3:] and set(limits[3:]) == {20}
    with pytest.raises(RequestError, match="is done"):
        control.cancel(running.state, first)
    limits.clear()
    order[2] = functools.partial(control.cancel, running.state, second)
    with working(running, second):
        wait_until(lambda: dump_store.read_dump(running.state, second).state == "cancelled", "a cancellation")
        stage_each(running, range(110, 114))
    assert limits == [1, 1]


@contextmanager
def working(world: World, dump_id: str) -> Iterator[None]:
    """A worker beside the test, whose end is awaited."""
    stop = threading.Event()
    options = {"stop": stop, "dump_id": dump_id}
    worker = threading.Thread(target=work_loop.work, args=(world.config,), kwargs=options)
    worker.start()
    try:
        yield
        worker.join(timeout=PATIENCE_SECONDS)
        assert not worker.is_alive(), "the worker goes on"
    finally:
        stop.set()
        worker.join(timeout=PATIENCE_SECONDS)


def stage_each(world: World, keys: Iterable[int]) -> None:
    """Changes that are staged one after another, each before the next is made."""
    for key in keys:
        world.put(key)
        wait_until(lambda key=key: key in world.replay(), f"the change of {key} is staged")


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("low", [False, True], ids=["its end alone", "with its low watermark"])
def test_a_chunk_of_a_staging_directory_that_is_gone_is_refused_unseen(world: World, low: bool, rows: int) -> None:
    """Its watermarks may still be in the log; the shape that they name is not in the new directory."""
    world.capture()
    mark = Mark("shop", TaskId("d1", 0), 1, 0, "w1", str(ORDERS.table), 1, None)
    high = High(
        mark, file="chunks/d1/0/x.parquet" if rows else None, rows=rows, bytes=rows, checksum="",
        schema="feedbeeffeedbeef", last_key=1, final=True, snapshot=None, absent=(1,),
    )  # fmt: skip
    if low:
        world.database.commit(Change("w", ORDERS.table, None, {"payload": watermark.encode(Low(mark))}))
    world.database.commit(Change("w", ORDERS.table, None, {"payload": watermark.encode(high)}))
    world.put(1)
    world.capture()
    assert [line["op"] for line in world.lines() if line["op"] != "s"] == ["c"]


@pytest.mark.parametrize("late", ["low", "high"])
def test_a_late_watermark_does_not_begin_a_dump_again_that_has_ended(world: World, late: str) -> None:
    """A worker that was paused, or cut off, wakes after others have done its task."""
    world.put(1)
    world.capture()
    dump_id = filing.submit(world.config, DumpRequest(None))
    task = TaskId(dump_id, 0)
    task_store.begin_attempt(world.state, task)  # the worker that is paused then
    stop = threading.Event()
    capture = threading.Thread(target=run_capture, args=(world.config,), kwargs={"stop": stop})
    capture.start()
    try:
        work_loop.work(world.config, stop=threading.Event(), dump_id=dump_id)
        wait_until(lambda: _is_forgotten(world), "the capture to forget the dump")
        done = dump_store.read_dump(world.state, dump_id)
        assert (done.state, done.rows, done.tasks[0].progress.attempt) == ("done", 1, 2)
        mark = Mark("shop", task, 1, 0, "w-late", str(ORDERS.table), 1, Heals())
        high = High(
            mark, file=None, rows=0, bytes=0, checksum="", schema="feedbeeffeedbeef", last_key=None, final=True,
            snapshot=None,
        )  # fmt: skip
        payload = watermark.encode(Low(mark) if late == "low" else high)
        world.database.commit(Change("w", ORDERS.table, None, {"payload": payload}))
        stage_each(world, range(10, 13))
        assert _is_forgotten(world)
    finally:
        stop.set()
        capture.join(timeout=PATIENCE_SECONDS)
    assert dump_store.read_dump(world.state, dump_id) == done
    assert dump_store.list_unfinished_dumps(world.state) == []


def _is_forgotten(world: World) -> bool:
    """By a manifest, which only a change brings soon."""
    world.put(2)
    head = world.staging.head()
    return head is not None and not head.tasks


@pytest.mark.parametrize("fault", ["keys of another form", "a damaged file"])
def test_a_chunk_that_cannot_be_read_ends_its_attempt_and_not_the_capture(
    world: World, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.capture()
    world.put(1)
    world.capture()
    mark = Mark("shop", TaskId("d1", 0), 1, 0, "w1", str(ORDERS.table), 1, None)
    head = world.staging.head()
    assert head is not None
    absent: tuple[Any, ...] = (["a", "key", "of", "four"],) if fault == "keys of another form" else ()
    has_file = fault == "a damaged file"
    high = High(
        mark, file="chunks/d1/0/x.parquet" if has_file else None, rows=int(has_file), bytes=1, checksum="0" * 32,
        schema=head.schemas[str(ORDERS.table)], last_key=1, final=True, snapshot=None, absent=absent,
    )  # fmt: skip
    if has_file:
        monkeypatch.setattr(Staging, "holds", lambda *_: True)
    world.database.commit(Change("w", ORDERS.table, None, {"payload": watermark.encode(Low(mark))}))
    world.put(1)  # an event that the chunk overlaps with
    world.database.commit(Change("w", ORDERS.table, None, {"payload": watermark.encode(high)}))
    world.put(2)
    world.capture()
    assert world.replay() == world.rows()
    head = world.staging.head()
    assert head is not None and head.progress()[mark.task].broken == 1


def test_a_dump_that_ended_in_a_directory_which_is_gone_loses_its_attempts_with_the_log(world: World) -> None:
    """A worker that was paused meanwhile would wait for its chunk forever: nothing shows it that the dump had ended."""
    world.put(1)
    world.capture()
    dump_id = filing.submit(world.config, DumpRequest(None))
    task = TaskId(dump_id, 0)
    attempt = task_store.begin_attempt(world.state, task)
    table = str(ORDERS.table)
    task_store.put_progress(world.state, task, TaskProgress(table, attempt=attempt, ordinal=1, done=True), of=(1, 9))
    assert dump_store.read_dump(world.state, dump_id).state == "done"
    assert term_start.break_attempts(world.state, {}) == {}
    (broken,) = term_start.break_attempts(world.state, {task: TaskProgress(table)}).values()
    assert (broken.broken, broken.ordinal, broken.done) == (attempt, 0, False)
