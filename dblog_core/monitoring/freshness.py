"""Whether a lake table is as new as a time: whether it holds every change that was committed at or before that time.

The last change of the table says nothing about that: a quiet table has none for hours. One of two facts proves it, once
the lake has all staged rows up to a place in the log:

- The last transaction before that place was committed more than `LATE` after the time.
- The source's clock was more than `LATE` after the time when the source named the end of its log, and the place is not
  before that end. This is so on a source where nothing happens.

A table that lacks rows for another reason is never as new as any time: it is stopped, incomplete, or owed a dump.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass

from dblog_core import wiring
from dblog_core.capture.stop_condition import LATE
from dblog_core.clock import SystemClock
from dblog_core.config.settings import Config
from dblog_core.errors import RequestError
from dblog_core.interfaces import Clock, Json, Source
from dblog_core.lake.continuity import judge_lake
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus
from dblog_core.model import table_names, table_patterns
from dblog_core.staging import Staging, table_records
from dblog_core.staging.manifest import Manifest
from dblog_core.state import owed_dumps, settings_in_force, stopped_tables
from dblog_core.state.settings_in_force import LiveSettings

STAGED_SECONDS = 15.0
"""How long to wait for the log's end to be staged: a capture publishes a position without rows every ten seconds."""
_PAUSE_SECONDS = 1.0
_RECORDS = (stopped_tables.NODE, owed_dumps.NODE, settings_in_force.NODE)


@dataclass(frozen=True, slots=True)
class Freshness:
    """Whether the table is as new as the time, with the reason. `offset`: up to which the lake has its changes;
    `has_staged_rows`: whether only the time is in doubt, since the lake has all staged rows and the table is well."""

    table: str
    fresh: bool
    reason: str
    offset: int | None = None
    has_staged_rows: bool = False

    def to_json(self) -> Json:
        """Without what only the next step needs."""
        return {name: value for name, value in asdict(self).items() if name != "has_staged_rows"}


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of the log at a moment when the source's clock was late enough; `position` None: it is too early, and in
    `wait_seconds` it is not."""

    position: str | None
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Place:
    """Up to where a table has all changes; None: unknown. `commit_time`: of the last transaction before it."""

    position: str | None
    commit_time: int | None


def check_captured(config: Config, table: str) -> None:
    """Raises RequestError for what is no table's name, or for a table that the configuration does not capture."""
    try:
        is_captured = table_patterns.match_text(table, config.source.tables)
    except ValueError:
        is_captured = False
    if not is_captured:
        captured = ", ".join(config.source.tables)
        raise RequestError(f"{table!r} is not a captured table", where="table", fix=f"name one of {captured}")


def find_log_end(source: Source, time_us: int) -> LogEnd:
    """Asks the source. The clock comes first: what is committed up to the time lies before an end that is read after
    it."""
    early_us = time_us + LATE - source.time()
    if early_us >= 0:
        return LogEnd(None, early_us / 1e6 + _PAUSE_SECONDS)
    return LogEnd(source.current_position())


def judge(config: Config, table: str, time_us: int, *, end: str | None = None) -> Freshness:
    """What staging and lake say. `end`: an end of the log as `find_log_end` gives it for this time; None: nobody has
    asked the source. Raises RequestError; LakeError where the lake does not continue the staging; StagingUnavailable.
    """
    name = table_names.canonical(table)
    staging = wiring.open_staging(config)
    head = staging.head()  # first: what is recorded of tables counts from its own manifest on
    lake, verdict = judge_lake(staging, wiring.open_lake(config))
    verdict.check()
    status = None if lake is None else lake.tables.get(name)
    if head is None or lake is None or status is None:
        check_captured(config, name)
        return Freshness(name, False, "the lake has no such table yet")
    if (obstacle := _find_obstacle(config, staging, name, status)) is not None:
        return Freshness(name, False, obstacle, status.offset)
    place = _find_place(staging, head, lake, status)
    has_staged_rows = head.last_offset <= status.offset
    if place.commit_time is not None and place.commit_time > time_us + LATE:
        return Freshness(name, True, "the lake has later transactions of the log", status.offset, has_staged_rows)
    is_end_known = end is not None and place.position is not None
    if is_end_known and wiring.open_source(config.source).has_reached(str(place.position), str(end)):
        return Freshness(name, True, "the lake has the log up to its end", status.offset, has_staged_rows)
    reason = "the log is not staged up to that time" if has_staged_rows else "the lake lacks staged rows"
    return Freshness(name, False, reason, status.offset, has_staged_rows)


def look(config: Config, table: str, time_us: int, *, stop: threading.Event, clock: Clock | None = None) -> Freshness:
    """As `judge`; asks the source where only that can tell, and then waits until the end of the log is staged, for at
    most `STAGED_SECONDS`.

    The wait lets a caller start afresh each time. Where only tables that are not captured change, the log's present end
    is never staged at once, and no captured transaction shows that time passes.
    """
    clock = clock or SystemClock()
    seen = judge(config, table, time_us)
    if seen.fresh or not seen.has_staged_rows:
        return seen
    end = find_log_end(wiring.open_source(config.source), time_us).position
    deadline = clock.monotonic() + STAGED_SECONDS
    while end is not None:
        seen = judge(config, table, time_us, end=end)
        is_over = seen.fresh or not seen.has_staged_rows or clock.monotonic() >= deadline
        if is_over or clock.wait(stop, _PAUSE_SECONDS):
            break
    return seen


def _find_obstacle(config: Config, staging: Staging, name: str, status: TableStatus) -> str | None:
    """Why the table lacks rows whatever is merged."""
    records = table_records.read_newest(staging, *_RECORDS)
    if (stopped := stopped_tables.read(records).get(name)) is not None:
        return f"the capture has stopped the table: {stopped.why}"
    if not settings_in_force.is_captured(
        name, settings_in_force.read_in_force(records) or LiveSettings.of(config.source)
    ):
        return "the capture leaves the table out"
    if (owed := owed_dumps.read(records).get(name)) is not None:
        return f"the table is owed a dump: {owed.why}"
    if status.state is State.STOPPED:
        return f"the table is stopped in the lake: {status.error}"
    if status.state is State.INCOMPLETE:
        return f"the table is incomplete in the lake: {status.missing_rows}"
    return None


def _find_place(staging: Staging, head: Manifest, lake: LakeStatus, status: TableStatus) -> _Place:
    if head.last_offset <= status.offset:  # also where segments without rows follow, which no merge is needed for
        return _Place(head.position, head.commit_time)
    time_of_lake = lake.commit_time if status.segment == lake.segment else None
    if status.segment < staging.beginning().segment:
        return _Place(None, time_of_lake)
    manifest = staging.manifest(status.segment)
    if manifest.segment != status.segment:  # joined with later ones: its position is theirs
        return _Place(None, time_of_lake)
    return _Place(manifest.position, manifest.commit_time)
