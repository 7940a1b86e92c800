"""Tables that stop alone: which problems do that, what is passed over, and that nothing is missed in the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from dblog_core import wiring
from dblog_core.capture import config_reload
from dblog_core.capture.healing import dump_requests
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store, filing, task_store
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError, SourceRefused
from dblog_core.interfaces import Nodes, Problem, Source
from dblog_core.model import watermark
from dblog_core.model.events import Unreadable
from dblog_core.model.schema import TableName
from dblog_core.model.task_id import TaskId
from dblog_core.model.watermark import High, Low, Mark
from dblog_core.monitoring.status import read_source_status
from dblog_core.staging.table_records import TableRecords
from dblog_core.state import stopped_tables
from tests.fake_source import Change, FakeSource
from tests.unit.reload_world import A, B, Clock, Crash, World
from tests.waiting import wait_until

ALONE = Problem("shop.a has lost its key", "give it one", table="shop.a")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Of which `problems` are what its source finds."""
    world = World(tmp_path, monkeypatch)
    world.write("shop.?")
    world.problems = []  # type: ignore[attr-defined]
    problems = world.problems  # type: ignore[attr-defined]
    tables = FakeSource.tables
    monkeypatch.setattr(FakeSource, "check", lambda self: list(problems))
    monkeypatch.setattr(FakeSource, "list_refusals", lambda self: tuple(p for p in problems if p.table))
    monkeypatch.setattr(
        FakeSource,
        "tables",
        lambda self: tuple(t for t in tables(self) if str(t.table) not in {p.table for p in problems}),
    )
    return world


def problems(world: World) -> list[Problem]:
    problems_found: list[Problem] = world.problems  # type: ignore[attr-defined]
    return problems_found


def begin_tables(world: World) -> None:
    world.capture()
    world.put(A, 1, 2)
    world.put(B, 1)
    world.capture()


def dumps(world: World) -> list[tuple[str, ...]]:
    return [tuple(d.tables) for d in dump_store.list_dumps(world.state)]


def stop_reasons(config: Config) -> dict[str, str]:
    return {t.table: str(t.error) for t in read_source_status(config).tables if t.state == "stopped"}


def test_a_problem_of_one_table_stops_a_capture_only_if_the_table_is_new_to_it(world: World) -> None:
    problems(world).append(ALONE)
    with pytest.raises(SourceRefused, match=r"shop\.a has lost its key"):
        world.capture()
    problems(world).clear()
    begin_tables(world)
    problems(world).append(ALONE)
    world.capture()
    world.write("shop.?", more='[source.keys]\n"shop.a" = ["v"]')
    with pytest.raises(SourceRefused):  # another key is asked for than was in force
        world.capture()
    problems(world).append(replace(ALONE, table=None))
    world.write("shop.?")
    with pytest.raises(SourceRefused):
        world.capture()


def test_a_stopped_table_is_passed_over_and_dumped_once_it_is_mended(world: World) -> None:
    begin_tables(world)
    problems(world).append(ALONE)
    world.put(A, 3)
    world.put(B, 2)
    world.capture()
    assert [line["key"]["id"] for line in world.lines(A)[-2:]] == [1, 2]
    assert [line["key"]["id"] for line in world.lines(B)[-1:]] == [2]
    assert (
        "shop.a has lost its key" in stop_reasons(world.config)["shop.a"]
        and "give it one" in stop_reasons(world.config)["shop.a"]
    )
    with pytest.raises(RequestError, match=r"shop\.a has lost its key"):
        filing.submit(world.config, DumpRequest(("shop.a",)))
    assert dumps(world) == []
    problems(world).clear()
    world.put(A, 4)
    world.capture()
    assert dumps(world) == [("shop.a",)] and stop_reasons(world.config) == {}
    marks = [mark for m in wiring.open_staging(world.config).manifests(after=0) for mark in m.marks if mark.dump]
    assert [(mark.op, mark.table, mark.dump) for mark in marks] == [
        ("s", "shop.a", dump_store.list_dumps(world.state)[0].id)
    ]
    assert world.lines(A)[-1]["key"] == {"id": 4} and world.lines(A)[-1]["offset"] > marks[0].offset
    with world.capturing():
        wait_until(lambda: world.replay(A) == world.source_rows(A), "a is the source")


def test_a_crash_before_a_mended_table_is_forgotten_has_it_dumped_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_tables(world)
    problems(world).append(ALONE)
    world.put(A, 3)
    world.capture()
    problems(world).clear()

    def die(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(stopped_tables, "change", die)
        with pytest.raises(Crash):
            world.capture()
    assert dumps(world) == [("shop.a",)] and set(stop_reasons(world.config)) == {"shop.a"}
    world.capture()
    assert dumps(world) == [("shop.a",)] * 2 and stop_reasons(world.config) == {}


def test_a_mended_table_that_cannot_be_dumped_yet_is_not_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_tables(world)
    problems(world).append(ALONE)
    world.capture()
    problems(world).clear()
    with monkeypatch.context() as patch:
        patch.setattr(dump_requests, "request_dumps", lambda *_, **__: dump_requests.RequestedDumps())
        world.capture()
    assert dumps(world) == [] and set(stop_reasons(world.config)) == {"shop.a"}
    world.capture()
    assert dumps(world) == [("shop.a",)] and stop_reasons(world.config) == {}


def test_a_dump_of_a_table_that_stops_ends_and_says_why(world: World) -> None:
    begin_tables(world)
    dump_id = filing.submit(world.config, DumpRequest(("shop.?",)))
    problems(world).append(ALONE)
    world.capture()
    tasks = {task.table: task.error for task in dump_store.read_dump(world.state, dump_id).tasks}
    assert "shop.a has lost its key" in str(tasks["shop.a"]) and tasks["shop.b"] is None


def test_a_table_that_the_log_cannot_tell_is_neither_staged_nor_dumped_until_the_next_term(world: World) -> None:
    begin_tables(world)
    with world.capturing():
        world.put(A, 2, v="again")  # this term's log has shown the shape: nothing says before its end that it is well
        world.database.commit(Change("x", A.table, None, None))
        world.put(A, 3)
        wait_until(lambda: bool(stop_reasons(world.config)), "the stopped table is shown")
        assert "a value is none\n  fix: correct the value" in stop_reasons(world.config)["shop.a"]
        dump_id = filing.submit(world.config, DumpRequest(("shop.?",)))
        dump = dump_store.read_dump(world.state, dump_id)
        (number,) = [task.number for task in dump.tasks if task.table == "shop.a"]
        mark = Mark("shop", TaskId(dump_id, number), 1, 0, "w1", "shop.a", 1, None)
        high = High(
            mark, file=None, rows=0, bytes=0, checksum="", schema=A.fingerprint, last_key=None, final=True,
            snapshot=None, absent=(1,),
        )  # fmt: skip
        for payload in (Low(mark), high):  # of a worker that has begun before it could know
            world.database.commit(Change("w", A.table, None, {"payload": watermark.encode(payload)}))
        world.put(B, 2)
        wait_until(lambda: (2,) in world.replay(B), "row 2 of b is staged")
        task = TaskId(dump_id, number)
        wait_until(lambda: task_store.read_task(world.state, task).error is not None, "its task has ended")
        tasks = {task.table: task.error for task in dump_store.read_dump(world.state, dump_id).tasks}
        assert tasks == {"shop.a": "shop.a is stopped: a value is none; fix: correct the value", "shop.b": None}
    assert [line["key"]["id"] for line in world.lines(A) if line["op"] != "s"] == [1, 2, 2]
    with world.capturing():
        wait_until(lambda: world.replay(A) == world.source_rows(A), "a is the source")
    assert stop_reasons(world.config) == {} and ("shop.a",) in dumps(world)


def test_a_running_capture_stops_and_mends_without_an_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.1)
    begin_tables(world)
    with world.capturing():
        problems(world).append(ALONE)
        wait_until(lambda: bool(stop_reasons(world.config)), "the stopped table is shown")
        world.put(B, 7)
        wait_until(lambda: (7,) in world.replay(B), "row 7 of b is staged")
        problems(world).clear()
        world.put(A, 8)
        wait_until(
            lambda: stop_reasons(world.config) == {} and world.replay(A) == world.source_rows(A),
            "no table is stopped, and a is the source",
        )


class Mended:
    """A source whose catalogue refused `shop.a` a moment ago, and whose log shows meanwhile that it is mended."""

    def __init__(self, records: Nodes) -> None:
        self._records, self._answers = records, [(ALONE,)]

    def list_refusals(self) -> tuple[Problem, ...]:
        answer = self._answers.pop() if self._answers else ()
        if answer:
            stopped_tables.forget(self._records, ["shop.a"])  # its dump is requested
        return answer

    def identities(self) -> None:
        return None


def test_a_look_at_the_catalogue_from_before_its_table_was_mended_does_not_stop_it_again(world: World) -> None:
    fault = Unreadable(0, 0, TableName("shop", "a"), "has lost its key", "give it one", refused=True)
    records = TableRecords()
    stopped_tables.add_by_log(records, "shop.a", fault)
    clock = Clock()
    newcomers = config_reload.Newcomers(world.state, clock, ready=lambda config: None)
    clock.now += config_reload.NEWCOMERS
    assert newcomers.look(world.config, cast(Source, Mended(records)), records) == config_reload.Found()
    assert stopped_tables.read(records) == {}
