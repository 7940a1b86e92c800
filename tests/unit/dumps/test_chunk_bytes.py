"""A dump's chunks have a bound of bytes: wide rows make small ones, every row comes, and one row alone is no fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dblog_core.dumps import dump_store
from dblog_core.interfaces import Chunk
from tests.unit.workers_world import DUMP, World
from tests.unit.workers_world import world as world

WIDE = "w" * 1_000


def sizes(world: World) -> list[int]:
    """Rows of the placed chunks."""
    return [ref.rows for published in world.staging.manifests() for ref in published.chunks]


def test_wide_rows_make_chunks_within_the_bytes_and_all_of_them_come(world: World) -> None:
    world.fill(*range(1, 101), name=WIDE)
    world.request({}, chunk_size=50, chunk_bytes=10_000)
    world.work()
    assert sorted(world.placed_keys()) == list(range(1, 101))
    assert max(sizes(world)) <= 10, "as many rows as fit"
    assert len(sizes(world)) <= 20, "and no fewer than that needs"
    assert world.status().state == "done"


def test_a_row_that_is_larger_than_a_chunk_may_be_passes_alone(world: World) -> None:
    world.fill(*range(1, 31))
    world.fill(15, name=20 * WIDE)
    world.request({}, chunk_size=30, chunk_bytes=5_000)
    world.work()
    assert sorted(world.placed_keys()) == list(range(1, 31))
    assert world.status().state == "done"


def test_narrow_rows_are_read_by_chunk_size_alone(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({}, chunk_size=40, chunk_bytes=1 << 20)
    world.work()
    assert sizes(world) == [40, 40, 20]


def test_what_was_read_before_is_placed_before_another_attempt_begins(world: World) -> None:
    """Another attempt begins after the last placed chunk: it would read again what waits to be placed."""
    world.fill(*range(1, 41))
    world.fill(*range(41, 61), name=WIDE)
    world.request({}, chunk_size=10, chunk_bytes=5_000)
    world.work()
    assert sorted(world.placed_keys()) == list(range(1, 61))
    starts = [after for after, _, _ in world.source.reads]
    assert starts.count(None) == 1, "no chunk that had been read was read again"
    assert world.status().tasks[0].record.attempt == 2


def test_a_chunk_that_the_capture_has_not_placed_yet_is_waited_for_before_another_attempt(world: World) -> None:
    world.fill(*range(1, 11))
    world.fill(*range(11, 21), name=WIDE)
    world.request({}, chunk_size=10, chunk_bytes=5_000)
    world.capturing = False
    waits = 0

    def capture_after_some_waits() -> None:
        nonlocal waits
        waits += len(world.source.reads) > 1
        world.capturing = waits > 5

    world.clock.hooks.append(capture_after_some_waits)
    world.work()
    assert sorted(world.placed_keys()) == list(range(1, 21))
    assert [after for after, _, _ in world.source.reads].count(None) == 1, "its rows were read again"


def test_listed_keys_of_wide_rows_come_in_smaller_chunks_and_those_that_are_not_there_are_told_once(
    world: World,
) -> None:
    world.fill(*range(1, 41), name=WIDE)
    world.request({"keys": list(range(45))}, chunk_bytes=6_000)
    world.work()
    assert sorted(world.placed_keys()) == list(range(1, 41))
    absent = [key for high in world.highs() for key in high.absent]
    assert sorted(absent) == [0, 41, 42, 43, 44]
    assert world.status().state == "done"


def test_the_bytes_may_be_changed_while_a_dump_runs(world: World) -> None:
    world.fill(*range(1, 101), name=WIDE)
    world.request({}, chunk_size=50, chunk_bytes=1 << 20)
    # Also below what a command takes: the world's rows are small.
    real = world.source.before_read

    def before() -> None:
        real()
        if len(world.source.reads) == 1:
            dump_store.change_record(
                world.state, DUMP, lambda record: replace(record, options=replace(record.options, chunk_bytes=10_000))
            )

    world.source.before_read = before  # type: ignore[method-assign]
    world.work()
    assert sizes(world)[0] == 50 and max(sizes(world)[1:]) <= 10
    assert sorted(world.placed_keys()) == list(range(1, 101))


def test_a_request_of_an_earlier_version_has_the_bytes_of_the_configuration(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int | None] = []
    reader = world.source.open_reader()

    class Noted(type(reader)):  # type: ignore[misc]
        def read(self, *arguments: object, most: int | None = None, **more: object) -> Chunk:
            seen.append(most)
            chunk: Chunk = super().read(*arguments, most=most, **more)
            return chunk

    monkeypatch.setattr(world.source, "open_reader", lambda **_: Noted(world.source))
    world.fill(1)
    world.request({})
    world.work()
    assert seen == [32 << 20] == [world.config.dump.chunk_bytes]
