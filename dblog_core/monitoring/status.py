"""`dblog status`: what staging, state store and lake say of one source (CONTRACT)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.dumps.status import DumpStatus
from dblog_core.interfaces import Nodes, StateStore
from dblog_core.lake import continuity, lake_status, table_health
from dblog_core.lake.continuity import Verdict
from dblog_core.lake.lake_status import LakeStatus
from dblog_core.monitoring.source_status import (
    MergeProgress,
    OpenWindow,
    OutputInStatus,
    SlicesInStatus,
    SourceStatus,
    TableInStatus,
)
from dblog_core.monitoring.storage_usage import Meter
from dblog_core.outputs import positions
from dblog_core.staging import table_records
from dblog_core.state import capture_status, owed_dumps, recent_errors, settings_in_force, stopped_tables
from dblog_core.state.capture_status import CaptureStatus, LeaderReport, ReportedWindow
from dblog_core.state.lease_holder import CAPTURE
from dblog_core.state.settings_in_force import LiveSettings
from dblog_core.verify import last_results, slice_times

_RECORDS = (stopped_tables.NODE, owed_dumps.NODE, settings_in_force.NODE)
_STALE_SECONDS = 15.0  # after which a leader's own words are no longer believed


def read_source_status(config: Config, meter: Meter | None = None) -> SourceStatus:
    """What is known of the source. Raises StateUnavailable.

    `meter`: of who asks again and again.
    """
    staging = wiring.open_staging(config)
    meter = meter or Meter(config)
    head = staging.head()
    lag = partial(meter.lag, staging, head)
    records = table_records.read_newest(staging, *_RECORDS)
    lake, verdict = continuity.judge_lake(staging, wiring.open_lake(config))
    lake = lake or LakeStatus()
    with closing(wiring.open_state(config)) as state:
        leader = state.leader(CAPTURE)
        report = _recent_report(state) if leader is not None else None
        dumps = dump_store.list_dumps(state)
        return SourceStatus(
            source=config.source.name,
            leader=leader,
            position=head.log_position if head else None,
            offset=head.last_offset if head else None,
            lag_seconds=None if report is None else report.lag_seconds,
            rows_per_second=None if report is None else report.rows_per_second,
            tables=_find_tables(config, lake, verdict, dumps, state, records),
            windows=tuple(map(_measure_window, report.windows if report else ())),
            dumps=tuple(dumps),
            merge=_measure_merge(lake, verdict, lag),
            outputs=tuple(_find_output(config, name, lag, state) for name in sorted(config.output)),
            errors=tuple(recent_errors.read(state)),
            storage=meter.read(staging, lake, dumps, settings_in_force.read_in_force(records)),
            slices=_find_slices(state),
        )


def read_capture_status(config: Config) -> CaptureStatus:
    """The capture alone, as who does not run it sees it. Raises StateUnavailable, StagingUnavailable."""
    head = wiring.open_staging(config).head()
    with closing(wiring.open_state(config)) as state:
        leader = state.leader(CAPTURE)
        report = _recent_report(state) if leader is not None else None
    return CaptureStatus(
        leading=leader is not None,
        epoch=leader.epoch if leader else None,
        segment=head.segment if head else 0,
        offset=head.last_offset if head else 0,
        position=head.log_position if head else "",
        lag_seconds=None if report is None else report.lag_seconds,
        rows_per_second=0.0 if report is None else report.rows_per_second,
        windows=0 if report is None else len(report.windows),
        leader=leader.holder if leader else None,
    )


def _measure_merge(lake: LakeStatus, verdict: Verdict, lag: Callable[[int | None], float | None]) -> MergeProgress:
    """How far merges are; None before the first one."""
    offset = lake.offset if lake.merge else None
    if not verdict.may_merge:
        return MergeProgress(offset, None, verdict.to_error().reason, verdict.fix)
    return MergeProgress(offset, lag(offset))


def _find_tables(
    config: Config,
    lake: LakeStatus,
    verdict: Verdict,
    dumps: list[DumpStatus],
    state: StateStore,
    records: Nodes,
) -> tuple[TableInStatus, ...]:
    """Each table as the lake has it, those that the capture has stopped as such; with its last verification."""
    tables = _find_lake_tables(lake, dumps, records)
    if not verdict.may_merge:
        error = verdict.to_error()
        stopped = str(lake_status.State.STOPPED)
        tables = {
            name: replace(table, state=stopped, error=str(error), cause=error.reason, fix=error.fix)
            for name, table in tables.items()
        }
    for name, entry in stopped_tables.read(records).items():
        table = tables.get(name) or TableInStatus(name, str(lake_status.State.STOPPED))
        tables[name] = replace(
            table, state=str(lake_status.State.STOPPED), error=entry.describe(), cause=entry.why, fix=entry.fix
        )
    in_force = settings_in_force.read_in_force(records) or LiveSettings.of(config.source)
    results = last_results.read_results(state)
    return tuple(
        replace(table, captured=settings_in_force.is_captured(name, in_force), verified=results.get(name))
        for name, table in sorted(tables.items())
    )


def _find_lake_tables(lake: LakeStatus, dumps: list[DumpStatus], records: Nodes) -> dict[str, TableInStatus]:
    """The tables as the lake has them, by name, and why one is not well."""
    owed = owed_dumps.read(records)
    tables = {}
    for name, table in lake.tables.items():
        cause, fix = table_health.of_table(name, table, dumps, owed)
        tables[name] = TableInStatus(
            table=name,
            state=str(table.state),
            error=table.error,
            lake_offset=table.offset,
            awaits=table.awaits,
            merged=table.merged,
            cause=cause,
            fix=fix,
            unmaintained=table.unmaintained,
        )
    return tables


def _find_slices(state: StateStore) -> SlicesInStatus | None:
    times = slice_times.read_times(state)
    return None if times is None else SlicesInStatus(times.of, times.compared_count, times.oldest)


def _recent_report(state: StateStore) -> LeaderReport | None:
    report = capture_status.read_status(state)
    return report if report is not None and time.time() - report.at_us / 1e6 < _STALE_SECONDS else None


def _measure_window(window: ReportedWindow) -> OpenWindow:
    age_seconds = max(0.0, time.time() - window.opened_us / 1e6)
    return OpenWindow(window.table, window.dump, round(age_seconds, 3))


def _find_output(
    config: Config, name: str, lag: Callable[[int | None], float | None], state: StateStore
) -> OutputInStatus:
    """An output that is configured; what it has not reported yet is None."""
    record = positions.read_place(state, name)
    holder = state.leader(positions.lease_name(name))
    place = record[0] if record else None
    offset = place.offset if place else None
    return OutputInStatus(
        output=name,
        kind=config.output[name].kind,
        offset=offset,
        lag_seconds=lag(offset),
        dead_letters=place.dead_letters if place else 0,
        holder=holder.holder if holder else None,
    )
