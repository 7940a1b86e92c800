"""Up to which commit time the scheduled replays have come, so that an interval that is skipped is not left out.

Node `replayed`: {"upto": µs UTC}, the end of the last scheduled replay that has replayed all tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from dblog_core.interfaces import Json, StateStore
from dblog_core.state import compare_and_set

_NODE = "replayed"


@dataclass(frozen=True, slots=True)
class DueInterval:
    """What a scheduled replay takes, in microseconds UTC. `removed`: from when on changes are missing in it, since
    staging no longer has them (None: none are)."""

    start: int
    end: int
    removed: int | None = None


def find_due(start: int, end: int, *, upto: int | None, reach: int | None) -> DueInterval:
    """The interval of a run that follows replays up to `upto` without a gap; `reach`: the first commit time of staging
    where retention has removed some of it.

    A run that is repeated later, and the first one of all, take only their own interval.
    """
    if upto is None or not upto < end:
        return DueInterval(start, end)
    if reach is not None and upto < reach and upto < start:
        return DueInterval(min(reach, start), end, removed=upto)
    return DueInterval(upto, end)


def read_progress(state: StateStore) -> int | None:
    """Microseconds UTC; None: no scheduled replay has ended yet."""
    entry = state.get(_NODE)
    return None if entry is None else int(orjson.loads(entry.data)["upto"])


def record_progress(state: StateStore, upto: int) -> None:
    """All tables are replayed up to there."""

    def newest(before: Json | None) -> Json:
        return {"upto": max(upto, 0 if before is None else before["upto"])}

    compare_and_set.change(state, _NODE, newest)
