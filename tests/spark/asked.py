"""Lake tasks under test: asked for, carried out as a merge does it, and damage to a lake that they undo."""

from __future__ import annotations

from typing import Any

from delta.tables import DeltaTable

from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_tasks import Outcome
from dblog_core.lake.task_requests import read_request
from dblog_core.lake.task_results import AcceptResult, RebuildResult, ReplayResult, ResetResult, TaskResult
from dblog_core.model.schema import TableSchema
from tests.spark.lakes import Crash, TestLake
from tests.spark.lakes import Dumps as Dumps

RESULTS: dict[str, type[TaskResult]] = {
    "replay": ReplayResult,
    "rebuild": RebuildResult,
    "reset": ResetResult,
    "accept": AcceptResult,
}


def ask(lake: TestLake, kind: str, arguments: dict[str, Any], *, dumps: Dumps | None = None) -> Outcome[TaskResult]:
    """Has the task done, and returns what came of it. `arguments`: as the file of a task has them."""
    task = lake_tasks.file_task(lake.location, read_request(kind, arguments)).id
    lake.merger(dumps=dumps).run_task()
    outcome = lake_tasks.read_outcome(lake.location, task, RESULTS[kind])
    assert outcome is not None
    return outcome


def ask_well(lake: TestLake, kind: str, arguments: dict[str, Any], *, dumps: Dumps | None = None) -> dict[str, Any]:
    """As `ask`, and it must succeed; the result as a command prints it."""
    outcome = ask(lake, kind, arguments, dumps=dumps)
    assert outcome.error is None and outcome.result is not None, outcome
    return outcome.result.to_json()


def dies(lake: TestLake, kind: str, arguments: dict[str, Any], step: str, *, dumps: Dumps | None = None) -> str:
    """The task dies right after the step; returns its id."""
    task = lake_tasks.file_task(lake.location, read_request(kind, arguments)).id

    def die(name: str) -> None:
        if name == step:
            raise Crash

    try:
        lake.merger(dumps=dumps, step=die).run_task()
    except Crash:
        return task
    raise AssertionError(f"no step was named {step}")


def replay(lake: TestLake, start: int, end: int, *tables: str) -> dict[str, Any]:
    """A replay by offsets: counts by table."""
    arguments = {"from": {"offset": start}, "to": {"offset": end}, "tables": list(tables)}
    result = ask_well(lake, "replay", arguments)
    assert [t["error"] for t in result["tables"]] == [None] * len(result["tables"])
    return {t["table"]: {k: v for k, v in t.items() if k not in ("table", "error")} for t in result["tables"]}


def damage(lake: TestLake, schema: TableSchema) -> DeltaTable:
    """The table, for somebody who writes to it behind our back."""
    return DeltaTable.forPath(lake.spark, str(lake.table(schema)))
