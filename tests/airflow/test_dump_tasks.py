"""What the tasks of a dump run make of their dump; no Airflow runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import AirflowFailException

from dblog_core.airflow import dump_operators, in_process
from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.dumps import control, dump_records, dump_store, filing, task_store
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError
from dblog_core.model.task_id import TaskId
from dblog_core.state import recent_errors
from dblog_core.state.lease_holder import CAPTURE
from dblog_core.state.memory import MemoryState
from tests.unit.requests_world import ORDERS, World, make

RUN = SimpleNamespace(dag_id="dblog_shop_dump", run_id="manual__1")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    task_world = make(tmp_path, monkeypatch)
    task_world.fill(ORDERS, [(1,), (2,)])
    monkeypatch.setattr(in_process, "configuration", lambda _: task_world.config)
    return task_world


def context(**params: Any) -> dict[str, Any]:
    return {"params": params, "dag_run": RUN}


def submit_dump(world: World, run: Any = RUN) -> str:
    request = DumpRequest(("shop.orders",), ranges=1)
    return filing.submit(world.config, request, requested_by=dump_operators.requester(run), state=world.state)


def close(**params: Any) -> None:
    dump_operators.CloseDump(task_id="close", config_file="shop.toml").execute(context(**params))


def finish(state: MemoryState, dump_id: str) -> None:
    task_store.put_progress(state, TaskId(dump_id, 0), TaskProgress("shop.orders", attempt=1, done=True))


def test_a_run_ends_well_whose_dump_is_done(world: World) -> None:
    earlier = submit_dump(world)
    control.cancel(world.state, earlier)  # by `plan`, when the run was cleared
    finish(world.state, submit_dump(world))
    close()


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (control.cancel, "is cancelled: somebody ended it"),
        (
            lambda state, dump_id: task_store.fail_task(state, TaskId(dump_id, 0), "no such column"),
            "is failed: shop.orders: no such column",
        ),
        (lambda *_: None, "the run ended before its dump, which is cancelled"),
    ],
    ids=["cancelled", "failed", "not over"],
)
def test_a_run_fails_whose_dump_is_not_done(world: World, end: Callable[[Any, str], None], reason: str) -> None:
    """`close` is the run's only leaf that counts: whatever failed before it, the run ends as it does."""
    other = submit_dump(world, SimpleNamespace(dag_id="dblog_shop_dump", run_id="manual__2"))
    own_dump_id = submit_dump(world)
    end(world.state, own_dump_id)
    with pytest.raises(AirflowFailException, match=reason):
        close()
    assert dump_store.read_dump(world.state, own_dump_id).state in dump_records.OVER
    assert dump_store.read_dump(world.state, other).state == "requested", "another run's dump is left alone"


@pytest.mark.parametrize(
    ("capture", "fix"),
    [
        ("run", "unpause dblog_shop_capture and dblog_shop_capture_standby"),
        ("watch", "start the capture where it runs"),
    ],
)
def test_a_dump_that_no_capture_serves_is_requested_with_a_warning_that_says_what_to_do(
    world: World, caplog: pytest.LogCaptureFixture, capture: str, fix: str
) -> None:
    airflow = world.config.airflow.model_copy(update={"capture": capture})
    world.config = world.config.model_copy(update={"airflow": airflow})
    plan_dump(world)
    assert "no capture of shop is running" in caplog.text and f"fix: {fix}" in caplog.text


def test_a_plan_says_whether_all_tables_were_chosen(world: World, caplog: pytest.LogCaptureFixture) -> None:
    lease = world.state.acquire(CAPTURE, "elsewhere:7", ttl=300)
    with caplog.at_level(logging.INFO, logger=dump_operators.log.name):
        plan_dump(world, tables=["*.*"])
        plan_dump(world, tables=["shop.orders"])
    assert lease is not None and "no capture" not in caplog.text
    first, second = (line for line in caplog.text.splitlines() if " of " in line)
    assert "of all 4 captured tables that have a key: shop.customers, " in first
    assert second.endswith("of the tables named: shop.orders")


def plan_dump(world: World, **params: Any) -> None:
    """Runs the task `plan`; its dump is filed then."""
    pushed: dict[str, str] = {}
    ti = SimpleNamespace(xcom_push=pushed.__setitem__)
    dump_operators.PlanDump(task_id="plan", config_file="shop.toml").execute({**context(**params), "ti": ti})
    assert dump_store.read_dump(world.state, pushed[dump_operators.DUMP]).state == "requested"


def test_why_a_task_failed_is_among_the_recent_errors_of_its_source(world: World) -> None:
    with pytest.raises(RequestError) as refused:
        plan_dump(world, tables=["shop.ordrs"])
    assert isinstance(refused.value, SystemExit), "of an exit Airflow writes no traces"
    decision = in_process.ONLY_TRANSIENT.evaluate(exception=refused.value, try_number=1, max_tries=9, context=None)
    assert decision.action is RetryAction.FAIL
    (error,) = recent_errors.read(world.state)
    assert (error.part, error.error) == ("dump", "'shop.ordrs' is not a captured table")
    assert "shop.orders" in error.fix


def test_a_dump_that_nobody_knows_any_more_is_no_success(world: World) -> None:
    with pytest.raises(AirflowFailException, match="nobody knows how it ended"):
        close()
    close(dry_run=True)  # which requests none
