"""Tasks: attempts, ordinals, and what breaks an attempt."""

from __future__ import annotations

import pytest

from dblog_core.algorithm.arriving_rows import ARRIVED, LOOKS, Look
from dblog_core.algorithm.task_progress import Refused, Tasks, tasks_from_json, tasks_to_json
from dblog_core.model.task_id import TaskId
from dblog_core.model.watermark import Heals, High, Low, Mark


def mark(attempt: int, ordinal: int, window: str = "") -> Mark:
    return Mark("shop", TaskId("d", 0), attempt, ordinal, window or f"{attempt}.{ordinal}", "shop.orders")


def high(at: Mark, *, final: bool = False, key: object = 1) -> High:
    return High(at, file="f", rows=10, bytes=1, checksum="", schema="s", last_key=key, final=final)


def place(tasks: Tasks, at: Mark, *, final: bool = False, key: object = 1) -> None:
    tasks.admit_low(Low(at), since=5, segment=2)
    tasks.admit_high(high(at, final=final, key=key))
    tasks.record_placed_chunk(high(at, final=final, key=key), evicted=1)


def test_chunks_in_order_add_up() -> None:
    tasks = Tasks()
    place(tasks, mark(1, 0), key=10)
    place(tasks, mark(1, 1), key=20, final=True)
    p = tasks[TaskId("d", 0)]
    assert (p.ordinal, p.key, p.rows, p.evicted, p.done, p.since, p.since_segment) == (2, 20, 20, 2, True, 5, 2)


def test_a_chunk_whose_low_was_not_seen_breaks_its_attempt_and_all_that_follows() -> None:
    tasks = Tasks()
    with pytest.raises(Refused):
        tasks.admit_high(high(mark(1, 0)))
    assert tasks[TaskId("d", 0)].broken == 1
    with pytest.raises(Refused):
        tasks.admit_low(Low(mark(1, 1)), since=0, segment=1)
    place(tasks, mark(2, 0))
    assert tasks[TaskId("d", 0)].ordinal == 1


def test_a_window_that_is_asked_for_once_more_when_its_chunk_is_placed_changes_nothing() -> None:
    tasks = Tasks()
    place(tasks, mark(1, 0))
    before = tasks[TaskId("d", 0)]
    with pytest.raises(Refused):
        tasks.admit_low(Low(mark(1, 0)), since=9, segment=4)
    assert tasks[TaskId("d", 0)] == before, "what it tells of ghosts is what its first SELECT saw"


def test_a_gap_breaks_the_attempt() -> None:
    tasks = Tasks()
    tasks.admit_low(Low(mark(1, 0)), since=0, segment=1)
    tasks.admit_low(Low(mark(1, 1)), since=0, segment=1)
    with pytest.raises(Refused):
        tasks.admit_high(high(mark(1, 1)))
    with pytest.raises(Refused):
        tasks.admit_high(high(mark(1, 0)))
    assert tasks[TaskId("d", 0)].ordinal == 0


def test_a_zombie_of_an_earlier_attempt_changes_nothing() -> None:
    tasks = Tasks()
    tasks.admit_low(Low(mark(1, 0)), since=0, segment=1)
    tasks.admit_low(Low(mark(2, 0)), since=0, segment=1)
    assert tasks.take_void() == ["1.0"]
    with pytest.raises(Refused):
        tasks.admit_high(high(mark(1, 0)))
    assert tasks[TaskId("d", 0)].broken == 0
    tasks.admit_high(high(mark(2, 0)))


def test_an_attempt_that_begins_where_nothing_is_next_is_broken() -> None:
    tasks = Tasks()
    place(tasks, mark(1, 0))
    with pytest.raises(Refused):
        tasks.admit_low(Low(mark(2, 0)), since=0, segment=1)
    assert tasks[TaskId("d", 0)].broken == 2
    place(tasks, mark(3, 1))
    assert tasks[TaskId("d", 0)].ordinal == 2


def test_a_done_task_takes_no_more_chunks() -> None:
    tasks = Tasks()
    place(tasks, mark(1, 0), final=True)
    with pytest.raises(Refused):
        tasks.admit_low(Low(mark(2, 1)), since=0, segment=1)
    assert tasks[TaskId("d", 0)].done


def test_progress_survives_a_restart_and_windows_do_not() -> None:
    tasks = Tasks()
    place(tasks, mark(1, 0))
    tasks.admit_low(Low(mark(1, 1)), since=0, segment=1)
    restored_tasks = Tasks(tasks.all())
    assert restored_tasks[TaskId("d", 0)] == tasks[TaskId("d", 0)]
    with pytest.raises(Refused):
        restored_tasks.admit_high(high(mark(1, 1)))
    assert restored_tasks[TaskId("d", 0)].ordinal == 1


def test_an_expired_or_forgotten_window_is_void() -> None:
    tasks = Tasks()
    tasks.admit_low(Low(mark(1, 0)), since=0, segment=1)
    tasks.expire("1.0")
    assert tasks.take_void() == ["1.0"]
    tasks.admit_low(Low(mark(2, 0)), since=0, segment=1)
    tasks.forget([TaskId("d", 0)])
    assert tasks.take_void() == ["2.0"] and not tasks.all()


def healing(task: int, ordinal: int, *, parts: int = 2) -> Mark:
    return Mark("shop", TaskId("d", task), 1, ordinal, f"{task}.{ordinal}", "shop.orders", parts, Heals())


def test_rows_that_arrive_are_left_for_a_worker_and_the_last_task_ends_with_none_of_them() -> None:
    tasks = Tasks()
    place(tasks, healing(0, 0))
    tasks.record_moves("shop.orders", [("1", "2"), ("8", "9"), ("9", "8")])
    tasks.record_moves("shop.items", [("7", "6")])
    place(tasks, healing(0, 1), final=True)
    assert tasks[TaskId("d", 0)].done and tasks[TaskId("d", 0)].arrived == (("2", "1"), ("8", "9"))
    tasks.record_moves("shop.orders", [("2", "3")])
    place(tasks, healing(1, 0), final=True)
    last = tasks[TaskId("d", 1)]
    assert (last.ended, last.done, last.arrived) == (True, False, (("8", "9"), ("3", "2", "1")))
    assert not tasks[TaskId("d", 0)].arrived
    tasks.record_look(TaskId("d", 1), Look(keys={"3"}, touched=set(), missed={}))
    tasks.record_moves("shop.orders", [("3", "4"), ("100", "101"), ("8", "7")])
    assert tasks[TaskId("d", 1)].arrived == (("7", "8"),), "what is brought needs no second look, wherever it goes"
    restored_tasks = Tasks(tasks.all())
    tasks.record_look(TaskId("d", 1), Look(keys={"7"}, touched=set(), missed={}))
    place(restored_tasks, healing(1, 1), final=True)
    place(tasks, healing(1, 1), final=True)
    assert (
        restored_tasks[TaskId("d", 1)].arrived
        and not restored_tasks[TaskId("d", 1)].done
        and restored_tasks[TaskId("d", 1)].looks == 1
    )
    assert tasks[TaskId("d", 1)].done and not tasks.is_healing("shop.orders")
    tasks.record_moves("shop.orders", [("5", "6")])
    assert tasks[TaskId("d", 1)].arrived == ()


def test_a_row_that_is_brought_needs_no_look_while_ranges_are_left() -> None:
    tasks = Tasks()
    place(tasks, healing(0, 0))
    tasks.record_moves("shop.orders", [("1", "2")])
    tasks.record_look(TaskId("d", 0), Look(keys={"2"}, touched=set(), missed={}))
    tasks.record_moves("shop.orders", [("2", "3"), ("4", "2"), ("3", "5")])
    assert tasks[TaskId("d", 0)].arrived == (("2", "4"),)
    tasks.record_moves("shop.orders", [("2", "5")])
    assert tasks[TaskId("d", 0)].arrived == (("5", "2", "4"),), "a row that nobody has brought is where one that is was"


def test_rows_that_arrive_concern_a_dump_that_heals_alone_and_go_with_a_truncate() -> None:
    tasks = Tasks()
    place(tasks, mark(1, 0))
    tasks.record_moves("shop.orders", [("1", "2")])
    assert not tasks.is_healing("shop.orders") and tasks[TaskId("d", 0)].arrived == ()
    healer = Tasks()
    place(healer, healing(0, 0))
    healer.record_moves("shop.orders", [("1", "2")])
    healer.forget_arrivals("shop.items")
    assert healer[TaskId("d", 0)].arrived == (("2", "1"),)
    healer.forget_arrivals("shop.orders")
    assert healer[TaskId("d", 0)].arrived == ()


def test_more_arrivals_than_are_remembered_end_the_dump_without_its_claim_to_heal() -> None:
    tasks = Tasks()
    place(tasks, healing(0, 0, parts=1))
    tasks.record_moves("shop.orders", [("1", "2")])
    tasks.record_moves("shop.orders", [("3", "x" * ARRIVED)])
    place(tasks, healing(0, 1, parts=1), final=True)
    progress = tasks[TaskId("d", 0)]
    assert progress.done and tasks.has_forgotten_rows(TaskId("d", 0)) and progress.arrived == ()


def test_more_looks_than_a_dump_takes_end_it_without_its_claim_to_heal() -> None:
    tasks = Tasks()
    tasks.admit_low(Low(healing(0, 0, parts=1)), since=5, segment=2)
    tasks.record_moves("shop.orders", [("1", "2")])
    place(tasks, healing(0, 0, parts=1), final=True)
    for look in range(1, LOOKS + 1):
        assert not tasks[TaskId("d", 0)].done
        place(tasks, healing(0, look, parts=1), final=True)
    progress = tasks[TaskId("d", 0)]
    assert progress.done and tasks.has_forgotten_rows(TaskId("d", 0)) and progress.arrived == ()


def test_keys_of_a_manifest_from_before_there_were_trails_are_read_again() -> None:
    tasks = Tasks()
    place(tasks, healing(0, 0))
    old = {task: {**data, "arrived": ["1", "2"]} for task, data in tasks_to_json(tasks.all()).items()}
    assert Tasks(tasks_from_json(old))[TaskId("d", 0)].arrived == (("1",), ("2",))


def test_tasks_stand_in_manifests_as_they_always_have() -> None:
    data = {
        "20261121T090000-a1b2c3/7": {
            "table": "shop.orders", "attempt": 2, "ordinal": 3, "key": [1, "x"], "rows": 30, "evicted": 1, "broken": 0,
            "reason": "", "since": 5, "since_segment": 2, "began": 10, "at": 20, "done": False,
        }
    }  # fmt: skip
    tasks = tasks_from_json(data)
    assert list(tasks) == [TaskId("20261121T090000-a1b2c3", 7)] and tasks_to_json(tasks) == data
