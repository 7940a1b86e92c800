"""A work that is folded and written in parts is one commit, with the rows that it would have at once."""

from __future__ import annotations

import random
import weakref
from pathlib import Path

import pyarrow as pa
import pytest

from dblog_core.errors import CorruptSegment
from dblog_core.lake import merge_plan
from dblog_core.lake_engine.events import fold, last_rows, staged_events
from dblog_core.lake_engine.events.fold import Room
from dblog_core.model.schema import TableSchema
from dblog_core.rows import disk_spool
from dblog_core.staging import Staging, changelog
from tests.spark.segments import SegmentBuilder, table
from tests.spark.worlds import SHAPE, Oracle, WholeRows
from tests.unit.delta_writer.rivals import open_delta
from tests.unit.delta_writer.tables import check_log, commit_of, newest
from tests.unit.lake_engine.world_lake import Lake, change, fold_large, fold_small

NUMBERS = table("t", id=pa.int64(), v=pa.string())
TEXTS = table("t", key=("v", "id"), id=pa.int64(), v=pa.string())


def in_parts(tmp_path: Path, name: str) -> Lake:
    lake = Lake(tmp_path, random.Random(name), source=WholeRows)
    lake.is_large = True
    return lake


@pytest.fixture(params=["kept in memory", "read again", "keys on the disk"])
def small_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stretch of events is a part."""
    monkeypatch.setattr(fold, "PART_BYTES", 1)
    if request.param != "kept in memory":
        monkeypatch.setattr(fold, "_ROOM", Room(0))
    if request.param == "keys on the disk":
        monkeypatch.setattr(last_rows, "SORTED_ROWS", 40)
        monkeypatch.setattr(last_rows, "SPOOLED_ROWS", 30)


@pytest.mark.usefixtures("small_parts")
def test_a_table_is_what_the_lines_say_after_every_merge(tmp_path: Path, soak_seed: int) -> None:
    lake = in_parts(tmp_path, f"parts {soak_seed}")
    oracle = Oracle()
    lake.source.add_unseen_rows(0.3)
    files = []
    for _ in range(5):
        change(lake)
        lake.merge()
        oracle.read(lake.source.lines, lake.offset)
        lake.source.end_merge()
        assert lake.rows() == oracle.rows
        check_log(lake.table.path)
        actions = commit_of(lake.table.path, newest(lake.table.path))
        assert [a["txn"]["version"] for a in actions if "txn" in a] == [lake.number]
        files.append(len([a for a in actions if "add" in a and "deletionVector" not in a["add"]]))
    assert max(files) > 1, "several parts, and a file for each"
    assert not lake.withheld


@pytest.mark.usefixtures("small_parts")
def test_both_folds_give_the_same_rows(tmp_path: Path, soak_seed: int) -> None:
    dice = random.Random(soak_seed)
    for number, schema in enumerate((NUMBERS, TEXTS)):
        work, staging = make_work(tmp_path / f"{number}", dice, schema)
        at_once = fold_small(staging, work, schema)
        parts = fold_large(staging, work, schema)
        for _ in range(2):
            tables = list(parts)
            assert len(tables) > 1 and sum(map(len, tables)) == len(parts)
            assert by_offset(tables) == by_offset([at_once])


def make_work(path: Path, dice: random.Random, schema: TableSchema) -> tuple[merge_plan.Work, Staging]:
    """Every op, chunks with evicted rows among the lines, and what a TRUNCATE removes."""
    build = SegmentBuilder(Staging(str(path), source="shop"))
    for step in range(400):
        row = {"id": dice.randrange(-20, 20), "v": dice.choice("abc")}
        if dice.random() < 0.3:
            build.delete(schema, {name: row[name] for name in schema.key})
        else:
            build.line(schema, dice.choice("cu"), after=row)
        if step % 50 == 20:
            rows = {tuple(r[n] for n in schema.key): r for r in ({"id": i, "v": dice.choice("abc")} for i in range(9))}
            build.chunk(schema, list(rows.values()), evicted=[0, 3], dump=f"d{step}")
        if step == 90:
            build.truncate(schema)
        if step % 70 == 69:
            build.seal()
    build.chunk(schema, [{"id": 100, "v": "a"}], dump="last")  # a part of its own, whatever the dice have made
    build.seal()
    work = merge_plan.plan_works(build.staging.manifests(), lambda table: 0)[str(schema.table)]
    assert work.last_truncate and work.chunks
    return work, build.staging


def by_offset(tables: list[pa.Table]) -> list[object]:
    rows = [{**r, "row": None if r["op"] == "d" else r["row"]} for part in tables for r in part.to_pylist()]
    return sorted(rows, key=lambda r: int(r["offset"]))


@pytest.mark.usefixtures("small_parts")
def test_what_others_commit_between_two_parts_is_met(tmp_path: Path) -> None:
    lake = in_parts(tmp_path, "rival")
    change(lake)
    lake.merge()
    lake.source.end_merge()
    change(lake)
    versions = list[int]()

    def between() -> None:
        if not versions:
            versions.append(newest(lake.table.path))
            open_delta(lake.table).delete("a % 3 = 1")
            open_delta(lake.table).optimize.compact()

    before = set(lake.table.path.glob("*.parquet"))
    lake.merge(lake.open(between))
    oracle = Oracle()
    oracle.read(lake.source.lines, lake.offset)
    written = {line.key for line in lake.source.lines[lake.source._batch :]}
    assert {key: row for key, row in lake.rows().items() if key in written} == {
        key: row for key, row in oracle.rows.items() if key in written
    }
    assert len(set(lake.table.path.glob("*.parquet")) - before) > 1


@pytest.mark.usefixtures("large_files")
@pytest.mark.parametrize("schema", [NUMBERS, TEXTS])
def test_a_key_with_more_events_than_memory_has_its_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: TableSchema
) -> None:
    """Its events are put in order some at a time, and a birth among the first ones is not forgotten."""
    monkeypatch.setattr(last_rows, "SORTED_ROWS", 50)
    monkeypatch.setattr(last_rows, "SPOOLED_ROWS", 30)
    monkeypatch.setattr(fold, "_ROOM", Room(0))
    monkeypatch.setattr(staged_events, "TOGETHER", 1)
    build = SegmentBuilder(Staging(str(tmp_path), source="shop"))
    build.line(schema, "c", after={"id": 1, "v": "a"})
    for number in range(600):
        key = {"id": 1, "v": "a"} if number % 3 else {"id": number, "v": "b"}
        build.line(schema, "u", after=key)
        if number % 20 == 19:
            build.seal()
    build.seal()
    work = merge_plan.plan_works(build.staging.manifests(), lambda table: 0)[str(schema.table)]
    parts = fold_large(build.staging, work, schema)
    at_once = fold_small(build.staging, work, schema)
    assert len(parts) == 201
    assert by_offset(list(parts)) == by_offset([at_once])
    assert [row["offset"] for part in parts for row in part.to_pylist() if row["inserted"]] == [601]


@pytest.fixture
def large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """No staged file is read into memory as it is, and no array lies in memory."""
    monkeypatch.setattr(changelog, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(changelog, "_PART_BYTES", 100)
    monkeypatch.setattr(disk_spool, "_IN_MEMORY", 0)


@pytest.mark.usefixtures("large_files")
def test_large_files_are_read_from_the_local_disk(tmp_path: Path) -> None:
    lake = in_parts(tmp_path, "large files")
    oracle = Oracle()
    change(lake)
    lake.merge_as_told(oracle)
    change(lake)
    lake.damage_first_file()
    with pytest.raises(CorruptSegment, match="changed"):
        fold_large(lake.staging, all_works(lake), SHAPE)
    for file in (tmp_path / "staging").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(CorruptSegment, match="the file is missing"):
        lake.fold_sealed()


def all_works(lake: Lake) -> merge_plan.Work:
    return merge_plan.plan_works(lake.staging.manifests(), lambda table: 0)[str(SHAPE.table)]


def test_a_file_that_was_changed_stops_the_fold(tmp_path: Path) -> None:
    lake = in_parts(tmp_path, "damaged")
    change(lake)
    lake.damage_first_file()
    with pytest.raises(CorruptSegment, match="changed"):
        lake.fold_sealed()


def test_the_memory_of_kept_events_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(1 << 20)
    monkeypatch.setattr(fold, "_ROOM", room)
    lake = in_parts(tmp_path, "room")
    change(lake)
    rows, _ = lake.fold_sealed()
    assert not room.take(1 << 20)
    gone = weakref.ref(rows.parts)
    del rows
    assert gone() is None and room.take(1 << 20)
