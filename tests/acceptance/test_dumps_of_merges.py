"""Rows and values that only the source has, and a merge without access to it: it files dumps, others carry them out.

A merge's Spark job gets no secret of the source. So it cannot check or plan a dump: the capture does, or `dblog work`.
"""

from __future__ import annotations

import pytest

from tests.acceptance import shapes
from tests.acceptance.conftest import NewWorld
from tests.acceptance.world import World

pytestmark = [pytest.mark.in_turn]


def _add_columns(world: World) -> None:
    """A column with a constant default, one with another default, and rows that have them."""
    world.admin(
        "ALTER TABLE orders ADD COLUMN state VARCHAR(10) NOT NULL DEFAULT 'new'",
        "INSERT INTO orders VALUES (101, 'late', 1.50, 'paid')",
        shapes.ADD_NOW[world.kind].format(t="events", c="seen"),
        "INSERT INTO events (id, note) VALUES (101, 'a'), (102, 'b')",
        *(["UPDATE documents SET title = 'another' WHERE id <= 3"] if world.kind == "postgres" else []),
    )


def _tables(kind: str) -> list[str]:
    return [
        *shapes.create("orders", "note VARCHAR(20), paid DECIMAL(10,2)", 100, "'note {i}', {i}.25"),
        *shapes.create("events", "note VARCHAR(20)", 100, "'event {i}'"),
        *shapes.documents(kind),
    ]


def _dump_and_merge(world: World, *tables: str) -> None:
    """The full state of these tables, in the lake. It must leave out `documents`, whose texts only the source has."""
    # PostgreSQL: the merge brings a constant default without a dump only if the log has shown the table before a dump
    # has (docs/lake.md).
    world.admin("UPDATE orders SET note = 'changed' WHERE id = 1")
    world.catch_up()
    options = [word for table in tables for word in ("--table", world.table(table))]
    world.dblog("dump", *options, "--wait")
    world.dblog("merge")


def _await_dumps(world: World) -> None:
    """Returns when no dump is left to do."""
    world.until_status(
        lambda status: {d["state"] for d in status["dumps"]} <= {"done", "cancelled"}, "dumps to be done"
    )


@pytest.mark.one_of(2)
def test_a_merge_gets_what_only_the_source_has(new_world: NewWorld) -> None:
    world = new_world("zookeeper")
    world.admin(
        *_tables(world.kind),
        *shapes.create("parts", "code VARCHAR(20)", 50, "'{i}0'"),
        *shapes.create("items", "note VARCHAR(20)", 50, "'item {i}'"),
    )
    world.follow_check()
    with world.capture():
        _dump_and_merge(world, "orders", "events", "parts", "items")
        world.assert_equal("orders", "events", "parts", "items")

        _add_columns(world)
        world.admin(
            shapes.TEXT_TO_INTEGER[world.kind].format(t="parts", c="code"), "INSERT INTO parts VALUES (51, 510)"
        )
        world.catch_up()
        merged = world.dblog("merge", ok=(1,))  # because of `parts` only
        assert "dblog schema accept" in merged.stderr
        world.assert_equal("orders", "items")
        assert world.table_status("orders")["state"] == "ok"
        stopped = world.table_status("parts")
        assert stopped["state"] == "stopped"
        assert f"dblog schema accept {world.table('parts')}" in stopped["fix"]
        events = world.table_status("events")
        assert (events["state"], events["awaits"] is not None) == ("incomplete", True)
        if world.kind == "postgres":
            assert world.table_status("documents")["state"] == "incomplete"
            assert world.lake_rows("documents") == [], "a row without its text is in the lake"
        _await_dumps(world)

        accepted = world.json("schema", "accept", world.table("parts"), "--yes")
        assert accepted["dump"] is not None
        world.dblog("reset", world.table("items"))
        _await_dumps(world)
        if world.kind == "postgres":
            world.dblog("merge")
            rows_by_id = {row["id"]: row for row in world.lake_rows("documents")}
            assert rows_by_id.keys() == {1, 2, 3}
            assert {len(row["body"]) for row in rows_by_id.values()} == {20_480}
            world.dblog("dump", "--table", world.table("documents"), "--wait")
        world.dblog("merge")
        world.assert_equal("orders", "events", "parts", "items", *(["documents"] if world.kind == "postgres" else []))
        world.assert_all_ok()
        assert world.json("verify", "--all")["equal"]


@pytest.mark.one_of(2)
def test_dumps_wait_for_a_process_with_access_to_the_source(new_world: NewWorld) -> None:
    world = new_world("sqlite")
    world.admin(*_tables(world.kind))
    world.follow_check()
    with world.capture():
        _dump_and_merge(world, "orders", "events")
        _add_columns(world)
        world.catch_up()

    world.dblog("merge")
    world.assert_equal("orders")
    incomplete = ["events", *(["documents"] if world.kind == "postgres" else [])]
    # PostgreSQL: the capture may have requested dumps of changed tables too, just before it ended; those are planned.
    unplanned = [d for d in world.json("dumps") if d["state"] == "requested" and "dblog work" in (d["held"] or "")]
    assert sorted(d["tables"] for d in unplanned) == sorted([world.table(table)] for table in incomplete)
    assert {world.table_status(table)["state"] for table in incomplete} == {"incomplete"}
    # Not of `documents`: it lacks a full dump, and its status names that first.
    status = world.table_status("events")
    assert "no process has planned it" in status["cause"], status
    assert "start the capture" in status["fix"] and "dblog work" in status["fix"], status
    assert "no process has planned it" in world.dblog("status").stdout

    before = world.lake_rows("orders")
    refused = world.dblog("reset", world.table("orders"), ok=(1,))
    assert "planned" in refused.stderr and "fix: start the capture, or run `dblog work`" in refused.stderr
    assert world.lake_rows("orders") == before, "nothing is emptied"
    assert world.table_status("orders")["state"] == "ok"

    work = world.start("work")
    world.until_status(lambda s: all(d["state"] != "requested" or d["tasks"] for d in s["dumps"]), "work to plan dumps")
    with world.capture():
        _await_dumps(world)
        work.stop()
        world.dblog("work", "--once")
        if world.kind == "postgres":
            world.dblog("dump", "--table", world.table("documents"), "--wait")
        world.dblog("merge")
        world.assert_equal("orders", *incomplete)
        world.assert_all_ok()
