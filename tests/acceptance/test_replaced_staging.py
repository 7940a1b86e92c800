"""The staging that a lake was merged from is lost, or put back from an older copy: the documented recovery."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.acceptance import judge, shapes
from tests.acceptance.conftest import NewWorld
from tests.acceptance.world import World

pytestmark = [pytest.mark.in_turn, pytest.mark.one_of(2)]


def _staging(world: World) -> Path:
    return Path(world.sections["staging"]["path"])


def _assert_same_rows(world: World) -> None:
    """A row that is as it was before the adoption stays, without an offset of this staging."""
    lake = [{name: row[name] for name in ("id", "note")} for row in world.lake_rows("orders")]
    assert judge.plain_rows(lake) == judge.plain_rows(world.source_rows("orders"))


@pytest.mark.parametrize("is_copy", [False, True], ids=["new", "older copy"])
def test_a_lake_goes_on_over_another_staging(new_world: NewWorld, is_copy: bool) -> None:
    world = new_world("sqlite")
    world.admin(*shapes.create("orders", "note VARCHAR(20)", 50, "'note {i}'"))
    world.follow_check()
    with world.capture():
        world.dblog("dump", "--all", "--wait")
    shutil.copytree(_staging(world), copy := world.directory / "copy")
    with world.capture():
        world.admin("INSERT INTO orders VALUES (51, 'later')", "UPDATE orders SET note = 'later' WHERE id = 1")
        world.catch_up()
        world.dblog("merge")
        world.assert_equal("orders")

    shutil.rmtree(_staging(world))
    if is_copy:
        shutil.copytree(copy, _staging(world))
    world.admin("DELETE FROM orders WHERE id = 2", "UPDATE orders SET note = 'last' WHERE id = 3")
    # PostgreSQL no longer has the log after the copy.
    with world.capture(*(["--fresh-start"] if is_copy and world.kind == "postgres" else [])):
        world.admin("INSERT INTO orders VALUES (52, 'last')")
        world.catch_up()
        refused = world.dblog("merge", ok=(1,)).stderr
        assert "dblog lake adopt" in refused, refused
        status = world.table_status("orders")
        assert status["state"] == "stopped" and "dblog lake adopt" in status["fix"], status
        world.dblog("lake", "adopt", ok=(2,))
        assert world.json("lake", "adopt", "--yes")["dumps"].keys() == {world.table("orders")}
        world.until_status(lambda s: {d["state"] for d in s["dumps"]} == {"done"}, "the dump of the adopted table")
        world.dblog("merge")
        _assert_same_rows(world)
        world.assert_all_ok()
