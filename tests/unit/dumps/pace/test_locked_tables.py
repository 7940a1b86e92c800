"""A locked table rests, longer each time, and is tried more rarely where many are locked."""

from __future__ import annotations

import pytest

from dblog_core.dumps.pace import locked_tables
from dblog_core.dumps.pace.locked_tables import LOCK_SECONDS, LockedTables, explain_lock
from dblog_core.errors import SourceUnavailable
from tests.fake_source import ORDERS, FakeDatabase, FakeSource


def try_again_and_again(tables: LockedTables, now: float, times: int) -> list[float]:
    """Seconds of each rest of a table that stays locked."""
    rests = []
    for _ in range(times):
        tables.record_locked("shop.a", now)
        rest = tables.seconds_to_next_try(now)
        assert rest is not None
        rests.append(rest)
        now += rest
    return rests


def test_a_table_rests_longer_each_time_until_it_is_read() -> None:
    tables = LockedTables()
    assert try_again_and_again(tables, 100.0, 6) == [1, 2, 4, 8, 10, 10]
    tables.record_free("shop.a")
    assert not tables.is_locked("shop.a") and try_again_and_again(tables, 200.0, 2) == [1, 2]


def test_that_it_is_locked_is_news_once() -> None:
    tables = LockedTables()
    assert [tables.record_locked("shop.a", now) for now in (0.0, 0.5, 1.5, 9.0)] == [True, False, False, False]
    tables.record_free("shop.a")
    assert tables.record_locked("shop.a", 20.0)
    assert tables.record_locked("shop.a", 21.0 + locked_tables._FORGOTTEN_SECONDS), "nobody has tried it for long"


def test_it_rests_until_it_is_due_and_stays_known_as_locked() -> None:
    tables = LockedTables()
    tables.record_locked("shop.a", 0.0)
    assert [tables.rests("shop.a", now) for now in (0.0, 0.9, 1.0)] == [True, True, False]
    assert not tables.rests("shop.b", 0.0) and not tables.is_locked("shop.b")
    assert tables.is_locked("shop.a") and tables.seconds_to_next_try(1.0) is None


@pytest.mark.parametrize("number", [1, 10, 100])
def test_however_many_are_locked_they_take_a_worker_a_part_of_its_time(number: int) -> None:
    """Each try waits for a lock; in what is left the worker reads other tables."""
    tables = LockedTables()
    now = 0.0
    waited = 0.0
    began = None
    while now < 4_000.0:
        due = [name for n in range(number) if not tables.rests(name := f"shop.t{n}", now)]
        if due:
            now += LOCK_SECONDS
            waited += 0.0 if began is None else LOCK_SECONDS
            tables.record_locked(due[0], now)
        else:
            began = now if began is None else began
            now += 1.0
    assert began is not None and waited / (now - began) < 0.35


def test_who_has_locked_it_is_said_where_the_server_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    source = FakeSource(FakeDatabase())
    assert explain_lock(source, ORDERS.table) == "somebody has locked shop.orders"
    monkeypatch.setattr(source, "find_lock_holder", lambda _: "process 7")
    assert explain_lock(source, ORDERS.table) == "shop.orders is locked by process 7"

    def goes_away(_: object) -> str:
        raise SourceUnavailable("the connection broke")

    monkeypatch.setattr(source, "find_lock_holder", goes_away)
    assert explain_lock(source, ORDERS.table) == "somebody has locked shop.orders"
