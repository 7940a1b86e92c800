"""What memory holds of staged events is bounded, and no answer changes: those that no answer needs are dropped.

`test_judge` holds the same over random logs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.rows.row_hashes import HASH
from dblog_core.staging.manifest import DataFile
from dblog_core.verify.judge import expected_state, sides
from dblog_core.verify.judge.comparison import Comparison
from dblog_core.verify.judge.expected_state import State
from dblog_core.verify.judge.hashed_rows import HashedRows, Numbers
from tests.plain_hashes import row_hash
from tests.spooled_rows import spool_rows
from tests.unit.verify.judge.world import Change, T, World, keep_few_in_memory, kinds_of


def test_of_few_keys_that_change_all_the_time_few_events_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no number of staged rows is too large for this process, and all of them are counted."""
    keep_few_in_memory(50, 1_000, monkeypatch)
    held: list[int] = []
    apply_events = expected_state.apply_events

    def count(
        count: int, lake: HashedRows, lake_keys: Numbers, events: HashedRows, event_keys: Numbers, truncated_at: int
    ) -> State:
        held.append(len(events))
        return apply_events(count, lake, lake_keys, events, event_keys, truncated_at)

    monkeypatch.setattr(sides, "apply_events", count)
    world = World(tmp_path, random.Random(0))
    for key in range(1, 5):
        add_change(world, key, "new", born=True)
    world.seal()
    world.merge()
    for rounds in range(1, 6):
        for number in range(100):
            add_change(world, 1 + number % 4, f"{rounds} {number}")
            if number % 10 == 9:
                world.seal()
        answer = world.judge.compare(world.reading(world.build.offset)[0])
        assert (kinds_of(answer), answer.rows, answer.staged) == ({}, 4, 100 * rounds)
    assert held and max(held) <= 50
    world.merge()
    add_change(world, 1, "after the merge")
    world.seal()
    answer = world.judge.compare(world.reading(world.build.offset)[0])
    assert (kinds_of(answer), answer.staged) == ({}, 1)


@pytest.mark.parametrize("reborn", [False, True])
def test_a_row_that_came_from_another_key_has_its_values_when_earlier_events_are_dropped(
    reborn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier reading has seen the delete of that key, or all of it and a later row of that key."""
    keep_few_in_memory(2, 1_000, monkeypatch)
    world = World(tmp_path, random.Random(0))
    add_change(world, 9, "other", born=True)
    world.seal()
    world.merge()
    add_change(world, 1, "first", born=True)
    add_change(world, 1, "second")
    world.build.delete(T, {"id": 1})
    world.changes.append(Change(world.build.offset, 1))
    if not reborn:
        world.seal()
        assert not kinds_of(world.judge.compare(world.reading(world.build.offset)[0]))
    moved = {"id": 2, "v": "moved", "big": "second"}
    staged = {**moved, "big": None}
    world.build.line(T, "c", after=staged, unchanged=["big"], moved_from={"id": 1})
    world.changes.append(Change(world.build.offset, 2, staged, ("big",), 1, born=True, source_row=moved))
    if reborn:
        add_change(world, 1, "third", born=True)
    world.seal()
    answer = world.judge.compare(world.reading(world.build.offset)[0])
    assert (kinds_of(answer), answer.lake_rows) == ({}, 3 if reborn else 2)


def test_a_reading_that_has_seen_less_than_an_earlier_one_has_all_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_few_in_memory(2, 1_000, monkeypatch)
    world = World(tmp_path, random.Random(0))
    for number in range(5):
        add_change(world, 1, f"v{number}", born=not number)
    world.seal()
    world.merge()
    for number in range(5, 10):
        add_change(world, 1, f"v{number}")
    world.seal()
    assert not kinds_of(world.judge.compare(world.reading(world.build.offset)[0]))
    row = {"id": 1, "v": "v6", "big": "v6"}
    rows = spool_rows(pa.record_batch({"id": pa.array([1]), HASH: [row_hash(T, row)]}))
    comparison = Comparison(T, world.pin(), (rows,), world.merged, world.build.offset)
    assert not kinds_of(world.judge.compare(comparison)), "the log has led the key through that row"


@pytest.mark.parametrize("rows", [1_000, 2])
def test_each_staged_row_is_read_once_however_often_keys_are_read_again(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_few_in_memory(20, rows, monkeypatch)
    world = World(tmp_path, random.Random(0))
    add_change(world, 1, "merged", born=True)
    world.seal()
    world.merge()
    for key in range(1, 41):
        add_change(world, key, "staged", born=key > 1)
        if key % 8 == 0:
            world.seal()
    read: list[str] = []
    log_batches = world.staging.log_batches

    def count(file: DataFile, **options: Any) -> Iterator[pa.RecordBatch]:
        for lines in log_batches(file, **options):
            read.extend(["row"] * len(lines))
            yield lines

    monkeypatch.setattr(world.staging, "log_batches", count)
    for number in range(4):
        since = world.build.offset
        add_change(world, 5, f"later {number}")
        world.seal()
        comparison, seen = world.reading(since, chosen=[3, 5, 99])
        answer = world.judge.compare(comparison)
        assert (kinds_of(answer), answer.rows) == (world.right_kinds(comparison, seen), 2)
        assert (answer.staged, len(read)) == (41 + number, 41 + number)
    whole = world.judge.compare(world.reading(world.build.offset)[0])
    assert (kinds_of(whole), whole.rows, len(read)) == ({}, 40, 44)


@pytest.mark.parametrize("is_told_before", [False, True])
def test_keys_that_rows_were_moved_between_are_compared_together(
    is_told_before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though each would be in a bucket of its own; the lake and earlier events are in theirs already, or not."""
    keep_few_in_memory(5, 1, monkeypatch)
    world = World(tmp_path, random.Random(0))
    for key in range(1, 9):
        add_change(world, key, f"old {key}", born=True)
    world.seal()
    world.merge()
    add_change(world, 1, "new")
    world.seal()
    if is_told_before:
        assert not kinds_of(world.judge.compare(world.reading(world.build.offset)[0]))
    for old, new in ((1, 20), (20, 30), (2, 40)):
        v = "new" if old != 2 else "old 2"
        row = {"id": new, "v": f"moved {new}", "big": None}
        world.build.move(T, {"id": old}, row, unchanged=["big"])
        world.changes.append(Change(world.build.offset - 1, old))
        source = {**row, "big": v}
        world.changes.append(Change(world.build.offset, new, row, ("big",), old, born=True, source_row=source))
        world.seal()
    (table,) = world.judge._tables.values() if is_told_before else (None,)
    comparison, _ = world.reading(world.build.offset)
    answer = world.judge.compare(comparison)
    assert (kinds_of(answer), answer.lake_rows) == ({}, 8)
    chosen, seen = world.reading(world.build.offset, chosen=[30, 40, 2])
    assert kinds_of(world.judge.compare(chosen)) == world.right_kinds(chosen, seen) == {}
    placed = next(iter(world.judge._tables.values())).staged.events.placement
    assert placed.count > 1 and len(set(placed.buckets(pa.table({"id": [1, 20, 30]})))) == 1
    assert table is None or table.lake.rows.placement is placed


def add_change(world: World, key: int, v: str, *, born: bool = False) -> None:
    """A whole row; its large value is as new."""
    row = {"id": key, "v": v, "big": v}
    world.build.line(T, "c" if born else "u", after=row)
    world.changes.append(Change(world.build.offset, key, row, born=born, source_row=row))
