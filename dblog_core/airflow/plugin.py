"""What we add to Airflow: a page for all sources, the same on the pages of our DAGs and runs, links to it, and notes.

Airflow loads plugins in every one of its processes, so the page's application is made by the first request for it.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from dblog_core.airflow import run_notes
from dblog_core.airflow.links import PREFIX, ROUTE, SourcePage


class _OnDemand:
    """An ASGI application that is imported when it is first asked for something."""

    _app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is None:
            from dblog_core.airflow.ui_page import app

            self._app = app()
        await self._app(scope, receive, send)


def _view(destination: str, href: str, **options: Any) -> dict[str, Any]:
    return {"name": "DBLog", "href": f"{PREFIX}/{href}", "destination": destination, **options}


class DblogPlugin(AirflowPlugin):
    """Found by its entry point, `airflow.plugins`."""

    name = "dblog"
    fastapi_apps = [{"name": "DBLog", "app": _OnDemand(), "url_prefix": PREFIX}]  # noqa: RUF012  (Airflow reads it here)
    external_views = [  # noqa: RUF012  (as above)
        _view("nav", "", url_route=ROUTE, nav_top_level=True),
        _view("dag", "?dag={DAG_ID}", url_route=f"{ROUTE}-dag"),
        _view("dag_run", "?dag={DAG_ID}", url_route=f"{ROUTE}-run"),
    ]
    listeners = [run_notes]  # noqa: RUF012  (as above)
    operator_extra_links = [SourcePage()]  # noqa: RUF012  (as above)
