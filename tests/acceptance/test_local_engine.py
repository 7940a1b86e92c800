"""`[lake] engine = "local"`: whatever is merged, no Java is needed; Spark then carries the same lake on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.acceptance import shapes
from tests.acceptance.conftest import NewWorld
from tests.acceptance.world import World

pytestmark = [pytest.mark.in_turn, pytest.mark.one_of(2)]
_ROWS = 200
_TOOLS = ("sh", "bash", "env", "dirname", "tr", "ps", "uname", "nproc")


def _without_java(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes Java out of the environment of the commands that follow."""
    kept = [part for part in os.environ["PATH"].split(os.pathsep) if not Path(part, "java").exists()]
    tools = world.directory / "tools"
    tools.mkdir()
    for name in _TOOLS:
        if (program := shutil.which(name)) is not None:
            (tools / name).symlink_to(program)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tools), *kept]))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert shutil.which("java") is None


def test_a_lake_is_made_and_changed_without_java_and_carried_on_by_spark(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world("sqlite")
    world.write_config(lake={"engine": "local", "history": True})
    world.admin(
        *shapes.create("orders", "note VARCHAR(20), paid DECIMAL(10,2)", _ROWS, "'note {i}', {i}.25"),
        *shapes.create("items", "note VARCHAR(20)", 20, "'n {i}'"),
    )
    world.follow_check()
    world.dblog("capture", "--until-current")
    with world.capture():
        world.dblog("dump", "--all", "--wait")
        with monkeypatch.context() as patch:
            _without_java(world, patch)
            said = world.dblog("merge").stderr
            assert "Spark" not in said, said
            world.assert_equal("orders", "items")
            for task in (["replay"], ["rebuild", world.table("orders")]):
                said = world.dblog(*task).stderr
                assert "Spark" not in said, said
            world.assert_equal("orders", "items")
            world.admin(
                "INSERT INTO orders VALUES (1001, 'late', 1.50)",
                "DELETE FROM orders WHERE id = 2",
                "UPDATE orders SET id = 2002 WHERE id = 3",
                "ALTER TABLE items ADD COLUMN more INT",
                "INSERT INTO items VALUES (21, 'later', 7)",
            )
            world.catch_up()
            said = world.dblog("merge", "--once").stderr
            world.assert_equal("orders")
            world.dblog("work", "--once")  # the dump of a table that was altered
            said += world.dblog("merge").stderr
            assert "Spark" not in said, said
            world.assert_equal("orders", "items")
            world.assert_all_ok()
        world.write_config(lake={"engine": "spark"})
        world.admin("INSERT INTO orders VALUES (1003, 'by Spark', 2.50)", "DELETE FROM items WHERE id = 1")
        world.catch_up()
        world.dblog("merge")
        world.assert_equal("orders", "items")
        world.assert_all_ok()
        assert world.json("verify", "--all")["equal"]
