"""A TRUNCATE and the rows behind it are one version of the lake table, wherever a merge dies."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from dblog_core.lake_engine.merging.merge_results import Applied
from dblog_core.model.values import Key
from dblog_core.staging import Staging
from tests.spark.faults import Points, count_points, rounds
from tests.spark.lakes import Crash, TestLake
from tests.spark.segments import table
from tests.spark.worlds import SHAPE, Oracle, Source
from tests.unit.delta_writer.tables import commit_of, newest

WORLDS = 5
NOTES = table("notes", id=pa.int64(), v=pa.string(), big=pa.string())
KINDS = tuple(
    f"{when} {write}"
    for write in ("mark", "version", "vectors", "new rows", "withheld keys", "truncate", "outcome")
    for when in ("before", "after")
)
Rows = dict[Key, dict[str, Any]]


def make_lake(path: Path, *, vectors: bool = True, history: bool = False) -> TestLake:
    lake = TestLake(None, Staging(str(path / "staging"), source="shop"), path / "lake")
    lake.vectors = vectors
    lake.history = history
    return lake


class World:
    """A lake table, and what a reader of the lines has."""

    def __init__(self, path: Path, seed: str, *, history: bool, vectors: bool = True) -> None:
        self.lake = make_lake(path, history=history, vectors=vectors)
        self.dice = random.Random(seed)
        self.source = Source(self.lake.build, self.dice, WORLDS)
        if not history:  # which asks Spark what the lake has of a row that waits
            self.source.add_unseen_rows(0.4)
        self.oracle = Oracle()

    def change(self, *, truncates: bool) -> None:
        at = self.dice.randrange(WORLDS * 4) if truncates else -1
        for number in range(WORLDS * 4):
            if number == at:
                self.source.truncate()
            self.source.change(number % WORLDS)
            if number % WORLDS == 0:
                self.source.dump_chunk()
            if number % 7 == 6:
                self.lake.build.seal()
        self.lake.build.seal()

    @property
    def path(self) -> Path:
        path = self.lake.table(SHAPE).local
        assert path is not None
        return path

    def rows(self, version: int | None = None) -> Rows:
        delta = DeltaTable(str(self.path), version=version)
        rows = pa.table(QueryBuilder().register("t", delta).execute("select * from t")).to_pylist()
        return {(r["world"], r["k"]): {c: r[c] for c in ("a", "f", "big")} for r in rows}

    def check(self) -> None:
        """The table, and what waits, are those of a reader of the lines."""
        self.oracle.read(self.source.lines, self.lake.build.offset)
        self.source.end_merge()
        assert self.rows() == self.oracle.rows
        assert self.lake.withheld is not None
        assert self.oracle.waits(set(self.lake.withheld.keys(str(SHAPE.table), SHAPE)))


@pytest.mark.parametrize(("history", "vectors"), [(False, True), (True, True), (False, False)])
def test_readers_see_the_table_as_it_was_or_as_it_is(
    tmp_path: Path, soak_seed: int, history: bool, vectors: bool
) -> None:
    world = World(tmp_path, f"versions {soak_seed}", history=history, vectors=vectors)
    world.change(truncates=False)
    world.lake.merge_well()
    world.check()
    emptied = 0
    for number in range(6):
        before = world.rows()
        first = newest(world.path) + 1
        world.change(truncates=number % 3 < 2)
        world.lake.merge_well()
        world.check()
        after = world.rows()
        assert before and after
        for version in range(first, newest(world.path) + 1):
            assert world.rows(version) in (before, after), f"version {version}"
        emptied += any(
            action["commitInfo"]["operationMetrics"].get("numTargetRowsNotMatchedBySourceDeleted", "0") != "0"
            for version in range(first, newest(world.path) + 1)
            for action in commit_of(world.path, version)
            if "commitInfo" in action
        )
    assert emptied == 4


@pytest.mark.thorough
@pytest.mark.in_turn("history")
@pytest.mark.parametrize("history", [False, True])
def test_a_merge_that_dies_at_any_point_ends_as_one_that_does_not(
    tmp_path: Path, soak_seed: int, history: bool
) -> None:
    happened = set[str]()
    for at in count(1):
        world = World(tmp_path / f"{at}", f"dies {soak_seed}", history=history)
        world.change(truncates=False)
        world.lake.merge_well()
        world.check()
        world.change(truncates=True)
        before = world.rows()
        points = Points(KINDS, at, lambda kind: points.die())  # noqa: B023
        with count_points(points):
            try:
                rounds(world.lake.merger())
            except Crash:
                assert points.happened is not None
        if points.happened is None:
            break
        happened.add(points.happened)
        dead = world.rows()
        world.lake.merge_well()
        world.check()
        assert dead in (before, world.rows())
        world.change(truncates=False)
        world.lake.merge_well()
        world.check()
    assert happened >= {"before version", "after version", "before mark", "after mark", "after new rows"}
    assert "before truncate" not in happened, "it is no commit of its own"


def note(number: int, v: str, big: str | None = None) -> dict[str, Any]:
    return {"id": number, "v": v, "big": big}


def fill(lake: TestLake, *, waits: bool = False) -> None:
    """Rows 1 to 3; key 9 `waits` for a dump: no row has its value."""
    for number in (1, 2, 3):
        lake.build.create(NOTES, note(number, "old", "large"))
    if waits:
        lake.build.update(NOTES, note(9, "old"), unchanged=["big"])
    lake.build.seal()
    lake.merge_well()
    assert waiting(lake) == ([(9,)] if waits else [])


def waiting(lake: TestLake) -> list[Key]:
    assert lake.withheld is not None
    return lake.withheld.keys(str(NOTES.table), NOTES)


def values(lake: TestLake) -> dict[int, tuple[str, str | None]]:
    return {r["id"]: (r["v"], r["big"]) for r in lake.rust_rows(NOTES)}


def merge_one(lake: TestLake) -> Applied:
    (merged,) = lake.merge_well()
    (applied,) = merged.tables
    return applied


def test_a_full_refresh_is_counted_by_what_goes_and_what_comes(tmp_path: Path) -> None:
    lake = make_lake(tmp_path)
    fill(lake)
    lake.build.update(NOTES, note(1, "before the truncate", "x"))
    lake.build.truncate(NOTES)
    for number in (2, 3, 4):
        lake.build.create(NOTES, note(number, "new", "y"))
    lake.build.delete(NOTES, {"id": 77})
    lake.build.seal()
    before = newest_version(lake)
    applied = merge_one(lake)
    assert newest_version(lake) == before + 1
    assert (applied.inserted, applied.updated, applied.deleted, applied.unchanged) == (3, 0, 3, 1)
    assert values(lake) == dict.fromkeys((2, 3, 4), ("new", "y"))


def newest_version(lake: TestLake) -> int:
    path = lake.table(NOTES).local
    assert path is not None
    return newest(path)


def test_a_truncate_without_rows_behind_it_is_one_version(tmp_path: Path) -> None:
    lake = make_lake(tmp_path)
    fill(lake, waits=True)
    lake.build.update(NOTES, note(1, "before the truncate", "x"))
    lake.build.truncate(NOTES)
    lake.build.seal()
    before = newest_version(lake)
    applied = merge_one(lake)
    assert newest_version(lake) == before + 1 and applied.deleted == 3
    assert values(lake) == {} and waiting(lake) == []


def test_a_value_from_before_the_truncate_is_not_kept(tmp_path: Path) -> None:
    """A row that is there already when the log says nothing of it: its dump, or its whole row, is still to come."""
    lake = make_lake(tmp_path)
    fill(lake)
    lake.build.truncate(NOTES)
    lake.build.update(NOTES, note(1, "new"), unchanged=["big"])
    lake.build.move(NOTES, {"id": 2}, note(5, "new"), unchanged=["big"])
    lake.build.create(NOTES, note(3, "new", "y"))
    lake.build.update(NOTES, note(3, "newer"), unchanged=["big"])
    lake.build.seal()
    applied = merge_one(lake)
    assert values(lake) == {3: ("newer", "y")}
    assert sorted(waiting(lake)) == [(1,), (5,)] and applied.withheld == 2


@pytest.mark.parametrize("point", ["before mark", "before version", "after version", "after mark"])
@pytest.mark.parametrize("op", ["truncate", "delete"])
def test_keys_that_are_gone_wait_for_no_dump_wherever_the_merge_died(tmp_path: Path, point: str, op: str) -> None:
    """No dump would ever bring them: each one that ends without them is requested again."""
    lake = make_lake(tmp_path)
    fill(lake, waits=True)
    if op == "truncate":
        lake.build.truncate(NOTES)
    else:
        lake.build.delete(NOTES, {"id": 9})
    lake.build.create(NOTES, note(4, "new", "y"))
    lake.build.update(NOTES, note(8, "new"), unchanged=["big"])
    lake.build.seal()
    points = Points((point,), 1, lambda kind: points.die())
    with count_points(points), pytest.raises(Crash):
        rounds(lake.merger())
    assert points.happened == point
    lake.merge_well()
    assert values(lake) == {4: ("new", "y"), **({} if op == "truncate" else dict.fromkeys((1, 2, 3), ("old", "large")))}
    assert waiting(lake) == [(8,)]
