"""What the state store holds of a dump and of its tasks, as records: pure, each with its JSON of today and of before.

    DumpRecord    node dumps/ID/request: what was asked, the options in force, and the state that somebody set
    TaskRecord    node dumps/ID/tasks/N/task: what one worker reads at a time
    TaskStatus    a task with all that its other nodes say of it; also what is remembered of it once its dump is over

A field that an earlier version did not write has its default here, and stays out of the JSON where it says nothing.
`dump_store.py` reads and writes the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, Self

from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.config.settings import DumpConfig
from dblog_core.errors import RequestError
from dblog_core.interfaces import Json
from dblog_core.model.filters import FiledFilter
from dblog_core.model.watermark import Heals

USER = "user"
SYSTEM = "system"
SIGNAL = "signal"
"""Who requested a dump; Airflow names the run."""

MOST_WORKERS = 64
OPTION_RANGES = {
    "chunk_size": (1, 1_000_000),
    "chunk_bytes": (64 << 10, 1 << 30),
    "workers": (1, MOST_WORKERS),
    "delay": (0, 86_400),
    "rate": (0, 10**9),
    "max_retained": (0, 2**63 - 1),
}
"""The smallest and the largest value of an option; `adaptive` is a bool, and `in_flight` is the configuration's."""


class DumpState(StrEnum):
    """Where a dump stands."""

    REQUESTED = "requested"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


OVER = frozenset({DumpState.DONE, DumpState.FAILED, DumpState.CANCELLED})
"""States that no dump leaves again."""


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What may be changed of a dump while it runs, from the next chunk on; except for `in_flight`.

    `chunk_size`: rows of one SELECT; `chunk_bytes` (None: of an earlier version, which knew no such bound): bytes of a
    chunk; `workers`: of all processes; `delay`: seconds between two chunks of a worker; `rate`: rows a second of one
    worker (0: no limit); `adaptive`: whether workers slow down while the source suffers; `max_retained`: bytes of log
    above which the workers stand still (0: no ceiling); `in_flight`: chunks of one worker that wait to be placed.
    """

    chunk_size: int = 10_000
    chunk_bytes: int | None = None
    workers: int = 2
    delay: float = 0.0
    rate: int = 0
    adaptive: bool = False
    max_retained: int = 0
    in_flight: int = 16

    @classmethod
    def of_settings(cls, settings: DumpConfig) -> Self:
        """The options of `[dump]`."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**_of_fields(cls, data))

    def to_json(self) -> Json:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def with_changes(self, changes: Mapping[str, Any]) -> Self:
        """The options after these changes; None leaves one as it is. Raises RequestError for an option that there is
        not, or a value outside its range."""
        values = {name: value for name, value in changes.items() if value is not None}
        check_options(values)
        return replace(self, **values)


def check_options(options: Mapping[str, Any]) -> None:
    """Raises RequestError for an option that there is not, or a value outside its range."""
    for name, value in options.items():
        if name == "adaptive":
            continue
        if name not in OPTION_RANGES:
            raise RequestError(
                f"{name} is no option of a dump", fix=f"options are {', '.join(OPTION_RANGES)}, adaptive"
            )
        low, high = OPTION_RANGES[name]
        if not low <= value <= high:
            raise RequestError(f"{name} = {value} is out of range", fix=f"give a number from {low} to {high}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A table that a request's pattern takes in, and that cannot be dumped. `keyless`: since it has no key."""

    table: str
    reason: str
    fix: str
    keyless: bool = False

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["table"], data["reason"], data["fix"])

    def to_json(self) -> Json:
        return {"table": self.table, "reason": self.reason, "fix": self.fix}


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """What a task reads.

    It reads the listed `keys`, or the range from `key_from` (included) or beyond `after` (not included) to `key_to`
    (included; None: the largest key when the attempt starts), in both cases JSON keys. `parts` tasks of the dump cover
    the table, or its range, together; `heals`: the range in which their common end shows ghosts (None: nowhere).
    `estimated`: rows, None if unknown. `order`: the key's, as `ChunkReader.key_order` gave it at the request; None if
    nobody asked then. `attempt`: the newest one.
    """

    table: str
    keys: tuple[Any, ...] | None = None
    key_from: Any = None
    after: Any = None
    key_to: Any = None
    filters: tuple[FiledFilter, ...] = ()
    parts: int = 1
    heals: Heals | None = None
    estimated: int | None = None
    order: str | None = None
    attempt: int = 0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """What it does not say was filed before there were ranges, filters and a remembered order of the key."""
        values = _of_fields(cls, data)
        if values.get("keys") is not None:
            values["keys"] = tuple(values["keys"])
        if values.get("heals") is not None:
            values["heals"] = Heals(**values["heals"])
        values["filters"] = tuple(map(FiledFilter.from_json, values.get("filters", ())))
        return cls(**values)

    def to_json(self) -> Json:
        return {**asdict(self), "filters": [condition.to_json() for condition in self.filters]}

    @property
    def is_whole(self) -> bool:
        """Whether its dump reads all of its table."""
        return self.heals == Heals()


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task: what it reads, and how far it is.

    `error`: why it cannot continue, ever; `held`: why it is slowed or stands now; `listed`: how many keys it lists; of
    a task that was recalled nothing else is known of them, nor the key's order. `gone`: its table is no longer in the
    source, as `error` says.
    """

    number: int
    record: TaskRecord
    progress: TaskProgress
    error: str | None = None
    held: str | None = None
    listed: int | None = None
    gone: bool = False

    @property
    def table(self) -> str:
        return self.record.table

    @property
    def over(self) -> bool:
        """Whether no worker will touch it again."""
        return self.progress.done or self.error is not None

    @property
    def is_whole(self) -> bool:
        """Whether its dump reads all of its table."""
        return self.record.is_whole

    def to_remember(self) -> Json:
        """What is remembered of the task once its dump is over."""
        record = replace(self.record, keys=None if self.record.keys is None else (), order=None)
        rest = {"error": self.error, "held": self.held, "listed": self.listed, "gone": self.gone}
        progress = asdict(self.progress)
        if not self.progress.looks_in_vain:
            del progress["looks_in_vain"]  # an earlier version cannot read it
        return {"number": self.number, **record.to_json(), "progress": progress, **rest}

    @classmethod
    def recall(cls, data: Mapping[str, Any]) -> Self:
        """The task as `to_remember` gave it."""
        record = TaskRecord.from_json(data)
        progress = TaskProgress.from_json(data["progress"])
        rest = {name: data[name] for name in ("error", "held", "listed", "gone") if name in data}
        return cls(number=data["number"], record=record, progress=progress, **rest)

    def to_json(self) -> Json:
        """The task as `dumps --json` shows it."""
        record = self.record
        progress = self.progress
        return {
            "number": self.number,
            "table": record.table,
            "keys": self.listed,
            "key_from": record.key_from,
            "after": record.after,
            "key_to": record.key_to,
            "filters": [condition.to_json() for condition in record.filters],
            "rows": progress.rows,
            "estimated_rows": record.estimated,
            "chunks": progress.ordinal,
            "evicted": progress.evicted,
            "attempt": max(record.attempt, progress.attempt),
            "done": progress.done,
            "broken": progress.reason or None,
            "error": self.error,
            "held": self.held,
        }


@dataclass(frozen=True, slots=True)
class Deferred:
    """What is left to plan of a dump that a process without access to the source has filed.

    `keys`: the JSON keys that it reads; None: the whole table. `tasks`: the plan, from the moment when one process has
    decided on it until all of its tasks are written; None before.
    """

    keys: tuple[Any, ...] | None
    tasks: tuple[TaskRecord, ...] | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        keys = data["keys"]
        tasks = data["tasks"]
        return cls(
            keys=None if keys is None else tuple(keys),
            tasks=None if tasks is None else tuple(map(TaskRecord.from_json, tasks)),
        )

    def to_json(self) -> Json:
        tasks = None if self.tasks is None else [task.to_json() for task in self.tasks]
        return {"keys": None if self.keys is None else list(self.keys), "tasks": tasks}


@dataclass(frozen=True, slots=True)
class DumpRecord:
    """A dump as it is filed. `state` is what somebody set, or how it ended: where it stands its tasks say.

    `requested_at`: ISO 8601, UTC; `refused`: tables that the request's patterns took in and that cannot be dumped;
    `signal`: the id of the signal that asked for it; `stopped`: tables that end with what is placed; `ended`: its tasks
    once it is over, where they fit; `over_at`: seconds UTC at which it was over by then. `deferred`: what is left to
    plan of it; None: its tasks are written.
    """

    tables: tuple[str, ...]
    options: DumpOptions
    state: DumpState
    error: str | None
    requested_at: str
    requested_by: str
    refused: tuple[Refusal, ...] = ()
    signal: str | None = None
    stopped: tuple[str, ...] = ()
    ended: tuple[TaskStatus, ...] | None = None
    over_at: float | None = None
    deferred: Deferred | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        ended = data.get("ended")
        over_at = data.get("over_at")
        deferred = data.get("deferred")
        return cls(
            tables=tuple(data["tables"]),
            options=DumpOptions.from_json(data["options"]),
            state=DumpState(data["state"]),
            error=data["error"],
            requested_at=data["requested_at"],
            requested_by=data["requested_by"],
            refused=tuple(map(Refusal.from_json, data.get("refused", ()))),
            signal=data.get("signal"),
            stopped=tuple(data.get("stopped", ())),
            ended=None if ended is None else tuple(map(TaskStatus.recall, ended)),
            over_at=None if over_at is None else float(over_at),
            deferred=None if deferred is None else Deferred.from_json(deferred),
        )

    def to_json(self) -> Json:
        late = {
            "signal": self.signal,
            "stopped": list(self.stopped) or None,
            "ended": None if self.ended is None else [task.to_remember() for task in self.ended],
            "over_at": self.over_at,
            "deferred": None if self.deferred is None else self.deferred.to_json(),
        }
        return {
            "tables": list(self.tables),
            "options": self.options.to_json(),
            "state": self.state.value,
            "error": self.error,
            "requested_at": self.requested_at,
            "requested_by": self.requested_by,
            "refused": [refusal.to_json() for refusal in self.refused],
            **{name: value for name, value in late.items() if value is not None},
        }

    @property
    def over(self) -> bool:
        """Whether its end is recorded."""
        return self.state in OVER

    @property
    def fails_by_gone_tables(self) -> bool:
        """Whether it fails where one of its tables is dropped meanwhile: nobody has asked for those of the system."""
        return self.requested_by != SYSTEM


def _of_fields(record: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """What the JSON says of the record's fields; what a later version says beside that is left to it."""
    return {field.name: data[field.name] for field in fields(record) if field.name in data}
