"""What our page's application tells, and whom; no Airflow runs."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from dblog_core.airflow import ui_page
from dblog_core.airflow.dag_factory import Sources
from dblog_core.airflow.dag_runs import CaptureDag, CheckRun, FailedRun, SourceRuns
from dblog_core.config.settings import Config
from dblog_core.errors import ConfigError
from dblog_core.monitoring.lag_history import LagHistory
from dblog_core.monitoring.storage_usage import Meter
from tests.waiting import PATIENCE_SECONDS


class Manager:
    """Lets a user see every DAG, or one source's."""

    def __init__(self, *, every: bool) -> None:
        self._every = every

    def is_authorized_dag(self, *, method: str, user: Any, details: Any = None, access_entity: Any = None) -> bool:
        return self._every or (details is not None and details.id == "dblog_mine_dump")


def client(monkeypatch: pytest.MonkeyPatch, *, every: bool) -> TestClient:
    monkeypatch.setattr(ui_page, "requires_access_view", lambda _: lambda: None)
    monkeypatch.setattr(ui_page, "get_auth_manager", lambda: Manager(every=every))
    fault = ConfigError("[source] hosst: is not known", where="/etc/dblog/theirs.toml", fix="did you mean host?")
    monkeypatch.setattr(ui_page, "read_sources", lambda: Sources({}, (fault,)))
    page_app = ui_page.app()
    page_app.dependency_overrides[get_user] = lambda: "somebody"
    return TestClient(page_app)


def test_a_page_has_one_script_of_its_own_and_asks_its_own_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    nonces = set()
    for _ in range(2):
        answer = client(monkeypatch, every=True).get("/")
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
        (nonce,) = re.findall(r'<script nonce="([^"]+)">', answer.text)
        assert "<script>" not in answer.text and answer.text.count("<script") == 1
        assert policy["script-src"] == f"'nonce-{nonce}'" and policy["frame-ancestors"] == "'self'"
        assert (policy["default-src"], policy["connect-src"]) == ("'none'", "'self'")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        nonces.add(nonce)
    assert len(nonces) == 2


@pytest.mark.parametrize("every", [True, False])
def test_a_fault_of_a_file_is_told_to_those_who_may_see_every_source(
    monkeypatch: pytest.MonkeyPatch, every: bool
) -> None:
    answer = client(monkeypatch, every=every).get("/sources")
    assert answer.status_code == 200
    assert ("theirs.toml" in answer.text, "hosst" in answer.text) == (every, every)


def test_a_source_that_answers_slowly_holds_one_of_airflows_threads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ui_page._Source(cast(Config, None), cast(Meter, None), cast(LagHistory, None))
    looks = threading.Semaphore(0)
    answers = threading.Semaphore(0)

    view = ui_page._View({"looked": True}, SourceRuns((), (), ()))

    def answer_slowly(_: ui_page._Source) -> ui_page._View:
        looks.release()
        assert answers.acquire(timeout=PATIENCE_SECONDS)
        return view

    monkeypatch.setattr(ui_page._Source, "_look", answer_slowly)
    answers.release()
    assert source.look() is view and looks.acquire(timeout=PATIENCE_SECONDS)
    source.at = float("-inf")
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(source.look)
        assert looks.acquire(timeout=PATIENCE_SECONDS), "one request looks again"
        assert pool.submit(source.look).result(timeout=PATIENCE_SECONDS) is view
        assert not slow.done()
        answers.release()
        assert slow.result(timeout=PATIENCE_SECONDS) is view


def test_runs_are_shown_to_those_alone_who_may_read_their_dag() -> None:
    captures = (CaptureDag("dblog_shop_capture", paused=False, ends=7),)
    failed = tuple(FailedRun(dag, "r1", "dump", 5, ["work"], None) for dag in ("dblog_shop_dump", "dblog_shop_merge"))
    checks = tuple(
        CheckRun(dag, "r2", "verify", 6, None, "success", "equal") for dag in ("dblog_shop_verify", "dblog_shop_repair")
    )
    view = ui_page._View({"source": "shop"}, SourceRuns(captures, failed, checks))
    assert view.to_json(lambda dag: dag in ("dblog_shop_dump", "dblog_shop_repair")) == {
        "source": "shop",
        "captures": ({"dag": "dblog_shop_capture", "paused": False, "ends": 7},),
        "failed_runs": (
            {"dag": "dblog_shop_dump", "run": "r1", "part": "dump", "at": 5, "tasks": ["work"], "note": None},
        ),
        "checks": (
            {"dag": "dblog_shop_repair", "run": "r2", "part": "verify", "at": 6, "of": None, "state": "success",
             "note": "equal"},
        ),
    }  # fmt: skip
