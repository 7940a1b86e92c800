"""Every DAG of a source in a real Airflow: the scenario of a user, and what is left in the lake and in Airflow."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from deltalake import DeltaTable

from dblog_core.local.servers.postgres import PostgresServer
from tests.acceptance import shapes
from tests.acceptance.airflow_world import CAPTURES, AirflowWorld, running_airflow
from tests.acceptance.conftest import NewWorld
from tests.acceptance.secret_texts import shown_in
from tests.acceptance.world import World
from tests.waiting import wait_until

pytestmark = [pytest.mark.in_turn, pytest.mark.timeout(1800)]  # seven starts of Spark on a busy machine

ON_THE_LAKE = ("replay", "verify", "repair", "maintenance")
_AIRFLOW = {
    "verify_every": "never",  # only by hand
    "repair_slices": 1,  # so that the first scheduled run repairs all keys
}


def _new_world(new_world: NewWorld, **airflow: Any) -> World:
    world = new_world("zookeeper")
    world.write_config(airflow={**_AIRFLOW, **airflow})
    world.admin(
        *shapes.create("orders", "note VARCHAR(20), paid DECIMAL(10,2)", 100, "'note {i}', {i}.25"),
        *shapes.create("events", "note VARCHAR(20)", 100, "'event {i}'"),
        *shapes.documents(world.kind),
    )
    return world


@pytest.mark.one_of(2)
def test_the_dags_bring_the_source_to_the_lake_and_repair_it(new_world: NewWorld, postgres: PostgresServer) -> None:
    world = _new_world(new_world)
    with running_airflow(world, postgres, meanwhile=world.follow_check) as airflow:
        airflow.await_kinds(*CAPTURES, "dump", "merge", *ON_THE_LAKE)
        began_at = dt.datetime.now(dt.UTC)
        airflow.start_captures()
        planned = airflow.run("dump", {"dry_run": True})
        assert {table["table"] for table in airflow.xcom("dump", planned, "plan", "plan")["tables"]} >= {
            world.table("orders"),
            world.table("events"),
        }
        assert world.json("dumps") == [], "a dry run requests nothing"
        _dump_tables(airflow)
        _change_tables(airflow)
        _dump_keys(airflow)
        page = airflow.page()
        assert {table["state"] for table in page["tables"]} == {"ok"} and page["leader"] is not None, page
        _replay(airflow, since=began_at)
        _verify_and_repair(airflow)
        _maintain(airflow)
        airflow.stop(*CAPTURES)
        world.until_status(lambda status: status["leader"] is None, "the captures to end")
        airflow.assert_all_ran()
        airflow.assert_no_secret_kept()


@pytest.mark.one_of(2)
def test_the_dags_of_a_merge_that_always_runs_and_of_a_capture_elsewhere(
    new_world: NewWorld, postgres: PostgresServer
) -> None:
    world = _new_world(new_world, capture="watch", merge="continuous", approve_rows=50)
    with (
        running_airflow(world, postgres, meanwhile=world.follow_check) as airflow,
        world.capture(),
    ):
        airflow.await_kinds("capture", "dump", "merge", "merge_standby", *ON_THE_LAKE)
        began_at = dt.datetime.now(dt.UTC)
        airflow.unpause("capture")
        airflow.await_log("capture", "leading, epoch")
        airflow.await_pair(("merge", "merge_standby"), "Spark has started")
        _dump_tables(airflow, approval=True)
        _change_tables(airflow)
        _dump_keys(airflow)
        _replay(airflow, since=began_at)
        _verify_and_repair(airflow)
        _maintain(airflow)
        environments = [str(driver.environ()) for driver in airflow.spark_drivers()]
        assert environments, "no merge runs"
        airflow.stop("capture", "merge", "merge_standby")
        airflow.assert_all_ran()
        airflow.assert_no_secret_kept()
    # docs/configuration.md: a Spark job gets the secrets of the state store and of S3; that of dump workers is another.
    assert shown_in("\n".join(environments), [world.password]) == [], "the merge's Spark job has the source's password"


def _dump_tables(airflow: AirflowWorld, *, approval: bool = False) -> None:
    """The full state of two tables. `documents` is left out, so that the lake has not seen its texts."""
    world = airflow.world
    run = airflow.client.trigger(airflow.dag("dump"), {"tables": [world.table("orders"), world.table("events")]})
    if approval:
        airflow.approve(run)
    airflow.await_end("dump", run)
    assert airflow.xcom("dump", run, "complete")["rows"] == 200
    airflow.bring_to_lake("orders", "events")


def _change_tables(airflow: AirflowWorld) -> None:
    """Values that only the source has: the merge files dumps, and the capture carries them out."""
    world = airflow.world
    is_postgres = world.kind == "postgres"
    world.admin(
        "ALTER TABLE orders ADD COLUMN state VARCHAR(10) NOT NULL DEFAULT 'new'",
        "INSERT INTO orders VALUES (101, 'late', 1.50, 'paid')",
        "UPDATE orders SET note = 'changed' WHERE id = 1",
        shapes.ADD_NOW[world.kind].format(t="events", c="seen"),
        "INSERT INTO events (id, note) VALUES (101, 'a'), (102, 'b')",
        *(["UPDATE documents SET title = 'another' WHERE id <= 3"] if is_postgres else []),
    )
    # PostgreSQL: a table that a dump has shown before the log gets a constant default by a dump too (docs/lake.md).
    airflow.bring_to_lake(*([] if is_postgres else ["orders"]))
    tables = [world.table(table) for table in (["events", "documents"] if is_postgres else ["events"])]

    def are_requested_and_done(status: Any) -> bool:
        dumps = [dump for dump in status["dumps"] if not dump["requested_by"].startswith("airflow:")]
        requested = {table for dump in dumps for table in dump["tables"]}
        return requested >= set(tables) and {dump["state"] for dump in dumps} == {"done"}

    world.until_status(are_requested_and_done, f"dumps of {tables} to be requested and done")
    airflow.bring_to_lake("orders", "events")
    if is_postgres:
        lengths = dict.fromkeys((1, 2, 3), 20_480)
        wait_until(lambda: _text_lengths(world) == lengths, "the texts to be in the lake", describe=world.status)


def _text_lengths(world: World) -> dict[int, int]:
    return {row["id"]: len(row["body"]) for row in world.lake_rows("documents")}


def _await_all_ok(world: World) -> None:
    """A merge that always runs may be about to finish a table."""
    world.until_status(lambda s: {table["state"] for table in s["tables"]} == {"ok"}, "all tables to be ok")
    world.assert_all_ok()


def _dump_keys(airflow: AirflowWorld) -> None:
    """Rows that the log has not: listed keys, and a range of keys."""
    world = airflow.world
    table = "documents" if world.kind == "postgres" else "orders"
    if world.kind != "postgres":
        world.admin("SET SESSION sql_log_bin = 0", "UPDATE orders SET note = 'unlogged' WHERE id BETWEEN 4 AND 20")
    airflow.run("dump", {"tables": [world.table(table)], "pks": [4, "5"]})
    airflow.run("dump", {"tables": [world.table(table)], "key_from": 6, "key_to": 20, "chunk_size": 5, "workers": 2})
    airflow.bring_to_lake(table)
    if world.kind == "postgres":  # only a dump of all rows says that the lake lacks none
        assert world.table_status(table)["state"] == "incomplete"
        airflow.run("dump", {"tables": [world.table(table)]})
        airflow.bring_to_lake(table)
    _await_all_ok(world)


def _replay(airflow: AirflowWorld, *, since: dt.datetime) -> None:
    """Damage to rows that the log has changed."""
    world = airflow.world
    _damage_lake(world, "orders", lost=101, other=1)
    airflow.unpause("replay")
    # Of the last whole hour, in which nothing was committed; the documentation marks it to start another run at once.
    airflow.client.mark(airflow.dag("replay"), airflow.scheduled_run("replay"), "success")
    run = airflow.run("replay", {"tables": [world.table("orders")], "from": since.isoformat()})
    (replayed,) = airflow.xcom("replay", run, "replay")["tables"]
    assert (replayed["inserted"], replayed["updated"]) == (1, 1), replayed
    world.assert_equal("orders")
    _await_all_ok(world)  # the replay has met another writer's commits, and a dump of the table is requested for them


def _verify_and_repair(airflow: AirflowWorld) -> None:
    """Damage to rows that only a dump brings back, and a row that the source has lost without the log."""
    world = airflow.world
    _damage_lake(world, "orders", lost=30, other=40)
    extra_keys = []
    if world.kind != "postgres":
        world.admin("SET SESSION sql_log_bin = 0", "DELETE FROM orders WHERE id = 50")
        extra_keys = [50]
    airflow.unpause("verify")
    failed = airflow.run("verify", {"tables": [world.table("orders"), world.table("events")]}, ends="failed")
    tables = {table["table"]: table for table in airflow.xcom("verify", failed, "verify", "tables")}
    orders, events = (tables[world.table(table)] for table in ("orders", "events"))
    assert (orders["missing"], orders["extra"]) == ([30], extra_keys)
    assert [(row["key"], row["columns"]) for row in orders["different"]] == [(40, ["note"])]
    assert (events["missing"], events["extra"], events["different"]) == ([], [], [])

    airflow.unpause("repair")
    airflow.await_end("repair", airflow.scheduled_run("repair"))
    slices = world.status()["slices"]
    assert (slices["of"], slices["compared"]) == (1, 1) and slices["oldest_at"], slices
    world.assert_equal("orders", "events", *(["documents"] if world.kind == "postgres" else []))
    airflow.run("verify")


def _maintain(airflow: AirflowWorld) -> None:
    world = airflow.world
    run = airflow.run("maintenance")
    maintained = {table["table"] for table in airflow.xcom("maintenance", run, "maintain")["tables"]}
    assert maintained >= {world.table("orders"), world.table("events")}
    world.assert_equal("orders", "events")
    _await_all_ok(world)


def _damage_lake(world: World, table: str, *, lost: int, other: int) -> None:
    """Another writer deletes a row of the lake, and changes one."""
    path = world.lake.joinpath(*world.table(table).split("."))
    DeltaTable(path).delete(f"id = {lost}")
    DeltaTable(path).update(updates={"note": "'damaged'"}, predicate=f"id = {other}")
