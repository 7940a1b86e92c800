"""The link from a task to the page of its source."""

from __future__ import annotations

import re
from typing import Any, get_args

from airflow.sdk import BaseOperatorLink

from dblog_core.config.airflow import Dag

PREFIX = "/dblog"  # of the page's own application, below the API server's address
ROUTE = "dblog"  # of the page in Airflow's UI: /plugin/dblog
_DAG = re.compile(rf"dblog_(?P<source>[a-z][a-z0-9_]*?)_({'|'.join(get_args(Dag))})")


def source_of(dag_id: str) -> str | None:
    """The source that a DAG belongs to; None: dblog did not make this DAG."""
    match = _DAG.fullmatch(dag_id)
    return match["source"] if match else None


class SourcePage(BaseOperatorLink):
    """To leader, lag, dumps and the lake of the task's source."""

    name = "DBLog"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return f"/plugin/{ROUTE}?dag={ti_key.dag_id}"
