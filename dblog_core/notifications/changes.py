"""Which notices of a dump a channel has not got yet. Pure: from what the state store says, in order.

Whatever was not looked at in time has its notice all the same, except for a pause that was over at the next look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Self

import orjson

from dblog_core.dumps.dump_records import OVER, TaskStatus
from dblog_core.dumps.status import DumpStatus
from dblog_core.interfaces import Json
from dblog_core.signals.signal_record import SignalRecord

_ENDS = {"done": "completed", "failed": "failed", "cancelled": "aborted"}


@dataclass(frozen=True, slots=True)
class SentNotices:
    """Which notices of one dump a channel has got.

    `paused` and `resumed` count them. `chunks` has the newest chunk's ordinal by the number of its task. `tables` are
    those that are done. `over`: the notice of the dump's end.
    """

    requested: bool = False
    started: bool = False
    paused: int = 0
    resumed: int = 0
    chunks: Mapping[str, int] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    over: bool = False

    @classmethod
    def from_json(cls, data: Json) -> Self:
        # A later version may have written more.
        fields = {name: value for name, value in data.items() if name in cls.__slots__}
        return cls(**{**fields, "tables": tuple(data.get("tables", ()))})

    def to_json(self) -> Json:
        return {
            "requested": self.requested,
            "started": self.started,
            "paused": self.paused,
            "resumed": self.resumed,
            "chunks": dict(self.chunks),
            "tables": list(self.tables),
            "over": self.over,
        }


@dataclass(frozen=True, slots=True)
class RequestDetails:
    """Of a dump that was requested: its tables, who requested it, and when (ISO 8601, UTC)."""

    tables: list[str]
    requested_by: str
    requested_at: str


@dataclass(frozen=True, slots=True)
class ChunkDetails:
    """Of a chunk that is placed; `rows` are those of its task so far."""

    task: int
    chunk: int
    rows: int


@dataclass(frozen=True, slots=True)
class TableDetails:
    """Of a table that is done."""

    rows: int


@dataclass(frozen=True, slots=True)
class EndDetails:
    """Of a dump that is over."""

    rows: int
    chunks: int
    evicted: int
    error: str | None


@dataclass(frozen=True, slots=True)
class RefusalDetails:
    """Of a signal that was refused."""

    type: str
    channel: str
    error: str | None
    fix: str | None


Details = RequestDetails | ChunkDetails | TableDetails | EndDetails | RefusalDetails


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell: `id` is the same whenever it is sent again."""

    id: str
    event: str
    dump: str | None
    signal: str | None
    table: str | None = None
    details: Details | None = None


@dataclass(frozen=True, slots=True)
class NoticeMessage:
    """What a receiver gets: a notice, the source that it is of, and when it is sent (ISO 8601, UTC)."""

    notice: Notice
    source: str
    told_at: str

    def to_json(self) -> Json:
        notice = self.notice
        return {
            "id": notice.id,
            "event": notice.event,
            "source": self.source,
            "dump": notice.dump,
            "signal": notice.signal,
            "table": notice.table,
            **({} if notice.details is None else asdict(notice.details)),
            "told_at": self.told_at,
        }

    def encode(self) -> bytes:
        return orjson.dumps(self.to_json())


def notices_since(status: DumpStatus, sent: SentNotices | None) -> Iterator[tuple[Notice, SentNotices]]:
    """The notices that the channel has not got, each with what it has got then."""
    current = sent or SentNotices()
    for notice, changes in _new_notices(status, current):
        current = replace(current, **changes)
        yield notice, current


def _new_notices(status: DumpStatus, sent: SentNotices) -> Iterator[tuple[Notice, Json]]:
    """Each notice with the fields of `SentNotices` that it changes."""
    if sent.over:
        return
    if not sent.requested:
        request = RequestDetails(list(status.tables), status.requested_by, status.requested_at)
        yield _notice(status, "requested", request), {"requested": True}
    if not sent.started and any(t.progress.attempt for t in status.tasks):
        yield _notice(status, "started"), {"started": True}
    yield from _pauses(status, sent)
    yield from _chunks(status, sent)
    yield from _tables(status, sent)
    if status.state in OVER:
        totals = EndDetails(status.rows, status.chunks, status.evicted, status.error)
        yield _notice(status, _ENDS[status.state], totals), {"over": True}


def _pauses(status: DumpStatus, sent: SentNotices) -> Iterator[tuple[Notice, Json]]:
    if status.state == "paused" and sent.paused == sent.resumed:
        yield _notice(status, "paused", ordinal=sent.paused + 1), {"paused": sent.paused + 1}
    # The number makes each pause's notices a pair with ids of their own.
    elif status.state not in ("paused", *OVER) and sent.paused > sent.resumed:
        yield _notice(status, "resumed", ordinal=sent.paused), {"resumed": sent.paused}


def _chunks(status: DumpStatus, sent: SentNotices) -> Iterator[tuple[Notice, Json]]:
    """One for each chunk that is placed; `rows` are those of its task so far."""
    told_ordinals = dict(sent.chunks)
    for task in status.tasks:
        # Several chunks may have been placed since the last look: each has its own notice.
        for ordinal in range(told_ordinals.get(str(task.number), 0) + 1, task.progress.ordinal + 1):
            told_ordinals[str(task.number)] = ordinal
            details = ChunkDetails(task.number, ordinal, task.progress.rows)
            notice = _notice(status, "chunk", details, task.table, f"{task.number}.{ordinal}")
            yield notice, {"chunks": dict(told_ordinals)}


def _tables(status: DumpStatus, sent: SentNotices) -> Iterator[tuple[Notice, Json]]:
    told_tables = sent.tables
    tasks: dict[str, list[TaskStatus]] = {}
    for task in status.tasks:
        tasks.setdefault(task.table, []).append(task)
    for table, parts in tasks.items():
        if table not in told_tables and all(t.progress.done for t in parts):
            told_tables = (*told_tables, table)
            details = TableDetails(sum(t.progress.rows for t in parts))
            yield _notice(status, "table", details, table), {"tables": told_tables}


def _notice(
    status: DumpStatus, event: str, details: Details | None = None, table: str | None = None, ordinal: int | str = 0
) -> Notice:
    return Notice(f"{status.id}/{event}/{table or ''}/{ordinal}", event, status.id, status.signal, table, details)


def refusal_notice(name: str, record: SignalRecord) -> Notice:
    """What is reported of a signal that was refused; `name`: of its node."""
    details = RefusalDetails(record.type, record.channel, record.error, record.fix)
    return Notice(f"{name}/refused//0", "refused", None, record.id, None, details)
