"""Tables that are compared at the same time: each gets its own answers, and the source is read for one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from dblog_core.clock import SystemClock
from dblog_core.errors import SourceError, SourceUnavailable, TableLocked
from dblog_core.interfaces import Clock
from dblog_core.model.schema import TableName
from dblog_core.verify import verification
from dblog_core.verify.judge.judge import TABLES_TOGETHER
from dblog_core.verify.report import TableReport
from dblog_core.verify.source_reader import Prober, Readers
from dblog_core.verify.verification import VerifyRequest
from dblog_core.verify.window_positions import Interrupted
from tests.drawn_clock import DrawnClock
from tests.waiting import PATIENCE_SECONDS

TABLES = [TableName("shop", f"t{number}") for number in range(6)]


def _compare(
    tables: Sequence[TableName],
    compare: Callable[[TableName], verification._Compared | None],
    lines: list[str],
    clock: Clock | None = None,
    stop: threading.Event | None = None,
) -> list[verification._Compared]:
    source = SimpleNamespace(find_lock_holder=lambda _: "Ann")
    stop = stop or threading.Event()
    tools: Any = SimpleNamespace(say=lines.append, source=source, stop=stop, clock=clock or SystemClock())
    return verification._compare_each(tools, tables, compare)


def test_tables_are_compared_together_and_told_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = threading.Barrier(TABLES_TOGETHER)

    class Check:
        def __init__(self, _: Any, table: TableName, __: Any) -> None:
            self._table = table

        def compare_all_rows(self) -> TableReport:
            meeting.wait(timeout=PATIENCE_SECONDS)  # broken unless TABLES_TOGETHER tables come here at the same time
            return TableReport(str(self._table))

    monkeypatch.setattr(verification, "TableComparison", Check)
    lines: list[str] = []
    tools: Any = SimpleNamespace(say=lines.append)
    monkeypatch.setattr(verification, "_find_ranges", lambda _, table: None if table == TABLES[-1] else [])
    tables = TABLES[: 2 * TABLES_TOGETHER] + TABLES[-1:]
    compared = _compare(tables, lambda table: verification._compare(tools, VerifyRequest(None), table), lines)
    assert [table.report.table for table in compared] == [str(table) for table in tables[:-1]]
    assert f"{TABLES[-1]}: no key of it is in this slice" in lines


def test_locked_tables_are_tried_again_after_all_others_and_then_named() -> None:
    tried = list[str]()
    clock = DrawnClock()
    free, soon_free, kept = TABLES[:3]

    def compare(table: TableName) -> verification._Compared:
        tried.append(table.name)
        if table == kept or (table == soon_free and tried.count(table.name) < 3):
            raise TableLocked(f"somebody has locked {table}")
        return verification._Compared(TableReport(str(table)))

    lines: list[str] = []
    compared = _compare((kept, soon_free, free), compare, lines, clock)
    assert [table.report.table for table in compared] == [str(t) for t in (kept, soon_free, free)]
    assert sorted(tried[:3]) == ["t0", "t1", "t2"] and tried.count("t0") == 1 and tried.count("t1") == 3
    assert (
        verification._LOCKED_SECONDS
        <= clock.monotonic()
        <= verification._LOCKED_SECONDS + verification._LOCKED_PAUSE_SECONDS
    )
    error = compared[0].report.error
    assert error is not None and error.startswith(f"{kept} is locked by Ann") and "when it is free" in error
    assert compared[1].report.error is None and not compared[1].is_locked
    assert lines[0] == f"waiting for locked tables, 60 s: {kept}, {soon_free}" and lines[-1].endswith(f"s: {kept}")


def test_who_stops_a_verification_waits_for_no_locked_table() -> None:
    stop = threading.Event()
    stop.set()

    def compare(table: TableName) -> verification._Compared:
        raise TableLocked(f"somebody has locked {table}")

    with pytest.raises(Interrupted):
        _compare(TABLES[:1], compare, [], SystemClock(), stop)


def test_the_source_is_read_for_one_table_at_a_time() -> None:
    inside: set[str] = set()
    most: list[int] = []
    source: Any = SimpleNamespace(
        open_reader=lambda lock_seconds: SimpleNamespace(close=lambda: None),
        open_watermarks=lambda _: SimpleNamespace(close=lambda: None),
    )
    readers = Readers(source, "shop", workers=2, rate=0, clock=SystemClock(), stop=threading.Event())

    def read_table(table: str) -> None:
        def read(_: Prober, part: int) -> int:
            inside.add(table)
            most.append(len(inside))
            return part

        with readers.turn:
            assert readers._each(range(50), read) == list(range(50))
            inside.discard(table)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read_table, ("a", "b", "c", "d")))
    assert len(most) == 200 and max(most) == 1


class CountedConnections:
    """A source whose connections are counted while they are open."""

    def __init__(self) -> None:
        self.all = 0
        self.open = 0

    def _connect(self, *_: Any, **__: Any) -> Any:
        self.all += 1
        self.open += 1
        return SimpleNamespace(close=self._close)

    open_reader = open_watermarks = _connect

    def _close(self) -> None:
        self.open -= 1


def test_a_part_that_cannot_be_read_ends_the_reading_and_all_connections_are_closed() -> None:
    source: Any = CountedConnections()
    readers = Readers(source, "shop", workers=2, rate=0, clock=SystemClock(), stop=threading.Event())
    parts_read: list[int] = []

    def read(_: Prober, part: int) -> int:
        parts_read.append(part)
        if part == 3:
            raise SourceError("the table is gone")
        return part

    with pytest.raises(SourceError, match="gone"):
        readers._each(range(1_000), read)
    assert 3 in parts_read and len(parts_read) < 1_000
    assert source.open == 0


def test_a_connection_that_breaks_is_replaced_and_idle_ones_are_used_again() -> None:
    source: Any = CountedConnections()
    clock = DrawnClock()
    readers = Readers(source, "shop", workers=1, rate=0, clock=clock, stop=threading.Event())
    faults = iter([SourceUnavailable("the server restarts")])

    def read(_: Prober, part: int) -> int:
        if part == 5 and (fault := next(faults, None)) is not None:
            raise fault
        return part

    assert readers._each(range(10), read) == list(range(10))
    assert (source.all, source.open) == (4, 0), "a reader and a writer of watermarks, twice"
