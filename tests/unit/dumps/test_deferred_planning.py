"""Dumps that a process without the source has filed: planned once, whoever plans, and wherever that process dies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from dblog_core import wiring
from dblog_core.dumps import control, dump_store, filing
from dblog_core.dumps.deferred_planning import DeferredPlanner
from dblog_core.dumps.dump_records import SYSTEM, DumpRecord
from dblog_core.dumps.filing import KEYS_PER_TASK
from dblog_core.dumps.requests import DumpRequest
from dblog_core.dumps.status import UNPLANNED, DumpStatus
from dblog_core.errors import (
    DblogError,
    RequestError,
    SourceError,
    SourceForbids,
    SourceRefused,
    SourceUnavailable,
    TableLocked,
)
from dblog_core.interfaces import Entry
from dblog_core.state import failed_dumps, paths
from dblog_core.state.memory import MemoryState
from tests.unit import requests_world
from tests.unit.requests_world import CUSTOMERS, LINES, ORDERS, Reader, World, table
from tests.unit.workers_world import DrawnClock

KEYS = tuple(range(1, 2 * KEYS_PER_TASK + 1))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return _make(tmp_path, monkeypatch)


def _make(path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A table that is cut into several ranges, and four empty ones."""
    world = requests_world.make(path, monkeypatch, chunk_size=10, workers=1)
    world.fill(ORDERS, [(number,) for number in range(1, 1_001)])
    return world


def _with_one_dump(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[World, str]:
    world = _make(path, monkeypatch)
    return world, _file(world)


class Killed(BaseException):
    """The process is gone: nothing that it would do afterwards happens."""


class WatchedState(MemoryState):
    """Another client of a world's nodes. `before` runs before each access, and `after` behind each, with its number."""

    def __init__(self, world: World) -> None:
        super().__init__(shared=world.state)
        self.accesses = 0
        self.before: Callable[[int], None] = lambda _: None
        self.after: Callable[[], None] = lambda: None

    def _count(self) -> None:
        self.accesses += 1
        self.before(self.accesses)

    def get(self, path: str) -> Entry | None:
        self._count()
        return super().get(path)

    def get_all(self, paths: Sequence[str]) -> list[Entry | None]:
        self._count()
        return super().get_all(paths)

    def create(self, path: str, data: bytes) -> None:
        self._count()
        super().create(path, data)
        self.after()

    def update(self, path: str, data: bytes, version: int) -> int:
        self._count()
        version = super().update(path, data, version)
        self.after()
        return version


def _file(world: World, name: str = "shop.orders", keys: Sequence[Any] = ()) -> str:
    return dump_store.file_deferred(world.state, world.config.dump, name, keys)


def _plan(world: World, state: MemoryState | None = None, clock: DrawnClock | None = None) -> list[DblogError]:
    store = state or world.state
    return DeferredPlanner(world.config, store, clock or DrawnClock()).plan(dump_store.list_unfinished_dumps(store))


def _status(world: World, dump: str) -> DumpStatus:
    return dump_store.read_dump(world.state, dump)


def _ranges(dump: DumpStatus) -> list[tuple[Any, Any]]:
    return [(task.record.after, task.record.key_to) for task in dump.tasks]


def test_a_deferred_dump_shows_that_nobody_has_planned_it(world: World) -> None:
    dump = _file(world)
    status = _status(world, dump)
    assert (status.state, status.held, status.tasks) == ("requested", UNPLANNED, ())
    assert list(status.open_tables) == ["shop.orders"]
    assert status.reads_whole("shop.orders") and not status.reads_whole("shop.lines")
    assert status.requested_by == SYSTEM and not dump_store.is_dump_over(world.state, dump)
    assert not _status(world, _file(world, keys=[1])).reads_whole("shop.orders")


def test_a_planned_dump_is_the_one_that_a_request_with_the_source_files(world: World) -> None:
    dump = _file(world)
    other = filing.submit(world.config, DumpRequest(tables=("shop.orders",)))
    assert _plan(world) == []
    planned = _status(world, dump)
    requested = _status(world, other)
    assert len(planned.tasks) > 1
    assert [task.record for task in planned.tasks] == [task.record for task in requested.tasks]
    assert (planned.deferred, planned.held, planned.options) == (None, None, requested.options)
    keys = _file(world, keys=KEYS)
    assert _plan(world) == []
    assert [len(task.record.keys or ()) for task in _status(world, keys).tasks] == [KEYS_PER_TASK] * 2


def test_what_is_planned_is_not_planned_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = _file(world)
    _plan(world)
    before = _status(world, dump)
    monkeypatch.setattr(wiring, "open_source", lambda _: pytest.fail("the catalogue is read"))
    assert _plan(world) == [] and _status(world, dump) == before


def _count_accesses(world: World) -> int:
    state = WatchedState(world)
    _plan(world, state)
    return state.accesses


def _die(fatal: int, number: int) -> None:
    if number == fatal:
        raise Killed


def _meet(world: World, other: MemoryState, meeting: int, number: int) -> None:
    """Lets another planner work before that access: by now its plan is another one."""
    if number == meeting:
        world.fill(ORDERS, [(key,) for key in range(1, 3_001)])
        with contextlib.suppress(Killed):
            _plan(world, other)


def _watch(world: World, state: WatchedState, dump: str) -> None:
    """Whoever looks sees a dump without a plan, or all of its tasks."""

    def look() -> None:
        status = _status(world, dump)
        assert (status.deferred is None) == bool(status.tasks)
        assert [task.number for task in status.tasks] == list(range(len(status.tasks)))
        assert not status.tasks or status.tasks[-1].record.key_to is None

    state.after = look


def test_a_planner_that_dies_anywhere_leaves_a_dump_that_the_next_one_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = partial(_with_one_dump, tmp_path, monkeypatch)
    accesses = _count_accesses(fresh()[0])
    assert accesses > 8
    for fatal in range(1, accesses + 1):
        world, dump = fresh()
        state = WatchedState(world)
        _watch(world, state, dump)

        state.before = partial(_die, fatal)
        with pytest.raises(Killed):
            _plan(world, state)
        planned_before = _status(world, dump).deferred
        world.fill(ORDERS, [(number,) for number in range(1, 3_001)])  # a plan of now would be another one
        assert _plan(world) == []
        status = _status(world, dump)
        assert status.deferred is None and status.tasks[-1].record.key_to is None
        if planned_before is not None and planned_before.tasks is not None:
            assert tuple(task.record for task in status.tasks) == planned_before.tasks


def test_of_two_planners_one_decides_at_whatever_moment_they_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one plans from its beginning to its end, or dies on its way, before each access of the first one."""

    fresh = partial(_with_one_dump, tmp_path, monkeypatch)
    accesses = _count_accesses(fresh()[0])
    for meeting in range(1, accesses + 1):
        for fatal in range(1, accesses + 3):
            world, dump = fresh()
            first = WatchedState(world)
            second = WatchedState(world)
            for state in (first, second):
                _watch(world, state, dump)

            first.before = partial(_meet, world, second, meeting)
            second.before = partial(_die, fatal)
            assert _plan(world, first) == [] and _plan(world) == []
            ends = _ranges(_status(world, dump))
            assert ends[0][0] is None and ends[-1][1] is None
            assert [end for _, end in ends[:-1]] == [start for start, _ in ends[1:]], "one plan, without a gap"


@pytest.mark.parametrize("end", ["cancel", "remove"])
def test_a_dump_that_somebody_ends_while_it_is_planned_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    fresh = partial(_with_one_dump, tmp_path, monkeypatch)
    for moment in range(1, _count_accesses(fresh()[0])):
        world, dump = fresh()
        state = WatchedState(world)

        def stop(number: int, moment: int = moment, dump: str = dump, world: World = world) -> None:
            if number == moment:
                control.cancel(world.state, dump)
                if end == "remove":
                    dump_store.remove_dump(world.state, dump)

        state.before = stop
        assert _plan(world, state) == []
        status = dump_store.find_dump(world.state, dump)
        assert status is None if end == "remove" else status is not None and status.state == "cancelled"
        assert dump_store.is_dump_over(world.state, dump)
        assert dump_store.list_unfinished_dumps(world.state) == []


def test_a_paused_dump_is_planned_when_it_is_resumed(world: World) -> None:
    dump = _file(world)
    control.pause(world.state, dump)
    assert _plan(world) == [] and _status(world, dump).state == "paused"
    assert _status(world, dump).deferred is not None
    control.resume(world.state, dump)
    assert _plan(world) == [] and _status(world, dump).tasks


@pytest.mark.parametrize(
    ("name", "reason", "fix"),
    [
        ("shop.gone", "'shop.gone' is not a captured table", "captured tables are"),
        ("shop.events", "shop.events has no key", "give it a primary key"),
    ],
)
def test_a_dump_that_cannot_be_ends_with_its_reason_and_is_owed(world: World, name: str, reason: str, fix: str) -> None:
    refused = _file(world, name)
    planned = _file(world)
    (fault,) = _plan(world)
    assert reason in fault.message
    status = _status(world, refused)
    assert (status.state, status.deferred) == ("failed", None)
    assert reason in status.refused[0].reason and fix in status.refused[0].fix and reason in (status.error or "")
    assert refused in failed_dumps.read(world.state)
    assert _status(world, planned).tasks, "it takes no other one with it"
    assert dump_store.is_dump_over(world.state, refused)


def test_of_many_tables_those_that_are_refused_are_found_by_halves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["shop.orders", "shop.gone", "shop.lines", "shop.customers", "shop.lost"]
    dumps = {name: _file(world, name) for name in names}
    catalogue_reads: list[Sequence[str] | None] = []
    real = filing.make_draft

    def count(config: Any, request: Any, **more: Any) -> Any:
        catalogue_reads.append(request.tables)
        return real(config, request, **more)

    monkeypatch.setattr(filing, "make_draft", count)
    assert len(_plan(world)) == 2
    states = {name: _status(world, dump).state for name, dump in dumps.items()}
    assert [name for name, state in states.items() if state == "failed"] == ["shop.gone", "shop.lost"]
    assert len(catalogue_reads) <= 2 * len(names) - 1
    catalogue_reads.clear()
    later_dumps = [_file(world, str(schema.table)) for schema in (ORDERS, LINES, CUSTOMERS)]
    assert _plan(world) == [] and len(catalogue_reads) == 1
    assert all(_status(world, dump).tasks for dump in later_dumps)


def test_two_dumps_of_one_table_have_a_plan_each(world: World) -> None:
    first = _file(world)
    second = _file(world)
    assert _plan(world) == []
    assert _ranges(_status(world, first)) == _ranges(_status(world, second)) != []


def test_a_name_that_is_a_pattern_of_others_brings_no_other_table(world: World) -> None:
    """The table `ord*` is dropped while its dump waits; `orders` matches that as a pattern."""
    dump = _file(world, "shop.ord*")
    (fault,) = _plan(world)
    assert "not a captured table" in fault.message and _status(world, dump).state == "failed"
    strange = table("ord*")
    world.database.schemas[strange.table] = strange
    dump_of_strange = _file(world, "shop.ord*")
    assert _plan(world) == []
    assert {task.table for task in _status(world, dump_of_strange).tasks} == {"shop.ord*"}


@pytest.mark.parametrize("fault", [SourceUnavailable("no answer"), SourceRefused("wrong password", fix="correct it")])
def test_a_fault_that_may_pass_or_is_of_no_table_leaves_the_dump_as_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch, fault: SourceError
) -> None:
    dump = _file(world)
    _file(world, "shop.lines")
    filed = _status(world, dump)
    with monkeypatch.context() as patch:
        source = wiring.open_source(world.config.source)
        asked: list[int] = []
        patch.setattr(source, "tables", lambda: asked.append(1) or _raise(fault))
        with pytest.raises(type(fault)):
            _plan(world)
        assert len(asked) <= 3, "a server may lock an account that fails to log in"
    assert _status(world, dump) == filed
    assert _plan(world) == [] and _status(world, dump).tasks


def test_a_table_that_may_not_be_read_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = _file(world)
    fault = SourceForbids("SELECT is denied", where="shop.orders", fix="GRANT SELECT ON shop.orders TO dblog")
    monkeypatch.setattr(Reader, "key_order", lambda *_: _raise(fault))
    (refused,) = _plan(world)
    assert "SELECT is denied" in refused.message
    assert _status(world, dump).refused[0].fix == fault.fix


def test_a_plan_that_no_node_can_hold_fails_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    large = _file(world, keys=list(range(1_000)))
    small = _file(world, keys=[7])
    with monkeypatch.context() as patch:
        patch.setattr(paths, "MAX_BYTES", 3_000)
        (fault,) = _plan(world)
    assert "do not fit" in fault.message and "fewer keys" in fault.fix
    assert (_status(world, large).state, _status(world, small).deferred) == ("failed", None)


def test_a_locked_table_is_looked_at_ever_more_rarely_and_others_do_not_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = {ORDERS.table}
    looks: list[float] = []
    clock = DrawnClock()
    real = Reader.key_order

    def look(self: Reader, schema: Any) -> str:
        if schema.table in locked:
            looks.append(clock.now)
            raise TableLocked(f"reading {schema.table}: lock timeout")
        return real(self, schema)

    monkeypatch.setattr(Reader, "key_order", look)
    waiting = _file(world)
    free = _file(world, "shop.lines")
    planner = DeferredPlanner(world.config, world.state, clock)
    for _ in range(3_000):
        assert planner.plan(dump_store.list_unfinished_dumps(world.state)) == []
        assert _status(world, free).tasks, "planned at once"
        if clock.now > 1_100 and looks:
            locked.clear()
        clock.now += 0.1
    assert _status(world, free).tasks and _status(world, waiting).tasks
    waits = [later - earlier for earlier, later in pairwise(looks)]
    assert waits == sorted(waits) and waits[0] < 2 and len(looks) < 13


def test_a_record_goes_there_and_back(world: World) -> None:
    dump = _file(world, keys=[1, "x", [2, None]])
    entry = world.state.get(f"dumps/{dump}/request")
    assert entry is not None
    record = DumpRecord.from_json(orjson.loads(entry.data))
    assert record.deferred is not None and record.deferred.keys == (1, "x", [2, None])
    assert orjson.loads(orjson.dumps(record.to_json())) == orjson.loads(entry.data)


def test_an_unreadable_key_refuses_its_dump_alone(world: World) -> None:
    dump = _file(world, keys=["no number"])
    other = _file(world, keys=[7])
    (fault,) = _plan(world)
    assert isinstance(fault, RequestError)
    assert (_status(world, dump).state, _status(world, other).state) == ("failed", "requested")
    assert failed_dumps.read(world.state) == [], "a dump of keys is the merge's to ask for again"


def _raise(error: Exception) -> Any:
    raise error
