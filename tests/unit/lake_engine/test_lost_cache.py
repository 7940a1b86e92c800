"""The cache of a merge is lost, or an older or damaged one is in its place: the lake equals the source all the same."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from dblog_core.lake.lake_status import State, read_status
from dblog_core.lake_engine.merging import upsert_rows
from dblog_core.lake_engine.merging.upsert_rows import OpenTables
from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from tests.spark.lakes import TestLake
from tests.spark.segments import table

TABLES = {table("numbers", id=pa.int64(), v=pa.string()): int, table("texts", id=pa.string(), v=pa.string()): str}
"""With what makes a number a key: whole numbers are in the index as they are, others by a hash."""


class World:
    """A source that changes at random, and its lake; each merge is a process of its own, and keeps its index."""

    def __init__(self, path: Path, *, vectors: bool) -> None:
        self.lake = TestLake(None, Staging(str(path / "staging"), source="shop"), path / "lake")
        self.lake.vectors = vectors
        self.cache = path / "index"
        self.random = random.Random(1)
        self.rows: dict[TableSchema, dict[int, str]] = {schema: {} for schema in TABLES}

    def change_and_merge(self) -> None:
        for schema, key_of in TABLES.items():
            rows = self.rows[schema]
            for _ in range(30):
                number = self.random.randrange(60)
                value = f"v{self.lake.build.offset}"
                if number not in rows:
                    self.lake.build.create(schema, {"id": key_of(number), "v": value})
                elif self.random.random() < 0.4:
                    self.lake.build.delete(schema, {"id": key_of(number)})
                    del rows[number]
                    continue
                else:
                    self.lake.build.update(schema, {"id": key_of(number), "v": value})
                rows[number] = value
        self.lake.build.seal()
        merger = self.lake.merger()
        while (merged := merger.run_round(retry_stopped=True)) is not None:
            assert not [each.error for each in merged.tables if each.error]
        assert merger._lake.open_tables is not None
        merger._lake.open_tables.close()

    def check(self) -> None:
        status = read_status(self.lake.location)
        assert status is not None and all(each.state is not State.STOPPED for each in status.tables.values())
        for schema, rows in self.rows.items():
            have = sorted((int(row["id"]), row["v"]) for row in self.lake.rust_rows(schema))
            assert have == sorted(rows.items())


def _remove(world: World, _copy: Path) -> None:
    shutil.rmtree(world.cache)


def _put_back(world: World, copy: Path) -> None:
    shutil.rmtree(world.cache)
    shutil.copytree(copy, world.cache)


def _put_back_over_the_newer_one(world: World, copy: Path) -> None:
    shutil.copytree(copy, world.cache, dirs_exist_ok=True)


def _put_back_in_part(world: World, copy: Path) -> None:
    _put_back(world, copy)
    for run in world.cache.glob("*/*.run"):
        run.unlink()


def _damage(world: World, _copy: Path) -> None:
    for run in world.cache.glob("*/*.run"):
        data = run.read_bytes()
        run.write_bytes(bytes(len(data) // 2) + data[len(data) // 2 :])


@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "copies"])
@pytest.mark.parametrize("lose", [_remove, _put_back, _put_back_over_the_newer_one, _put_back_in_part, _damage])
def test_a_lost_or_older_cache_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lose: Callable[[World, Path], None], vectors: bool
) -> None:
    monkeypatch.setattr(upsert_rows, "_KEPT_ROWS", 0)
    # All of an index is on the disk, as that of a large table is.
    monkeypatch.setattr(OpenTables.__init__, "__kwdefaults__", {"memory": 0})
    world = World(tmp_path, vectors=vectors)
    for _ in range(3):
        world.change_and_merge()
    assert len(list(world.cache.glob("*/*.run"))) >= 2
    shutil.copytree(world.cache, tmp_path / "copy")
    for _ in range(3):
        world.change_and_merge()
    lose(world, tmp_path / "copy")
    for _ in range(3):
        world.change_and_merge()
        world.check()
