"""Seeded merges under faults: whatever dies, sleeps or is lost in between, each run ends with lake = model, and with
every cut right. `make soak` runs 200 of them and more; `make test` a rotating few."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dblog_core.lake import read_status
from dblog_core.schema import TableName, TableSchema
from spark_jobs.shapes import OFFSET
from tests.spark.faults import FAULTS
from tests.spark.lakes import TestLake
from tests.spark.worlds import SHAPE, Oracle, Source

WORLDS = 3
RUNS, SOAK = 2, 10
"""Runs for each seed: every day, and in the soak, whose 20 seeds make 200."""

NAMES = ("first", "second")


class Model:
    """Two tables of a source, and what a reader of their lines has at any offset."""

    def __init__(self, lake: TestLake, dice: random.Random) -> None:
        self._lake, self._dice = lake, dice
        self.sources = {name: Source(lake.build, dice, WORLDS, _shape(name)) for name in NAMES}
        for source in self.sources.values():
            source.unseen(0.3)

    def change(self) -> None:
        """A segment or two of changes of both tables."""
        for _ in range(self._dice.choice((1, 2))):
            for source in self.sources.values():
                for world in range(WORLDS):
                    source.change(world)
                what = self._dice.random()
                if what < 0.1:
                    source.truncate()
                elif what < 0.2:
                    source.full_dump()
                elif what < 0.4:
                    source.dump_chunk()
            self._lake.build.seal()

    def at(self, name: str, ends: list[int]) -> list[Oracle]:
        """What the table held at each of the merges' ends: a copy of the reader there."""
        oracle, found = Oracle(), []
        for end in ends:
            oracle.read(self.sources[name].lines, end)
            found.append(replace(oracle, rows=dict(oracle.rows), withheld=set(oracle.withheld)))
        return found


def _shape(name: str) -> TableSchema:
    return TableSchema(TableName("shop", name), SHAPE.columns, SHAPE.key)


def _housekeeping(lake: TestLake, dice: random.Random, stranger: SparkSession) -> int:
    """OPTIMIZE and VACUUM of somebody who does not ask; the newest cut whose versions may be gone by that."""
    cuts = [row["cut"] for row in lake.cuts()] if read_status(lake.location) is not None else []
    gone = 0
    for name in NAMES:
        path = lake.table(_shape(name))
        if not (path / "_delta_log" / f"{1:020d}.json").exists():
            continue
        if dice.random() < 0.5:
            stranger.sql(f"OPTIMIZE delta.`{path}`")
            gone = max(cuts, default=0)  # a cut that names a version before this may lose its files by a VACUUM
            stranger.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    return gone


@pytest.fixture
def stranger(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.commitInfo.userMetadata", "somebody")
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    return session


def run(lake: TestLake, seed: str, stranger: SparkSession) -> list[str]:
    """One run; what happened in it. Asserts that the lake is right at its end."""
    dice = random.Random(seed)
    model, happened, vacuumed = Model(lake, dice), list[str](), 0
    for _ in range(2):
        model.change()
        happened.append(FAULTS[dice.choice(list(FAULTS))](lake, dice.randrange(1, 30)))
        if dice.random() < 0.4:
            vacuumed = max(vacuumed, _housekeeping(lake, dice, stranger))
    model.change()
    lake.merge_well()
    _judge(lake, model, vacuumed)
    return happened


def _judge(lake: TestLake, model: Model, vacuumed: int) -> None:
    cuts = lake.cuts()
    assert [c["cut"] for c in cuts] == list(range(1, len(cuts) + 1)), "a cut is missing, or is there twice"
    assert [c["offset"] for c in cuts] == sorted(c["offset"] for c in cuts)
    assert cuts[-1]["offset"] == lake.build.offset
    for name in NAMES:
        expected = model.at(name, [c["offset"] for c in cuts])
        kept = [(cut, oracle.rows) for cut, oracle in zip(cuts, expected, strict=True) if cut["cut"] > vacuumed]
        for number, found in _at_cuts(lake, name, [cut for cut, _ in kept]).items():
            assert found == next(rows for cut, rows in kept if cut["cut"] == number), f"cut {number} of {name}"
        newest, oracle = {_key(r): _values(r) for r in lake.rows(_shape(name))}, expected[-1]
        assert newest == oracle.rows, name
        assert all(model.sources[name].rows[key] == row for key, row in newest.items())
        assert lake.withheld is not None
        assert set(lake.withheld.keys(f"shop.{name}", SHAPE)) == oracle.withheld


def _at_cuts(lake: TestLake, name: str, cuts: list[dict[str, Any]]) -> dict[int, dict[Any, Any]]:
    """The table's rows at each cut, in one job."""
    found: dict[int, dict[Any, Any]] = {cut["cut"]: {} for cut in cuts}
    path, frames = str(lake.table(_shape(name))), []
    for cut in cuts:
        if (version := dict(cut["tables"]).get(f"shop.{name}")) is not None:
            frame = lake.spark.read.format("delta").option("versionAsOf", version).load(path)
            frames.append(frame.drop(OFFSET).withColumn("_cut", F.lit(cut["cut"])))
    for frame in frames[1:]:
        frames[0] = frames[0].unionByName(frame)
    for row in frames[0].collect() if frames else []:
        rows = found[row["_cut"]]
        assert _key(row) not in rows, "a key is there twice"
        rows[_key(row)] = _values(row)
    return found


def _key(row: Any) -> tuple[int, str]:
    return row["world"], row["k"]


def _values(row: Any) -> dict[str, Any]:
    return {c: row[c] for c in ("a", "f", "big")}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "number" in metafunc.fixturenames:
        metafunc.parametrize("number", range(RUNS if metafunc.config.option.soak_seeds == 1 else SOAK))


def test_whatever_happens_to_merges_the_lake_ends_right_at_every_cut(
    lake: TestLake, stranger: SparkSession, soak_seed: int, number: int
) -> None:
    happened = run(lake, f"{soak_seed}/{number}", stranger)
    print(f"seed {soak_seed}/{number}: {happened}")
