"""Dumps that are over leave the state store after a while; a look for work costs the unfinished ones alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.dumps import control, dump_store, task_store
from dblog_core.dumps.dump_records import DumpRecord
from dblog_core.dumps.status import DumpStatus
from dblog_core.errors import RequestError
from dblog_core.interfaces import Entry, Json, StateStore
from dblog_core.maintenance import ended_dumps
from dblog_core.maintenance.ended_dumps import LONG, SHORTEST, EndedDumps
from dblog_core.model.task_id import TaskId
from dblog_core.notifications.changes import NoticeMessage
from dblog_core.notifications.channels import Receiver
from dblog_core.notifications.delivery import NoticeFollower
from dblog_core.state.memory import MemoryState
from tests.unit.workers_world import OPTIONS, DrawnClock

DAY = 86_400.0
KEEP = 7 * DAY


class Counted(MemoryState):
    """Counts round trips, and what they brought."""

    def __init__(self) -> None:
        super().__init__()
        self.trips = 0
        self.nodes = 0

    def get(self, path: str) -> Entry | None:
        self.trips = self.trips + 1
        self.nodes = self.nodes + 1
        return super().get(path)

    def get_all(self, paths: Sequence[str]) -> list[Entry | None]:
        self.trips = self.trips + 1
        self.nodes = self.nodes + len(paths)
        return super().get_all(paths)

    def children(self, path: str) -> list[str]:
        names_below = super().children(path)
        self.trips = self.trips + 1
        self.nodes = self.nodes + len(names_below)
        return names_below


def write(state: StateStore, dump_id: str, *, tasks: int = 1, **more: str) -> Json:
    """A dump's tasks; returns its record."""
    for number in range(tasks):
        task = {"table": "shop.orders", "keys": None, "key_from": None, "key_to": None, "attempt": 0}
        state.create(f"dumps/{dump_id}/tasks/{number}/task", orjson.dumps(task))
    return {
        "tables": ["shop.orders"], "options": OPTIONS, "state": "requested", "error": None, "requested_by": "user",
        "requested_at": "2026-11-21T09:00:00+00:00", **more,
    }  # fmt: skip


def file(state: StateStore, *ids: str, tasks: int = 1, **more: str) -> None:
    for dump_id in ids:
        record = write(state, dump_id, tasks=tasks, **more)
        dump_store.file_dump(state, dump_id, DumpRecord.from_json(record))


def end(state: StateStore, *ids: str) -> None:
    for dump_id in ids:
        task_store.put_progress(state, TaskId(dump_id, 0), TaskProgress("shop.orders", done=True))
    dump_store.list_unfinished_dumps(state)


def names(dumps: list[DumpStatus]) -> list[str]:
    return [status.id for status in dumps]


def test_a_look_costs_the_unfinished_dumps_alone() -> None:
    state = Counted()
    ended = [f"d{n:04}" for n in range(500)]
    file(state, *ended)
    end(state, *ended)
    file(state, "x", "y", tasks=200)
    dump_store.list_unfinished_dumps(state)
    state.trips = state.nodes = 0
    assert names(dump_store.list_unfinished_dumps(state)) == ["x", "y"]
    assert state.trips <= 2 + 2 * 2, "the list, their own nodes, and for each its tasks: whatever has ended"
    assert state.nodes <= 3 + 2 + 2 * (200 + 4 * 200)


def test_dumps_of_a_version_without_the_list_are_found_at_once_and_those_that_it_files_later_at_the_next_look() -> None:
    state = MemoryState()
    clock = DrawnClock()
    old = write(state, "old")
    state.create("dumps/old/request", orjson.dumps(old))
    file(state, "new")
    assert names(dump_store.list_unfinished_dumps(state)) == ["new", "old"]
    later = write(state, "later")
    state.create("dumps/later/request", orjson.dumps(later))
    EndedDumps(state, clock, keep=KEEP).look(threading.Event())
    assert names(dump_store.list_unfinished_dumps(state)) == ["later", "new", "old"]
    end(state, "old", "new", "later")
    assert dump_store.list_unfinished_dumps(state) == [] and state.children("unfinished") == ["complete"]


def test_the_end_of_a_dump_is_recorded_though_nobody_works_on_dumps_any_more() -> None:
    """The capture asks whether it is over; of whoever has waited for it, nobody may be left."""
    state = MemoryState()
    file(state, "d", "e")
    for dump_id in ("d", "e"):
        task_store.put_progress(state, TaskId(dump_id, 0), TaskProgress("shop.orders", done=True))
    assert dump_store.is_dump_over(state, "d") and state.children("unfinished") == ["e"]
    assert [record.state for record in dump_store.read_records(state, ["d"]) if record] == ["done"]
    EndedDumps(state, DrawnClock(), keep=KEEP).look(threading.Event())
    assert state.children("unfinished") == ["complete"]
    assert [record.state for record in dump_store.read_records(state, ["e"]) if record] == ["done"]


def test_a_dump_that_is_being_filed_stays_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request comes right after: a look in between must not take it out again."""
    state = MemoryState()
    create = state.create
    looked = list[list[str]]()

    def creating(path: str, data: bytes) -> None:
        if path == "dumps/d/request":
            looked.append(names(dump_store.list_unfinished_dumps(state)))
        create(path, data)

    monkeypatch.setattr(state, "create", creating)
    file(state, "d")
    assert looked == [[]] and names(dump_store.list_unfinished_dumps(state)) == ["d"]


def test_a_cancelled_dump_leaves_the_list_at_the_next_look() -> None:
    state = MemoryState()
    file(state, "d")
    control.cancel(state, "d")
    assert dump_store.list_unfinished_dumps(state) == [] and state.children("unfinished") == ["complete"]


def test_a_dump_goes_when_it_has_been_over_for_long_enough_by_the_leaders_own_clock() -> None:
    state = MemoryState()
    clock = DrawnClock()
    file(state, "done", "running", requested_at="2001-01-01T00:00:00+00:00")
    end(state, "done")
    EndedDumps(state, clock, keep=KEEP).look(threading.Event())
    clock.now += KEEP - 1
    EndedDumps(state, clock, keep=KEEP).look(threading.Event())
    assert dump_store.read_dump(state, "done").state == "done", "the next leader knows since when"
    clock.now += 1
    EndedDumps(state, clock, keep=KEEP).look(threading.Event())
    assert state.children("dumps") == ["running"] and names(dump_store.list_dumps(state)) == ["running"]
    with pytest.raises(RequestError, match=r"there is no dump(.|\n)*\[dump\] keep"):
        dump_store.read_dump(state, "done")
    assert dump_store.is_dump_over(state, "done")


def test_of_too_many_the_oldest_go_first_but_not_while_somebody_may_wait_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ended_dumps, "MOST", 2)
    state = MemoryState()
    clock = DrawnClock()
    looking = EndedDumps(state, clock, keep=KEEP)
    for dump_id in ("d3", "d1", "d2", "d0"):
        file(state, dump_id)
        end(state, dump_id)
        looking.look(threading.Event())
        clock.now += 60
    assert len(dump_store.list_dumps(state)) == 4
    clock.now += SHORTEST
    looking.look(threading.Event())
    assert sorted(names(dump_store.list_dumps(state))) == ["d0", "d2"]


def test_for_ever_is_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_dumps, "MOST", 0)
    state = MemoryState()
    clock = DrawnClock()
    file(state, "d")
    end(state, "d")
    looking = EndedDumps(state, clock, keep=float("inf"))
    looking.look(threading.Event())
    clock.now += 10_000 * DAY
    looking.look(threading.Event())
    assert names(dump_store.list_dumps(state)) == ["d"]


class Channel:
    """Takes notices, or does not."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def tell(self, message: NoticeMessage) -> None:
        self.told.append(message.notice.event)


def test_a_channel_is_told_of_an_end_before_its_dump_goes_unless_it_listens_to_nothing_for_very_long(
    tmp_path: Path,
) -> None:
    state = MemoryState()
    clock = DrawnClock()
    channel = Channel()
    file(state, "before", requested_at="1970-01-01T00:00:00+00:00")
    end(state, "before")
    receiver = Receiver("web", channel)
    follower = NoticeFollower(receiver, "shop", state, clock)
    follower.tell_news(threading.Event())
    looking = EndedDumps(state, clock, keep=KEEP)
    looking.look(threading.Event())
    clock.now += 10
    file(state, "d", requested_at="2999-01-01T00:00:00+00:00")
    end(state, "d")
    looking.look(threading.Event())
    clock.now += KEEP
    looking.look(threading.Event())
    assert names(dump_store.list_dumps(state)) == ["d"], "its end was not told; the other is nobody's news"
    follower.tell_news(threading.Event())
    assert channel.told == ["requested", "table", "completed"]
    looking.look(threading.Event())
    assert "d" not in names(dump_store.list_dumps(state))
    file(state, "e", requested_at="2999-01-01T00:00:00+00:00")
    end(state, "e")
    looking.look(threading.Event())
    clock.now += LONG * KEEP
    looking.look(threading.Event())
    assert dump_store.list_dumps(state) == []


def test_a_dump_of_whose_beginning_alone_a_channel_knows_stays() -> None:
    state = MemoryState()
    clock = DrawnClock()
    channel = Channel()
    follower = NoticeFollower(Receiver("web", channel), "shop", state, clock)
    file(state, "d")
    follower.tell_news(threading.Event())
    end(state, "d")
    looking = EndedDumps(state, clock, keep=KEEP)
    looking.look(threading.Event())
    clock.now += KEEP
    looking.look(threading.Event())
    assert channel.told == ["requested"] and names(dump_store.list_dumps(state)) == ["d"]
    follower.tell_news(threading.Event())
    looking.look(threading.Event())
    assert channel.told[-1] == "completed" and dump_store.list_dumps(state) == []


def test_what_is_left_of_requests_that_were_never_filed_goes_after_days() -> None:
    state = MemoryState()
    clock = DrawnClock()
    clock.now = 1_800_000_000.0  # 2027-01-15
    write(state, "20270115T070000-aaaaaa")
    write(state, "20270101T070000-bbbbbb")
    write(state, "a-name-of-a-signal-cccccc")
    EndedDumps(state, clock, keep=KEEP).look(threading.Event())
    assert state.children("dumps") == ["20270115T070000-aaaaaa", "a-name-of-a-signal-cccccc"]


def test_a_dump_that_is_removed_while_all_are_listed_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_store, "_LARGEST_BYTES", 0)  # what its tasks came to is read from their own nodes
    state = MemoryState()
    file(state, "d", "e", tasks=1)
    end(state, "d", "e")
    children = state.children

    def removing(path: str) -> list[str]:
        names_below = children(path)
        if path == "dumps/d/tasks" and state.get("dumps/d/request") is not None:
            dump_store.remove_dump(state, "d")
        return names_below

    monkeypatch.setattr(state, "children", removing)
    assert names(dump_store.list_dumps(state)) == ["e"]
