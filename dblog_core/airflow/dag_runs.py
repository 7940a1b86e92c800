"""What Airflow's own database says of a source's DAGs: which are paused, which runs have failed, what others say.

For the page, in the API server's process. A run that was killed has reported nothing; it is found here.
"""

from __future__ import annotations

from typing import get_args

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import func, select
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


def of_source(source: str) -> Json:
    """`captures`: [{"dag", "paused", "ends": µs UTC at which the run at work ends, or null}] of those that Airflow
    knows; `failed_runs`: [{"dag", "run", "part", "at": µs UTC, "tasks": names of those that failed, "note"}], the
    newest first; `checks`: [{"dag", "run", "part", "at", "of": begin of its interval or null, "state", "note"}], the
    newest runs that have compared source and lake, or replayed."""
    ids = dag_ids(source)
    captures = [ids["capture"], ids["capture_standby"]]
    with create_session() as session:
        paused = select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(captures), ~DagModel.is_stale)
        ends = _ends(session, ids)
        capture_dags = [
            {"dag": dag, "paused": is_paused, "ends": ends.get(dag)}
            for dag, is_paused in session.execute(paused.order_by("dag_id"))
        ]
        kinds = {dag: kind for kind, dag in ids.items()}
        checks = _checks(session, {ids[kind]: kind for kind in _CHECKING})
        return {"captures": capture_dags, "failed_runs": _failed_runs(session, kinds), "checks": checks}


def _ends(session: Session, ids: dict[str, str]) -> dict[str, int]:
    """By capture DAG, when the slice that is at work ends: each attempt begins a slice of its own."""
    slices = {ids[kind]: seconds for kind, seconds in SLICES.items()}
    begun = select(TaskInstance.dag_id, func.max(TaskInstance.start_date)).where(
        TaskInstance.dag_id.in_(slices), TaskInstance.state == _RUNNING
    )
    rows = session.execute(begun.group_by(TaskInstance.dag_id))
    return {dag: int((start.timestamp() + slices[dag]) * 1e6) for dag, start in rows if start is not None}


def _checks(session: Session, kinds: dict[str, str]) -> list[Json]:
    newest = (
        select(DagRun, DagRun.end_date)
        .where(DagRun.dag_id.in_(kinds), DagRun.end_date.is_not(None))
        .order_by(DagRun.end_date.desc())
        .limit(SHOWN)
    )
    return [
        {
            "dag": run.dag_id,
            "run": run.run_id,
            "part": kinds[run.dag_id],
            "at": int(ended.timestamp() * 1e6),
            "of": None if run.data_interval_start is None else int(run.data_interval_start.timestamp() * 1e6),
            "state": str(run.state),
            "note": run.note,
        }
        for run, ended in session.execute(newest)
        if ended is not None and run.note
    ]


def _failed_runs(session: Session, kinds: dict[str, str]) -> list[Json]:
    newest = (
        select(DagRun, DagRun.end_date)
        .where(DagRun.dag_id.in_(kinds), DagRun.state == _FAILED, DagRun.end_date.is_not(None))
        .order_by(DagRun.end_date.desc())
        .limit(SHOWN)
    )
    return [
        {
            "dag": run.dag_id,
            "run": run.run_id,
            "part": kinds[run.dag_id],
            "at": int(ended.timestamp() * 1e6),
            "tasks": _failed_tasks(session, run.dag_id, run.run_id),
            "note": run.note,
        }
        for run, ended in session.execute(newest)
        if ended is not None
    ]


def _failed_tasks(session: Session, dag: str, run: str) -> list[str]:
    of_run = (TaskInstance.dag_id == dag, TaskInstance.run_id == run, TaskInstance.state == _FAILED)
    return sorted(set(session.scalars(select(TaskInstance.task_id).where(*of_run))))
