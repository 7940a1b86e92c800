"""Merges of small batches with histories need no Spark, and whatever befalls them each line is told once."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dblog_core.errors import LeaseLost, StagingUnavailable
from dblog_core.lake import foreign_commits
from dblog_core.lake.lake_status import history_location, read_status
from dblog_core.staging import Staging
from spark_jobs.delta_tables import create_table
from spark_jobs.lake_tasks import maintain
from tests.spark.faults import Points, count_points, rounds
from tests.spark.lakes import Crash, TestLake
from tests.spark.no_spark import NoSpark, SparkAsked
from tests.spark.worlds import SHAPE, Oracle, Source
from tests.spark.worlds_history import Expected
from tests.unit.spark_jobs.test_history_without_spark import read_rows

WORLDS = 6
WRITES = ("history", "history table", "version", "new rows", "mark")
KINDS = tuple(f"{when} {write}" for write in WRITES for when in ("before", "after"))


@pytest.fixture(autouse=True)
def properties_of_new_tables() -> Iterator[None]:
    """What a process asks of Spark where it makes a table."""
    with mock.patch.object(create_table, "has_default_properties", return_value=False):
        yield


class World:
    """A lake with a history, and what both should be."""

    def __init__(self, path: Path, seed: str) -> None:
        self.lake = TestLake(NoSpark(), Staging(str(path / "staging"), source="shop"), path / "lake")  # type: ignore[arg-type]
        self.lake.history = True
        self.lake.marks = True
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
        except SparkAsked:  # another has made the table that it was about to make: Delta itself looks at that
            assert (fault, points.happened) == ("is overtaken", "before history table")
    return points.happened
