"""Tasks: attempts, ordinals, and what breaks an attempt."""

from __future__ import annotations

import pytest

from dblog_core.dumps import Refused, Tasks
from dblog_core.watermark import High, Low, Mark


def mark(attempt: int, ordinal: int, window: str = "") -> Mark:
    return Mark("shop", "d/0", attempt, ordinal, window or f"{attempt}.{ordinal}", "shop.orders")


def high(at: Mark, *, final: bool = False, key: object = 1) -> High:
    return High(at, file="f", rows=10, bytes=1, checksum="", schema="s", last_key=key, final=final)


def place(tasks: Tasks, at: Mark, *, final: bool = False, key: object = 1) -> None:
    tasks.low(Low(at), since=5, segment=2)
    tasks.high(high(at, final=final, key=key))
    tasks.placed(high(at, final=final, key=key), evicted=1)


def test_chunks_in_order_add_up() -> None:
    tasks = Tasks()
    place(tasks, mark(1, 0), key=10)
    place(tasks, mark(1, 1), key=20, final=True)
    p = tasks["d/0"]
    assert (p.ordinal, p.key, p.rows, p.evicted, p.done, p.since, p.since_segment) == (2, 20, 20, 2, True, 5, 2)


def test_a_chunk_whose_low_was_not_seen_breaks_its_attempt_and_all_that_follows() -> None:
    tasks = Tasks()
    with pytest.raises(Refused):
        tasks.high(high(mark(1, 0)))
    assert tasks["d/0"].broken == 1
    with pytest.raises(Refused):
        tasks.low(Low(mark(1, 1)), since=0, segment=1)
    place(tasks, mark(2, 0))
    assert tasks["d/0"].ordinal == 1


def test_a_window_that_is_asked_for_once_more_when_its_chunk_is_placed_changes_nothing() -> None:
    tasks = Tasks()
    place(tasks, mark(1, 0))
    before = tasks["d/0"]
    with pytest.raises(Refused):
        tasks.low(Low(mark(1, 0)), since=9, segment=4)
    assert tasks["d/0"] == before, "what it tells of ghosts is what its first SELECT saw"


def test_a_gap_breaks_the_attempt() -> None:
    tasks = Tasks()
    tasks.low(Low(mark(1, 0)), since=0, segment=1)
    tasks.low(Low(mark(1, 1)), since=0, segment=1)
    with pytest.raises(Refused):
        tasks.high(high(mark(1, 1)))
    with pytest.raises(Refused):
        tasks.high(high(mark(1, 0)))
    assert tasks["d/0"].ordinal == 0


def test_a_zombie_of_an_earlier_attempt_changes_nothing() -> None:
    tasks = Tasks()
    tasks.low(Low(mark(1, 0)), since=0, segment=1)
    tasks.low(Low(mark(2, 0)), since=0, segment=1)
    assert tasks.take_void() == ["1.0"]
    with pytest.raises(Refused):
        tasks.high(high(mark(1, 0)))
    assert tasks["d/0"].broken == 0
    tasks.high(high(mark(2, 0)))


def test_an_attempt_that_begins_where_nothing_is_next_is_broken() -> None:
    tasks = Tasks()
    place(tasks, mark(1, 0))
    with pytest.raises(Refused):
        tasks.low(Low(mark(2, 0)), since=0, segment=1)
    assert tasks["d/0"].broken == 2
    place(tasks, mark(3, 1))
    assert tasks["d/0"].ordinal == 2


def test_a_done_task_takes_no_more_chunks() -> None:
    tasks = Tasks()
    place(tasks, mark(1, 0), final=True)
    with pytest.raises(Refused):
        tasks.low(Low(mark(2, 1)), since=0, segment=1)
    assert tasks["d/0"].done


def test_progress_survives_a_restart_and_windows_do_not() -> None:
    tasks = Tasks()
    place(tasks, mark(1, 0))
    tasks.low(Low(mark(1, 1)), since=0, segment=1)
    again = Tasks(tasks.to_json())
    assert again["d/0"] == tasks["d/0"]
    with pytest.raises(Refused):
        again.high(high(mark(1, 1)))
    assert again["d/0"].ordinal == 1


def test_an_expired_or_forgotten_window_is_void() -> None:
    tasks = Tasks()
    tasks.low(Low(mark(1, 0)), since=0, segment=1)
    tasks.expire("1.0")
    assert tasks.take_void() == ["1.0"]
    tasks.low(Low(mark(2, 0)), since=0, segment=1)
    tasks.forget(["d/0"])
    assert tasks.take_void() == ["2.0"] and not tasks.to_json()
