"""What a dump worker reads: ranges, open ends, filters, listed keys, and its watermarks."""

from __future__ import annotations

from typing import Any

import pytest

from dblog_core.config.source import SourceConfig
from dblog_core.dumps import control
from dblog_core.errors import RequestError
from dblog_core.model.watermark import Heals, High
from tests.unit.worker_moments import at_read, kill_after
from tests.unit.workers_world import DUMP, World, world

__all__ = ["world"]


EQUAL = {"column": "name", "op": "=", "values": ["x"]}


def test_ranges_of_a_table_together_read_every_row_once(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({"key_to": 33}, {"after": 33, "key_to": 66}, {"after": 66}, chunk_size=10)
    world.work()
    assert sorted(world.placed_keys()) == list(range(1, 101))
    assert world.status().state == "done"


def test_a_range_includes_both_of_its_ends(world: World) -> None:
    world.fill(*range(1, 51))
    world.request({"key_from": 10, "key_to": 30}, chunk_size=7)
    world.work()
    assert world.placed_keys() == list(range(10, 31))


def test_a_range_whose_ends_are_not_there_has_the_rows_between(world: World) -> None:
    world.fill(*range(0, 50, 4))
    world.request({"key_from": 10, "key_to": 30}, chunk_size=2)
    world.work()
    assert world.placed_keys() == [12, 16, 20, 24, 28]


@pytest.mark.parametrize("task", [{}, {"after": 5}, {"key_from": 5}, {"key_from": 5, "key_to": 9}, {"key_to": 9}])
def test_an_empty_table_is_done_by_a_chunk_without_rows(world: World, task: dict[str, Any]) -> None:
    world.request(task)
    world.work()
    assert (world.status().state, world.placed_keys()) == ("done", [])


def test_the_end_of_an_open_range_is_fixed_by_its_first_window(world: World) -> None:
    world.fill(*range(1, 31))
    world.request({"after": 5}, chunk_size=10)
    at_read(world, 2, lambda: world.fill(31, 32, 33))
    world.work()
    assert world.placed_keys() == list(range(6, 31))
    assert [upto for _, upto, _ in world.source.reads] == [None, (30,), (30,)]


def test_what_its_first_select_sees_lies_within_an_open_range(world: World) -> None:
    """A commit that becomes visible in the first window may be in no log that is read: it must not fall outside."""
    world.fill(*range(1, 21))
    world.request({}, chunk_size=10)
    at_read(world, 1, lambda: world.fill(21))
    world.work()
    assert world.placed_keys() == list(range(1, 22))


def test_filters_leave_rows_out_also_at_the_first_key_of_a_range(world: World) -> None:
    world.fill(*range(1, 41))
    world.fill(*range(1, 41, 3), name="x")
    world.request({"key_from": 2, "key_to": 30, "filters": [EQUAL]}, chunk_size=4)
    world.work()
    assert world.placed_keys() == list(range(4, 31, 3))


@pytest.mark.parametrize("task", [{}, {"key_from": 2, "key_to": 30}, {"keys": [1, 3]}])
@pytest.mark.parametrize("rule", ["exclude", "mask", "hash"])
def test_a_filter_by_a_column_that_has_been_hidden_since_is_not_carried_out(
    world: World, rule: str, task: dict[str, Any]
) -> None:
    world.fill(*range(1, 41), name="x")
    world.request({**task, "filters": [EQUAL]})
    usual = world.config.source.model_dump()
    source = SourceConfig.model_validate({**usual, "columns": {"shop.orders": {rule: ["name"]}}})
    world.config = world.config.model_copy(update={"source": source})
    world.take_rules(world.config)
    with pytest.raises(RequestError, match=rf"hides name \({rule}\)"):
        world.work()
    assert world.source.reads == []
    assert "'x'" not in (error := world.status().error or "") and f"hides name ({rule})" in error


def test_listed_keys_that_are_not_there_are_absent(world: World) -> None:
    world.fill(1, 2, 3)
    world.request({"keys": [1, 3, 9]})
    world.work()
    (high,) = world.highs()
    assert (world.placed_keys(), high.absent, high.final) == ([1, 3], (9,), True)


def test_a_listed_key_that_a_filter_leaves_out_is_not_called_absent(world: World) -> None:
    world.fill(1, 2)
    world.fill(3, name="x")
    world.request({"keys": [1, 3, 9], "filters": [EQUAL]})
    world.work()
    (high,) = world.highs()
    assert (world.placed_keys(), high.absent) == ([3], ())


def test_watermarks_tell_of_all_parts_and_of_the_range_that_is_healed(world: World) -> None:
    world.fill(*range(1, 21))
    world.request(
        {"key_to": 10, "heals": {"key_from": None, "key_to": 20}},
        {"after": 10, "key_to": 20, "heals": {"key_from": None, "key_to": 20}},
        {"keys": [3], "parts": 1},
        workers=1,
    )
    world.work()
    tasks_and_parts = {(w.mark.task.number, w.mark.parts, w.mark.heals) for w in world.watermarks()}
    healed = Heals(None, 20)
    assert tasks_and_parts == {(0, 3, healed), (1, 3, healed), (2, 1, None)}


def test_chunk_size_counts_from_the_next_chunk_on(world: World) -> None:
    world.fill(*range(1, 31))
    world.request({}, chunk_size=5)
    at_read(world, 2, lambda: control.retune(world.state, DUMP, chunk_size=20))
    world.work()
    assert [limit for *_, limit in world.source.reads] == [5, 5, 20]
    assert world.placed_keys() == list(range(1, 31))


def test_no_more_chunks_are_read_ahead_than_in_flight(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({}, chunk_size=10, in_flight=3)
    world.capturing = False
    seen: list[int] = []
    world.clock.hooks.append(lambda: seen.append(len(world.source.reads)))
    world.clock.hooks.append(lambda: world.stop.set() if len(seen) > 20 else None)
    world.work()
    assert seen[-1] == 3


def test_high_watermarks_count_the_chunks_of_all_attempts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.fill(*range(1, 51))
    world.request({}, in_flight=1)
    kill_after(world, monkeypatch, reads=3)
    world.expire()
    world.work()
    assert [h.mark.ordinal for h in world.highs()] == [0, 1, 2, 3, 4]
    assert all(isinstance(h, High) for h in world.highs())
