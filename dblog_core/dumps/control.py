"""Dumps in the state store: watch, pause, resume, cancel, retune; from any machine.

    unfinished/ID                each dump that is not over, beside some that are since their end was recorded
    unfinished/complete          no other dump is unfinished: those of versions without this list have been added
    dumps/ID/request             what was asked, the options in force, and the state that somebody set
    dumps/ID/told/NAME           what the channel NAME of `[[notify]]` was told of it (`notices`)
    dumps/ID/tasks/N/task        one range of a table, or some keys of it: what one worker reads at a time
    dumps/ID/tasks/N/progress    the mirror of `dumps.TaskProgress`, and its manifest; by the capture alone
    dumps/ID/tasks/N/pace        what slows its worker down: {"held": TEXT or null, "factor": FLOAT}
    dumps/ID/tasks/N/error       why no worker can go on with it, ever; {"gone": WHY}: its table is dropped
    capture/status               what the leader tells about itself, about once a second

`requests.py` files dumps; `dump_status.py` says what the nodes mean; `ended_dumps.py` removes those of long ago.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import orjson

from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.dumps.status import OVER as OVER
from dblog_core.dumps.status import DumpStatus as DumpStatus
from dblog_core.dumps.status import TaskStatus as TaskStatus
from dblog_core.dumps.status import errors_of, state_of
from dblog_core.errors import RequestError, VersionConflict
from dblog_core.interfaces import Entry, Json, StateStore
from dblog_core.model.task_id import TaskId
from dblog_core.state import compare_and_set, owed_dumps
from dblog_core.state.compare_and_set import put_news

"""The lease of who leads."""
USER, SYSTEM, SIGNAL = "user", "system", "signal"
"""Who requested a dump; Airflow names the run."""
_RANGES = {
    "chunk_size": (1, 1_000_000),
    "chunk_bytes": (64 << 10, 1 << 30),
    "workers": (1, 64),
    "delay": (0, 86_400),
    "rate": (0, 10**9),
    "max_retained": (0, 2**63 - 1),
}
_LARGEST = 500_000  # bytes of ended tasks in a dump's node: ZooKeeper takes a million
_GONE = "gone"
_LISTED, _COMPLETE = "unfinished", "complete"
_OF = "of"  # the key of a mirror's manifest beside the progress
_NODES = ("task", "progress", "error", "pace")
Place = tuple[int, int]
"""Epoch and number of a segment: neither falls from one manifest of a staging directory to the next."""
_BEFORE: Json = {"after": None, "filters": [], "parts": 1, "heals": None, "estimated": None, "order": None}
"""What a task says that was filed before there were ranges, filters and a remembered order of the key."""


def minds(requested_by: str) -> bool:
    """Whether a dump fails where one of its tables is dropped meanwhile: nobody has asked for those of the system."""
    return requested_by != SYSTEM


# Watching -------------------------------------------------------------------------------------------------------------


def dumps(state: StateStore) -> list[DumpStatus]:
    """All dumps, oldest first."""
    ids = state.children("dumps")
    found = (_shown(state, *one) for one in zip(ids, records(state, ids), strict=True))
    return sorted((d for d in found if d is not None), key=lambda d: (d.requested_at, d.id))


def dump(state: StateStore, dump_id: str) -> DumpStatus:
    """One dump. Raises RequestError if there is none of that id."""
    if (found := find(state, dump_id)) is None:
        raise _no_dump(dump_id)
    return found


def find(state: StateStore, dump_id: str) -> DumpStatus | None:
    """One dump; None if there is none of that id, or if it is not filed yet."""
    return _shown(state, dump_id, _record(state, dump_id))


def _shown(state: StateStore, dump_id: str, record: Json | None) -> DumpStatus | None:
    """The dump of that record; None where there is none, or it is removed meanwhile."""
    try:
        return None if record is None else _status(state, dump_id, record)
    except RequestError:
        if _record(state, dump_id) is None:
            return None
        raise


def settings(state: StateStore, dump_id: str, table: str = "") -> tuple[str, Json]:
    """The state that somebody set, and the options in force: one read, for every chunk. Raises RequestError.

    A dump whose tasks are all over may still say requested or paused here; of a table that was stopped, cancelled.
    """
    if (record := _record(state, dump_id)) is None:
        raise _no_dump(dump_id)
    return "cancelled" if table in record.get("stopped", ()) else record["state"], record["options"]


def unfinished(state: StateStore, *, requested_by: Collection[str] = ()) -> list[DumpStatus]:
    """Dumps that are not over, oldest first; `requested_by`: only theirs, where any are named. What has ended since the
    last look is recorded: looking stays cheap."""
    found = []
    for dump_id, record in _listed(state):
        if requested_by and record["requested_by"] not in requested_by:
            continue
        status = _status(state, dump_id, record)
        if status.state in OVER:
            _settle(state, status)
        else:
            found.append(status)
    return sorted(found, key=lambda d: (d.requested_at, d.id))


def _listed(state: StateStore) -> Iterator[tuple[str, Json]]:
    """Dumps of which no end is recorded: what a look costs depends on those alone."""
    names = state.children(_LISTED)
    if _COMPLETE not in names:
        list_unfinished(state, state.children("dumps"))
        with contextlib.suppress(VersionConflict):
            state.create(f"{_LISTED}/{_COMPLETE}", b"")
        names = state.children(_LISTED)
    ids = [name for name in names if name != _COMPLETE]
    for dump_id, record in zip(ids, records(state, ids), strict=True):
        if record is None:
            continue  # not filed yet: it is listed right before
        if record["state"] in OVER:
            state.delete(f"{_LISTED}/{dump_id}")
        else:
            yield dump_id, record


def list_unfinished(state: StateStore, ids: Sequence[str]) -> None:
    """Lists those of the dumps of which no end is recorded: what an earlier version has filed is not."""
    for dump_id, record in zip(ids, records(state, ids), strict=True):
        if record is not None and record["state"] not in OVER:
            _list(state, dump_id)


def _list(state: StateStore, dump_id: str) -> None:
    with contextlib.suppress(VersionConflict):
        state.create(f"{_LISTED}/{dump_id}", b"")


def records(state: StateStore, ids: Sequence[str]) -> list[Json | None]:
    """What the dumps' own nodes hold; None: not filed yet, or gone."""
    entries = state.get_all([_request(dump_id) for dump_id in ids])
    return [None if entry is None else orjson.loads(entry.data) for entry in entries]


def is_over(state: StateStore, dump_id: str) -> bool:
    """Whether a dump has ended, whichever way; one that is not in the store (any more) has.

    The capture asks every second: it reads no more than the last task that is not over, which comes last as a rule.
    Once all are over that is recorded, whoever asked for the dump, and whether or not anybody still waits for it.
    """
    record = _record(state, dump_id)
    if record is None or record["state"] in OVER:
        return True
    numbers = sorted(map(int, state.children(f"dumps/{dump_id}/tasks")), reverse=True)
    if not all(task_is_over(state, dump_id, number) for number in numbers):
        return False
    status = _shown(state, dump_id, record)
    if status is not None and status.state in OVER:
        _settle(state, status)
    return True


def task(state: StateStore, dump_id: str, number: int) -> TaskStatus:
    """One task of a dump: what a worker reads again once it holds the task. Raises RequestError."""
    return _tasks(state, dump_id, [number])[0]


def task_is_over(state: StateStore, dump_id: str, number: int) -> bool:
    """Whether no worker will touch the task again."""
    return _over(*state.get_all([_node(dump_id, number, name) for name in ("progress", "error")]))


def progress(state: StateStore, dump_id: str, number: int, table: str) -> TaskProgress:
    """How far a task is, as the capture has published it."""
    entry = state.get(_node(dump_id, number, "progress"))
    return TaskProgress(table) if entry is None else _mirrored(entry)[1]


def progress_of(state: StateStore, tasks: Sequence[tuple[str, TaskStatus]]) -> list[TaskProgress]:
    """How far tasks are, each with its dump's id, by one question for all."""
    entries = state.get_all([_node(dump_id, task.number, "progress") for dump_id, task in tasks])
    return [
        TaskProgress(task.table) if entry is None else _mirrored(entry)[1]
        for (_, task), entry in zip(tasks, entries, strict=True)
    ]


def _record(state: StateStore, dump_id: str) -> Json | None:
    entry = state.get(_request(dump_id)) if dump_id and "/" not in dump_id else None
    return None if entry is None else orjson.loads(entry.data)


def _status(state: StateStore, dump_id: str, record: Json) -> DumpStatus:
    if (ended := record.get("ended")) is not None:
        tasks = tuple(map(TaskStatus.restored, ended))
    else:
        tasks = _tasks(state, dump_id, sorted(map(int, state.children(f"dumps/{dump_id}/tasks"))))
    return DumpStatus(
        id=dump_id,
        state=state_of(record["state"], tasks, minds_gone=minds(record["requested_by"])),
        tables=tuple(record["tables"]),
        options=record["options"],
        error=errors_of(tasks, minds_gone=minds(record["requested_by"])) or record["error"],
        requested_at=record["requested_at"],
        requested_by=record["requested_by"],
        tasks=tasks,
        refused=tuple(record.get("refused", ())),
        signal=record.get("signal"),
    )


def _tasks(state: StateStore, dump_id: str, numbers: Sequence[int]) -> tuple[TaskStatus, ...]:
    entries = state.get_all([_node(dump_id, number, name) for number in numbers for name in _NODES])
    found = (entries[at : at + len(_NODES)] for at in range(0, len(entries), len(_NODES)))
    return tuple(_task(dump_id, number, *nodes) for number, nodes in zip(numbers, found, strict=True))


def _task(dump_id: str, number: int, *nodes: Entry | None) -> TaskStatus:
    entry, placed, failed, slowed = nodes
    if entry is None:
        raise RequestError(f"dump {dump_id} has no task {number}", fix="request the dump again")
    data = {**_BEFORE, **orjson.loads(entry.data)}
    now = TaskProgress(data["table"]) if placed is None else _mirrored(placed)[1]
    error = None if now.done or failed is None else orjson.loads(failed.data)
    pace = None if now.done or error or slowed is None else orjson.loads(slowed.data)
    return TaskStatus(
        number=number,
        table=data["table"],
        keys=None if data["keys"] is None else tuple(data["keys"]),
        listed=None if data["keys"] is None else len(data["keys"]),
        key_from=data["key_from"],
        after=data["after"],
        key_to=data["key_to"],
        filters=tuple(data["filters"]),
        parts=data["parts"],
        heals=data["heals"],
        estimated=data["estimated"],
        order=data["order"],
        attempt=data["attempt"],
        progress=now,
        error=error[_GONE] if isinstance(error, dict) else error,
        held=pace["held"] if pace else None,
        gone=isinstance(error, dict),
    )


def _over(placed: Entry | None, failed: Entry | None) -> bool:
    return failed is not None or (placed is not None and bool(orjson.loads(placed.data)["done"]))


def _settle(state: StateStore, status: DumpStatus) -> None:
    """Records how the dump has ended, unless somebody has recorded an end already.

    What its tasks came to stands beside it, where that is not too much for a node: who looks at dumps that are long
    over need not read the nodes of all their tasks.
    """
    if status.requested_by == SYSTEM and status.state == "failed":
        faults = {t.table: t.error for t in status.tasks if t.error is not None and t.is_whole}
        owed_dumps.failed(state, status.id, faults)
    ended = [t.kept() for t in status.tasks]
    small = len(orjson.dumps(ended)) <= _LARGEST
    end = {"state": status.state, "error": status.error, "ended": ended if small else None}
    with contextlib.suppress(RequestError):  # it is removed meanwhile
        _update(state, _request(status.id), lambda record: record if record["state"] in OVER else {**record, **end})
    state.delete(f"{_LISTED}/{status.id}")


# Control --------------------------------------------------------------------------------------------------------------


def pause(state: StateStore, dump_id: str) -> None:
    """From the next chunk on the dump stands still. Raises RequestError."""
    _change(state, dump_id, lambda record: {**record, "state": "paused"})


def resume(state: StateStore, dump_id: str) -> None:
    """A paused dump goes on; one that runs is left alone. Raises RequestError."""
    _change(state, dump_id, lambda record: {**record, "state": "requested"})


def cancel(state: StateStore, dump_id: str) -> None:
    """The dump ends with what is placed. Raises RequestError."""
    _change(state, dump_id, lambda record: {**record, "state": "cancelled"})


def stop_tables(state: StateStore, dump_id: str, tables: Collection[str], why: str) -> None:
    """Those tables of the dump end with what is placed, its others go on; it is cancelled where none is left.

    A dump that goes on without some of its tables fails in the end, by `why`. Raises RequestError.
    """
    status = dump(state, dump_id)
    if status.state in OVER:
        raise _is_over(dump_id, status.state)
    left = [t for t in status.tasks if not t.over]
    if all(t.table in tables for t in left):
        cancel(state, dump_id)
        return
    give_up_tables(state, dump_id, dict.fromkeys(tables, why))


def give_up_tables(state: StateStore, dump_id: str, tables: Mapping[str, str]) -> None:
    """Those tables of the dump fail, each for its reason, and its others go on. Raises RequestError."""
    left = [t for t in dump(state, dump_id).tasks if not t.over and t.table in tables]
    stopped = {t.table for t in left}
    # First for workers, who read this for every chunk; then for all who ask how the tasks have ended.
    _change(state, dump_id, lambda record: {**record, "stopped": sorted({*record.get("stopped", ()), *stopped})})
    for each in left:
        fail(state, dump_id, each.number, tables[each.table])


def retune(state: StateStore, dump_id: str, **changes: Any) -> None:
    """Changes options from the next chunk on; None leaves one as it is. Raises RequestError.

    chunk_size (rows), chunk_bytes, workers, delay (seconds), rate (rows a second), adaptive (bool), max_retained
    (bytes).
    """
    wanted = {name: value for name, value in changes.items() if value is not None}
    check_options(wanted)
    _change(state, dump_id, lambda record: {**record, "options": {**record["options"], **wanted}})


def check_options(options: Json) -> None:
    """Raises RequestError for an option that there is not, or a value outside its range."""
    for name, value in options.items():
        if name == "adaptive":
            continue
        if name not in _RANGES:
            raise RequestError(f"{name} is no option of a dump", fix=f"options are {', '.join(_RANGES)}, adaptive")
        low, high = _RANGES[name]
        if not low <= value <= high:
            raise RequestError(f"{name} = {value} is out of range", fix=f"give a number from {low} to {high}")


def _change(state: StateStore, dump_id: str, change: Callable[[Json], Json]) -> None:
    """Changes a dump's record. Raises RequestError if it is over, also if it ends in this very moment."""
    found = dump(state, dump_id)
    if found.state in OVER:
        raise _is_over(dump_id, found.state)

    def unless_over(record: Json) -> Json:
        if record["state"] in OVER:
            raise _is_over(dump_id, record["state"])
        return change(record)

    _update(state, _request(dump_id), unless_over)


# For workers and the capture ------------------------------------------------------------------------------------------


def next_attempt(state: StateStore, dump_id: str, number: int) -> int:
    """A number for a worker that takes the task up, larger than any before."""
    data = _update(state, _node(dump_id, number, "task"), lambda task: {**task, "attempt": task["attempt"] + 1})
    return int(data["attempt"])


def show(state: StateStore, dump_id: str, record: Json) -> None:
    """Files a dump whose tasks are written. Raises VersionConflict where that was done before."""
    _list(state, dump_id)  # first: what is filed is never left out
    state.create(_request(dump_id), orjson.dumps(record))


def note_end(state: StateStore, dump_id: str, at: float) -> None:
    """Notes with a dump that it was over by then, in seconds UTC. One that is gone meanwhile stays so."""
    with contextlib.suppress(RequestError):
        _update(state, _request(dump_id), lambda record: {"over_at": at, **record})


def remove(state: StateStore, dump_id: str) -> None:
    """Removes a dump that is over, its own node first: nobody sees half of it."""
    state.delete(_request(dump_id))
    state.delete(f"{_LISTED}/{dump_id}")
    tasks = [task_lease(dump_id, int(number)) for number in state.children(f"dumps/{dump_id}/tasks")]
    permits = [permit_lease(dump_id, index) for index in range(_RANGES["workers"][1])]
    state.forget_leases([*tasks, *permits])
    state.delete(f"dumps/{dump_id}")


def task_lease(dump_id: str, number: int) -> str:
    """The lease of who works on a task."""
    return f"task-{dump_id}-{number}"


def permit_lease(dump_id: str, index: int) -> str:
    """The lease of one of the places for workers."""
    return f"permit-{dump_id}-{index}"


def fail(state: StateStore, dump_id: str, number: int, error: str) -> None:
    """The task cannot go on, and says why; the dump's other tasks do. What is said first stays."""
    if state.get(_request(dump_id)) is not None:
        _end_task(state, dump_id, number, error)


def table_gone(state: StateStore, dump_id: str, number: int, error: str) -> bool:
    """The task's table is not in the source any more. Whether the dump fails by it: one that the system has requested
    counts the table, and goes on."""
    if (record := _record(state, dump_id)) is None:
        return False
    _end_task(state, dump_id, number, {_GONE: error})
    return minds(record["requested_by"])


def _end_task(state: StateStore, dump_id: str, number: int, why: str | Json) -> None:
    with contextlib.suppress(VersionConflict):
        state.create(_node(dump_id, number, "error"), orjson.dumps(why))


def put_pace(state: StateStore, dump_id: str, number: int, *, held: str | None, factor: float) -> None:
    """What slows the task's worker down (None: nothing), and by which factor it works below its limits."""
    put_news(state, _node(dump_id, number, "pace"), {"held": held, "factor": factor})


def put_progress(state: StateStore, task: TaskId, value: TaskProgress, *, of: Place = (0, 0)) -> bool:
    """The capture's mirror of a task's progress, as manifest `of` holds it; what is gone stays so.

    False: the mirror is of a later manifest, and stays. A leader that was paused may mirror an old manifest after its
    successor has mirrored a newer one: nobody would tell the workers again of what they wait for. A staging directory
    that was replaced, or put back from a copy, goes on under a higher epoch: what it holds counts, also where that is
    less than the directory before it held.
    """
    path = _node(task.dump, task.number, "progress")
    data = orjson.dumps({**value.to_json(), _OF: of})
    while state.get(_request(task.dump)) is not None:
        entry = state.get(path)
        try:
            if entry is None:
                state.create(path, data)
                return True
            mirrored_of, mirrored = _mirrored(entry)
            if of < mirrored_of:
                return False
            if of > mirrored_of or value.follows(mirrored):
                state.update(path, data, entry.version)
            return True
        except VersionConflict:
            continue  # another leader's mirror: whichever is newer stays
    return True


def _mirrored(entry: Entry) -> tuple[Place, TaskProgress]:
    """The manifest that a mirror is of, and the progress; a mirror of an earlier version names none: it comes first."""
    data = orjson.loads(entry.data)
    epoch, segment = data.pop(_OF, (0, 0))
    return (epoch, segment), TaskProgress.from_json(data)


# Nodes ----------------------------------------------------------------------------------------------------------------


def _update(state: StateStore, path: str, change: Callable[[Json], Json]) -> Json:
    def changed(before: Json | None) -> Json:
        if before is None:
            raise RequestError(f"{path} is not in the state store any more", fix="`dblog dumps` lists what is there")
        return change(before)

    found: Json = compare_and_set.change(state, path, changed)
    return found


def _request(dump_id: str) -> str:
    return f"dumps/{dump_id}/request"


def _node(dump_id: str, number: int, name: str) -> str:
    return f"dumps/{dump_id}/tasks/{number}/{name}"


def _no_dump(dump_id: str) -> RequestError:
    return RequestError(
        f"there is no dump {dump_id!r}", fix="`dblog dumps` lists them; one that has ended is there for [dump] keep"
    )


def _is_over(dump_id: str, state: str) -> RequestError:
    return RequestError(f"dump {dump_id} is {state}", fix="request a new one")
