"""Our page in Airflow's UI: in a browser's frame, and as the application behind it."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from contextlib import closing
from typing import Any

from playwright.sync_api import FrameLocator, Page

from dblog_core.local.servers import airflow_settings
from tests.fix_airflow import Live
from tests.waiting import PATIENCE_SECONDS, wait_until


def own_page(page: Page) -> FrameLocator:
    """Our page, in the frame in which Airflow shows it."""
    return page.frame_locator("iframe")


def ask_page(
    live: Live, method: str, path: str, *, user: str | None, body: Any = None, as_script: bool = True
) -> tuple[int, Any]:
    """Asks our page's own application; `as_script`: with the header that our script sends."""
    headers = {"Content-Type": "application/json"}
    if as_script:
        headers["X-Requested-With"] = "dblog"
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(live.server.url).netloc, timeout=PATIENCE_SECONDS)
    with closing(connection):
        if user is not None:
            headers["Authorization"] = f"Bearer {_token(connection, user, live.server.password(user))}"
        connection.request(method, f"/dblog/{path}", None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, json.loads(text) if text.startswith(("{", "[")) else text


def newest_failed_run(live: Live, dag: str, run: str) -> dict[str, Any]:
    """What the page tells of `run`, once it is the newest of its DAG that has failed. While the page looks for somebody
    else, it tells what it saw before."""

    def look() -> dict[str, Any] | None:
        status, answer = ask_page(live, "GET", "sources/live", user=airflow_settings.GUEST)
        assert status == 200
        newest = next((entry for entry in answer["failed_runs"] if entry["dag"] == dag), None)
        return newest if newest and newest["run"] == run else None

    return wait_until(look, f"the page shows {run}")


def _token(connection: http.client.HTTPConnection, user: str, password: str) -> str:
    credentials = json.dumps({"username": user, "password": password})
    connection.request("POST", "/auth/token", credentials, {"Content-Type": "application/json"})
    return str(json.loads(connection.getresponse().read())["access_token"])
