"""`dblog status`: what staging, state store and lake say of one source, as one JSON object (CONTRACT)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.dumps.status import DumpStatus
from dblog_core.interfaces import Json, StateStore
from dblog_core.lake import lake_status, table_health
from dblog_core.monitoring.storage_usage import Meter
from dblog_core.outputs import positions
from dblog_core.state import capture_status, owed_dumps, recent_errors, settings_in_force, stopped_tables
from dblog_core.state.capture_status import CaptureStatus, LeaderReport, ReportedWindow
from dblog_core.state.leases import CAPTURE
from dblog_core.state.settings_in_force import LiveSettings
from dblog_core.verify import last_results

_STALE_SECONDS = 15.0  # after which a leader's own words are no longer believed


def status(config: Config, meter: Meter | None = None) -> Json:
    """The object of `status --json`; what is not known yet is null. Raises StateUnavailable.

    `meter`: of who asks again and again.
    """
    staging = wiring.open_staging(config)
    meter = meter or Meter(config)
    head = staging.head()
    lag = partial(meter.lag, staging, head)
    merged = lake_status.read_progress(config)
    with closing(wiring.open_state(config)) as state:
        leader = state.leader(CAPTURE)
        report = _recent_report(state) if leader is not None else None
        dumps = dump_store.list_dumps(state)
        in_force = settings_in_force.read_in_force(state) or LiveSettings.of(config.source)
        return {
            "source": config.source.name,
            "leader": None if leader is None else {"id": leader.holder, "epoch": leader.epoch},
            "position": head.log_position if head else None,
            "offset": head.last_offset if head else None,
            "lag_seconds": None if report is None else report.lag_seconds,
            "rows_per_second": None if report is None else report.rows_per_second,
            "tables": _tables(
                _lake_tables(merged, dumps, state),
                stopped_tables.read(state),
                in_force,
                last_results.read_results(state),
            ),
            "windows": [_window(window) for window in (report.windows if report else ())],
            "dumps": [d.to_json() for d in dumps],
            "merge": {"offset": merged.offset, "lag_seconds": lag(merged.offset)},
            "outputs": [_output(config, name, lag, state) for name in sorted(config.output)],
            "errors": [error.to_json() for error in recent_errors.read(state)],
            "storage": meter.read(staging, merged.status, dumps),
        }


def of_capture(config: Config) -> CaptureStatus:
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


def _lake_tables(merged: lake_status.Progress, dumps: list[DumpStatus], state: StateStore) -> list[Json]:
    """The tables as the lake has them, and why one is not well."""
    owed = owed_dumps.read(state)
    statuses = merged.status.tables
    tables = []
    for table in merged.tables_json():
        cause, fix = table_health.of_table(table["table"], statuses[table["table"]], dumps, owed)
        tables.append({**table, "cause": cause, "fix": fix})
    return tables


def _tables(
    merged: list[Json], stopped: stopped_tables.Entries, in_force: LiveSettings, last_checks: Json
) -> list[Json]:
    """Each table as the lake has it, those that the capture has stopped as such; with its last verification."""
    unmerged = dict.fromkeys(("lake_offset", "awaits", "merged", "merge_because", "cause", "fix"))
    tables = {name: {"table": name, **unmerged} for name in stopped} | {str(t["table"]): t for t in merged}
    for name, entry in stopped.items():
        why = {"error": entry.describe(), "cause": entry.why, "fix": entry.fix}
        tables[name] = {**tables[name], "state": str(lake_status.State.STOPPED), **why}
    return [
        {
            **table,
            "captured": settings_in_force.is_captured(name, in_force),
            "verified": last_checks.get(name),
        }
        for name, table in sorted(tables.items())
    ]


def _recent_report(state: StateStore) -> LeaderReport | None:
    report = capture_status.read_status(state)
    return report if report is not None and time.time() - report.at_us / 1e6 < _STALE_SECONDS else None


def _window(window: ReportedWindow) -> Json:
    age_seconds = max(0.0, time.time() - window.opened_us / 1e6)
    return {"table": window.table, "dump": window.dump, "age_seconds": round(age_seconds, 3)}


def _output(config: Config, name: str, lag: Callable[[int | None], float | None], state: StateStore) -> Json:
    """An output that is configured; what it has not told yet is null."""
    record = positions.read_place(state, name)
    holder = state.leader(positions.lease_name(name))
    place = record[0] if record else None
    offset = place.offset if place else None
    return {
        "output": name,
        "kind": config.output[name].kind,
        "offset": offset,
        "lag_seconds": lag(offset),
        "dead_letters": place.dead_letters if place else 0,
        "holder": holder.holder if holder else None,
    }
