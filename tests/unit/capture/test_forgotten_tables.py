"""What is known of tables counts from the manifest on that carries it; a state store that is older, or lost, is not
believed about dumps."""

from __future__ import annotations

import threading
from dataclasses import replace

import orjson
import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.errors import CorruptSegment
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.table_records import NODES
from dblog_core.state import owed_dumps, recent_errors, settings_in_force, state_age
from dblog_core.state.compare_and_set import put_news
from dblog_core.state.memory import MemoryState
from tests.records import change_records
from tests.unit.reload_world import A, B, World, world

__all__ = ["world"]

BOTH = {"shop.a", "shop.b"}


@pytest.fixture
def captured(world: World) -> World:
    """Both tables are captured."""
    world.write("shop.?")
    world.put(A, 1)
    world.put(B, 1)
    world.capture()
    world.put(A, 2)
    world.put(B, 2)
    world.capture()
    return world


def owe(world: World) -> None:
    """One table lacks a dump that cannot be requested."""
    change_records(world.config, lambda records: owed_dumps.record_failures(records, "d0", {"shop.a": "no form"}))
    world.capture()


def dumped(world: World) -> set[str]:
    return {name for _, tables in world.dumps() for name in tables}


def head(world: World) -> Manifest:
    newest = wiring.open_staging(world.config).head()
    assert newest is not None
    return newest


def lose(world: World, copy: MemoryState | None) -> None:
    """The store is empty, or as it was."""
    world.state._nodes.entries.clear()
    if copy is not None:
        world.state._nodes.entries.update(copy._nodes.entries)


def copy_of(world: World) -> MemoryState:
    copy = MemoryState()
    copy._nodes.entries.update(world.state._nodes.entries)
    return copy


def publish_as_former_version(world: World) -> None:
    """A manifest that carries nothing of tables."""
    newest = head(world)
    number, first_offset = newest.segment + 1, newest.last_offset + 1
    manifest = replace(newest, segment=number, first_offset=first_offset, files=(), marks=(), records={})
    wiring.open_staging(world.config).publish(manifest)


def test_a_store_of_the_same_age_costs_no_dump(captured: World) -> None:
    for _ in range(3):
        captured.capture()
    assert captured.dumps() == []
    assert settings_in_force.read_in_force(captured.records) is not None


@pytest.mark.parametrize("older", [False, True])
def test_all_tables_are_dumped_where_the_store_has_forgotten_dumps(captured: World, older: bool) -> None:
    copy = copy_of(captured) if older else None
    captured.capture()
    lose(captured, copy)
    captured.capture()
    assert dumped(captured) == BOTH
    broken = {line["table"] for schema in (A, B) for line in captured.lines(schema)[-1:] if line["op"] == "s"}
    assert broken == BOTH, "consumers know that their copies are not right before the dumps end"
    assert "all tables are dumped" in recent_errors.read(captured.state)[0].fix
    dumps = captured.dumps()
    captured.capture()
    assert captured.dumps() == dumps, "once"


def test_what_is_owed_outlives_the_state_store(captured: World) -> None:
    owe(captured)
    assert owed_dumps.read(captured.records)["shop.a"].dump == "d0"
    lose(captured, None)
    assert owed_dumps.read(captured.records)["shop.a"].dump == "d0"


def test_the_age_of_a_store() -> None:
    state = MemoryState()
    assert state_age.read_age(state) == 0 and not state_age.has_gone_back(state, 0)
    ages = [0]
    for term in range(3):
        state_age.advance(state, term)
        ages.append(state_age.read_age(state))
        put_news(state, "capture/status", term)
        ages.append(state_age.read_age(state))
    assert ages == sorted(set(ages))
    assert not state_age.has_gone_back(state, ages[-1]) and state_age.has_gone_back(state, ages[-1] + 1)
    assert state_age.has_gone_back(MemoryState(), ages[1])


def test_what_a_former_version_kept_in_the_store_is_taken_over_once(captured: World) -> None:
    """Without a dump; and what lies there later is not taken for newer."""
    owe(captured)
    former = {node: entry.data for node in NODES if (entry := captured.records.get(node)) is not None}
    publish_as_former_version(captured)
    captured.state.create_all(former)
    captured.capture()
    assert captured.dumps() == [] and owed_dumps.read(captured.records)["shop.a"].dump == "d0"
    assert captured.state.get_all(NODES) == [None] * len(NODES)


def test_all_tables_are_dumped_where_nothing_is_known_of_them(captured: World) -> None:
    publish_as_former_version(captured)
    captured.capture()
    assert dumped(captured) == BOTH


@pytest.mark.parametrize("damage", ["missing", "altered", "index"])
def test_records_that_cannot_be_read_end_the_capture_until_the_log_is_given_up(captured: World, damage: str) -> None:
    """A capture that went on without would forget which tables lack rows."""
    folder = captured.path / "staging" / "shop" / "records"
    index = captured.path / "staging" / "shop" / head(captured).records["index"]
    part = folder.parent / orjson.loads(index.read_bytes())["parts"]["tables"]["file"]
    if damage == "missing":
        part.unlink()
    else:
        (index if damage == "index" else part).write_bytes(b"{}")
    with pytest.raises(CorruptSegment, match="capture --fresh-start"):
        captured.capture()
    captured.database.commit()
    run_capture(captured.config, stop=threading.Event(), until_current=True, fresh_start=True)
    assert dumped(captured) == BOTH and settings_in_force.read_in_force(captured.records) is not None
