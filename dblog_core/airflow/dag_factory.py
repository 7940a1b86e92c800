"""Makes the DAGs of every source from the TOML files in a directory.

Parsing opens no connection, needs no secret and loads no driver. A file that is wrong costs its own source its DAGs and
no other's; `faults` names it, for a DAG file of its own whose import error Airflow then shows.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from airflow.sdk import DAG, CronDataIntervalTimetable, DeltaDataIntervalTimetable

from dblog_core.airflow.capture_operators import CaptureSensor, CaptureWatch
from dblog_core.airflow.dump_operators import (
    DUMP,
    ApproveDump,
    CloseDump,
    CompleteDump,
    PlanDump,
    WorkDump,
)
from dblog_core.airflow.in_process import KEEP_TRYING, ONLY_TRANSIENT, config_directory
from dblog_core.airflow.lake_operators import MaintainLake, RepairSlice, ReplayInterval, VerifyTables
from dblog_core.airflow.merge_operator import DblogMergeOperator, MergeSlice
from dblog_core.airflow.notifiers import deadlines, notifiers
from dblog_core.airflow.params import form, repair_form, replay_form, verify_form
from dblog_core.airflow.triggers import sealed_segments
from dblog_core.config.airflow import Dag
from dblog_core.config.conflicts import clashes
from dblog_core.config.loader import load
from dblog_core.config.settings import Config
from dblog_core.errors import ConfigError
from dblog_core.model import durations

_BEGINNING = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)  # without a start date a continuous DAG never gets a second run
_SECOND = dt.timedelta(seconds=1)
SLICES = {"capture": 1800.0, "capture_standby": 1370.0}
"""Seconds of a capture's run; unequal, so that the two seldom end together."""
MERGE_SLICES = {"merge": 1800.0, "merge_standby": 1370.0}
"""Seconds of a run that merges all the time."""
# No attempt can begin while Airflow's API server is away, and each that tries is one of the task's: the delays grow, so
# that they last some eight minutes where attempts cost nothing, and two where each is a Spark job.
_PATIENTLY: dict[str, Any] = {
    "retries": 20,
    "retry_policy": ONLY_TRANSIENT,
    "retry_delay": _SECOND,
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": 30 * _SECOND,
}
_SELDOM: dict[str, Any] = {
    "retries": 3,
    "retry_policy": ONLY_TRANSIENT,
    "retry_delay": 10 * _SECOND,
    "retry_exponential_backoff": 3.0,
}
_FIRST = 1000  # priority: a capture that waits behind dump workers would keep them waiting


@dataclass(frozen=True, slots=True)
class Sources:
    """What the files of a directory hold: good configurations by file, and what is wrong with the others."""

    configs: dict[Path, Config]
    faults: tuple[ConfigError, ...]


def read_sources(directory: Path | str | None = None) -> Sources:
    """Reads `*.toml` of the directory (default: $DBLOG_CONFIG_DIR)."""
    configs: dict[Path, Config] = {}
    faults: list[ConfigError] = []
    try:
        files = sorted(config_directory(directory).glob("*.toml"))
    except ConfigError as error:
        return Sources({}, (error,))
    for file in files:
        try:
            config = load(file, secrets=False)
            notifiers(config, None, "failure", where=str(file))
        except ConfigError as error:
            faults.append(error)
        else:
            configs[file] = config
    for file, clashes_of_file in clashes(configs).items():
        if fatal := [clash for clash in clashes_of_file if clash.claim.fatal]:
            faults += [ConfigError(clash.message, where=str(file), fix=clash.claim.fix) for clash in fatal]
            del configs[file]
    return Sources(configs, tuple(faults))


def dags(directory: Path | str | None = None) -> dict[str, DAG]:
    """The DAGs of every good file, by id."""
    every_dag = [dag for file, config in read_sources(directory).configs.items() for dag in source_dags(file, config)]
    return {dag.dag_id: dag for dag in every_dag}


def check(directory: Path | str | None = None) -> None:
    """Raises one ConfigError with what is wrong in any file."""
    faults = read_sources(directory).faults
    if faults:
        raise ConfigError("\n".join(str(fault) for fault in faults), where="dblog's sources")


def source_dags(file: Path, config: Config) -> tuple[DAG, ...]:
    """The DAGs of one source."""
    captures = (
        (_watch(file, config),)
        if config.airflow.capture == "watch"
        else (_capture(file, config, "capture"), _capture(file, config, "capture_standby"))
    )
    return (
        *captures,
        _dump(file, config),
        *_merges(file, config),
        _replay(file, config),
        _verify(file, config),
        _repair(file, config),
        _maintenance(file, config),
    )


def _capture(file: Path, config: Config, kind: Literal["capture", "capture_standby"]) -> DAG:
    text = (
        f"Captures `{config.source.name}` into the super-changelog. `capture` and `capture_standby` are equals: the "
        "one that holds the lease leads, the other waits and takes over within seconds. Pause both and mark their runs "
        "as failed to end the capture."
    )
    with _dag(file, config, kind, text, schedule="@continuous", max_active_runs=1) as dag:
        CaptureSensor(
            task_id="capture",
            config_file=str(file),
            slice_seconds=SLICES[kind],
            outlets=[sealed_segments(config, file)],
            retries=100,
            retry_delay=_SECOND,
            retry_policy=KEEP_TRYING,
            priority_weight=_FIRST,
        )
    return dag


def _watch(file: Path, config: Config) -> DAG:
    text = (
        f"Watches the capture of `{config.source.name}`, which runs outside of Airflow, and fails while nobody leads."
    )
    with _dag(file, config, "capture", text, schedule="@continuous", max_active_runs=1) as dag:
        sealed = [sealed_segments(config, file)]
        CaptureWatch(
            task_id="capture", config_file=str(file), slice_seconds=SLICES["capture"], outlets=sealed, retries=0
        )
    return dag


def _dump(file: Path, config: Config) -> DAG:
    text = (
        f"Reads tables of `{config.source.name}`, or some keys, into the super-changelog, while the log flows on. "
        "A capture must be running. Marking the run as failed cancels the dump; clearing it dumps again."
    )
    options = {"params": form(config), "is_paused_upon_creation": False}
    with _dag(file, config, "dump", text, schedule=None, **options) as dag:
        usual: dict[str, Any] = {"config_file": str(file), **_PATIENTLY}
        pool = {"pool": config.airflow.pool}
        plan = PlanDump(task_id="plan", **usual)
        if config.airflow.approve_rows:
            ApproveDump(task_id="approve", most=config.airflow.approve_rows, **usual) >> plan
        work = WorkDump.partial(task_id="work", max_active_tis_per_dagrun=64, **pool, **usual)
        mapped = work.expand_kwargs(plan.output)
        complete = CompleteDump(
            task_id="complete", dump_id=f"{{{{ ti.xcom_pull(task_ids='plan', key='{DUMP}') }}}}", **usual
        )
        close = CloseDump(task_id="close", **usual)
        plan >> mapped >> complete >> close.as_teardown(setups=plan, on_failure_fail_dagrun=True)
    return dag


def _merges(file: Path, config: Config) -> tuple[DAG, ...]:
    if config.airflow.merge == "batches":
        return (_merge(file, config),)
    return (_merge_slices(file, config, "merge"), _merge_slices(file, config, "merge_standby"))


def _merge_slices(file: Path, config: Config, kind: Literal["merge", "merge_standby"]) -> DAG:
    text = (
        f"Merges `{config.source.name}` into the lake all the time. `merge` and `merge_standby` are equals: one merges "
        "in a warm Spark, the other stands by without one and takes over at the end of its slice, or within a minute "
        "when it dies. Pause both and mark their runs as failed to end the merge."
    )
    options = {"max_active_runs": 1, "is_paused_upon_creation": False}
    with _dag(file, config, kind, text, schedule="@continuous", **options) as dag:
        MergeSlice(
            task_id="merge",
            config_file=str(file),
            slice_seconds=MERGE_SLICES[kind],
            retries=2,
            retry_delay=dt.timedelta(seconds=10),
        )
    return dag


def _merge(file: Path, config: Config) -> DAG:
    text = (
        f"Applies what is sealed of `{config.source.name}` to the lake. The asset is a doorbell; each run takes all "
        "that is sealed. It may be triggered by hand at any time."
    )
    options = {"max_active_runs": 1, "is_paused_upon_creation": False, "deadline": deadlines(config) or None}
    with _dag(file, config, "merge", text, schedule=[sealed_segments(config, file)], **options) as dag:
        DblogMergeOperator(task_id="merge", config_file=str(file), retries=2, retry_delay=dt.timedelta(seconds=10))
    return dag


def _replay(file: Path, config: Config) -> DAG:
    text = (
        f"Applies the last change of every key of `{config.source.name}` that changed in an hour again: what was "
        "damaged in the lake since comes back. A run begins where the last one ended, so no hour is left out. A "
        "backfill replays many hours; a trigger, any interval."
    )
    hourly = CronDataIntervalTimetable("0 * * * *", timezone="UTC")
    options = {"params": replay_form(config), "max_active_runs": 1}
    with _dag(file, config, "replay", text, schedule=hourly, **options) as dag:
        ReplayInterval(task_id="replay", config_file=str(file), **_SELDOM)
    return dag


def _verify(file: Path, config: Config) -> DAG:
    text = (
        f"Compares the tables of `{config.source.name}` with the lake, row by row, while both change. A capture must "
        "be running. A run fails where something differs in its end; with `repair` it repairs that first."
    )
    options = {"params": verify_form(config), "max_active_runs": 1}
    with _dag(file, config, "verify", text, schedule=_every(config.airflow.verify_every), **options) as dag:
        VerifyTables(task_id="verify", config_file=str(file), pool=config.airflow.pool, **_SELDOM)
    return dag


def _repair(file: Path, config: Config) -> DAG:
    every = config.airflow.repair_every
    slices = config.airflow.repair_slices
    text = (
        f"Compares a slice of the keys of every table of `{config.source.name}` with the lake, and repairs "
        f"what differs: the slice that waited longest. {slices} runs are the full state, and so is a backfill of as "
        "many intervals. "
        "A capture must be running."
    )
    period = durations.parse(every) if math.isfinite(durations.parse(every)) else 86_400.0
    options = {"params": repair_form(config), "max_active_runs": 1}
    with _dag(file, config, "repair", text, schedule=_every(every), **options) as dag:
        usual = {"config_file": str(file), "pool": config.airflow.pool, **_SELDOM}
        RepairSlice(task_id="repair", slices=slices, period=period, **usual)
    return dag


def _maintenance(file: Path, config: Config) -> DAG:
    text = (
        f"Joins small files of the lake of `{config.source.name}`, and removes what is older than it is kept, in lake "
        "and staging. No row changes."
    )
    every = _every(config.lake.maintain_every)
    options = {"max_active_runs": 1, "is_paused_upon_creation": False}
    with _dag(file, config, "maintenance", text, schedule=every, **options) as dag:
        MaintainLake(task_id="maintain", config_file=str(file), **_SELDOM)
    return dag


def _every(duration: str) -> DeltaDataIntervalTimetable | None:
    seconds = durations.parse(duration)
    return DeltaDataIntervalTimetable(dt.timedelta(seconds=seconds)) if math.isfinite(seconds) else None


def _dag(file: Path, config: Config, kind: Dag, text: str, **options: Any) -> DAG:
    source = config.source
    about = f"{text}\n\nSource: {source.kind}, tables {', '.join(f'`{t}`' for t in source.tables)}; from `{file.name}`."
    return DAG(
        f"dblog_{source.name}_{kind}",
        start_date=_BEGINNING,
        catchup=False,
        tags=["dblog", source.name, kind.removesuffix("_standby")],
        doc_md=about,
        description=text.split(". ")[0].replace("`", ""),
        on_failure_callback=notifiers(config, kind, "failure"),
        on_success_callback=notifiers(config, kind, "success"),
        **options,
    )
