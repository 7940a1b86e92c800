"""What the DAG files make of $DBLOG_CONFIG_DIR, in this process or, as a program, in one of its own.

Nothing but the standard library is imported, so that a process of its own tells what the DAG files import.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

DAGS = Path(__file__).parents[2] / "dags"
_DRIVERS = ("pyspark", "pyarrow", "pandas", "pymysql", "psycopg2", "kazoo", "pymysqlreplication")


def parse() -> dict[str, Any]:
    """What one parse of both files finds."""
    names = runpy.run_path(str(DAGS / "dblog.py"))
    dags = {name: dag for name, dag in names.items() if name.startswith("dblog_")}
    forms = {name: dag.params for name, dag in dags.items() if name.endswith("_dump")}
    deltas = {name: getattr(dag.timetable, "delta", None) for name, dag in dags.items()}
    return {
        "error": _error(),
        "drivers": [module for module in _DRIVERS if module in sys.modules],
        "params": {name: {key: form.get_param(key).schema for key in form} for name, form in forms.items()},
        "tasks": {name: {task.task_id: task.retries for task in dag.tasks} for name, dag in dags.items()},
        "pools": {name: {task.task_id: task.pool for task in dag.tasks} for name, dag in dags.items()},
        "told": {name: [type(call).__name__ for call in dag.on_failure_callback or []] for name, dag in dags.items()},
        "late": {name: [_limit(deadline) for deadline in dag.deadline or []] for name, dag in dags.items()},
        "schedules": {name: type(dag.timetable).__name__ for name, dag in dags.items()},
        "periods": {name: delta.total_seconds() for name, delta in deltas.items() if delta is not None},
    }


def _error() -> str:
    """The import error that Airflow would show."""
    try:
        runpy.run_path(str(DAGS / "dblog_config_errors.py"))
    except Exception as fault:  # noqa: BLE001 - whatever it is, Airflow shows it
        return str(fault)
    return ""


def _limit(deadline: Any) -> list[Any]:
    return [deadline.callback.path, deadline.callback.kwargs, deadline.interval.total_seconds()]


if __name__ == "__main__":
    print(json.dumps(parse()))
