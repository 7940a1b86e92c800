"""Dumps in the state store: found, watched, filed and ended; from any machine.

    unfinished/ID                each dump that is not over, beside some that are since their end was recorded
    unfinished/complete          no other dump is unfinished: those of versions without this list have been added
    dumps/ID/request             `DumpRecord`: what was asked, the options in force, and the state that somebody set
                                 `deferred` in it: the dump is not planned yet, and no worker sees its tasks
    dumps/ID/told/NAME           what the channel NAME of `[[notify]]` has reported of it (`notifications`)
    dumps/ID/tasks/N/task        `TaskRecord`: one range of a table, or some keys of it: what a worker reads at a time
    dumps/ID/tasks/N/progress    the mirror of `TaskProgress`, and its manifest; by the capture alone
    dumps/ID/tasks/N/pace        what slows its worker down: {"held": TEXT or null, "factor": FLOAT}
    dumps/ID/tasks/N/error       why no worker can continue with it, ever; {"gone": WHY}: its table is dropped

`task_store.py` reads and writes tasks; `requests.py` makes what is filed here, and `deferred_planning.py` the tasks of
what a process without the source has filed; `control.py` changes what runs; `status.py` says what the nodes mean.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import orjson

from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.clock import SystemClock
from dblog_core.config.settings import DumpConfig
from dblog_core.dumps.dump_records import (
    MOST_WORKERS,
    OVER,
    SYSTEM,
    Deferred,
    DumpOptions,
    DumpRecord,
    DumpState,
    Refusal,
)
from dblog_core.dumps.status import DumpStatus
from dblog_core.dumps.task_store import (
    end_task,
    is_over_by,
    is_task_over,
    list_task_ids,
    permit_lease,
    progress_by,
    read_tasks,
    request_path,
    task_lease,
    task_path,
    update_node,
)
from dblog_core.errors import RequestError, VersionConflict
from dblog_core.interfaces import Clock, Entry, Json, StateStore
from dblog_core.model import table_names
from dblog_core.model.task_id import TaskId
from dblog_core.state import failed_dumps

log = logging.getLogger(__name__)

_LARGEST_BYTES = 500_000  # of ended tasks in a dump's node: ZooKeeper takes a million
_LIST = "unfinished"
_COMPLETE = "complete"


def make_id(requested_at: dt.datetime, suffix: str) -> str:
    """The id of a dump that is requested at this time: ids sort by it."""
    return f"{requested_at:%Y%m%dT%H%M%S}-{suffix}"


def list_dumps(state: StateStore) -> list[DumpStatus]:
    """All dumps, oldest first."""
    ids = state.children("dumps")
    statuses = [_find_status(state, dump_id, record) for dump_id, record in _records_by_id(state, ids)]
    return _oldest_first(status for status in statuses if status is not None)


def read_dump(state: StateStore, dump_id: str) -> DumpStatus:
    """One dump. Raises RequestError if there is none of that id."""
    status = find_dump(state, dump_id)
    if status is None:
        raise _no_dump(dump_id)
    return status


def find_dump(state: StateStore, dump_id: str) -> DumpStatus | None:
    """One dump; None if there is none of that id, or if it is not filed yet."""
    return _find_status(state, dump_id, _find_record(state, dump_id))


def read_settings(state: StateStore, dump_id: str, table: str = "") -> tuple[DumpState, DumpOptions]:
    """The state that somebody set, and the options in force: one read, for every chunk. Raises RequestError.

    A dump whose tasks are all over may still say requested or paused here; of a table that was stopped, cancelled.
    """
    if "/" in dump_id or not dump_id:
        raise _no_dump(dump_id)
    return _settings(dump_id, state.get(request_path(dump_id)), table)


def look_at_task(state: StateStore, task: TaskId, table: str) -> tuple[TaskProgress, DumpState, DumpOptions]:
    """How far a task of the table is, and what `read_settings` gives, by one question. Raises RequestError."""
    mirror, filed = state.get_all([task_path(task, "progress"), request_path(task.dump)])
    return progress_by(mirror, table), *_settings(task.dump, filed, table)


def look_for_work(state: StateStore, task: TaskId) -> tuple[bool, DumpState, DumpOptions]:
    """What `is_task_over` tells, and what `read_settings` gives of its dump, by one question. Raises RequestError."""
    paths = [task_path(task, "progress"), task_path(task, "error"), request_path(task.dump)]
    mirror, error, filed = state.get_all(paths)
    return is_over_by(mirror, error), *_settings(task.dump, filed)


def list_unfinished_dumps(state: StateStore, *, requested_by: Collection[str] = ()) -> list[DumpStatus]:
    """Dumps that are not over, oldest first; `requested_by`: only theirs, where any are named. What has ended since the
    last look is recorded: looking stays cheap."""
    unfinished = []
    for dump_id, record in _listed_records(state):
        if requested_by and record.requested_by not in requested_by:
            continue
        status = _status(state, dump_id, record)
        if status.state in OVER:
            _record_end(state, status)
        else:
            unfinished.append(status)
    return _oldest_first(unfinished)


def register_unfinished_dumps(state: StateStore, ids: Sequence[str]) -> None:
    """Lists those of the dumps of which no end is recorded: what an earlier version has filed is not."""
    for dump_id, record in _records_by_id(state, ids):
        if record is not None and not record.over:
            _register(state, dump_id)


def read_records(state: StateStore, ids: Sequence[str]) -> list[DumpRecord | None]:
    """What the dumps' own nodes hold; None: not filed yet, or gone."""
    entries = state.get_all([request_path(dump_id) for dump_id in ids])
    return [None if entry is None else DumpRecord.from_json(orjson.loads(entry.data)) for entry in entries]


def is_dump_over(state: StateStore, dump_id: str) -> bool:
    """Whether a dump has ended, whichever way; one that is not in the store, or no longer in it, has.

    The capture asks every second: it reads no more than the last task that is not over, which comes last as a rule.
    Once all are over that is recorded, also for a dump for which nobody waits.
    """
    record = _find_record(state, dump_id)
    if record is None or record.over:
        return True
    if record.deferred is not None:
        return False
    if not all(is_task_over(state, task) for task in reversed(list_task_ids(state, dump_id))):
        return False
    status = _find_status(state, dump_id, record)
    if status is not None and status.state in OVER:
        _record_end(state, status)
    return True


def reopen_dump(state: StateStore, dump_id: str, unfinished: Collection[int]) -> bool:
    """Has a dump continue of which staging lacks chunks: the directory was put back from a copy since the dump ended.

    `unfinished`: numbers of tasks that are not done by our manifest. False where no task of these was done by the state
    store either: a cancelled dump, a task that failed, a dump that is not there.
    """
    status = find_dump(state, dump_id)
    if status is None or status.state not in (DumpState.DONE, DumpState.FAILED):
        return False
    lacking = [task for task in status.tasks if task.number in unfinished and task.error is None]
    if not lacking:
        return False
    log.warning(
        "dump %s continues: it had ended, and this staging directory lacks chunks of %s: it was put back from a copy\n"
        "  fix: `dblog work` reads them; a dump that the system requested needs nothing",
        dump_id,
        table_names.some(sorted({task.table for task in lacking})),
    )
    _register(state, dump_id)  # first: what continues is never left out

    def with_new_start(data: Json) -> Json:
        rest = {name: value for name, value in data.items() if name not in ("ended", "over_at")}
        return {**rest, "state": DumpState.REQUESTED, "error": None} if data["state"] in OVER else data

    with contextlib.suppress(RequestError):  # it is removed meanwhile
        update_node(state, request_path(dump_id), with_new_start)
    return True


def file_dump(state: StateStore, dump_id: str, record: DumpRecord) -> None:
    """Files a dump whose tasks are written. Raises VersionConflict where that was done before."""
    _register(state, dump_id)  # first: what is filed is never left out
    state.create(request_path(dump_id), orjson.dumps(record.to_json()))


def change_record(state: StateStore, dump_id: str, change: Callable[[DumpRecord], DumpRecord]) -> None:
    """Writes what `change` makes of the dump's record. Raises RequestError where there is none, and what `change`
    raises. What a later version of us has written beside it stays."""

    def with_change(data: Json) -> Json:
        before = DumpRecord.from_json(data)
        after = change(before)
        if after == before:
            return data
        options = {**data["options"], **after.options.to_json()}
        return {**data, **after.to_json(), "options": options}

    update_node(state, request_path(dump_id), with_change)


def file_deferred(
    state: StateStore,
    settings: DumpConfig,
    table: str,
    keys: Sequence[Any] = (),
    *,
    clock: Clock | None = None,
    new_id: Callable[[], str] = lambda: secrets.token_hex(3),
) -> str:
    """Files a dump of the table, or of these JSON keys of it, for a process without access to the source: the capture's
    dump process, or `dblog work`, reads the catalogue and plans it (`deferred_planning`).

    Returns the dump's id. Raises StateError.
    """
    now = dt.datetime.fromtimestamp((clock or SystemClock()).time(), dt.UTC)
    dump_id = make_id(now, new_id())
    record = DumpRecord(
        tables=(table,),
        options=DumpOptions.of_settings(settings),
        state=DumpState.REQUESTED,
        error=None,
        requested_at=now.isoformat(timespec="microseconds"),
        requested_by=SYSTEM,
        deferred=Deferred(tuple(keys) or None),
    )
    file_dump(state, dump_id, record)
    return dump_id


def record_plan(state: StateStore, dump_id: str, before: Deferred, after: Deferred | None) -> bool:
    """Whether what is left to plan of the dump is `after` now (None: nothing). It is not where the dump has ended, is
    gone, or another process has planned it since it was read as `before`."""

    def with_plan(data: Json) -> Json:
        record = DumpRecord.from_json(data)
        if record.over or record.deferred != before:
            return data
        rest = {name: value for name, value in data.items() if name != "deferred"}
        return rest if after is None else {**rest, "deferred": after.to_json()}

    try:
        written = update_node(state, request_path(dump_id), with_plan)
    except RequestError:
        return False
    record = DumpRecord.from_json(written)
    return not record.over and record.deferred == after


def fail_unplanned(state: StateStore, dump: DumpStatus, refusal: Refusal) -> None:
    """Ends a dump that cannot be planned, ever, and says why. One of a whole table is owed from then on."""
    if dump.requested_by == SYSTEM and dump.reads_whole(refusal.table):
        failed_dumps.add(state, dump.id)
    end = {"state": DumpState.FAILED, "error": f"{refusal.table}: {refusal.reason}", "refused": [refusal.to_json()]}

    def with_end(data: Json) -> Json:
        if data["state"] in OVER or data.get("deferred") is None:
            return data
        return {name: value for name, value in {**data, **end, "ended": []}.items() if name != "deferred"}

    with contextlib.suppress(RequestError):  # it is removed meanwhile
        update_node(state, request_path(dump.id), with_end)
    state.delete(f"{_LIST}/{dump.id}")


def record_end_time(state: StateStore, dump_id: str, at_seconds: float) -> None:
    """Notes with a dump that it was over by then, in seconds UTC. One that is gone meanwhile stays so."""
    with contextlib.suppress(RequestError):
        update_node(state, request_path(dump_id), lambda data: {"over_at": at_seconds, **data})


def remove_dump(state: StateStore, dump_id: str) -> None:
    """Removes a dump that is over, its own node first: nobody sees half of it."""
    state.delete(request_path(dump_id))
    state.delete(f"{_LIST}/{dump_id}")
    task_leases = [task_lease(task) for task in list_task_ids(state, dump_id)]
    permits = [permit_lease(dump_id, index) for index in range(MOST_WORKERS)]
    state.forget_leases([*task_leases, *permits])
    state.delete(f"dumps/{dump_id}")


def fail_task_of_gone_table(state: StateStore, task: TaskId, error: str) -> bool:
    """The task's table is no longer in the source. Whether the dump fails by it: one that the system has requested
    counts the table, and continues."""
    record = _find_record(state, task.dump)
    if record is None:
        return False
    end_task(state, task, error, gone=True)
    return record.fails_by_gone_tables


def _oldest_first(statuses: Iterable[DumpStatus]) -> list[DumpStatus]:
    return sorted(statuses, key=lambda status: (status.requested_at, status.id))


def _records_by_id(state: StateStore, ids: Sequence[str]) -> Iterator[tuple[str, DumpRecord | None]]:
    return zip(ids, read_records(state, ids), strict=True)


def _listed_records(state: StateStore) -> Iterator[tuple[str, DumpRecord]]:
    """Dumps of which no end is recorded: what a look costs depends on those alone."""
    names = state.children(_LIST)
    if _COMPLETE not in names:
        register_unfinished_dumps(state, state.children("dumps"))
        with contextlib.suppress(VersionConflict):
            state.create(f"{_LIST}/{_COMPLETE}", b"")
        names = state.children(_LIST)
    for dump_id, record in _records_by_id(state, [name for name in names if name != _COMPLETE]):
        if record is None:
            continue  # not filed yet: it is listed right before
        if record.over:
            state.delete(f"{_LIST}/{dump_id}")
        else:
            yield dump_id, record


def _register(state: StateStore, dump_id: str) -> None:
    with contextlib.suppress(VersionConflict):
        state.create(f"{_LIST}/{dump_id}", b"")


def _settings(dump_id: str, filed: Entry | None, table: str = "") -> tuple[DumpState, DumpOptions]:
    if filed is None:
        raise _no_dump(dump_id)
    record = DumpRecord.from_json(orjson.loads(filed.data))
    return DumpState.CANCELLED if table in record.stopped else record.state, record.options


def _find_record(state: StateStore, dump_id: str) -> DumpRecord | None:
    entry = state.get(request_path(dump_id)) if dump_id and "/" not in dump_id else None
    return None if entry is None else DumpRecord.from_json(orjson.loads(entry.data))


def _find_status(state: StateStore, dump_id: str, record: DumpRecord | None) -> DumpStatus | None:
    """The dump of that record; None where there is none, or it is removed meanwhile."""
    try:
        return None if record is None else _status(state, dump_id, record)
    except RequestError:
        if _find_record(state, dump_id) is None:
            return None
        raise


def _status(state: StateStore, dump_id: str, record: DumpRecord) -> DumpStatus:
    tasks = () if record.deferred is not None else record.ended
    return DumpStatus.of(dump_id, record, read_tasks(state, list_task_ids(state, dump_id)) if tasks is None else tasks)


def _record_end(state: StateStore, status: DumpStatus) -> None:
    """Records how the dump has ended, unless somebody has recorded an end already.

    What its tasks came to stands beside it, where that is not too much for a node: who looks at dumps that are long
    over need not read the nodes of all their tasks.
    """
    if status.requested_by == SYSTEM and status.state == DumpState.FAILED:
        failed_dumps.add(state, status.id)
    ended = [task.to_remember() for task in status.tasks]
    is_small = len(orjson.dumps(ended)) <= _LARGEST_BYTES
    end = {"state": status.state, "error": status.error, "ended": ended if is_small else None}
    with contextlib.suppress(RequestError):  # it is removed meanwhile
        update_node(state, request_path(status.id), lambda data: data if data["state"] in OVER else {**data, **end})
    state.delete(f"{_LIST}/{status.id}")


def _no_dump(dump_id: str) -> RequestError:
    return RequestError(
        f"there is no dump {dump_id!r}", fix="`dblog dumps` lists them; one that has ended is there for [dump] keep"
    )
