"""The comparison without Spark, over random logs, lakes and readings: what plain Python says of every key."""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

from dblog_core.delta_writer.order_guard import Flags
from dblog_core.model.schema import TableSchema
from dblog_core.rows.arrow_hashes import Columns, Hashes
from dblog_core.rows.row_hashes import HASH
from dblog_core.verify.judge import comparison, exact_values, lake_hashes, staged_hashes
from dblog_core.verify.judge.comparison import Comparison
from dblog_core.verify.pinned_version import Pin
from tests.plain_hashes import row_hash
from tests.spooled_rows import spool_rows
from tests.unit.delta_writer.tables import newest
from tests.unit.verify.judge.world import (
    Change,
    T,
    World,
    append_row,
    keep_few_in_memory,
    kinds_of,
    lake_alone,
    lake_row,
)

KEYS = 8


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize(("events", "rows"), [(1_000_000, 250_000), (4, 250_000), (1_000_000, 2), (3, 3)])
def test_every_key_is_called_what_it_is(
    events: int, rows: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a verification of some readings, with merges, damage and changes between them, over one judge's caches; also
    one that has room for few `events`, or compares few `rows` at once, as one with much room does many."""
    keep_few_in_memory(events, rows, monkeypatch)
    world = World(tmp_path, random.Random(seed))
    chance = world.chance
    since = 0
    for _ in range(4):
        for _ in range(chance.randint(1, 3)):
            for _ in range(chance.randint(0, 8)):
                world.write(KEYS)
            world.seal()
            if chance.random() < 0.6:
                world.merge(is_recorded=chance.random() < 0.6)
        if chance.random() < 0.4:
            world.damage(KEYS)
        # As a rule a later reading has seen more, but who starts again may have seen less.
        since = chance.randint(since if chance.random() < 0.7 else 0, world.build.offset)
        chosen = chance.sample(range(KEYS + 3), 5) if chance.random() < 0.5 else None
        comparison, seen = world.reading(since, chosen=chosen)
        answer = world.judge.compare(comparison)
        assert kinds_of(answer) == world.right_kinds(comparison, seen)
        now = world.expected(world.lake_rows(), world.merged, comparison.upto)
        assert answer.rows == sum(row is not None for row in seen.values())
        assert answer.lake_rows == (sum(key in seen for key in now) if chosen is not None else len(now))


@pytest.mark.parametrize("seed", range(6))
def test_a_correct_lake_raises_no_alarm(seed: int, tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(seed))
    for _ in range(6):
        for _ in range(10):
            world.write(KEYS)
        world.seal()
        if world.chance.random() < 0.6:
            world.merge(is_recorded=world.chance.random() < 0.6)
        answer = world.judge.compare(world.reading(world.chance.randint(world.merged, world.build.offset))[0])
        assert not (answer.missing or answer.extra or answer.different or answer.twice)


def test_each_file_and_each_staged_row_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the source is read again."""
    world = World(tmp_path, random.Random(1))
    hashed: dict[str, list[int]] = {}
    hash_values = exact_values.hash_values

    def count_in(module: ModuleType) -> None:
        counts = hashed.setdefault(module.__name__.rpartition(".")[2], [])

        def count(rows: Columns, misfits: Flags, schema: TableSchema) -> Hashes:
            counts.append(len(rows["id"]))
            return hash_values(rows, misfits, schema)

        monkeypatch.setattr(module, "hash_values", count)

    count_in(lake_hashes)
    count_in(staged_hashes)
    for _ in range(30):
        world.write(KEYS)
    world.seal()
    world.merge()
    for _ in range(5):
        world.write(KEYS)
        world.seal()
        world.judge.compare(world.reading(world.merged)[0])
    assert len(hashed["lake_hashes"]) == 1
    assert sum(hashed["staged_hashes"]) == sum(c.offset > world.merged and c.key is not None for c in world.changes)


def test_rows_of_chosen_keys_are_compared_column_by_column(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(0))
    build = world.build
    for key in range(1, 7):
        build.create(T, {"id": key, "v": "old", "big": "big"})
    build.seal()
    world.changes = [
        Change(key, key, {"id": key, "v": "old", "big": "big"}, born=True, source_row={}) for key in range(1, 7)
    ]
    world.merge()
    build.update(T, {"id": 2, "v": "new", "big": None}, unchanged=["big"])
    build.update(T, {"id": 3, "v": "new", "big": None})
    build.move(T, {"id": 4}, {"id": 40, "v": "moved", "big": None}, unchanged=["big"])
    build.seal()
    since = build.offset
    build.update(T, {"id": 5, "v": "later", "big": "big"})
    build.seal()
    source = [
        {"id": 1, "v": "old", "big": "other"},
        {"id": 2, "v": "new", "big": "other"},
        {"id": 3, "v": "new", "big": None},
        {"id": 4, "v": "gone", "big": None},
        {"id": 40, "v": "other", "big": "big"},
        {"id": 5, "v": "changes", "big": None},
        {"id": 6, "v": "old", "big": "big"},
    ]
    rows = spool_rows(pa.RecordBatch.from_pylist(source, schema=T.arrow))
    comparison = Comparison(T, world.pin(), (rows,), since, build.offset, for_chosen_keys=True)
    answer = world.judge.find_differing_columns(comparison)
    assert dict(answer) == {1: ("big",), 2: ("big",), 3: (), 40: ("v",), 6: ()}


def test_a_row_that_a_merge_under_way_has_moved_keeps_its_values(tmp_path: Path) -> None:
    """The log left a column out of both changes; the key that the row had before is no longer in the lake."""
    world = World(tmp_path, random.Random(0))
    old, moved, new = ({"id": key, "v": v, "big": "big"} for key, v in ((1, "old"), (2, "moved"), (2, "new")))
    world.build.create(T, old)
    world.changes.append(Change(1, 1, old, born=True, source_row=old))
    world.seal()
    world.merge()
    world.build.move(T, {"id": 1}, {**moved, "big": None}, unchanged=["big"])
    world.changes.append(Change(2, 1))
    world.changes.append(Change(3, 2, {**moved, "big": None}, ("big",), 1, born=True, source_row=moved))
    world.seal()
    world.merge(is_recorded=False)
    world.build.update(T, {**new, "big": None}, unchanged=["big"])
    world.changes.append(Change(4, 2, {**new, "big": None}, ("big",), source_row=new))
    world.seal()
    comparison, _ = world.reading(world.build.offset)
    assert comparison.pin is not None and (comparison.pin.offset, comparison.upto) == (1, 4)
    answer = world.judge.compare(comparison)
    assert (kinds_of(answer), answer.lake_rows) == ({}, 1)


def test_a_later_row_of_the_old_key_that_a_merge_under_way_has_brought_has_no_value_for_a_moved_row(
    tmp_path: Path,
) -> None:
    """The log began after the first row of key 1: nobody knows the column that its change of key left out."""
    world = World(tmp_path, random.Random(0))
    other, moved, later = ({"id": key, "v": "v", "big": big} for key, big in ((9, "big"), (2, "true"), (1, "later")))
    world.build.create(T, other)
    world.changes.append(Change(1, 9, other, born=True, source_row=other))
    world.seal()
    world.merge()
    world.build.move(T, {"id": 1}, {**moved, "big": None}, unchanged=["big"])
    world.changes.append(Change(2, 1))
    world.changes.append(Change(3, 2, {**moved, "big": None}, ("big",), 1, born=True, source_row=moved))
    world.build.create(T, later)
    world.changes.append(Change(4, 1, later, born=True, source_row=later))
    world.seal()
    world.merge(is_recorded=False)
    comparison, _ = world.reading(world.build.offset)
    assert comparison.pin is not None and (comparison.pin.offset, comparison.upto) == (1, 4)
    answer = world.judge.compare(comparison)
    assert (kinds_of(answer), answer.lake_rows) == ({2: "missing"}, 2)


def test_sums_are_those_of_an_older_version_between_the_bounds(tmp_path: Path) -> None:
    table, judge = lake_alone(tmp_path)
    writer = table.writer()
    table.merge(writer, [lake_row(key) for key in range(1, 10)])
    table.merge(writer, [lake_row(3, "later")], [lake_row(7)])
    sums = judge.sum_hashes(T, Pin(1, 0, 0, 0), (3, 8))
    parts = [range(1, 4), range(4, 9), range(9, 10)]
    assert [(s.rows, s.hash) for s in sums] == [(len(p), sum(row_hash(T, lake_row(key)) for key in p)) for p in parts]
    assert [s.rows for s in judge.sum_hashes(T, Pin(2, 0, 0, 0), (3, 8))] == [3, 4, 1]


def test_samples_are_drawn_from_all_rows_each_once(tmp_path: Path) -> None:
    table, judge = lake_alone(tmp_path)
    table.merge(table.writer(), [lake_row(key) for key in range(1, 30)])
    drawn = [judge.draw_keys(T, Pin(1, 0, 0, 0), 5, seed) for seed in range(20)]
    assert all(len(set(keys)) == 5 and rows == 29 for keys, rows in drawn)
    assert {key for keys, _ in drawn for key in keys} > set(range(10, 20))


def test_several_rows_of_a_key_are_named_though_each_is_that_of_the_source(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(0))
    rows = [lake_row(key) for key in (1, 2, 3)]
    world.table.merge(world.writer, rows)
    append_row(world.table, rows[1])
    hashes = [row_hash(T, row) for row in rows[:2]]
    read = spool_rows(pa.record_batch({"id": pa.array([1, 2]), HASH: pa.array(hashes)}))
    answer = world.judge.compare(Comparison(T, Pin(newest(world.table.path), 0, 0, 0), (read,)))
    assert (answer.extra, answer.twice, answer.different, answer.lake_rows) == ((3,), (2,), (), 4)


def test_of_many_keys_that_differ_the_first_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MAX_KEYS_NAMED", 3)
    table, judge = lake_alone(tmp_path)
    table.merge(table.writer(), [lake_row(key) for key in (5, 3, 9, 1)])
    answer = judge.compare(Comparison(T, Pin(1, 0, 0, 0)))
    assert (answer.extra, answer.more, answer.lake_rows) == ((1, 3, 5), True, 4)
    monkeypatch.setattr(comparison, "MAX_KEYS_NAMED", 4)
    answer = judge.compare(Comparison(T, Pin(1, 0, 0, 0)))
    assert (answer.extra, answer.more) == ((1, 3, 5, 9), False)
