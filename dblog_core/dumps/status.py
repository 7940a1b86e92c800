"""What is known of a dump and its tasks, as people ask for it: how far, how fast, how long yet, what holds it back.

Pure, over the records of `dump_records.py`; `dump_store.py` reads and writes the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from dblog_core.dumps.dump_records import OVER, Deferred, DumpOptions, DumpRecord, DumpState, Refusal, TaskStatus
from dblog_core.interfaces import Json
from dblog_core.model import table_names
from dblog_core.model.durations import in_words

UNPLANNED = "it waits for the capture, or for `dblog work`, to plan it"


@dataclass(frozen=True, slots=True)
class DumpStatus:
    """A dump as `dumps` and `status` show it.

    `requested_at`: ISO 8601, UTC; `refused`: tables that the request's patterns took in and that cannot be dumped;
    `signal`: the id of the signal that has asked for it. `deferred`: what is left to plan of it, as in `DumpRecord`; it
    has no task then.
    """

    id: str
    state: DumpState
    tables: tuple[str, ...]
    options: DumpOptions
    error: str | None
    requested_at: str
    requested_by: str
    tasks: tuple[TaskStatus, ...]
    refused: tuple[Refusal, ...] = ()
    signal: str | None = None
    deferred: Deferred | None = None

    @classmethod
    def of(cls, dump_id: str, record: DumpRecord, tasks: tuple[TaskStatus, ...]) -> Self:
        """The dump as its record and its tasks say."""
        minds_gone = record.fails_by_gone_tables
        return cls(
            id=dump_id,
            state=state_of(record.state, tasks, minds_gone=minds_gone, is_planned=record.deferred is None),
            tables=record.tables,
            options=record.options,
            error=errors_of(tasks, minds_gone=minds_gone) or record.error,
            requested_at=record.requested_at,
            requested_by=record.requested_by,
            tasks=tasks,
            refused=record.refused,
            signal=record.signal,
            deferred=record.deferred,
        )

    @property
    def open_tables(self) -> list[str]:
        """Tables that workers have not finished, or that are not planned yet."""
        if self.state in OVER:
            return []
        tables = self.tables if self.deferred is not None else [task.table for task in self.tasks if not task.over]
        return list(dict.fromkeys(tables))

    def reads_whole(self, table: str) -> bool:
        """Whether the dump reads all rows of the table."""
        if self.deferred is not None:
            return self.deferred.keys is None and table in self.tables
        return any(task.table == table and task.is_whole for task in self.tasks)

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
        return _sum(t.progress.rows if t.progress.done else t.record.estimated for t in self.tasks)

    @property
    def rows_per_second(self) -> float | None:
        """Over the time from the first low watermark to the last chunk placed; None while that is no time yet."""
        return rate(self.tasks)

    @property
    def seconds_left(self) -> float | None:
        """By rate and estimate; None where either is unknown, used up, or the dump stands."""
        if self.state == DumpState.DONE:
            return 0.0
        speed = self.rows_per_second
        rows_left = _sum(_rows_left(task) for task in self.tasks if not task.over)
        return None if self.state != DumpState.RUNNING or not speed or not rows_left else round(rows_left / speed, 1)

    @property
    def held(self) -> str | None:
        """Why it is slowed or stands: what its workers say now."""
        if self.state in OVER:
            return None
        if self.deferred is not None:
            return UNPLANNED
        return "; ".join(dict.fromkeys(t.held for t in self.tasks if t.held)) or None

    def to_json(self) -> Json:
        speed = self.rows_per_second
        return {
            "id": self.id,
            "state": self.state.value,
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
            "options": self.options.to_json(),
            "error": self.error,
            "requested_at": self.requested_at,
            "requested_by": self.requested_by,
            "signal": self.signal,
            "refused": [refusal.to_json() for refusal in self.refused],
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
    if status.tables_gone:
        parts.append(f"{len(status.tables_gone)} table(s) dropped meanwhile")
    slowdown = f"; held: {status.held}" if status.held else ""
    return f"dump {status.id}: {status.state}; {', '.join(parts)}{slowdown}"


def state_of(
    recorded: DumpState, tasks: Sequence[TaskStatus], *, minds_gone: bool = True, is_planned: bool = True
) -> DumpState:
    """A dump's state, from the recorded one and its tasks. `minds_gone`: dropped tables are a failure; `is_planned`:
    its tasks are written."""
    if recorded in OVER or not is_planned:
        return recorded
    if all(t.over for t in tasks):
        fails = any(t.error and (minds_gone or not t.gone) for t in tasks)
        return DumpState.FAILED if fails else DumpState.DONE
    if recorded == DumpState.PAUSED:
        return recorded
    return DumpState.RUNNING if any(t.progress.attempt for t in tasks) else DumpState.REQUESTED


def errors_of(tasks: Sequence[TaskStatus], *, minds_gone: bool = True) -> str | None:
    """What went wrong, by table: ranges of one table often fail alike, and of many dropped ones a line is enough."""
    errors = [f"{t.table}: {t.error}" for t in tasks if t.error and not t.gone]
    gone_tables = list(dict.fromkeys(t.table for t in tasks if t.gone and minds_gone))
    if len(gone_tables) == 1:
        errors += [f"{t.table}: {t.error}" for t in tasks if t.gone]
    elif gone_tables:
        errors.append(f"{len(gone_tables):,} tables are no longer in the source: {table_names.some(gone_tables)}")
    return "; ".join(dict.fromkeys(errors)) or None


def rate(tasks: Iterable[TaskStatus]) -> float | None:
    """Rows a second of these tasks together, from their first low watermark to their last chunk placed."""
    begun = [t.progress for t in tasks if t.progress.began and t.progress.at > t.progress.began]
    if not begun:
        return None
    micros = max(p.at for p in begun) - min(p.began for p in begun)
    return sum(p.rows for p in begun) * 1e6 / micros


def _rows_left(task: TaskStatus) -> int | None:
    estimated = task.record.estimated
    return None if estimated is None else max(0, estimated - task.progress.rows)


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total
