"""What is new about a dump since a channel was told of it last. Pure: from what the state store says, in order.

A channel's place in a dump is {"requested", "started", "paused": times, "resumed": times, "chunks": {TASK: ordinal},
"tables": [T], "over"}. Whatever was not looked at in time is told all the same, but for a pause that was over by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dblog_core.dumps.dump_records import OVER, TaskStatus
from dblog_core.dumps.status import DumpStatus
from dblog_core.interfaces import Json

_ENDS = {"done": "completed", "failed": "failed", "cancelled": "aborted"}
NOTHING: Json = {
    "requested": False, "started": False, "paused": 0, "resumed": 0, "chunks": {}, "tables": [], "over": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell: `id` is the same whenever it is told again."""

    id: str
    event: str
    dump: str | None
    signal: str | None
    table: str | None = None
    more: Json = field(default_factory=dict)

    def to_json(self, source: str, told_at: str) -> Json:
        """What a receiver gets."""
        return {
            "id": self.id,
            "event": self.event,
            "source": source,
            "dump": self.dump,
            "signal": self.signal,
            "table": self.table,
            **self.more,
            "told_at": told_at,
        }


def notices_since(status: DumpStatus, position: Json | None) -> Iterator[tuple[Notice, Json]]:
    """What is to be told now, each with the place after it."""
    place = {**NOTHING, **(position or {})}
    for notice, changes in _new_notices(status, place):
        place = {**place, **changes}
        yield notice, place


def _new_notices(status: DumpStatus, place: Json) -> Iterator[tuple[Notice, Json]]:
    if place["over"]:
        return
    if not place["requested"]:
        request = {"requested_by": status.requested_by, "requested_at": status.requested_at}
        yield _notice(status, "requested", tables=list(status.tables), **request), {"requested": True}
    if not place["started"] and any(t.progress.attempt for t in status.tasks):
        yield _notice(status, "started"), {"started": True}
    yield from _pauses(status, place)
    yield from _chunks(status, place)
    yield from _tables(status, place)
    if status.state in OVER:
        totals: Json = {"rows": status.rows, "chunks": status.chunks, "evicted": status.evicted, "error": status.error}
        yield _notice(status, _ENDS[status.state], **totals), {"over": True}


def _pauses(status: DumpStatus, place: Json) -> Iterator[tuple[Notice, Json]]:
    paused = place["paused"]
    resumed = place["resumed"]
    if status.state == "paused" and paused == resumed:
        yield _notice(status, "paused", ordinal=paused + 1), {"paused": paused + 1}
    # The number makes each pause's notices a pair with ids of their own.
    elif status.state not in ("paused", *OVER) and paused > resumed:
        yield _notice(status, "resumed", ordinal=paused), {"resumed": paused}


def _chunks(status: DumpStatus, place: Json) -> Iterator[tuple[Notice, Json]]:
    """One for each chunk that is placed; `rows` are those of its task by now."""
    told_ordinals = dict(place["chunks"])
    for task in status.tasks:
        # Several chunks may have been placed since the last look: each has its own notice.
        for ordinal in range(told_ordinals.get(str(task.number), 0) + 1, task.progress.ordinal + 1):
            told_ordinals[str(task.number)] = ordinal
            more: Json = {"task": task.number, "chunk": ordinal, "rows": task.progress.rows}
            notice = _notice(status, "chunk", task.table, f"{task.number}.{ordinal}", **more)
            yield notice, {"chunks": dict(told_ordinals)}


def _tables(status: DumpStatus, place: Json) -> Iterator[tuple[Notice, Json]]:
    told_tables = list(place["tables"])
    tasks: dict[str, list[TaskStatus]] = {}
    for task in status.tasks:
        tasks.setdefault(task.table, []).append(task)
    for table, parts in tasks.items():
        if table not in told_tables and all(t.progress.done for t in parts):
            told_tables.append(table)
            rows = sum(t.progress.rows for t in parts)
            yield _notice(status, "table", table, rows=rows), {"tables": list(told_tables)}


def _notice(status: DumpStatus, event: str, table: str | None = None, ordinal: int | str = 0, **more: Any) -> Notice:
    return Notice(f"{status.id}/{event}/{table or ''}/{ordinal}", event, status.id, status.signal, table, more)


def refusal_notice(name: str, record: Json) -> Notice:
    """What is told of a signal that was refused; `name`: of its node."""
    more = {"type": record["type"], "channel": record["channel"], "error": record["error"], "fix": record["fix"]}
    return Notice(f"{name}/refused//0", "refused", None, record["id"], None, more)
