"""Lake tasks: things to do with the lake that are not a merge of new segments, such as a replay or a reset of a table.

    LAKE/_dblog/tasks/ID.json        what to do: kind and arguments (`task_requests`); ids grow with time
    LAKE/_dblog/tasks/ID.done.json   what came of it: `Outcome`

The holder of the lake's lock carries them out between two merges. So a command neither waits for a lease that a
continuous merge never gives up, nor starts a Spark session beside it.
"""

from __future__ import annotations

import datetime as dt
import secrets
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

from dblog_core.clock import SystemClock
from dblog_core.config.settings import Config
from dblog_core.errors import LakeError
from dblog_core.interfaces import Clock, Json
from dblog_core.lake.lake_status import own_directory, read_status
from dblog_core.lake.merge_options import MergeOptions
from dblog_core.lake.task_requests import TaskRequest, read_request
from dblog_core.lake.task_results import TaskResult
from dblog_core.storage.location import Location
from dblog_core.wiring import open_lake, open_state, run_merge

KEEP = 200
"""Tasks with an outcome that stay, to look into."""

_LOOK_SECONDS = 0.3  # between two looks for an outcome
_MERGE_ATTEMPTS = 2  # merges of our own that may end without it: a lock that another took first costs one


R = TypeVar("R", bound=TaskResult)
R_co = TypeVar("R_co", bound=TaskResult, covariant=True)


@dataclass(frozen=True, slots=True)
class LakeTask:
    """What to do."""

    id: str
    request: TaskRequest

    @property
    def kind(self) -> str:
        return self.request.kind


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R_co]):
    """What came of a task: `result`, or the parts of an error. `merge`: the merge that it was; 0 where it was refused
    before anything was changed."""

    merge: int
    result: R_co | None
    error: str | None = None
    where: str = ""
    fix: str = ""

    def check(self) -> None:
        """Raises LakeError where the task failed."""
        if self.error is not None:
            raise LakeError(self.error, where=self.where, fix=self.fix)

    def to_json(self) -> Json:
        result = None if self.result is None else self.result.to_json()
        return {"merge": self.merge, "result": result, "error": self.error, "where": self.where, "fix": self.fix}


def file_task(
    lake: Location,
    request: TaskRequest,
    *,
    clock: Clock | None = None,
    new_id: Callable[[], str] = lambda: secrets.token_hex(3),
) -> LakeTask:
    """Asks for a task; durable when it returns."""
    now = dt.datetime.fromtimestamp((clock or SystemClock()).time(), dt.UTC)
    # Names sort by time, so the oldest task is carried out first.
    task = LakeTask(f"{now:%Y%m%dT%H%M%S%f}-{new_id()}", request)
    record = {"kind": request.kind, "arguments": request.to_json()}
    if not _task_path(lake, task.id).create_once(orjson.dumps(record)):
        raise LakeError("a task of this name is there already", where=task.id, fix="ask again")
    return task


def waiting_tasks(lake: Location) -> list[LakeTask]:
    """Tasks without an outcome, the oldest first. Raises LakeError for one whose file is damaged."""
    names = set(_directory(lake).names())
    # One listing for both kinds of file, so that a task is not taken for one without an outcome.
    ids = sorted(name.removesuffix(".json") for name in names if name.endswith(".json") and "." not in name[:-5])
    return [task for i in ids if f"{i}.done.json" not in names and (task := _read_task(lake, i)) is not None]


def find_waiting(lake: Location, kind: str) -> LakeTask | None:
    """The oldest task of a kind that waits; None: none does. Raises LakeError for one whose file is damaged."""
    return next((task for task in waiting_tasks(lake) if task.kind == kind), None)


def read_outcome(lake: Location, task: str, result_type: type[R]) -> Outcome[R] | None:
    """What came of a task, whose kind has results of this type; None while nothing has. Raises LakeError where its file
    is damaged."""
    path = _outcome_path(lake, task)
    if (data := path.read()) is None:
        return None
    try:
        record: dict[str, Any] = orjson.loads(data)
        result = None if record["result"] is None else result_type.from_json(record["result"])
        return Outcome(record["merge"], result, record["error"], record["where"], record["fix"])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged_error(path, error) from error


def record_outcome(lake: Location, task: str, outcome: Outcome[TaskResult]) -> None:
    """Records what came of a task, once: a task that is done again after a crash keeps its first outcome."""
    _outcome_path(lake, task).create(orjson.dumps(outcome.to_json()))
    done = sorted(name.removesuffix(".done.json") for name in _directory(lake).names() if name.endswith(".done.json"))
    for old in done[:-KEEP]:
        _task_path(lake, old).remove()  # first: an outcome without its task is nobody's
        _outcome_path(lake, old).remove()


def record_common_outcome(lake: Location, task: str, outcome: Outcome[TaskResult]) -> None:
    """As `record_outcome`, also of tasks of that kind that were filed meanwhile: after a crash somebody asks again."""
    filed = waiting_tasks(lake)
    kinds = {other.kind for other in filed if other.id == task}
    for other in filed:
        if other.kind in kinds:
            record_outcome(lake, other.id, outcome)


def carry_out(
    config: Config,
    request: TaskRequest,
    result_type: type[R],
    *,
    stop: threading.Event,
    on_line: Callable[[str], None],
) -> R:
    """Files a task and sees it through: by the merge that runs, or by one that it starts. Returns the result.

    Raises LakeError where the task failed, or where `stop` was set first: then it stays filed.
    """
    lake = open_lake(config)
    task = file_task(lake, request)
    tries = 0
    while (outcome := _visible_outcome(lake, task, result_type)) is None:
        if stop.is_set():
            raise LakeError(
                f"interrupted; the task stays filed as {task.id}, and the next merge of this lake carries it out",
                where=f"{task.kind} of the lake {lake}",
            )
        # It holds the lake's lock, and looks for tasks between two merges.
        if (holder := _merging(config)) is not None:
            on_line(f"{task.kind}: waits for the merge of {holder} to carry it out")
            _wait(config, lambda: _visible_outcome(lake, task, result_type) is not None, stop)
        elif tries < _MERGE_ATTEMPTS:
            tries += 1
            starts = "Spark" if config.lake.engine == "spark" else "a merge"
            on_line(f"{task.kind}: starting {starts}")
            # `--tasks`: nothing but waiting tasks, no new segments.
            run_merge(config, MergeOptions("tasks"), stop=stop, on_line=on_line)
        else:
            raise LakeError(
                f"the merge ended without carrying out the task {task.id}",
                where=f"{task.kind} of the lake {lake}",
                fix="see what it said; the task stays filed, and the next merge carries it out",
            )
    return _result_of(outcome)


def _visible_outcome(lake: Location, task: LakeTask, result_type: type[R]) -> Outcome[R] | None:
    """The outcome, once the merge that it was has ended, so that the next reader of the status sees it."""
    outcome = read_outcome(lake, task.id, result_type)
    if outcome is None or not outcome.merge:
        return outcome
    status = read_status(lake)
    return outcome if status is not None and status.merge >= outcome.merge else None


def _merging(config: Config) -> str | None:
    """Who merges into the lake now."""
    with closing(open_state(config)) as state:
        merger = state.leader("merge")
        return merger.holder if merger else None


def _wait(config: Config, is_settled: Callable[[], bool], stop: threading.Event) -> None:
    """Until the task is settled, nobody merges, or `stop` is set."""
    with closing(open_state(config)) as state:
        while not is_settled() and state.leader("merge") is not None and not stop.wait(_LOOK_SECONDS):
            pass


def _result_of(outcome: Outcome[R]) -> R:
    if outcome.error is not None or outcome.result is None:
        raise LakeError(outcome.error or "no result", where=outcome.where, fix=outcome.fix)
    return outcome.result


def _read_task(lake: Location, task: str) -> LakeTask | None:
    path = _task_path(lake, task)
    if (data := path.read()) is None:
        return None
    try:
        record: dict[str, Any] = orjson.loads(data)
        return LakeTask(task, read_request(record["kind"], record["arguments"]))
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged_error(path, error) from error


def _damaged_error(path: Location, error: Exception) -> LakeError:
    return LakeError(f"a lake task cannot be read: {error}", where=str(path), fix="remove the file, and ask again")


def _directory(lake: Location) -> Location:
    return own_directory(lake) / "tasks"


def _task_path(lake: Location, task: str) -> Location:
    return _directory(lake) / f"{task}.json"


def _outcome_path(lake: Location, task: str) -> Location:
    return _directory(lake) / f"{task}.done.json"
