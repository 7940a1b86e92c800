"""Merges of small batches with histories need no Spark, and whatever befalls them each line is told once."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Field

from dblog_core.errors import LeaseLost, StagingUnavailable
from dblog_core.lake import foreign_commits
from dblog_core.lake.lake_status import history_location, read_status
from dblog_core.lake_engine.history import history_lines
from dblog_core.lake_engine.tasks import maintain
from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark
from tests.spark.faults import Points, count_points, rounds
from tests.spark.lakes import Crash, TestLake
from tests.spark.segments import table
from tests.spark.worlds import SHAPE, Oracle, Source
from tests.spark.worlds_history import Expected
from tests.unit.lake_engine.test_history_without_spark import read_rows

WORLDS = 6
WRITES = ("history", "history table", "version", "new rows", "mark")
KINDS = tuple(f"{when} {write}" for write in WRITES for when in ("before", "after"))


class World:
    """A lake with a history, and what both should be."""

    def __init__(self, path: Path, seed: str) -> None:
        self.lake = TestLake(None, Staging(str(path / "staging"), source="shop"), path / "lake")
        self.lake.history = True
        # Rows that nobody has seen would wait for a dump, of which Spark knows whether it has come.
        self.source = Source(self.lake.build, random.Random(seed), WORLDS)
        self._begins = 0

    def change(self) -> None:
        for _ in range(2):
            for number in range(WORLDS):
                self.source.change(number)
            self.source.dump_chunk()
            self.lake.build.seal()

    def merge_without_history(self) -> None:
        """The history begins with the next merge."""
        self.lake.history = False
        self.lake.merge_well()
        self.lake.history = True
        self._begins = self.lake.build.offset

    def check(self) -> None:
        """Both are what a reader of the lines would have."""
        expected = Expected()
        oracle = Oracle()
        expected.read(self.source.lines, self.lake.build.offset)
        oracle.read(self.source.lines, self.lake.build.offset)
        told = self._read(history_location(self.lake.location, SHAPE.table))
        assert [Expected.as_told(row) for row in told] == [line for line in expected.lines if line[0] > self._begins]
        rows = {(row["world"], row["k"]): row for row in self._read(self.lake.table(SHAPE))}
        assert {key: {c: row[c] for c in ("a", "f", "big")} for key, row in rows.items()} == oracle.rows

    def _read(self, path: Any) -> list[dict[str, Any]]:
        return read_rows(path.local)


def test_small_batches_are_merged_without_spark(tmp_path: Path, soak_seed: int) -> None:
    world = World(tmp_path, f"{soak_seed}")
    for _ in range(3):
        world.change()
        merged = world.lake.merge_well()
        assert sum(table.history for each in merged for table in each.tables)
        world.check()


def begin_of(world: World) -> int:
    """The offset behind which the history says that it is whole."""
    history = history_location(world.lake.location, SHAPE.table).local
    return int(DeltaTable(str(history)).metadata().configuration["dblog.after"])


def check_begins_again(world: World) -> None:
    """With the next merge, behind all that was merged."""
    end = world.lake.build.offset
    world.change()
    world.lake.merge_well()
    assert begin_of(world) == end


def test_a_history_with_a_gap_begins_again(tmp_path: Path) -> None:
    """A merge without history lies in between: the history is to say from where on it is whole."""
    world = World(tmp_path, "gap")
    for begin in (world.lake.merge_well, world.merge_without_history):
        world.change()
        begin()
    check_begins_again(world)


def put_back(history: Path, copy: Path) -> None:
    shutil.rmtree(history)
    shutil.copytree(copy, history)


def restore(history: Path, copy: Path) -> None:
    DeltaTable(str(history)).restore(DeltaTable(str(history)).version() - 1)


def append_line(history: Path, copy: Path) -> None:
    lines = pa.table(DeltaTable(str(history)).to_pyarrow_table())
    write_deltalake(str(history), lines.slice(0, 1), mode="append")


@pytest.mark.parametrize("harm", [put_back, restore, append_line])
def test_a_history_that_another_program_has_changed_begins_again(
    tmp_path: Path, harm: Callable[[Path, Path], None]
) -> None:
    world = World(tmp_path, harm.__name__)
    history = history_location(world.lake.location, SHAPE.table).local
    assert history is not None
    for _ in range(2):
        world.change()
        world.lake.merge_well()
        if not (tmp_path / "copy").exists():
            shutil.copytree(history, tmp_path / "copy")
    status = read_status(world.lake.location)
    assert status is not None
    told = status.tables[str(SHAPE.table)]
    place = history_location(world.lake.location, SHAPE.table)
    assert foreign_commits.find_history_gap(place, told) is None
    harm(history, tmp_path / "copy")
    assert foreign_commits.find_history_gap(place, told)
    followed = maintain._follow_history(maintain.Place(str(SHAPE.table), place, True), told)
    assert foreign_commits.find_history_gap(place, followed), "a maintenance does not let a rebuild take it as whole"
    check_begins_again(world)


def test_a_history_that_is_changed_between_a_crash_and_the_end_of_its_merge_begins_again(tmp_path: Path) -> None:
    """The merge's own lines may be gone, and count as written: it is the next one that begins again."""
    world = World(tmp_path, "crash")
    place = history_location(world.lake.location, SHAPE.table)
    world.change()
    world.lake.merge_well()
    world.change()
    world.lake.merge_until(f"applied {SHAPE.table}")
    assert place.local is not None
    append_line(place.local, tmp_path)
    (merged,) = world.lake.merge_well()
    assert merged.tables[0].history_gap == "another program has added lines"
    status = read_status(world.lake.location)
    assert status is not None and foreign_commits.find_history_gap(place, status.tables[str(SHAPE.table)])
    check_begins_again(world)


def test_a_history_whose_files_another_program_has_joined_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, "joined")
    for _ in range(3):
        world.change()
        world.lake.merge_well()
    history = history_location(world.lake.location, SHAPE.table).local
    DeltaTable(str(history)).optimize.compact()
    world.change()
    world.lake.merge_well()
    world.check()


ITEMS = table("items", id=pa.int64(), v=pa.string(), big=pa.string())
EVENTS = table("events", key=(), what=pa.string(), n=pa.int64())


def lake_at(path: Path) -> TestLake:
    """An empty lake with histories."""
    return World(path, "none").lake


def lines_of(lake: TestLake, schema: TableSchema) -> list[tuple[Any, ...]]:
    """Offset, op, the row, and what is not known of it."""
    path = history_location(lake.location, schema.table).local
    assert path is not None
    names = ("_dblog_offset", "_dblog_op", *(c.name for c in schema.columns), "_dblog_unchanged")
    return [tuple(row[name] for name in names) for row in read_rows(path)]


def test_a_table_without_a_key_has_lines_of_what_its_log_says(tmp_path: Path) -> None:
    lake = lake_at(tmp_path)
    lake.build.create(EVENTS, {"what": "a", "n": 1})
    lake.build.line(EVENTS, "u", before={"what": "a", "n": 1}, after={"what": None, "n": 1}, unchanged=["what"])
    lake.build.seal()
    lake.merge_well()
    lake.build.truncate(EVENTS)
    lake.build.seal()
    lake.merge_well()
    assert lines_of(lake, EVENTS) == [
        (1, "c", "a", 1, None), (2, "u", None, 1, ["what"]), (3, "t", None, None, None),
    ]  # fmt: skip


def test_a_history_that_takes_no_lines_of_ours_stops_its_table_with_the_fix(tmp_path: Path) -> None:
    lake = lake_at(tmp_path)
    lake.build.create(ITEMS, {"id": 1, "v": "v", "big": "b"})
    lake.build.seal()
    lake.merge_well()
    path = history_location(lake.location, ITEMS.table)
    DeltaTable(str(path)).alter.add_constraint({"some": "_dblog_offset > 0"})
    lake.build.create(ITEMS, {"id": 2, "v": "v", "big": "b"})
    lake.build.seal()
    (merged,) = lake.merge()
    assert merged.tables[0].error == (
        f"{path}: the history cannot be written: it has the constraint some\n"
        "  fix: change that; or move its directory away: the next merge begins a new one"
    )
    assert [offset for offset, *_ in lines_of(lake, ITEMS)] == [1], "and the table has no row without its line"
    assert [row["id"] for row in lake.rust_rows(ITEMS)] == [1]


def test_a_place_with_files_and_no_log_takes_no_history(tmp_path: Path) -> None:
    lake = lake_at(tmp_path)
    path = history_location(lake.location, ITEMS.table)
    (path / "somebody's.parquet").create(b"PAR1")
    lake.build.create(ITEMS, {"id": 1, "v": "v", "big": "b"})
    lake.build.seal()
    (merged,) = lake.merge()
    assert merged.tables[0].error == (f"{path}: its place has files, and no Delta log\n  fix: move the directory away")


def test_a_history_that_is_altered_while_lines_are_made_gets_them_in_its_new_shape(tmp_path: Path) -> None:
    lake = lake_at(tmp_path)
    lake.build.create(ITEMS, {"id": 1, "v": "v", "big": "b"})
    lake.build.seal()
    lake.merge_well()
    lake.build.create(ITEMS, {"id": 2, "v": "v", "big": "b"})
    lake.build.seal()
    make_lines = history_lines.make_lines
    looked = []

    def alter_first(*how: Any) -> Any:
        looked.append(how)
        lines = make_lines(*how)
        if len(looked) == 1:
            opened = DeltaTable(str(history_location(lake.location, ITEMS.table)))
            opened.alter.add_columns([Field("theirs", "integer")])
        return lines

    with mock.patch.object(history_lines, "make_lines", alter_first):
        lake.merge_well()
    assert len(looked) == 2
    assert [key for _, _, key, *_ in lines_of(lake, ITEMS)] == [1, 2]


def test_ghosts_are_told_once_however_many_parts_their_keys_come_in(tmp_path: Path) -> None:
    lake = lake_at(tmp_path)
    lake.build.create(ITEMS, {"id": 1, "v": "v", "big": "b"})
    lake.build.seal()
    lake.merge_well()
    mark = LogMark(9, "f", str(ITEMS.table), "p9", 0, dump="d1")
    for _ in range(2):
        history = lake.merger()._lake.open_history(ITEMS)
        history.append_ghosts((pa.table({"id": pa.array(keys, pa.int64())}) for keys in ([3, 4], [], [5])), mark)
    assert lines_of(lake, ITEMS)[1:] == [(9, "d", key, None, None, ["v", "big"]) for key in (3, 4, 5)]
    history.append_ghosts([pa.table({"id": pa.array([], pa.int64())})], LogMark(10, "f", str(ITEMS.table), "p10", 0))
    path = history_location(lake.location, ITEMS.table)
    newest, *_ = DeltaTable(str(path)).history(1)
    assert newest["version"] == 2, "no ghost is no commit"
    told = [row for row in read_rows(Path(str(path))) if row["_dblog_op"] == "d"]
    assert {(row["_dblog_origin"], row["_dblog_position"], row["_dblog_transaction"]) for row in told} == {
        ("dump", "p9", None)
    }


@pytest.mark.thorough
@pytest.mark.in_turn("fault")
@pytest.mark.parametrize("fault", ["dies", "loses an answer", "is overtaken"])
def test_a_fault_at_any_point_neither_loses_nor_repeats_a_line(tmp_path: Path, fault: str, soak_seed: int) -> None:
    """At the points of the history's commit and the table's: at every third one, by the seed."""
    happened = set[str]()
    for begins in (True, False):
        for at in count(1 + soak_seed % 3, 3):
            world = World(tmp_path / f"{begins} {at}", f"{soak_seed}/{fault}")
            world.change()
            world.merge_without_history() if begins else world.lake.merge_well()
            world.change()
            if (point := befall(world, fault, at)) is None:
                break
            happened.add(point)
            world.change()
            world.lake.merge_well()
            world.check()
    assert len(happened) > 4


def befall(world: World, fault: str, at: int) -> str | None:
    """A merge that something happens to at this point; which one it was. None: it has fewer."""

    def happen(_kind: str) -> None:
        if fault == "dies":
            points.die()
        if fault == "loses an answer":
            raise StagingUnavailable("storage does not answer")
        rounds(world.lake.merger())

    points = Points(KINDS, at, happen)
    with count_points(points):
        try:
            rounds(world.lake.merger())
        except (Crash, LeaseLost):
            assert points.happened is not None
    return points.happened
