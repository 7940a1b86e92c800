"""A run's note: what a task has to say of its run in a sentence or two, where people look for it.

Airflow lets no task write a note. So the task puts it into its XCom `note`, and this listener, which Airflow calls in
the process that ends the run, copies it. A note that a person has written stays.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from airflow.listeners import hookimpl

log = logging.getLogger(__name__)

NOTE = "note"
"""The key of the XCom."""
LONGEST = 1000  # characters of a note, by Airflow's own table


def tell(context: Any, text: str) -> None:
    """Has the run of a task's context say so, once it has ended."""
    note = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}\u2026"
    if (task := context.get("ti")) is not None:
        task.xcom_push(NOTE, note)


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
