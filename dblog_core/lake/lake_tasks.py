"""Lake tasks: things to do with the lake that are not a merge of new segments, such as a replay or a reset of a table.

    LAKE/_dblog/tasks/ID.json        what to do: kind and arguments; ids grow with time
    LAKE/_dblog/tasks/ID.done.json   what came of it: `Outcome`

Whoever holds the lake's lock carries them out between two merges. So a command neither waits for a lease that a
continuous merge never gives up, nor starts a Spark session beside it.
"""

from __future__ import annotations

import datetime as dt
import secrets
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from dblog_core.clock import SystemClock
from dblog_core.config.settings import Config
from dblog_core.errors import LakeError
from dblog_core.interfaces import Clock, Json
from dblog_core.lake import spark_submit
from dblog_core.lake.lake_status import own_directory, read_status
from dblog_core.storage.location import Location
from dblog_core.wiring import open_lake, open_state

KEEP = 200
"""Tasks with an outcome that stay, to look into."""

_EVERY = 0.3  # seconds between two looks for an outcome
_TRIES = 2  # merges of our own that may end without it: a lock that another took first costs one


@dataclass(frozen=True, slots=True)
class LakeTask:
    """What to do: `arguments` are those of its kind."""

    id: str
    kind: str
    arguments: Json


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a task: `result`, or the parts of an error. `merge`: the merge that it was; 0 where it was refused
    before anything was changed."""

    merge: int
    result: Json | None
    error: str | None = None
    where: str = ""
    fix: str = ""


def file(
    lake: Location,
    kind: str,
    arguments: Json,
    *,
    clock: Clock | None = None,
    new_id: Callable[[], str] = lambda: secrets.token_hex(3),
) -> LakeTask:
    """Asks for a task; durable when it returns."""
    now = dt.datetime.fromtimestamp((clock or SystemClock()).time(), dt.UTC)
    task = LakeTask(f"{now:%Y%m%dT%H%M%S%f}-{new_id()}", kind, arguments)
    if not _file(lake, task.id).create(orjson.dumps({"kind": kind, "arguments": arguments})):
        raise LakeError("a task of this name is there already", where=task.id, fix="ask again")
    return task


def waiting(lake: Location) -> list[LakeTask]:
    """Tasks without an outcome, the oldest first. Raises LakeError for one whose file is damaged."""
    names = set(_directory(lake).names())
    ids = sorted(name.removesuffix(".json") for name in names if name.endswith(".json") and "." not in name[:-5])
    return [task for i in ids if f"{i}.done.json" not in names and (task := _read(lake, i)) is not None]


def outcome(lake: Location, task: str) -> Outcome | None:
    """What came of a task; None while nothing has."""
    path = _done(lake, task)
    if (data := path.read()) is None:
        return None
    try:
        return Outcome(**orjson.loads(data))
    except (ValueError, TypeError) as error:
        raise _damaged(path, error) from error


def finish(lake: Location, task: str, came: Outcome) -> None:
    """Records what came of a task, once: a task that is done again after a crash keeps its first outcome."""
    _done(lake, task).create(orjson.dumps(asdict(came)))
    done = sorted(name.removesuffix(".done.json") for name in _directory(lake).names() if name.endswith(".done.json"))
    for old in done[:-KEEP]:
        _file(lake, old).remove()  # first: an outcome without its task is nobody's
        _done(lake, old).remove()


def carry_out(
    config: Config, kind: str, arguments: Json, *, stop: threading.Event, on_line: Callable[[str], None]
) -> Json:
    """Files a task and sees it through: by the merge that runs, or by one that it starts. Returns the result.

    Raises LakeError where the task failed, or where `stop` was set first: then it stays filed.
    """
    lake = open_lake(config)
    task = file(lake, kind, arguments)
    return _result(_seen_through(config, lake, task, stop=stop, on_line=on_line))


def _seen_through(
    config: Config, lake: Location, task: LakeTask, *, stop: threading.Event, on_line: Callable[[str], None]
) -> Outcome:
    tries = 0
    while (came := _settled(lake, task)) is None:
        if stop.is_set():
            raise LakeError(
                f"interrupted; the task stays filed as {task.id}",
                where=f"{task.kind} of the lake {lake}",
                fix="nothing: the next merge of this lake carries it out",
            )
        if (holder := _merging(config)) is not None:
            on_line(f"{task.kind}: waits for the merge of {holder} to carry it out")
            _wait(config, lake, task, stop)
        elif tries < _TRIES:
            tries += 1
            on_line(f"{task.kind}: starting Spark")
            spark_submit.run_job("merge", config, arguments=["--tasks"], stop=stop, on_line=on_line)
        else:
            raise LakeError(
                f"the merge ended without carrying out the task {task.id}",
                where=f"{task.kind} of the lake {lake}",
                fix="see what it said; the task stays filed, and the next merge carries it out",
            )
    return came


def _settled(lake: Location, task: LakeTask) -> Outcome | None:
    """The outcome, once the merge that it was has ended, so that whoever reads the status next sees it."""
    came = outcome(lake, task.id)
    status = read_status(lake) if came is not None and came.merge else None
    return came if came is not None and (not came.merge or (status and status.merge >= came.merge)) else None


def _merging(config: Config) -> str | None:
    """Who merges into the lake now."""
    with closing(open_state(config)) as state:
        held = state.leader("merge")
        return held.holder if held else None


def _wait(config: Config, lake: Location, task: LakeTask, stop: threading.Event) -> None:
    """Until the task is settled, nobody merges any more, or `stop` is set."""
    with closing(open_state(config)) as state:
        while _settled(lake, task) is None and state.leader("merge") is not None and not stop.wait(_EVERY):
            pass


def _result(came: Outcome) -> Json:
    if came.error is not None or came.result is None:
        raise LakeError(came.error or "no result", where=came.where, fix=came.fix)
    return came.result


def _read(lake: Location, task: str) -> LakeTask | None:
    path = _file(lake, task)
    if (data := path.read()) is None:
        return None
    try:
        found: dict[str, Any] = orjson.loads(data)
        return LakeTask(task, found["kind"], found["arguments"])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Location, error: Exception) -> LakeError:
    return LakeError(f"a lake task cannot be read: {error}", where=str(path), fix="remove the file, and ask again")


def _directory(lake: Location) -> Location:
    return own_directory(lake) / "tasks"


def _file(lake: Location, task: str) -> Location:
    return _directory(lake) / f"{task}.json"


def _done(lake: Location, task: str) -> Location:
    return _directory(lake) / f"{task}.done.json"
