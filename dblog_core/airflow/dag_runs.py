"""What Airflow's own database says of a source's DAGs: which are paused, which runs have failed, what others say.

For the page, in the API server's process. A run that was killed has reported nothing; it is found here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import get_args

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from dblog_core.airflow.dag_factory import SLICES
from dblog_core.config.airflow import Dag
from dblog_core.interfaces import Json

SHOWN = 10
"""Failed runs of a source, the newest."""

_FAILED = "failed"
_RUNNING = "running"
_CHECKING = ("verify", "repair", "replay")
"""DAGs whose runs have notes of what they have compared or repaired."""


def dag_ids(source: str) -> dict[str, str]:
    """The DAGs that a source may have, by what each is for."""
    return {kind: f"dblog_{source}_{kind}" for kind in get_args(Dag)}


@dataclass(frozen=True, slots=True)
class CaptureDag:
    """A DAG that captures. `ends`: when the run at work ends, in µs UTC; None: no run is at work."""

    dag: str
    paused: bool
    ends: int | None


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that has failed. `part`: what its DAG is for; `at`: when it ended, in µs UTC; `tasks`: those that have
    failed."""

    dag: str
    run: str
    part: str
    at: int
    tasks: list[str]
    note: str | None


@dataclass(frozen=True, slots=True)
class CheckRun:
    """A run that has compared source and lake, or replayed. `part` and `at` as of a failed one; `of`: the begin of its
    data interval, in µs UTC; None: it has none."""

    dag: str
    run: str
    part: str
    at: int
    of: int | None
    state: str
    note: str


@dataclass(frozen=True, slots=True)
class SourceRuns:
    """What Airflow says of one source: its captures as far as Airflow knows them, and the newest runs, the newest
    first."""

    captures: tuple[CaptureDag, ...]
    failed_runs: tuple[FailedRun, ...]
    checks: tuple[CheckRun, ...]

    def only_of(self, may_read: Callable[[str], bool]) -> SourceRuns:
        """Without runs of DAGs that somebody may not read."""
        return replace(
            self,
            failed_runs=tuple(run for run in self.failed_runs if may_read(run.dag)),
            checks=tuple(run for run in self.checks if may_read(run.dag)),
        )

    def to_json(self) -> Json:
        return asdict(self)


def of_source(source: str) -> SourceRuns:
    """What Airflow says of a source now."""
    ids = dag_ids(source)
    captures = [ids["capture"], ids["capture_standby"]]
    with create_session() as session:
        paused = select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(captures), ~DagModel.is_stale)
        ends = _ends(session, ids)
        captures_now = tuple(
            CaptureDag(dag, is_paused, ends.get(dag)) for dag, is_paused in session.execute(paused.order_by("dag_id"))
        )
        kinds = {dag: kind for kind, dag in ids.items()}
        checks = _checks(session, {ids[kind]: kind for kind in _CHECKING})
        return SourceRuns(captures_now, _failed_runs(session, kinds), checks)


def _ends(session: Session, ids: dict[str, str]) -> dict[str, int]:
    """By capture DAG, when the slice that is at work ends: each attempt begins a slice of its own."""
    slices = {ids[kind]: seconds for kind, seconds in SLICES.items()}
    begun = select(TaskInstance.dag_id, func.max(TaskInstance.start_date)).where(
        TaskInstance.dag_id.in_(slices), TaskInstance.state == _RUNNING
    )
    rows = session.execute(begun.group_by(TaskInstance.dag_id))
    return {dag: _microseconds(start + dt.timedelta(seconds=slices[dag])) for dag, start in rows if start is not None}


def _newest_ended_runs(
    session: Session, kinds: dict[str, str], *conditions: ColumnElement[bool]
) -> Iterator[tuple[DagRun, dt.datetime]]:
    """Runs of these DAGs, and when they ended; the newest first."""
    newest = (
        select(DagRun, DagRun.end_date)
        .where(DagRun.dag_id.in_(kinds), DagRun.end_date.is_not(None), *conditions)
        .order_by(DagRun.end_date.desc())
        .limit(SHOWN)
    )
    return ((run, ended) for run, ended in session.execute(newest) if ended is not None)


def _checks(session: Session, kinds: dict[str, str]) -> tuple[CheckRun, ...]:
    return tuple(
        CheckRun(
            dag=run.dag_id,
            run=run.run_id,
            part=kinds[run.dag_id],
            at=_microseconds(ended),
            of=None if run.data_interval_start is None else _microseconds(run.data_interval_start),
            state=str(run.state),
            note=run.note,
        )
        for run, ended in _newest_ended_runs(session, kinds)
        if run.note
    )


def _failed_runs(session: Session, kinds: dict[str, str]) -> tuple[FailedRun, ...]:
    return tuple(
        FailedRun(
            dag=run.dag_id,
            run=run.run_id,
            part=kinds[run.dag_id],
            at=_microseconds(ended),
            tasks=_failed_tasks(session, run.dag_id, run.run_id),
            note=run.note,
        )
        for run, ended in _newest_ended_runs(session, kinds, DagRun.state == _FAILED)
    )


def _microseconds(time: dt.datetime) -> int:
    return int(time.timestamp() * 1e6)


def _failed_tasks(session: Session, dag: str, run: str) -> list[str]:
    of_run = (TaskInstance.dag_id == dag, TaskInstance.run_id == run, TaskInstance.state == _FAILED)
    return sorted(set(session.scalars(select(TaskInstance.task_id).where(*of_run))))
