"""What Airflow's own database says of a source's DAGs: which are paused, and which of their runs have failed.

For the page, in the API server's process. A run that was killed has told nobody why; here it is found all the same.
"""

from __future__ import annotations

from typing import get_args

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.orm import Session

from dblog_core.config import Dag
from dblog_core.interfaces import Json

SHOWN = 10
"""Failed runs of a source, the newest."""

_FAILED = "failed"


def dag_ids(source: str) -> dict[str, str]:
    """The DAGs that a source may have, by what each is for."""
    return {kind: f"dblog_{source}_{kind}" for kind in get_args(Dag)}


def of_source(source: str) -> Json:
    """`captures`: [{"dag", "paused"}] of those that Airflow knows; `failed_runs`: [{"dag", "run", "part", "at": µs UTC,
    "tasks": names of those that failed, "note"}], the newest first."""
    ids = dag_ids(source)
    captures = [ids["capture"], ids["capture_standby"]]
    with create_session() as session:
        paused = select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(captures), ~DagModel.is_stale)
        known = [{"dag": dag, "paused": is_paused} for dag, is_paused in session.execute(paused.order_by("dag_id"))]
        return {"captures": known, "failed_runs": _failed(session, {dag: kind for kind, dag in ids.items()})}


def _failed(session: Session, kinds: dict[str, str]) -> list[Json]:
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
