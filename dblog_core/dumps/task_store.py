"""Tasks of dumps in the state store: what `dump_store` keeps below a dump, for workers and the capture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import orjson

from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.dumps.dump_records import (
    TaskRecord,
    TaskStatus,
)
from dblog_core.errors import RequestError, VersionConflict
from dblog_core.interfaces import Entry, Json, StateStore
from dblog_core.model.task_id import TaskId
from dblog_core.state import compare_and_set
from dblog_core.state.compare_and_set import put_news

_GONE = "gone"  # the key of an error that says so of the table
_OF = "of"  # the key of a mirror's manifest beside the progress
_NODES = ("task", "progress", "error", "pace")

SegmentOrder = tuple[int, int]
"""Epoch and number of a segment: neither falls from one manifest of a staging directory to the next."""


def write_tasks(state: StateStore, dump_id: str, tasks: Sequence[TaskRecord]) -> None:
    """Writes the tasks of a dump that nobody sees before `file_dump` is called."""
    nodes = {task_path(TaskId(dump_id, n), "task"): orjson.dumps(task.to_json()) for n, task in enumerate(tasks)}
    state.create_all(nodes)


def write_missing_tasks(state: StateStore, dump_id: str, tasks: Sequence[TaskRecord]) -> None:
    """Writes those of the tasks that are not there: several processes may write the same ones, or continue after one
    that died."""
    for number, task in enumerate(tasks):
        with contextlib.suppress(VersionConflict):
            state.create(task_path(TaskId(dump_id, number), "task"), orjson.dumps(task.to_json()))


def read_task(state: StateStore, task: TaskId) -> TaskStatus:
    """One task of a dump: what a worker reads again once it holds the task. Raises RequestError."""
    return read_tasks(state, [task])[0]


def is_task_over(state: StateStore, task: TaskId) -> bool:
    """Whether no worker will touch the task again."""
    return is_over_by(*state.get_all([task_path(task, name) for name in ("progress", "error")]))


def is_over_by(mirror: Entry | None, error: Entry | None) -> bool:
    """Whether no worker will touch a task again of which these nodes are there."""
    return error is not None or (mirror is not None and bool(orjson.loads(mirror.data)["done"]))


def read_progress(state: StateStore, task: TaskId, table: str) -> TaskProgress:
    """How far a task is, as the capture has published it."""
    return progress_by(state.get(task_path(task, "progress")), table)


def progress_by(mirror: Entry | None, table: str) -> TaskProgress:
    """How far a task of the table is by its node."""
    return TaskProgress(table) if mirror is None else _read_mirror(mirror)[1]


def read_all_progress(state: StateStore, tasks: Sequence[tuple[TaskId, str]]) -> list[TaskProgress]:
    """How far tasks are, each with its table, by one question for all."""
    entries = state.get_all([task_path(task, "progress") for task, _ in tasks])
    return [progress_by(entry, table) for (_, table), entry in zip(tasks, entries, strict=True)]


def find_end(state: StateStore, task: TaskId) -> SegmentOrder | None:
    """The manifest by which the task was done; None: it is not, or is gone."""
    if (mirror := state.get(task_path(task, "progress"))) is None:
        return None
    of, progress = _read_mirror(mirror)
    return of if progress.done else None


def begin_attempt(state: StateStore, task: TaskId) -> int:
    """A number for a worker that takes the task up, larger than any before."""
    data = update_node(state, task_path(task, "task"), lambda data: {**data, "attempt": data["attempt"] + 1})
    return int(data["attempt"])


def fail_task(state: StateStore, task: TaskId, error: str) -> None:
    """The task cannot continue, and says why; the dump's other tasks do. What is said first stays."""
    if state.get(request_path(task.dump)) is not None:
        end_task(state, task, error)


def put_pace(state: StateStore, task: TaskId, *, held: str | None, factor: float) -> None:
    """What slows the task's worker down (None: nothing), and by which factor it works below its limits."""
    put_news(state, task_path(task, "pace"), {"held": held, "factor": factor})


def put_progress(state: StateStore, task: TaskId, value: TaskProgress, *, of: SegmentOrder = (0, 0)) -> bool:
    """As `put_all_progress`, for one task; False: the mirror is of a later manifest, and stays."""
    return not put_all_progress(state, {task: value}, of=of)


def put_all_progress(
    state: StateStore, progress: Mapping[TaskId, TaskProgress], *, of: SegmentOrder = (0, 0)
) -> dict[TaskId, TaskProgress]:
    """The capture's mirrors of tasks' progress, as manifest `of` holds it; what is gone stays so.

    Returns those whose mirror is of a later manifest, and stays. A leader that was paused may mirror an old manifest
    after its successor has mirrored a newer one: nobody would tell the workers again of what they wait for. A staging
    directory that was replaced, or put back from a copy, continues under a higher epoch: what it holds counts, also
    where that is less than the directory before it held.
    """
    refused: dict[TaskId, TaskProgress] = {}
    left = dict(progress)
    while left:
        mirrors = _read_mirrors(state, left)
        first_mirrors = {task: left[task] for task, entry in mirrors.items() if entry is None}
        conflicts = _create_mirrors(state, first_mirrors, of)
        for task, entry in mirrors.items():
            if entry is None:
                continue
            mirrored_of, mirrored = _read_mirror(entry)
            if of < mirrored_of:
                refused[task] = left[task]
            elif of > mirrored_of or left[task].follows(mirrored):
                try:
                    state.update(task_path(task, "progress"), _mirror(left[task], of), entry.version)
                except VersionConflict:
                    conflicts[task] = left[task]  # another leader's mirror: whichever is newer stays
        left = conflicts
    return refused


def task_lease(task: TaskId) -> str:
    """The lease of who works on a task."""
    return f"task-{task.dump}-{task.number}"


def permit_lease(dump_id: str, index: int) -> str:
    """The lease of one of the places for workers."""
    return f"permit-{dump_id}-{index}"


def list_task_ids(state: StateStore, dump_id: str) -> list[TaskId]:
    """The tasks of a dump by growing number."""
    return sorted(TaskId(dump_id, int(number)) for number in state.children(f"dumps/{dump_id}/tasks"))


def read_tasks(state: StateStore, tasks: Sequence[TaskId]) -> tuple[TaskStatus, ...]:
    """The tasks, by one question for all. Raises RequestError where one is not there."""
    entries = state.get_all([task_path(task, name) for task in tasks for name in _NODES])
    nodes_of_tasks = (entries[start : start + len(_NODES)] for start in range(0, len(entries), len(_NODES)))
    return tuple(_task_status(task, *nodes) for task, nodes in zip(tasks, nodes_of_tasks, strict=True))


def _task_status(
    task: TaskId, filed: Entry | None, mirror: Entry | None, failed: Entry | None, slowed: Entry | None
) -> TaskStatus:
    if filed is None:
        raise RequestError(f"dump {task.dump} has no task {task.number}", fix="request it again with `dblog dump`")
    record = TaskRecord.from_json(orjson.loads(filed.data))
    progress = progress_by(mirror, record.table)
    error = None if progress.done or failed is None else orjson.loads(failed.data)
    pace = None if progress.done or error or slowed is None else orjson.loads(slowed.data)
    return TaskStatus(
        number=task.number,
        record=record,
        progress=progress,
        error=error[_GONE] if isinstance(error, dict) else error,
        held=pace["held"] if pace else None,
        listed=None if record.keys is None else len(record.keys),
        gone=isinstance(error, dict),
    )


def end_task(state: StateStore, task: TaskId, error: str, *, gone: bool = False) -> None:
    """Records why no worker can continue the task; `gone`: its table is dropped. What is said first stays."""
    why = {_GONE: error} if gone else error
    with contextlib.suppress(VersionConflict):
        state.create(task_path(task, "error"), orjson.dumps(why))


def _read_mirrors(state: StateStore, tasks: Collection[TaskId]) -> dict[TaskId, Entry | None]:
    """The mirrors of those tasks whose dumps are there, by one question for all."""
    dumps = list(dict.fromkeys(task.dump for task in tasks))
    entries = state.get_all([*map(request_path, dumps), *(task_path(task, "progress") for task in tasks)])
    filed = {dump for dump, entry in zip(dumps, entries, strict=False) if entry is not None}
    mirrors = zip(tasks, entries[len(dumps) :], strict=True)
    return {task: entry for task, entry in mirrors if task.dump in filed}


def _create_mirrors(
    state: StateStore, progress: dict[TaskId, TaskProgress], of: SegmentOrder
) -> dict[TaskId, TaskProgress]:
    """The first mirrors of tasks; all of them where there is one of some already: others may be made or not."""
    nodes = {task_path(task, "progress"): _mirror(value, of) for task, value in progress.items()}
    try:
        if len(nodes) > 1:
            state.create_all(nodes)
        for path, data in nodes.items() if len(nodes) == 1 else ():
            state.create(path, data)
    except VersionConflict:
        return progress
    return {}


def _mirror(value: TaskProgress, of: SegmentOrder) -> bytes:
    return orjson.dumps({**value.to_json(), _OF: of})


def _read_mirror(entry: Entry) -> tuple[SegmentOrder, TaskProgress]:
    """The manifest that a mirror is of, and the progress; a mirror of an earlier version names none: it comes first."""
    data = orjson.loads(entry.data)
    epoch, segment = data.pop(_OF, (0, 0))
    return (epoch, segment), TaskProgress.from_json(data)


def update_node(state: StateStore, path: str, change: Callable[[Json], Json]) -> Json:
    """Writes what `change` makes of a node of dumps, and returns it. Raises RequestError where there is none."""

    def change_existing(data: Any) -> Any:
        if data is None:
            raise RequestError(f"{path} is no longer in the state store", fix="`dblog dumps` lists the dumps in it")
        return change(data)

    written: Json = compare_and_set.change(state, path, change_existing)
    return written


def request_path(dump_id: str) -> str:
    """The node of a dump's own record."""
    return f"dumps/{dump_id}/request"


def task_path(task: TaskId, name: str) -> str:
    """A node of a task: task, progress, error or pace."""
    return f"dumps/{task.dump}/tasks/{task.number}/{name}"
