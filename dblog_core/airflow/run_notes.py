"""What tasks tell beside their results: a note of their run, and our figures among Airflow's own metrics.

A note says in a sentence or two what a run has done. Airflow lets no task write one. So the task puts it into its XCom
`note`, and this listener, which Airflow calls in the process that ends the run, copies it. A note that a person has
written stays. Metrics go where Airflow is configured to send its own (StatsD, OpenTelemetry, Datadog).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from airflow.listeners import hookimpl
from airflow.sdk.observability import stats

log = logging.getLogger(__name__)

NOTE = "note"
"""The key of the XCom."""
LONGEST = 1000  # characters of a note, by Airflow's own table


def tell(context: Any, text: str) -> None:
    """Has the run of a task's context say so, once it has ended."""
    note = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}\u2026"
    if (task := context.get("ti")) is not None:
        task.xcom_push(NOTE, note)


def gauges(source: str, values: Mapping[str, float | None]) -> None:
    """Sets the metrics `dblog.SOURCE.NAME`; what is not known is left out. The source stands in the name, since StatsD
    knows no labels."""
    for name, value in values.items():
        if value is not None:
            stats.gauge(f"dblog.{source}.{name}", float(value))


def counts(source: str, values: Mapping[str, int]) -> None:
    """Adds to the counters `dblog.SOURCE.NAME`."""
    for name, value in values.items():
        stats.incr(f"dblog.{source}.{name}", value)


@hookimpl
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    _copy(dag_run)


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    _copy(dag_run)


def _copy(dag_run: Any) -> None:
    """Within the session that ends the run: its own commit writes the note."""
    from airflow.models.xcom import XComModel
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    if not dag_run.dag_id.startswith("dblog_") or dag_run.note or (session := object_session(dag_run)) is None:
        return
    of_run = (XComModel.dag_id == dag_run.dag_id, XComModel.run_id == dag_run.run_id, XComModel.key == NOTE)
    stored_note = session.scalars(
        select(XComModel.value).where(*of_run).order_by(XComModel.timestamp.desc()).limit(1)
    ).first()
    if stored_note is None:
        return
    text = json.loads(stored_note) if isinstance(stored_note, str) and stored_note.startswith('"') else stored_note
    dag_run.note = str(text)[:LONGEST]
