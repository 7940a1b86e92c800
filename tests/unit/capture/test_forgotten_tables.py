"""What the state store knew of tables when a manifest was published: a store that knows less is not believed."""

from __future__ import annotations

import pytest

from dblog_core import wiring
from dblog_core.errors import VersionConflict
from dblog_core.state import owed_dumps, recent_errors, settings_in_force, stopped_tables, table_knowledge
from dblog_core.state.memory import MemoryState
from dblog_core.state.stopped_tables import RepairSeenBy, StoppedTable
from tests.unit.reload_world import A, B, World, world

__all__ = ["world"]

BOTH = {"shop.a", "shop.b"}


@pytest.fixture
def captured(world: World) -> World:
    """Both tables are captured, and one lacks a dump that cannot be requested."""
    world.write("shop.?")
    world.put(A, 1)
    world.put(B, 1)
    world.capture()
    world.put(A, 2)
    world.put(B, 2)
    world.capture()
    return world


def record(world: World) -> None:
    """Somebody notes something of a table, and a manifest stands for it."""
    owed_dumps.record_failures(world.state, "d0", {"shop.a": "a value without a form"})
    world.capture()


def dumped(world: World) -> set[str]:
    return {name for _, tables in world.dumps() for name in tables}


def knowledge(world: World) -> dict[str, int]:
    head = wiring.open_staging(world.config).head()
    assert head is not None
    return head.knowledge


def lose(world: World, copy: MemoryState | None) -> None:
    """The store is empty, or as it was."""
    world.state._nodes.entries.clear()
    if copy is not None:
        world.state._nodes.entries.update(copy._nodes.entries)


def copy_of(world: World) -> MemoryState:
    copy = MemoryState()
    copy._nodes.entries.update(world.state._nodes.entries)
    return copy


def test_a_store_that_knows_what_it_knew_costs_no_dump(captured: World) -> None:
    for _ in range(3):
        captured.capture()
    assert captured.dumps() == []
    assert "tables" in knowledge(captured)


@pytest.mark.parametrize("older", [False, True])
def test_all_tables_are_dumped_where_the_store_has_forgotten_something(captured: World, older: bool) -> None:
    copy = copy_of(captured) if older else None
    record(captured)
    lose(captured, copy)
    captured.capture()
    assert dumped(captured) == BOTH
    broken = {line["table"] for schema in (A, B) for line in captured.lines(schema)[-1:] if line["op"] == "s"}
    assert broken == BOTH, "consumers know that their copies are not right before the dumps end"
    assert "all tables are dumped" in recent_errors.read(captured.state)[0].fix
    dumps = captured.dumps()
    captured.capture()
    assert captured.dumps() == dumps, "once"


def test_what_somebody_else_records_of_a_table_is_in_a_manifest_soon(captured: World) -> None:
    before = knowledge(captured)
    stopped = StoppedTable("no key", "give it one", RepairSeenBy.SOURCE)
    stopped_tables.change(captured.state, lambda entries: {**entries, "shop.x": stopped})
    assert table_knowledge.has_news(captured.state, before)
    captured.capture()
    assert not table_knowledge.has_news(captured.state, knowledge(captured))
    assert table_knowledge.find_forgotten(captured.state, knowledge(captured)) == []


@pytest.mark.parametrize("node", ["stopped", "owed", "tables", "shown", "capture/status"])
def test_each_node_counts(node: str) -> None:
    state = MemoryState()
    state.create(node, b"{}")
    older = {node: state.update(node, b"[]", 0)}
    assert table_knowledge.find_forgotten(state, older) == []
    assert table_knowledge.find_forgotten(state, {node: older[node] + 1}) == [node]
    assert table_knowledge.find_forgotten(MemoryState(), older) == [node]


def test_a_leader_that_was_paused_puts_no_older_settings_into_force(captured: World) -> None:
    settings = settings_in_force.read_in_force(captured.state)
    assert settings is not None
    version = settings_in_force.read_version(captured.state)
    settings_in_force.put_in_force(captured.state, settings_in_force.LiveSettings(["shop.z"], {}, {}), version)
    with pytest.raises(VersionConflict):
        settings_in_force.put_in_force(captured.state, settings, version)
