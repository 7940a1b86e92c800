"""What is known of a dump and its tasks, as people ask for it: how far, how fast, how long yet, what holds it back.

Pure records over what the state store holds; `control.py` reads and writes the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.interfaces import Json
from dblog_core.model import table_names
from dblog_core.model.durations import in_words

OVER = frozenset({"done", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task: what it reads, and how far it is.

    It reads the listed `keys`, or the range from `key_from` (included) or beyond `after` (not included) to `key_to`
    (included; None: the largest key when the attempt starts), in both cases JSON keys. `filters` are as
    `filters.to_json` gives them. `parts` tasks of the dump cover the table, or its range, together; `heals`:
    {"key_from", "key_to"} in which their common end tells of ghosts (None: nowhere). `estimated`: rows, None if
    unknown. `error`: why it cannot go on, ever; `held`: why it is slowed or stands now. `listed`: how many keys it
    lists; of a task that is `restored` nothing else is known of them. `order`: the key's, as `ChunkReader.key_order`
    told it at the request; None if nobody asked then, and of a task that is `restored`. `gone`: its table is not in
    the source any more, as `error` says.
    """

    number: int
    table: str
    keys: tuple[Any, ...] | None
    key_from: Any
    after: Any
    key_to: Any
    filters: tuple[Json, ...]
    parts: int
    heals: Json | None
    estimated: int | None
    attempt: int
    progress: TaskProgress
    error: str | None = None
    held: str | None = None
    listed: int | None = None
    order: str | None = None
    gone: bool = False

    @property
    def over(self) -> bool:
        """Whether no worker will touch it again."""
        return self.progress.done or self.error is not None

    @property
    def is_whole(self) -> bool:
        """Whether its dump reads all of its table."""
        return self.heals is not None and self.heals["key_from"] is None and self.heals["key_to"] is None

    def kept(self) -> Json:
        """What is remembered of the task once its dump is over."""
        return {**asdict(self), "keys": None if self.keys is None else (), "order": None}

    @classmethod
    def restored(cls, kept: Json) -> TaskStatus:
        """The task as `kept` has remembered it."""
        keys, filters, progress = kept["keys"], tuple(kept["filters"]), TaskProgress.from_json(kept["progress"])
        return cls(**{**kept, "keys": None if keys is None else (), "filters": filters, "progress": progress})

    def to_json(self) -> Json:
        progress = self.progress
        return {
            "number": self.number,
            "table": self.table,
            "keys": self.listed,
            "key_from": self.key_from,
            "after": self.after,
            "key_to": self.key_to,
            "filters": list(self.filters),
            "rows": progress.rows,
            "estimated_rows": self.estimated,
            "chunks": progress.ordinal,
            "evicted": progress.evicted,
            "attempt": max(self.attempt, progress.attempt),
            "done": progress.done,
            "broken": progress.reason or None,
            "error": self.error,
            "held": self.held,
        }


@dataclass(frozen=True, slots=True)
class DumpStatus:
    """A dump as `dumps` and `status` show it; `state` is requested, running, paused, done, failed or cancelled.

    `refused`: [{"table", "reason", "fix"}] of tables that the request's patterns took in and that cannot be dumped;
    `signal`: the id of the signal that has asked for it.
    """

    id: str
    state: str
    tables: tuple[str, ...]
    options: Json
    error: str | None
    requested_at: str
    requested_by: str
    tasks: tuple[TaskStatus, ...]
    refused: tuple[Json, ...] = ()
    signal: str | None = None

    @property
    def rows(self) -> int:
        return sum(t.progress.rows for t in self.tasks)

    @property
    def chunks(self) -> int:
        return sum(t.progress.ordinal for t in self.tasks)

    @property
    def evicted(self) -> int:
        return sum(t.progress.evicted for t in self.tasks)

    @property
    def tasks_done(self) -> int:
        return sum(t.progress.done for t in self.tasks)

    @property
    def tables_gone(self) -> list[str]:
        """Tables that were dropped before they were read."""
        return list(dict.fromkeys(t.table for t in self.tasks if t.gone))

    @property
    def estimated_rows(self) -> int | None:
        """Rows in all, by the server's estimates when it was requested; what is done counts as it was."""
        return _sum(t.progress.rows if t.progress.done else t.estimated for t in self.tasks)

    @property
    def rows_per_second(self) -> float | None:
        """Over the time from the first low watermark to the last chunk placed; None while that is no time yet."""
        return rate(self.tasks)

    @property
    def seconds_left(self) -> float | None:
        """By rate and estimate; None where either is unknown, used up, or the dump stands."""
        if self.state == "done":
            return 0.0
        speed, left = self.rows_per_second, _sum(_left(t) for t in self.tasks if not t.over)
        return None if self.state != "running" or not speed or not left else round(left / speed, 1)

    @property
    def held(self) -> str | None:
        """Why it is slowed or stands: what its workers say now."""
        if self.state in OVER:
            return None
        return "; ".join(dict.fromkeys(t.held for t in self.tasks if t.held)) or None

    def to_json(self) -> Json:
        speed = self.rows_per_second
        return {
            "id": self.id,
            "state": self.state,
            "tables": list(self.tables),
            "rows": self.rows,
            "estimated_rows": self.estimated_rows,
            "chunks": self.chunks,
            "evicted": self.evicted,
            "rows_per_second": None if speed is None else round(speed, 1),
            "seconds_left": self.seconds_left,
            "tasks_done": self.tasks_done,
            "tables_gone": len(self.tables_gone),
            "held": self.held,
            "options": self.options,
            "error": self.error,
            "requested_at": self.requested_at,
            "requested_by": self.requested_by,
            "signal": self.signal,
            "refused": list(self.refused),
            "tasks": [t.to_json() for t in self.tasks],
        }


def line(status: DumpStatus) -> str:
    """A dump in one line."""
    rows = (
        f"{status.rows:,}" if status.estimated_rows is None else f"{status.rows:,} of about {status.estimated_rows:,}"
    )
    parts = [f"{rows if status.state not in OVER else f'{status.rows:,}'} rows in {status.chunks:,} chunks"]
    if status.rows_per_second is not None:
        parts.append(f"{status.rows_per_second:,.0f} rows/s")
    parts += [f"{status.evicted:,} evicted", f"{status.tasks_done} of {len(status.tasks)} task(s) done"]
    if status.seconds_left:
        parts.append(f"{in_words(status.seconds_left)} left")
    if gone := status.tables_gone:
        parts.append(f"{len(gone)} table(s) dropped meanwhile")
    held = f"; held: {status.held}" if status.held else ""
    return f"dump {status.id}: {status.state}; {', '.join(parts)}{held}"


def state_of(recorded: str, tasks: Sequence[TaskStatus], *, minds_gone: bool = True) -> str:
    """A dump's state, from what somebody set and what its tasks say. `minds_gone`: dropped tables are a failure."""
    if recorded in OVER:
        return recorded
    if all(t.over for t in tasks):
        return "failed" if any(t.error and (minds_gone or not t.gone) for t in tasks) else "done"
    if recorded == "paused":
        return recorded
    return "running" if any(t.progress.attempt for t in tasks) else "requested"


def errors_of(tasks: Sequence[TaskStatus], *, minds_gone: bool = True) -> str | None:
    """What went wrong, by table: ranges of one table often fail alike, and of many dropped ones a line is enough."""
    told = dict.fromkeys(f"{t.table}: {t.error}" for t in tasks if t.error and not t.gone)
    gone = dict.fromkeys(t.table for t in tasks if t.gone and minds_gone)
    if len(gone) == 1:
        told |= dict.fromkeys(f"{t.table}: {t.error}" for t in tasks if t.gone)
    elif gone:
        told[f"{len(gone):,} tables are not in the source any more: {table_names.some(list(gone))}"] = None
    return "; ".join(told) or None


def rate(tasks: Iterable[TaskStatus]) -> float | None:
    """Rows a second of these tasks together, from their first low watermark to their last chunk placed."""
    begun = [t.progress for t in tasks if t.progress.began and t.progress.at > t.progress.began]
    if not begun:
        return None
    micros = max(p.at for p in begun) - min(p.began for p in begun)
    return sum(p.rows for p in begun) * 1e6 / micros


def _left(task: TaskStatus) -> int | None:
    return None if task.estimated is None else max(0, task.estimated - task.progress.rows)


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total
