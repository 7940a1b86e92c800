"""What the tasks of a dump run make of their dump; no Airflow runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from dblog_core import control, requests
from dblog_core.airflow import dump, engine
from dblog_core.dumps import TaskProgress
from dblog_core.requests import DumpRequest
from dblog_core.state.memory import MemoryState
from tests.unit.requests_world import ORDERS, World, make

RUN = SimpleNamespace(dag_id="dblog_shop_dump", run_id="manual__1")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = make(tmp_path, monkeypatch)
    made.fill(ORDERS, [(1,), (2,)])
    monkeypatch.setattr(engine, "configuration", lambda _: made.config)
    return made


def context(**params: Any) -> dict[str, Any]:
    return {"params": params, "dag_run": RUN}


def submitted(world: World, run: Any = RUN) -> str:
    asked = DumpRequest(("shop.orders",), ranges=1)
    return requests.submit(world.config, asked, requested_by=dump.requester(run), state=world.state)


def close(**params: Any) -> None:
    dump.CloseDump(task_id="close", config_file="shop.toml").execute(context(**params))


def finish(state: MemoryState, dump_id: str) -> None:
    control.put_progress(state, f"{dump_id}/0", TaskProgress("shop.orders", attempt=1, done=True))


def test_a_run_ends_well_whose_dump_is_done(world: World) -> None:
    earlier = submitted(world)
    control.cancel(world.state, earlier)  # by `plan`, when the run was cleared
    finish(world.state, submitted(world))
    close()


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (control.cancel, "is cancelled: somebody ended it"),
        (lambda state, one: control.fail(state, one, 0, "no such column"), "is failed: shop.orders: no such column"),
        (lambda *_: None, "the run ended before its dump, which is cancelled"),
    ],
    ids=["cancelled", "failed", "not over"],
)
def test_a_run_fails_whose_dump_is_not_done(world: World, end: Callable[[Any, str], None], reason: str) -> None:
    """`close` is the run's only leaf that counts: whatever failed before it, the run ends as it does."""
    other = submitted(world, SimpleNamespace(dag_id="dblog_shop_dump", run_id="manual__2"))
    mine = submitted(world)
    end(world.state, mine)
    with pytest.raises(AirflowFailException, match=reason):
        close()
    assert control.dump(world.state, mine).state in control.OVER
    assert control.dump(world.state, other).state == "requested", "another run's dump is left alone"


def test_a_dump_that_nobody_knows_any_more_is_no_success(world: World) -> None:
    with pytest.raises(AirflowFailException, match="nobody knows how it ended"):
        close()
    close(dry_run=True)  # which requests none
