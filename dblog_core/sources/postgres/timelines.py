"""Timelines: a server that was promoted, or restored to a point in time, continues from an LSN where another one may
have gone on too. So an LSN is a place in our log only together with the timeline that it was read on.

A slot that outlives a failover does not tell: the new primary's log soon ends behind our position, although it never
had what we have read there, and had something else.
"""

from __future__ import annotations

from dblog_core.config.source import SourceConfig
from dblog_core.errors import LogPositionLost
from dblog_core.sources.postgres.position import Lsn, Point
from dblog_core.sources.postgres.sql.catalogue import FRESH_START
from dblog_core.sources.postgres.sql.connection import Connection, rows


def compare(replication: Connection, config: SourceConfig, place: Point) -> int:
    """The server's timeline. Raises LogPositionLost where the place is not in its past. `replication`: a connection
    that has not begun to stream."""
    now = current(replication)
    if place.timeline in (None, now):
        return now
    end = ends(_history(replication, now)).get(place.timeline or 0)
    if end is None or place.lsn > end:
        took = "does not come from it" if end is None else f"left it at {end}"
        raise LogPositionLost(
            f"our position {place.lsn} is on timeline {place.timeline}, and the server is on timeline {now}, which"
            f" {took}: it was restored, or promoted without what we have read. Lost: the changes since it took that"
            " turn; and what we have read after it never happened there",
            where=f"source {config.name}",
            fix=f"{FRESH_START}; and let failovers wait for logical slots (synchronized_standby_slots)",
        )
    return now


def current(replication: Connection) -> int:
    """The timeline that the server writes."""
    return int(rows(replication, "IDENTIFY_SYSTEM")[0][1])


def ends(history: str) -> dict[int, Lsn]:
    """Where each timeline of a history file was left."""
    parts = [line.split() for line in history.splitlines() if line.strip() and not line.startswith("#")]
    return {int(number): Lsn.parse(end) for number, end, *_ in parts}


def _history(replication: Connection, timeline: int) -> str:
    if timeline == 1:
        return ""  # it has no file
    return str(rows(replication, f"TIMELINE_HISTORY {timeline}")[0][1])
