"""Dump requests in the state store: submit, watch, pause, resume, cancel, retune; from any machine.

    dumps/ID/request             what was asked, the options in force, and the state that somebody set
    dumps/ID/tasks/N/task        one table, or some keys of it: what one worker reads at a time
    dumps/ID/tasks/N/progress    the mirror of `dumps.TaskProgress`, written by the capture alone
    capture/status               what the leader tells about itself, about once a second

Names resolve against the catalogue and keys against the table's key when a dump is requested; nothing that a user
types reaches SQL but as a bound value.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import orjson

from dblog_core import wiring
from dblog_core.config import Config
from dblog_core.dumps import TaskProgress
from dblog_core.errors import RequestError, VersionConflict
from dblog_core.interfaces import Entry, Json, StateStore
from dblog_core.rules import Rules
from dblog_core.schema import TableSchema
from dblog_core.values import key_from_json, key_to_json

USER, SYSTEM = "user", "system"
OVER = frozenset({"done", "failed", "cancelled"})
KEYS_PER_TASK = 5_000
MAX_KEYS = 200_000
_OPTIONS = {"chunk_size": (1, 1_000_000), "workers": (1, 64), "delay": (0, 86_400), "rate": (0, 10**9)}


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """What a user asks for; None: the configuration's value. Keys and range ends are JSON, both ends included."""

    tables: tuple[str, ...] | None
    keys: tuple[Any, ...] = ()
    key_from: Any = None
    key_to: Any = None
    chunk_size: int | None = None
    workers: int | None = None
    delay: float | None = None
    rate: int | None = None


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task: what it reads (`keys`, or the range from `key_from` to `key_to`), and how far it is."""

    number: int
    table: str
    keys: tuple[Any, ...] | None
    key_from: Any
    key_to: Any
    progress: TaskProgress

    @property
    def full(self) -> bool:
        return self.keys is None and self.key_from is None and self.key_to is None


@dataclass(frozen=True, slots=True)
class DumpStatus:
    """A dump as `dumps` and `status` show it; `state` is requested, running, paused, done, failed or cancelled."""

    id: str
    state: str
    tables: tuple[str, ...]
    rows: int
    chunks: int
    evicted: int
    options: Json
    error: str | None
    requested_at: str
    requested_by: str
    tasks: tuple[TaskStatus, ...]

    def to_json(self) -> Json:
        tasks = [
            {"table": t.table, "rows": t.progress.rows, "chunks": t.progress.ordinal, "done": t.progress.done}
            for t in self.tasks
        ]
        return {
            "id": self.id,
            "state": self.state,
            "tables": list(self.tables),
            "rows": self.rows,
            "chunks": self.chunks,
            "evicted": self.evicted,
            "options": self.options,
            "error": self.error,
            "requested_at": self.requested_at,
            "requested_by": self.requested_by,
            "tasks": tasks,
        }


# Requests -------------------------------------------------------------------------------------------------------------


def submit(config: Config, request: DumpRequest, *, requested_by: str = USER, state: StateStore | None = None) -> str:
    """Checks the request against the catalogue and files it; returns the dump's id. Raises RequestError."""
    shapes = _resolve(config, request)
    tasks = [task for schema in shapes for task in _tasks(request, schema)]
    options = _options(config, request)
    if state is None:
        with closing(wiring.open_state(config)) as store:
            return _file(store, shapes, tasks, options, requested_by)
    return _file(state, shapes, tasks, options, requested_by)


def plan(config: Config, request: DumpRequest) -> Json:
    """What `submit` would file: per table the server's estimate of rows, and chunks. Raises RequestError."""
    shapes, options = _resolve(config, request), _options(config, request)
    tables = []
    with closing(wiring.open_source(config.source).open_reader()) as reader:
        for schema in shapes:
            rows = len(request.keys) or reader.estimated_rows(schema.table)
            chunks = -(-rows // options["chunk_size"]) or 1
            tables.append({"table": str(schema.table), "key": list(schema.key), "rows": rows, "chunks": chunks})
    return {"options": options, "tables": tables}


def _file(state: StateStore, shapes: list[TableSchema], tasks: list[Json], options: Json, requested_by: str) -> str:
    now = dt.datetime.now(dt.UTC)
    dump_id = f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    for number, task in enumerate(tasks):
        state.create(f"dumps/{dump_id}/tasks/{number}/task", orjson.dumps({**task, "attempt": 0}))
    record = {
        "tables": [str(s.table) for s in shapes],
        "options": options,
        "state": "requested",
        "error": None,
        "requested_at": now.isoformat(timespec="seconds"),
        "requested_by": requested_by,
    }
    state.create(f"dumps/{dump_id}/request", orjson.dumps(record))  # last: until then nobody sees the dump
    return dump_id


def _resolve(config: Config, request: DumpRequest) -> list[TableSchema]:
    """The tables of a request, each captured, there, and with a key."""
    source = wiring.open_source(config.source)
    known = {str(s.table): s for s in map(Rules(config.source.columns).schema, source.tables())}
    if request.tables is None:
        shapes = [s for s in known.values() if s.key]
        if not shapes:
            raise RequestError("no captured table has a key", fix="see `dblog check`")
    else:
        if not request.tables:
            raise RequestError("no table is named", fix="name tables, or ask for all of them")
        shapes = [_known(known, name) for name in dict.fromkeys(request.tables)]
    _check_keys(request, shapes)
    return shapes


def _known(known: dict[str, TableSchema], name: str) -> TableSchema:
    if name not in known:
        captured = ", ".join(sorted(known)[:20]) or "none"
        raise RequestError(f"{name!r} is not a captured table", fix=f"captured tables are: {captured}")
    if not known[name].key:
        raise RequestError(
            f"{name} has no primary key", fix=f'name its unique, never-null columns under [source.keys] "{name}"'
        )
    return known[name]


def _check_keys(request: DumpRequest, shapes: list[TableSchema]) -> None:
    ends = [k for k in (request.key_from, request.key_to) if k is not None]
    if (request.keys or ends) and len(shapes) != 1:
        raise RequestError(f"keys belong to one table, and {len(shapes)} are asked for", fix="name exactly one table")
    if request.keys and ends:
        raise RequestError("both keys and a key range are given", fix="give one of the two")
    if len(request.keys) > MAX_KEYS:
        raise RequestError(f"{len(request.keys)} keys are more than {MAX_KEYS}", fix="dump the table, or a key range")
    for key in (*request.keys, *ends):
        key_from_json(key, shapes[0])


def _tasks(request: DumpRequest, schema: TableSchema) -> list[Json]:
    table = str(schema.table)
    if not request.keys:
        return [{"table": table, "keys": None, "key_from": request.key_from, "key_to": request.key_to}]
    parsed = dict.fromkeys(key_from_json(k, schema) for k in request.keys)
    keys = [key_to_json(k) for k in parsed]
    parts = [keys[i : i + KEYS_PER_TASK] for i in range(0, len(keys), KEYS_PER_TASK)]
    return [{"table": table, "keys": part, "key_from": None, "key_to": None} for part in parts]


def _options(config: Config, request: DumpRequest) -> Json:
    given = {name: getattr(request, name) for name in _OPTIONS}
    options = {name: getattr(config.dump, name) if value is None else value for name, value in given.items()}
    _check_options(options)
    return {**options, "in_flight": config.dump.in_flight}


def _check_options(options: Json) -> None:
    for name, value in options.items():
        low, high = _OPTIONS[name]
        if not low <= value <= high:
            raise RequestError(f"{name} = {value} is out of range", fix=f"give a number from {low} to {high}")


# Watching -------------------------------------------------------------------------------------------------------------


def dumps(state: StateStore) -> list[DumpStatus]:
    """All dumps, oldest first."""
    found = (_find(state, dump_id) for dump_id in state.children("dumps"))
    return [d for d in found if d is not None]


def dump(state: StateStore, dump_id: str) -> DumpStatus:
    """One dump. Raises RequestError if there is none of that id."""
    if (found := _find(state, dump_id)) is None:
        raise RequestError(f"there is no dump {dump_id!r}", fix="`dblog dumps` lists them")
    return found


def is_over(state: StateStore, dump_id: str) -> bool:
    """Whether a dump has ended, whichever way; one that is not in the store (any more) has."""
    found = _find(state, dump_id)
    return found is None or found.state in OVER


def _find(state: StateStore, dump_id: str) -> DumpStatus | None:
    entry = state.get(_request(dump_id)) if dump_id and "/" not in dump_id else None
    if entry is None:
        return None
    record = orjson.loads(entry.data)
    tasks = tuple(_task(state, dump_id, int(n)) for n in state.children(f"dumps/{dump_id}/tasks"))
    tasks = tuple(sorted(tasks, key=lambda t: t.number))
    return DumpStatus(
        id=dump_id,
        state=_state(record["state"], tasks),
        tables=tuple(record["tables"]),
        rows=sum(t.progress.rows for t in tasks),
        chunks=sum(t.progress.ordinal for t in tasks),
        evicted=sum(t.progress.evicted for t in tasks),
        options=record["options"],
        error=record["error"],
        requested_at=record["requested_at"],
        requested_by=record["requested_by"],
        tasks=tasks,
    )


def _state(recorded: str, tasks: tuple[TaskStatus, ...]) -> str:
    if recorded in OVER:
        return recorded
    if all(t.progress.done for t in tasks):
        return "done"
    if recorded == "paused":
        return recorded
    return "running" if any(t.progress.attempt for t in tasks) else "requested"


def _task(state: StateStore, dump_id: str, number: int) -> TaskStatus:
    entry = state.get(f"dumps/{dump_id}/tasks/{number}/task")
    if entry is None:
        raise RequestError(f"dump {dump_id} has no task {number}", fix="request the dump again")
    data = orjson.loads(entry.data)
    keys = None if data["keys"] is None else tuple(data["keys"])
    return TaskStatus(
        number, data["table"], keys, data["key_from"], data["key_to"], progress(state, dump_id, number, data["table"])
    )


def progress(state: StateStore, dump_id: str, number: int, table: str) -> TaskProgress:
    """How far a task is, as the capture has published it."""
    entry = state.get(f"dumps/{dump_id}/tasks/{number}/progress")
    return TaskProgress(table) if entry is None else TaskProgress(**orjson.loads(entry.data))


def put_progress(state: StateStore, task: str, value: TaskProgress) -> None:
    """The capture's mirror of a task's progress (`task`: ID/NUMBER). What is done or gone stays so."""
    dump_id, _, number = task.partition("/")
    path, data = f"dumps/{dump_id}/tasks/{number}/progress", orjson.dumps(value.to_json())
    while state.get(_request(dump_id)) is not None:
        entry = state.get(path)
        try:
            if entry is None:
                state.create(path, data)
            elif not orjson.loads(entry.data)["done"] or value.done:
                state.update(path, data, entry.version)
            return
        except VersionConflict:
            continue  # an earlier leader's last mirror: ours is newer


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


def fail(state: StateStore, dump_id: str, error: str) -> None:
    """The dump cannot go on, and says why. Raises RequestError."""
    _change(state, dump_id, lambda record: {**record, "state": "failed", "error": error})


def retune(
    state: StateStore,
    dump_id: str,
    *,
    chunk_size: int | None = None,
    delay: float | None = None,
    rate: int | None = None,
    workers: int | None = None,
) -> None:
    """Changes options from the next chunk on; None leaves one as it is. Raises RequestError."""
    given = {"chunk_size": chunk_size, "delay": delay, "rate": rate, "workers": workers}
    wanted = {name: value for name, value in given.items() if value is not None}
    _check_options(wanted)
    _change(state, dump_id, lambda record: {**record, "options": {**record["options"], **wanted}})


def next_attempt(state: StateStore, dump_id: str, number: int) -> int:
    """A number for a worker that takes the task up, larger than any before."""
    path = f"dumps/{dump_id}/tasks/{number}/task"
    data = _update(state, path, lambda task: {**task, "attempt": task["attempt"] + 1})
    return int(data["attempt"])


def _change(state: StateStore, dump_id: str, change: Callable[[Json], Json]) -> None:
    found = dump(state, dump_id)
    if found.state in OVER:
        raise RequestError(f"dump {dump_id} is {found.state}", fix="request a new one")
    _update(state, _request(dump_id), change)


def _update(state: StateStore, path: str, change: Callable[[Json], Json]) -> Json:
    while True:
        entry: Entry | None = state.get(path)
        if entry is None:
            raise RequestError(f"{path} is not in the state store any more", fix="`dblog dumps` lists what is there")
        data: Json = change(orjson.loads(entry.data))
        try:
            state.update(path, orjson.dumps(data), entry.version)
        except VersionConflict:
            continue  # somebody changed it between our read and our write: change that
        return data


def _request(dump_id: str) -> str:
    return f"dumps/{dump_id}/request"


# The capture's own status ---------------------------------------------------------------------------------------------


def put_status(state: StateStore, status: Json) -> None:
    """What the leader tells about itself."""
    data = orjson.dumps(status)
    entry = state.get("capture/status")
    try:
        if entry is None:
            state.create("capture/status", data)
        else:
            state.update("capture/status", data, entry.version)
    except VersionConflict:
        return  # another leader wrote at the same moment: the next second tells


def read_status(state: StateStore) -> Json | None:
    entry = state.get("capture/status")
    return None if entry is None else orjson.loads(entry.data)
