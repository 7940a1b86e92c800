"""The example DAGs of docs/airflow.md in a real Airflow: operators, sensors and assets in people's own DAGs.

The capture runs outside of Airflow. Our own merge DAG is paused: what merges is an example's task or a command.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dblog_core.local.servers.postgres import PostgresServer
from tests.acceptance import shapes
from tests.acceptance.airflow_world import SPARK_SECONDS, AirflowWorld, running_airflow
from tests.acceptance.conftest import NewWorld
from tests.acceptance.world import World
from tests.waiting import wait_until

pytestmark = [pytest.mark.in_turn, pytest.mark.timeout(1800)]

EXAMPLES = Path(__file__).parents[1] / "airflow" / "example_dags"
NIGHTLY, REPORT, TRUSTED, ELSEWHERE = "orders_nightly", "orders_report", "orders_trusted", "orders_elsewhere"


@pytest.mark.one_of(2)
def test_the_examples_of_the_documentation_do_what_they_say(new_world: NewWorld, postgres: PostgresServer) -> None:
    # The triggerer has no secrets in these worlds, and its waits read the state store: one without a password.
    world = new_world("sqlite")
    world.write_config(airflow={"capture": "watch"})
    world.admin(*shapes.create("orders", "note VARCHAR(20)", 100, "'note {i}'"))
    texts = {file.name: _of_world(world, file.read_text()) for file in EXAMPLES.glob("*.py")}
    with (
        running_airflow(world, postgres, meanwhile=world.follow_check, own_dags=texts) as airflow,
        world.capture(),
    ):
        dag_ids = {NIGHTLY, REPORT, TRUSTED, ELSEWHERE}
        wait_until(
            lambda: dag_ids <= set(airflow.client.dags()), "the examples to be parsed", describe=airflow.client.dags
        )
        assert airflow.client.import_errors() == []
        airflow.client.pause(airflow.dag("merge"))
        for dag in (REPORT, ELSEWHERE):
            airflow.client.pause(dag, False)
        _dump_merge_and_read(airflow)
        _wait_for_an_interval_and_a_proof(airflow)
        _wait_in_the_triggerer(airflow)
        airflow.client.pause(REPORT)
        world.assert_equal("orders")


def _of_world(world: World, text: str) -> str:
    return text.replace('"shop.', f'"{world.schema}.').replace('"shop"', f'"{world.name}"')


def _dump_merge_and_read(airflow: AirflowWorld) -> None:
    """By the last run of the schedule; another one at the same time might merge the rows of this one."""
    airflow.client.pause(NIGHTLY, False)
    run = wait_until(lambda: _newest_run(airflow, NIGHTLY), "the last night to have a run")
    _await_end(airflow, NIGHTLY, run)
    dump = airflow.client.xcom(NIGHTLY, run, "dump")
    assert (dump["state"], dump["rows"], dump["tables"]) == ("done", 100, [airflow.world.table("orders")])
    assert airflow.client.xcom(NIGHTLY, run, "count_orders") == 100
    merged = airflow.client.xcom(NIGHTLY, run, "merge")
    report = wait_until(lambda: _newest_run(airflow, REPORT), "the merge's event to begin a run")
    _await_end(airflow, REPORT, report)
    result = airflow.client.xcom(REPORT, report, "report")
    assert result == {"offset": merged["tables"][airflow.world.table("orders")]["offset"], "newest": 100}


def _wait_for_an_interval_and_a_proof(airflow: AirflowWorld) -> None:
    airflow.client.pause(TRUSTED, False)
    run = wait_until(lambda: _newest_run(airflow, TRUSTED), "the last hour to have a run")
    _await_end(airflow, TRUSTED, run)
    assert airflow.client.xcom(TRUSTED, run, "verify")["equal"]
    proven = airflow.client.xcom(TRUSTED, run, "proven")
    assert proven["proven_at_us"] == airflow.world.table_status("orders")["verified"]["proven_at"]


def _wait_in_the_triggerer(airflow: AirflowWorld) -> None:
    """Nobody works on the dump, and then nobody merges: the tasks wait for both, and for nothing else."""
    world = airflow.world
    run = airflow.client.trigger(ELSEWHERE, {"orders": [1, 2, 3]})
    _await_state(airflow, run, "dump", {"deferred"})
    airflow.server.stop_component("triggerer")  # what a trigger knows outlives it
    airflow.server.start_component("triggerer")
    world.dblog("work", "--once")
    _await_state(airflow, run, "dump", {"success"})
    assert airflow.client.xcom(ELSEWHERE, run, "dump")["rows"] == 3
    _await_state(airflow, run, "fresh", {"up_for_reschedule"})
    assert "the lake lacks staged rows" in airflow.client.log(ELSEWHERE, run, "fresh"), "nobody has merged the dump"
    world.dblog("merge")
    _await_end(airflow, ELSEWHERE, run)
    assert airflow.client.xcom(ELSEWHERE, run, "fresh")["offset"] == world.table_status("orders")["lake_offset"]


def _states(airflow: AirflowWorld, run: str, dag: str = ELSEWHERE) -> dict[str, str]:
    return {task["task_id"]: str(task["state"]) for task in airflow.client.tasks(dag, run)}


def _await_state(airflow: AirflowWorld, run: str, task: str, states: set[str]) -> None:
    wait_until(
        lambda: _states(airflow, run)[task] in states,
        f"{task} to be {states}",
        timeout=SPARK_SECONDS,
        describe=lambda: _logs(airflow, ELSEWHERE, run),
    )


def _await_end(airflow: AirflowWorld, dag: str, run: str) -> None:
    ended = wait_until(
        lambda: state if (state := str(airflow.client.run(dag, run)["state"])) in ("success", "failed") else None,
        f"{dag}/{run} to end",
        timeout=SPARK_SECONDS,
        describe=lambda: _logs(airflow, dag, run),
    )
    assert ended == "success", _logs(airflow, dag, run)


def _logs(airflow: AirflowWorld, dag: str, run: str) -> list[Any]:
    begun = [task for task in airflow.client.tasks(dag, run) if task["try_number"]]
    logs = [airflow.client.log(dag, run, task["task_id"])[-4000:] for task in begun]
    return [_states(airflow, run, dag), *logs]


def _newest_run(airflow: AirflowWorld, dag: str) -> str | None:
    runs = airflow.client.runs(dag, limit=1)
    return str(runs[0]["dag_run_id"]) if runs else None
