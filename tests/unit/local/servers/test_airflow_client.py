"""The client of Airflow's REST API, against a server that is busy."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from dblog_core.errors import LocalError
from dblog_core.local.servers.airflow_client import AirflowClient

LOCKED = {"detail": "Database is locked. Backfill creation is not supported on SQLite under concurrent access."}


class _Busy(BaseHTTPRequestHandler):
    answers: ClassVar[list[tuple[int, dict[str, object]]]] = []
    paths: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.paths.append(self.path)
        status, body = (201, {"access_token": "t"}) if self.path == "/auth/token" else self.answers.pop(0)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args: object) -> None:
        """Nothing: a test's output is no access log."""


@pytest.fixture
def client() -> Iterator[AirflowClient]:
    server = HTTPServer(("127.0.0.1", 0), _Busy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    _Busy.answers.clear()
    _Busy.paths.clear()
    yield AirflowClient(f"http://127.0.0.1:{server.server_port}", user="dblog", password="secret")
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_request_that_met_a_locked_database_is_made_again(client: AirflowClient) -> None:
    _Busy.answers.extend([(503, LOCKED), (200, {"id": 7})])
    assert client.call("POST", "/backfills", {}) == {"id": 7}
    assert _Busy.paths == ["/auth/token", "/api/v2/backfills", "/api/v2/backfills"]


def test_what_airflow_refuses_is_asked_once(client: AirflowClient) -> None:
    _Busy.answers.append((409, {"detail": "There is already a running backfill"}))
    with pytest.raises(LocalError, match=r"409 .*already a running backfill"):
        client.call("POST", "/backfills", {})
    assert _Busy.paths == ["/auth/token", "/api/v2/backfills"]
