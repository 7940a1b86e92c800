"""An administrator revokes a grant: the table waits for a dump, its status says why, and the others continue."""

from __future__ import annotations

import pytest

from tests.acceptance import shapes
from tests.acceptance.conftest import NewWorld
from tests.acceptance.world import World

pytestmark = [pytest.mark.in_turn, pytest.mark.one_of(2)]


def _grant(world: World, verb: str, preposition: str) -> None:
    world.admin(f"{verb} SELECT ON {world.table('events')} {preposition} {world.server.account(world.user)}")


def test_a_revoked_grant_holds_up_its_table_only(new_world: NewWorld) -> None:
    world = new_world("sqlite")
    # MySQL: `check` prints a grant for each exact name, and only such a grant can be revoked.
    world.write_config(source={"tables": [world.table("orders"), world.table("events")]})
    world.admin(
        *shapes.create("orders", "note VARCHAR(20)", 50, "'note {i}'"),
        *shapes.create("events", "note VARCHAR(20)", 50, "'event {i}'"),
    )
    world.follow_check()
    with world.capture():
        world.dblog("dump", "--all", "--wait")
        world.dblog("merge")
        _grant(world, "REVOKE", "FROM")
        world.admin(
            shapes.ADD_NOW[world.kind].format(t="events", c="seen"),
            "INSERT INTO events (id, note) VALUES (101, 'a')",
            "INSERT INTO orders VALUES (101, 'b')",
        )
        world.catch_up()
        world.dblog("merge")
        world.assert_equal("orders")
        assert world.table_status("orders")["state"] == "ok"
        world.until_status(
            lambda status: any(d["state"] == "failed" for d in status["dumps"]), "the dump of events to fail"
        )
        held_up = world.table_status("events")
        assert held_up["state"] == "incomplete"
        problems = world.json("check", ok=(1,))["problems"]
        assert [p for p in problems if p["fatal"] and "GRANT SELECT" in p["fix"]], problems

    _grant(world, "GRANT", "TO")
    assert "start the capture again" in held_up["fix"], held_up
    with world.capture():
        world.until_status(lambda s: s["dumps"][-1]["state"] == "done", "the dump of events to be requested again")
        world.dblog("merge")
        world.assert_equal("orders", "events")
        world.assert_all_ok()
    # Last, so that a message that does not help hides no table that does not heal.
    assert "GRANT" in held_up["fix"] or "dblog check" in held_up["fix"], held_up
    # MySQL and MariaDB do not show a table that the account may not read.
    denied = "permission denied" if world.kind == "postgres" else "is not a captured table"
    assert "failed: " in held_up["cause"] and denied in held_up["cause"], held_up
