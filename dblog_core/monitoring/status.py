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
from dblog_core.state.capture_status import CaptureStatus
from dblog_core.state.leases import CAPTURE
from dblog_core.verify import last_results

STALE = 15.0  # seconds after which a leader's own words are no longer believed


def status(config: Config, meter: Meter | None = None) -> Json:
    """The object of `status --json`; what is not known yet is null. Raises StateUnavailable.

    `meter`: of who asks again and again.
    """
    staging, meter = wiring.open_staging(config), meter or Meter(config)
    head = staging.head()
    lag = partial(meter.lag, staging, head)
    merged = lake_status.progress(config)
    with closing(wiring.open_state(config)) as state:
        leader = state.leader(CAPTURE)
        told = _told(state) if leader is not None else {}
        dumps = dump_store.list_dumps(state)
        in_force = settings_in_force.in_force(state) or settings_in_force.live(config.source)
        return {
            "source": config.source.name,
            "leader": None if leader is None else {"id": leader.holder, "epoch": leader.epoch},
            "position": head.log_position if head else None,
            "offset": head.last_offset if head else None,
            "lag_seconds": told.get("lag_seconds"),
            "rows_per_second": told.get("rows_per_second"),
            "tables": _tables(
                _merged(merged, dumps, state), stopped_tables.read(state), in_force, last_results.read_results(state)
            ),
            "windows": [_window(w) for w in told.get("windows", [])],
            "dumps": [d.to_json() for d in dumps],
            "merge": {"offset": merged.offset, "lag_seconds": lag(merged.offset)},
            "outputs": [_output(config, name, lag, state) for name in sorted(config.output)],
            "errors": recent_errors.read(state),
            "storage": meter.read(staging, merged.status, dumps),
        }


def of_capture(config: Config) -> CaptureStatus:
    """The capture alone, as who does not run it sees it. Raises StateUnavailable, StagingUnavailable."""
    head = wiring.open_staging(config).head()
    with closing(wiring.open_state(config)) as state:
        leader = state.leader(CAPTURE)
        told = _told(state) if leader is not None else {}
    return CaptureStatus(
        leading=leader is not None,
        epoch=leader.epoch if leader else None,
        segment=head.segment if head else 0,
        offset=head.last_offset if head else 0,
        position=head.log_position if head else "",
        lag_seconds=told.get("lag_seconds"),
        rows_per_second=told.get("rows_per_second") or 0.0,
        windows=len(told.get("windows", ())),
        leader=leader.holder if leader else None,
    )


def _merged(merged: lake_status.Progress, dumps: list[DumpStatus], state: StateStore) -> list[Json]:
    """The tables as the lake has them, and why one is not well."""
    debts, tables = owed_dumps.read(state), merged.status.tables
    found = []
    for table in merged.tables_json():
        cause, fix = table_health.of_table(table["table"], tables[table["table"]], dumps, debts)
        found.append({**table, "cause": cause, "fix": fix})
    return found


def _tables(merged: list[Json], held: stopped_tables.Entries, in_force: Json, checked: Json) -> list[Json]:
    """Each table as the lake has it, those that the capture has stopped as such; with its last verification."""
    unmerged = dict.fromkeys(("lake_offset", "awaits", "merged", "merge_because", "cause", "fix"))
    tables = {name: {"table": name, **unmerged} for name in held} | {str(t["table"]): t for t in merged}
    for name, entry in held.items():
        told = {"error": stopped_tables.told(entry), "cause": entry["why"], "fix": entry["fix"]}
        tables[name] = {**tables[name], "state": str(lake_status.State.STOPPED), **told}
    captured = {name: settings_in_force.is_captured(name, in_force) for name in tables}
    return [
        {**table, "captured": captured[name], "verified": checked.get(name)} for name, table in sorted(tables.items())
    ]


def _told(state: StateStore) -> Json:
    told = capture_status.read_status(state)
    return told if told is not None and time.time() - told["at"] / 1e6 < STALE else {}


def _window(window: Json) -> Json:
    age = max(0.0, time.time() - window["opened"] / 1e6)
    return {"table": window["table"], "dump": window["dump"], "age_seconds": round(age, 3)}


def _output(config: Config, name: str, lag: Callable[[int | None], float | None], state: StateStore) -> Json:
    """An output that is configured; what it has not told yet is null."""
    found, holder = positions.read_place(state, name), state.leader(positions.lease_name(name))
    place = found[0] if found else None
    offset = place.offset if place else None
    return {
        "output": name,
        "kind": config.output[name].kind,
        "offset": offset,
        "lag_seconds": lag(offset),
        "dead_letters": place.dead_letters if place else 0,
        "holder": holder.holder if holder else None,
    }
