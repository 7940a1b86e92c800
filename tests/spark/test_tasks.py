"""Lake tasks in a merge: recorded, done, closed by a cut, and only then told; after a crash done again to the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.delta_writer.altering.alterations import SetProperties
from dblog_core.errors import LakeError, LeaseLost
from dblog_core.interfaces import Json
from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import State, read_status, table_location
from dblog_core.lake.task_plans import UnknownPlan
from dblog_core.lake.task_requests import UnknownRequest
from dblog_core.lake_engine.tables import alter_table, log
from dblog_core.lake_engine.tasks import registry
from dblog_core.lake_engine.tasks.context import Done, Tools
from dblog_core.lake_engine.tasks.registry import Kind
from tests.spark.lakes import TestLake
from tests.spark.segments import table

pytestmark = pytest.mark.one_of(6)

ONE = table("one", id=pa.int64(), v=pa.string())
STEPS = ("recorded", "done", "cut", "finished")


@dataclass(frozen=True)
class Marked:
    """The merge that planned it."""

    planned: int

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Marked:
        return cls(record["planned"])

    def to_json(self) -> Json:
        return {"planned": self.planned}


class Marks:
    """A kind of task that marks a table incomplete, and counts how often it was done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[int] = []
        self.error: Exception | None = None
        monkeypatch.setattr(registry, "KINDS", {"mark": Kind(self._carry_out, self._plan)})

    def _plan(self, tools: Tools, request: UnknownRequest) -> UnknownPlan:
        table = request.arguments["table"]
        if table not in tools.status.tables:
            raise LakeError("the lake has no such table", where=table, fix="name one")
        return UnknownPlan(request.kind, {**request.arguments, "planned": tools.number})

    def _carry_out(self, tools: Tools, plan: UnknownPlan) -> Done:
        if self.error is not None:
            raise self.error
        self.done.append(tools.number)
        name = plan.arguments["table"]
        table = tools.status.tables[name]
        place = table_location(tools.lake.location, ONE.table)
        alter_table.open_altered(place, tools.check).alter(
            lambda described: [SetProperties({"marked": str(tools.number)})]
        )
        marked = replace(table, state=State.INCOMPLETE, version=log.version(place))
        return Done(Marked(plan.arguments["planned"]), {name: marked})


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> Marks:
    return Marks(monkeypatch)


@pytest.fixture
def merged_lake(lake: TestLake) -> TestLake:
    lake.build.create(ONE, {"id": 1, "v": "a"})
    lake.build.seal()
    lake.merge_well()
    return lake


def _file(lake: TestLake, name: str = "shop.one") -> str:
    return lake_tasks.file_task(lake.location, UnknownRequest("mark", {"table": name})).id


def _read_outcome(lake: TestLake, task: str) -> lake_tasks.Outcome[Marked] | None:
    return lake_tasks.read_outcome(lake.location, task, Marked)


def _outcome(lake: TestLake, task: str) -> lake_tasks.Outcome[Marked]:
    outcome = _read_outcome(lake, task)
    assert outcome is not None
    return outcome


def test_a_task_is_a_merge_of_its_own(merged_lake: TestLake, marks: Marks) -> None:
    task = _file(merged_lake)
    merger = merged_lake.merger()
    done = merger.run_task()
    assert done is not None and (done.number, done.task, done.tables) == (2, "mark", ())
    assert merger.run_task() is None and marks.done == [2]
    assert _outcome(merged_lake, task) == lake_tasks.Outcome(2, Marked(2))
    first_cut, two = merged_lake.cuts()
    assert two["offset"] == first_cut["offset"] and two["tables"] == {"shop.one": first_cut["tables"]["shop.one"] + 1}
    status = read_status(merged_lake.location)
    assert status is not None and status.tables["shop.one"].state is State.INCOMPLETE
    assert (status.segment, status.offset) == (1, first_cut["offset"])
    # Merges go on behind it.
    merged_lake.build.create(ONE, {"id": 2, "v": "b"})
    merged_lake.build.seal()
    merged_lake.merge_well()
    assert [row["id"] for row in merged_lake.rows(ONE)] == [1, 2]


@pytest.mark.parametrize("step", STEPS)
def test_a_task_that_died_is_done_to_its_end_by_the_next_merge(merged_lake: TestLake, marks: Marks, step: str) -> None:
    task = _file(merged_lake)
    merged_lake.die_at(step)
    assert (_read_outcome(merged_lake, task) is not None) == (step == "finished")
    merged_lake.merge_well()
    assert merged_lake.merger().run_task() is None
    assert _outcome(merged_lake, task) == lake_tasks.Outcome(2, Marked(2))
    assert [cut["cut"] for cut in merged_lake.cuts()] == [1, 2]
    assert marks.done == ([2] if step in ("recorded", "finished") else [2, 2])


def test_a_task_that_is_refused_becomes_no_merge(merged_lake: TestLake, marks: Marks) -> None:
    task = _file(merged_lake, "shop.none")
    assert merged_lake.merger().run_task() is None
    assert _outcome(merged_lake, task) == lake_tasks.Outcome(
        0, None, "the lake has no such table", "shop.none", "name one"
    )
    assert len(merged_lake.cuts()) == 1 and marks.done == []


def test_a_task_that_fails_says_so_and_the_merge_goes_on(merged_lake: TestLake, marks: Marks) -> None:
    task = _file(merged_lake)
    marks.error = LakeError("cannot", where="shop.one", fix="x")
    assert merged_lake.merger().run_task() is not None
    assert _outcome(merged_lake, task) == lake_tasks.Outcome(2, None, "cannot", "shop.one", "x")
    marks.error = None
    second = _file(merged_lake)
    assert merged_lake.merger().run_task() is not None and _outcome(merged_lake, second).merge == 3


def test_a_task_of_another_version_of_dblog_is_refused_by_name(merged_lake: TestLake, marks: Marks) -> None:
    task = lake_tasks.file_task(merged_lake.location, UnknownRequest("unheard", {})).id
    assert merged_lake.merger().run_task() is None
    assert "knows no lake task unheard" in (_outcome(merged_lake, task).error or "")


def test_a_lost_lease_leaves_the_task_for_another(merged_lake: TestLake, marks: Marks) -> None:
    task = _file(merged_lake)
    marks.error = LeaseLost("gone")
    with pytest.raises(LeaseLost):
        merged_lake.merger().run_task()
    assert _read_outcome(merged_lake, task) is None
    marks.error = None
    merged_lake.merge_well()
    assert _outcome(merged_lake, task).merge == 2
