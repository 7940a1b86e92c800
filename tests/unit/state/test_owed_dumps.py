"""A dump that the system has asked for, and that has failed for a lasting fault, is owed until the table is dumped."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.capture.healing import owed_dump_requests
from dblog_core.capture.healing.owed_dump_requests import OwedDumps
from dblog_core.clock import SystemClock
from dblog_core.dumps import control, dump_records, dump_store, task_store
from dblog_core.dumps.filing import submit
from dblog_core.dumps.requests import WHOLE, DumpRequest
from dblog_core.errors import SourceUnavailable, TableLocked, ValueOutOfRange
from dblog_core.model.task_id import TaskId
from dblog_core.staging.manifest import LogMark
from dblog_core.staging.table_records import TableRecords
from dblog_core.state import failed_dumps, owed_dumps
from dblog_core.state.memory import MemoryState
from dblog_core.state.owed_dumps import OwedDump
from tests.fake_source import ORDERS, FakeReader
from tests.records import read_records
from tests.unit.engine_world import World

NAME = str(ORDERS.table)


class Moments(SystemClock):
    """A clock that stands until it is set."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.fixture
def records() -> TableRecords:
    return TableRecords()


def look(world: World, records: TableRecords) -> None:
    """The leader takes up what has failed."""
    OwedDumps(world.config, world.state, records, Moments()).request_due(lambda table: True, offset=0)


def request_dump(world: World, request: DumpRequest = WHOLE, by: str = dump_records.SYSTEM) -> str:
    return submit(world.config, request, requested_by=by, state=world.state)


def fails(world: World, dump: str, why: str = "n holds NaN") -> None:
    """The dump fails for good, and somebody looks at it."""
    task_store.fail_task(world.state, TaskId(dump, 0), why)
    assert dump not in [d.id for d in dump_store.list_unfinished_dumps(world.state)]


@pytest.mark.parametrize(
    ("request_", "by", "is_owed"),
    [
        (WHOLE, dump_records.SYSTEM, True),
        (WHOLE, dump_records.USER, False),
        (DumpRequest(tables=(NAME,), keys=(1,)), dump_records.SYSTEM, False),
    ],
)
def test_a_whole_dump_that_the_system_has_asked_for_is_owed_once_it_has_failed(
    world: World, records: TableRecords, request_: DumpRequest, by: str, is_owed: bool
) -> None:
    dump = request_dump(world, request_, by)
    assert owed_dumps.read(records) == {}
    fails(world, dump)
    look(world, records)
    entry = OwedDump(dump, "n holds NaN", 1)
    assert owed_dumps.read(records) == ({NAME: entry} if is_owed else {})


def test_one_that_somebody_cancels_is_not(world: World, records: TableRecords) -> None:
    dump = request_dump(world)
    control.cancel(world.state, dump)
    look(world, records)
    assert dump_store.list_unfinished_dumps(world.state) == [] and owed_dumps.read(records) == {}


def entries(times: int) -> owed_dumps.Entries:
    return {NAME: OwedDump("d", "", times)}


@pytest.mark.parametrize(("times", "soon", "later"), [(1, 1, 3600), (3, 4, 4 * 3600), (40, 600, 86_400)])
def test_it_is_requested_again_soon_where_something_has_changed_and_otherwise_late(
    times: int, soon: float, later: float
) -> None:
    clock = Moments()
    waits = owed_dumps.Waits(clock)

    def after(seconds: float) -> bool:
        """Whether it is due then, and not before."""
        early, clock.now = clock.now + seconds - 0.5, clock.now + seconds
        due, clock.now = waits.due(entries(times)), early
        return due == [NAME] and waits.due(entries(times)) == []

    waits.begin(entries(times))
    assert waits.due(entries(times)) == []
    assert after(soon)
    clock.now = 100.0
    waits.restart([NAME])
    assert after(later)
    clock.now = 100.0
    waits.nudge([NAME])
    assert after(soon)


def test_each_failure_makes_the_next_one_wait_again() -> None:
    clock = Moments()
    waits = owed_dumps.Waits(clock)
    waits.begin(entries(1))
    assert waits.due(entries(1)) == []
    clock.now += 2
    assert waits.due(entries(1)) == [NAME]
    waits.restart([NAME])
    assert waits.due(entries(2)) == []
    clock.now += 7199
    assert waits.due(entries(2)) == []
    clock.now += 2
    assert waits.due(entries(2)) == [NAME]


def test_the_dump_is_requested_again_once_and_forgotten_when_it_is_over(world: World, records: TableRecords) -> None:
    clock = Moments()
    first = request_dump(world)
    fails(world, first)
    debts = OwedDumps(world.config, world.state, records, clock)
    debts.request_due(lambda table: False, offset=0)
    clock.now += 1
    debts.request_due(lambda table: True, offset=0)  # the table is stopped: it is dumped when it is mended
    assert owed_dumps.read(records)[NAME].asked is None
    for _ in range(3):
        debts.request_due(lambda table: False, offset=0)
        clock.now += 86_400
    (second,) = owed_dump_requests.whole_tables(world.state) and [
        d for d in dump_store.list_dumps(world.state) if d.id != first
    ]
    assert owed_dumps.read(records)[NAME].asked == second.id
    fails(world, second.id, "n holds infinity")
    debts.request_due(lambda table: True, offset=0)
    owed = owed_dumps.read(records)[NAME]
    assert (owed.times, owed.asked, owed.why) == (2, None, "n holds infinity")
    debts.nudge([NAME])
    debts.request_due(lambda table: False, offset=0)
    clock.now += 2
    debts.request_due(lambda table: False, offset=0)
    third = owed_dumps.read(records)[NAME].asked
    assert third is not None
    control.cancel(world.state, third)
    debts.request_due(lambda table: False, offset=0)
    assert owed_dumps.read(records) == {}


def test_a_table_that_is_being_dumped_anyway_is_not_dumped_twice(world: World, records: TableRecords) -> None:
    clock = Moments()
    fails(world, request_dump(world))
    request_dump(world, by=dump_records.USER)
    debts = OwedDumps(world.config, world.state, records, clock)
    for _ in range(2):
        debts.request_due(lambda table: False, offset=0)
        clock.now += 10
    assert len(dump_store.list_dumps(world.state)) == 2 and owed_dumps.read(records)[NAME].asked is None


def test_a_capture_that_starts_again_brings_what_failed_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is gone by then; a dump that is merged is owed no more."""
    monkeypatch.setattr(owed_dumps, "_SOON_SECONDS", 0.0)
    world.capture()
    world.put(1, 2)
    fails(world, request_dump(world))
    world.capture_until_dumped(fresh_start=False)
    assert owed_dumps.read(read_records(world.config)) == {} and failed_dumps.read(world.state) == []
    assert [line["table"] for line in world.lines() if line["op"] == "f"] == [NAME]


def test_a_table_that_is_refused_at_its_request_is_owed(
    world: World, records: TableRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object, **__: object) -> str:
        raise ValueOutOfRange("id holds NaN", where=NAME, fix="mend it")

    monkeypatch.setattr(world.source, "open_reader", refuses)
    clock = Moments()
    owed_dumps.record_failures(records, "", {NAME: "id holds NaN"})
    debts = OwedDumps(world.config, world.state, records, clock)
    debts.request_due(lambda table: False, offset=0)
    clock.now += 1
    debts.request_due(lambda table: False, offset=0)
    assert owed_dumps.read(records)[NAME].times == 2


def test_a_table_whose_definition_somebody_has_locked_is_looked_at_again_soon(
    world: World, records: TableRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_locked(*_: object, **__: object) -> str:
        raise TableLocked("somebody has locked it", where=NAME)

    clock = Moments()
    owed_dumps.record_failures(records, "", {NAME: "it was locked"})
    debts = OwedDumps(world.config, world.state, records, clock)
    with monkeypatch.context() as patch:
        patch.setattr(FakeReader, "key_order", is_locked)
        for times, seconds in ((2, 1), (3, 2), (4, 4)):
            debts.request_due(lambda table: False, offset=0)
            clock.now += seconds
            debts.request_due(lambda table: False, offset=0)
            assert owed_dumps.read(records)[NAME].times == times
            assert "locked" in owed_dumps.read(records)[NAME].why
    debts.request_due(lambda table: False, offset=0)
    clock.now += 8
    debts.request_due(lambda table: False, offset=0)
    assert owed_dumps.read(records)[NAME].asked is not None


def test_another_processs_word_does_not_count_twice() -> None:
    state = MemoryState()
    for _ in range(2):
        owed_dumps.record_failures(state, "d1", {NAME: "why"})
    assert owed_dumps.read(state)[NAME].times == 1
    owed_dumps.forget(state, [NAME])
    assert owed_dumps.read(state) == {}


@pytest.mark.parametrize(("since", "dump", "paid"), [(9, "another", False), (10, "another", True), (3, "asked", True)])
def test_a_full_dump_that_began_later_pays_whoever_asked_for_it(
    world: World, records: TableRecords, since: int, dump: str, paid: bool
) -> None:
    """One that began before may have ended without what the table lacks since."""
    owed_dumps.record_failures(records, "d1", {NAME: "why"})
    owed_dumps.record_requests(records, {NAME: "asked"})
    debts = OwedDumps(world.config, world.state, records, Moments())
    ends = [LogMark(20, "f", NAME, "", 0, dump=dump, since=since)]
    debts.forget_paid(ends)
    if dump == "asked":
        assert owed_dumps.read(records) == {}
        return
    owed_dumps.record_requests(records, {NAME: None})
    debts.request_due(lambda table: True, offset=10)
    debts.forget_paid([LogMark(20, "f", NAME, "", 0, dump=dump, since=since, key_from=1)])
    assert NAME in owed_dumps.read(records)
    debts.forget_paid(ends)
    assert (owed_dumps.read(records) == {}) == paid


def test_a_source_that_is_away_keeps_no_log_waiting(
    world: World, records: TableRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise SourceUnavailable("the server is away")

    owed_dumps.record_failures(records, "d1", {NAME: "why"})
    clock = Moments()
    debts = OwedDumps(world.config, world.state, records, clock)
    debts.request_due(lambda table: False, offset=0)
    clock.now += 1
    monkeypatch.setattr(world.source, "tables", away)
    debts.request_due(lambda table: False, offset=0)
    entry = owed_dumps.read(records)[NAME]
    assert (entry.times, entry.why) == (2, "the server is away")


def test_what_fails_within_a_term_is_not_tried_again_at_once(world: World, records: TableRecords) -> None:
    """Nothing has changed since it was asked for."""
    clock = Moments()
    debts = OwedDumps(world.config, world.state, records, clock)
    debts.request_due(lambda table: False, offset=0)
    fails(world, request_dump(world))
    for _ in range(3):
        debts.request_due(lambda table: False, offset=0)
        clock.now += 600
    assert len(dump_store.list_dumps(world.state)) == 1
