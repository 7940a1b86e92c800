"""How far back a replay reaches, to the first change that staging has kept; and up to which commit time the scheduled
replays have come, so that an interval that is skipped is not left out.

Node `replayed`: {"upto": µs UTC}, the end of the last scheduled replay that has replayed all tables.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import orjson

from dblog_core.errors import LakeError
from dblog_core.interfaces import Json, StateStore
from dblog_core.lake.replay_interval import IntervalEnd, Unit
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest
from dblog_core.state import compare_and_set

_NODE = "replayed"


@dataclass(frozen=True, slots=True)
class Reach:
    """The oldest segment that retention has left, its first offset, and the commit time with which it begins
    (microseconds UTC; None: it has no rows)."""

    segment: int
    offset: int
    commit_time: int | None

    def check(self, start: IntervalEnd, where: str) -> None:
        """Raises LakeError where an interval begins before: everything that was removed is older."""
        reach = self.offset if start.unit is Unit.OFFSET else self.commit_time
        if reach is None or start.value < reach:
            since = "" if self.commit_time is None else f", or at the time {_text(self.commit_time)}"
            raise LakeError(
                "the interval begins before what staging has kept",
                where=where,
                fix=f"begin at offset {self.offset}{since}; `dblog verify --repair` repairs older damage",
            )


def read_reach(staging: Staging) -> Reach | None:
    """None: retention has removed nothing yet, so that a replay may begin anywhere."""
    first = staging.first_number()
    if first <= 1:
        return None
    oldest = staging.manifest(first).cut(after=first - 1)
    return Reach(first, oldest.first_offset, _first_commit(staging, oldest))


def _first_commit(staging: Staging, oldest: Manifest) -> int | None:
    """The commit time (microseconds) with which the manifest begins; None where it has no rows."""
    commits = [(x.offset, x.commit_time) for x in oldest.marks]
    commits += [(c.first_offset, c.commit_time) for c in oldest.chunks]
    for file in oldest.files:
        first = next(staging.log_batches(file, columns=["offset", "commit_time"]), None)
        if first is not None:
            commits.append((first["offset"][0].as_py(), first["commit_time"][0].value))
    return min(commits, default=(0, oldest.commit_time))[1]


def _text(micros: int) -> str:
    return f"{dt.datetime.fromtimestamp(micros / 1e6, dt.UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


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
