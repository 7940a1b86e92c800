"""The comparison without Spark, over random logs, lakes and readings: what plain Python says of every key."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dblog_core.errors import LakeError
from dblog_core.model.schema import TableSchema
from dblog_core.rows import arrow_hashes
from dblog_core.rows.arrow_hashes import Columns, Hashes
from dblog_core.rows.row_hashes import HASH
from dblog_core.staging import Staging
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location
from dblog_core.verify.direct import lake_hashes, sides, staged_hashes
from dblog_core.verify.direct.judge import DirectJudge
from dblog_core.verify.direct.not_direct import NotDirect
from dblog_core.verify.exchange import Ask, Desk, Pin, Task
from dblog_core.verify.window_positions import Interrupted
from tests.plain_hashes import row_hash
from tests.spark.segments import table as table_shape
from tests.unit.delta_writer.tables import OFFSET, newest
from tests.unit.verify.direct.world import FIELDS, Change, LakeTable, T, World, keep_at_most, kinds_of

KEYS = 8


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("kept", [3_000_000, 4])
def test_every_key_is_called_what_it_is(kept: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a verification of some readings, with merges, damage and changes between them, over one judge's caches; also
    one that `kept` few events, and dropped those that count no more."""
    keep_at_most(kept, monkeypatch)
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
        task, seen = world.task(since, chosen=chosen)
        answer = world.judge.answer(task)
        assert kinds_of(answer) == world.right_kinds(task, seen)
        now = world.expected(world.lake_rows(), world.merged, task.upto)
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
        answer = world.judge.answer(world.task(world.chance.randint(world.merged, world.build.offset))[0])
        assert not (answer.missing or answer.extra or answer.different or answer.twice)


def test_each_file_and_each_staged_row_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the source is read again."""
    world = World(tmp_path, random.Random(1))
    hashed: dict[str, list[int]] = {}
    hash_rows = arrow_hashes.hash_rows

    def count_in(module: ModuleType) -> None:
        counts = hashed.setdefault(module.__name__.rpartition(".")[2], [])

        def count(rows: Columns, schema: TableSchema) -> Hashes:
            counts.append(len(rows["id"]))
            return hash_rows(rows, schema)

        monkeypatch.setattr(module, "hash_rows", count)

    count_in(lake_hashes)
    count_in(staged_hashes)
    for _ in range(30):
        world.write(KEYS)
    world.seal()
    world.merge()
    for _ in range(5):
        world.write(KEYS)
        world.seal()
        world.judge.answer(world.task(world.merged)[0])
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
    file = world.desk.put_rows("rows", pa.RecordBatch.from_pylist(source, schema=T.arrow))
    task = Task(Ask.COLUMNS, T, world.pin(), (file,), since, build.offset, for_chosen_keys=True)
    answer = world.judge.answer(task)
    assert dict(answer.different) == {1: ("big",), 2: ("big",), 3: (), 40: ("v",), 6: ()}


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
    task, _ = world.task(world.build.offset)
    assert task.pin is not None and (task.pin.offset, task.upto) == (1, 4)
    answer = world.judge.answer(task)
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
    task, _ = world.task(world.build.offset)
    assert task.pin is not None and (task.pin.offset, task.upto) == (1, 4)
    answer = world.judge.answer(task)
    assert (kinds_of(answer), answer.lake_rows) == ({2: "missing"}, 2)


def test_sums_are_those_of_an_older_version_between_the_bounds(tmp_path: Path) -> None:
    table, judge = lake_alone(tmp_path)
    writer = table.writer()
    table.merge(writer, [lake_row(key) for key in range(1, 10)])
    table.merge(writer, [lake_row(3, "later")], [lake_row(7)])
    sums = judge.answer(Task(Ask.SUMS, T, Pin(1, 0, 0, 0), bounds=(3, 8))).sums
    parts = [range(1, 4), range(4, 9), range(9, 10)]
    assert [(s.rows, s.hash) for s in sums] == [(len(p), sum(row_hash(T, lake_row(key)) for key in p)) for p in parts]
    assert [s.rows for s in judge.answer(Task(Ask.SUMS, T, Pin(2, 0, 0, 0), bounds=(3, 8))).sums] == [3, 4, 1]


def test_samples_are_drawn_from_all_rows_each_once(tmp_path: Path) -> None:
    table, judge = lake_alone(tmp_path)
    table.merge(table.writer(), [lake_row(key) for key in range(1, 30)])
    drawn = [judge.answer(Task(Ask.SAMPLE, T, Pin(1, 0, 0, 0), rows=5, seed=seed)) for seed in range(20)]
    assert all(len(set(answer.keys)) == 5 and answer.lake_rows == 29 for answer in drawn)
    assert {key for answer in drawn for key in answer.keys} > set(range(10, 20))


def test_several_rows_of_a_key_are_named_though_each_is_that_of_the_source(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(0))
    rows = [lake_row(key) for key in (1, 2, 3)]
    world.table.merge(world.writer, rows)
    append_row(world.table, rows[1])
    hashes = [row_hash(T, row) for row in rows[:2]]
    file = world.desk.put_rows("h", pa.record_batch({"id": pa.array([1, 2]), HASH: pa.array(hashes)}))
    answer = world.judge.answer(Task(Ask.COMPARE, T, Pin(newest(world.table.path), 0, 0, 0), (file,)))
    assert (answer.extra, answer.twice, answer.different, answer.lake_rows) == ((3,), (2,), (), 4)


# What is Spark's ------------------------------------------------------------------------------------------------------


def lake_alone(root: Path, **fields: str) -> tuple[LakeTable, DirectJudge]:
    staging = Staging(str(root / "staging"), source="shop")
    table = LakeTable.create_at(root / "lake", fields={**FIELDS, **fields})
    lake = Location(LocalStorage(root / "lake", temporary="_dblog/tmp"))
    return table, DirectJudge(staging, lake, Desk(staging.storage, "tmp/verify-test"))


def lake_row(key: int, v: str = "old") -> dict[str, Any]:
    return {"id": key, "v": v, "big": "big", OFFSET: 0}


def append_row(table: LakeTable, row: dict[str, Any]) -> None:
    """Somebody else's blind append."""
    write_deltalake(str(table.path), table.arrow([row]), mode="append")


def refusal_of(judge: DirectJudge, version: int = 1, schema: TableSchema = T) -> str:
    with pytest.raises(NotDirect) as refused:
        judge.answer(Task(Ask.COMPARE, schema, Pin(version, 0, 0, 0)))
    return str(refused.value)


def test_a_column_of_another_type_in_the_lake_is_left_to_spark(tmp_path: Path) -> None:
    table, judge = lake_alone(tmp_path, v="integer")
    table.merge(table.writer(), [{**lake_row(1), "v": 5}])
    assert "v is int32 in the lake" in refusal_of(judge)


def test_a_column_that_the_lake_lacks_is_left_to_spark(tmp_path: Path) -> None:
    table, judge = lake_alone(tmp_path)
    table.merge(table.writer(), [lake_row(1)])
    wider = table_shape("t", id=pa.int64(), v=pa.string(), big=pa.string(), added=pa.string())
    assert "added is None in the lake" in refusal_of(judge, schema=wider)


def test_a_large_table_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, judge = lake_alone(tmp_path)
    table.merge(table.writer(), [lake_row(1), lake_row(2)])
    monkeypatch.setattr(lake_hashes, "MAX_ROWS", 1)
    assert "more than 1 rows" in refusal_of(judge)


def test_a_floating_key_is_left_to_spark(tmp_path: Path) -> None:
    _, judge = lake_alone(tmp_path)
    assert "floating" in refusal_of(judge, schema=table_shape("t", key=("d",), d=pa.float64()))


def test_staged_rows_of_many_keys_are_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, random.Random(3))
    for _ in range(20):
        world.write(KEYS)
    world.seal()
    monkeypatch.setattr(staged_hashes, "MAX_EVENTS", 5)
    with pytest.raises(NotDirect, match="more than 5 staged rows"):
        world.judge.answer(world.task(0)[0])


def test_a_rename_since_the_last_merge_is_left_to_spark(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(3))
    world.write(KEYS)
    world.build.schema(T, renamed={"v": "was"})
    world.seal()
    with pytest.raises(NotDirect, match="renamed"):
        world.judge.answer(world.task(0)[0])


def test_rows_of_another_shape_are_left_to_spark(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(3))
    world.build.create(table_shape("t", id=pa.int64(), v=pa.string()), {"id": 1, "v": "old"})
    world.seal()
    with pytest.raises(NotDirect, match="big is None"):
        world.judge.answer(world.task(0)[0])


def test_too_many_rows_without_all_columns_are_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, random.Random(3))
    world.build.create(T, {"id": 1, "v": "old", "big": "big"})
    world.build.update(T, {"id": 1, "v": "new", "big": None}, unchanged=["big"])
    world.seal()
    monkeypatch.setattr(sides, "MAX_PARTIAL", 1)
    with pytest.raises(NotDirect, match="leave columns out"):
        world.judge.answer(world.task(0)[0])


def test_a_version_that_is_gone_is_an_error(tmp_path: Path) -> None:
    table, judge = lake_alone(tmp_path)
    table.merge(table.writer(), [lake_row(1)])
    with pytest.raises(LakeError, match="no longer shows version 9"):
        judge.answer(Task(Ask.COMPARE, T, Pin(9, 0, 0, 0)))


def test_who_is_asked_to_stop_reads_no_further(tmp_path: Path) -> None:
    stop = threading.Event()
    world = World(tmp_path, random.Random(3))
    world.write(KEYS)
    world.seal()
    task, _ = world.task(0)
    judge = DirectJudge(world.staging, Location(LocalStorage(tmp_path / "lake", temporary="x")), world.desk, stop=stop)
    stop.set()
    with pytest.raises(Interrupted):
        judge.answer(task)
