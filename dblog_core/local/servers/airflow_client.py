"""A small client of Airflow's REST API: what the demo, the stack and the tests ask of it."""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse
import uuid
from typing import Any

from dblog_core.errors import LocalError

_TIMEOUT_SECONDS = 180.0  # for one request: a busy machine has Airflow answer late, and who is gone refuses at once
_HEALTH_TIMEOUT_SECONDS = 30.0  # who asks for it asks again
_FINISHED = ("success", "failed")
_BUSY = ("Database error", "Database is locked")
"""Of an Airflow on SQLite that was locked for too long: the request changed nothing."""
_ATTEMPTS = 5


class AirflowClient:
    """Signs in with a password on first use; every call is one request."""

    def __init__(self, base_url: str, *, user: str, password: str) -> None:
        self._base = base_url
        self._user = user
        self._password = password
        self._token: str | None = None

    def answers(self) -> bool:
        """Whether the API server is up."""
        return bool(self._health())

    def healthy(self) -> bool:
        """Whether all components say that they are well."""
        health = self._health()
        return bool(health) and all(part.get("status") == "healthy" for part in health.values())

    def dags(self) -> list[str]:
        """Ids of the DAGs that Airflow has parsed."""
        return [dag["dag_id"] for dag in self.get("/dags?limit=1000&exclude_stale=true")["dags"]]

    def import_errors(self) -> list[dict[str, Any]]:
        return list(self.get("/importErrors")["import_errors"])

    def pause(self, dag: str, paused: bool = True) -> None:
        self.call("PATCH", f"/dags/{_quote(dag)}", {"is_paused": paused})

    def parse_again(self, dag: str) -> None:
        """Has the DAG's file parsed at once. Only a parse that finds a DAG unpaused lets the triggerer watch the assets
        that start it."""
        token = self.get(f"/dags/{_quote(dag)}")["file_token"]
        self.call("PUT", f"/parseDagFile/{_quote(token)}")

    def trigger(self, dag: str, conf: dict[str, Any] | None = None, *, run: str | None = None) -> str:
        """Starts a run and returns its id. Raises LocalError where `conf` breaks the form's schema, and says how."""
        run_id = run or f"manual__{uuid.uuid4().hex}"  # so that asking again after a fault starts no second run
        try:
            self.call(
                "POST", f"/dags/{_quote(dag)}/dagRuns", {"logical_date": None, "conf": conf or {}, "dag_run_id": run_id}
            )
        except LocalError as error:
            if run is not None or not error.message.startswith("409 "):
                raise
        return run_id

    def run(self, dag: str, run: str) -> dict[str, Any]:
        return dict(self.get(f"/dags/{_quote(dag)}/dagRuns/{_quote(run)}"))

    def runs(self, dag: str, *, state: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """The newest runs first."""
        query = f"?order_by=-run_after&limit={limit}" + (f"&state={state}" if state else "")
        return list(self.get(f"/dags/{_quote(dag)}/dagRuns{query}")["dag_runs"])

    def wait(self, dag: str, run: str, *, timeout: float) -> str:
        """The state in which the run ended. Raises LocalError after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while (state := str(self.run(dag, run)["state"])) not in _FINISHED:
            if time.monotonic() > deadline:
                raise LocalError(f"still {state} after {timeout:g} s", where=f"{dag}/{run}", fix=self.link(dag, run))
            time.sleep(0.5)
        return state

    def mark(self, dag: str, run: str, state: str) -> None:
        """Marks the run `failed` or `success`: its running tasks are asked to stop."""
        self.call("PATCH", f"/dags/{_quote(dag)}/dagRuns/{_quote(run)}", {"state": state})

    def clear(self, dag: str, run: str) -> None:
        """Runs the whole run again."""
        self.call("POST", f"/dags/{_quote(dag)}/dagRuns/{_quote(run)}/clear", {"dry_run": False})

    def tasks(self, dag: str, run: str) -> list[dict[str, Any]]:
        """The run's task instances: `task_id`, `map_index`, `state`, `try_number`, …"""
        return list(self.get(f"/dags/{_quote(dag)}/dagRuns/{_quote(run)}/taskInstances")["task_instances"])

    def xcom(self, dag: str, run: str, task: str, key: str = "return_value") -> Any:
        path = f"/dags/{_quote(dag)}/dagRuns/{_quote(run)}/taskInstances/{_quote(task)}/xcomEntries/{_quote(key)}"
        return self.get(f"{path}?deserialize=true")["value"]

    def log(self, dag: str, run: str, task: str, *, attempt: int | None = None, index: int = -1) -> str:
        """What one attempt of a task wrote; the newest by default."""
        if attempt is None:
            named = [t for t in self.tasks(dag, run) if (t["task_id"], t["map_index"]) == (task, index)]
            attempt = max((int(t["try_number"]) for t in named), default=1)
        path = f"/dags/{_quote(dag)}/dagRuns/{_quote(run)}/taskInstances/{_quote(task)}/logs/{attempt}"
        lines = self.get(f"{path}?map_index={index}")["content"]
        return "\n".join(line["event"] if isinstance(line, dict) else str(line) for line in lines)

    def link(self, dag: str, run: str | None = None) -> str:
        """Where a person looks at it."""
        return f"{self._base}/dags/{_quote(dag)}" + (f"/runs/{_quote(run)}" if run else "")

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request below /api/v2. Raises LocalError with the server's own words."""
        if self._token is None:
            credentials = {"username": self._user, "password": self._password}
            self._token = str(self._send("POST", "/auth/token", credentials, {})["access_token"])
        # SQLite lets one write at a time, so that a busy Airflow refuses now and then.
        for attempt in range(1, _ATTEMPTS):
            try:
                return self._send(method, f"/api/v2{path}", body, {"Authorization": f"Bearer {self._token}"})
            except LocalError as error:
                if not any(words in error.message for words in _BUSY):
                    raise
            time.sleep(attempt)
        return self._send(method, f"/api/v2{path}", body, {"Authorization": f"Bearer {self._token}"})

    def _health(self) -> dict[str, dict[str, Any]]:
        try:
            return dict(self._send("GET", "/api/v2/monitor/health", None, {}, timeout=_HEALTH_TIMEOUT_SECONDS))
        except LocalError:
            return {}

    def _send(
        self, method: str, path: str, body: Any, headers: dict[str, str], *, timeout: float = _TIMEOUT_SECONDS
    ) -> Any:
        where = f"Airflow {method} {path}"
        all_headers = {"Content-Type": "application/json", **headers}
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self._base).netloc, timeout=timeout)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), all_headers)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise LocalError(f"no answer: {error}", where=where, fix="is it running? `make up`") from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise LocalError(f"{answer.status} {text.decode(errors='replace')[:2000]}", where=where)
        return json.loads(text) if text else None


def _quote(part: str) -> str:
    return urllib.parse.quote(part, safe="")
