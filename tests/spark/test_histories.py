"""Random histories: after every merge the lake is what a line-by-line reader of the super-changelog would have."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from dblog_core.config.lake import JsonAs
from dblog_core.staging import Staging
from tests.simulation.lake import SimLake
from tests.spark.lakes import TestLake
from tests.spark.segments import SegmentBuilder
from tests.spark.worlds import KINDS, SHAPE, Oracle, Source

WORLDS = 150


def burst(source: Source, dice: random.Random, number: int, *, dump: bool) -> None:
    """A few segments of changes all over the worlds; the last one ends between transactions. `dump`: of all rows."""
    for segment in range(3):
        for world in range(source.worlds):
            for _ in range(dice.randrange(3)):
                source.change(world)
        if dice.random() < 0.5:
            source.dump_chunk()
        if (number, segment) == (1, 1):
            source.truncate()
            for world in range(source.worlds):
                source.change(world)
        if dump and segment == 1:
            source.full_dump()
        partial = int(number == 0) if segment == 0 else dice.choice((0, 1)) if segment == 1 else 0
        source.build.seal(partial=partial)
        source.end_segment(partial)


@pytest.mark.parametrize("number", range(2))
def test_two_readers_of_the_lines_that_share_no_code_agree(tmp_path: Path, number: int, soak_seed: int) -> None:
    """The oracle of these tests and the simulation's lake: no Spark, so it is quick."""
    staging = Staging(str(tmp_path), source="shop")
    dice = random.Random(f"{soak_seed}/{number}")
    source = Source(SegmentBuilder(staging), dice, WORLDS)
    oracle = Oracle()
    simulated = SimLake()
    source.add_unseen_rows(0.3)
    for count in range(3):
        burst(source, dice, count, dump=count == 2 or (count, number) == (0, 1))
        simulated.merge(staging)
        oracle.read(source.lines, simulated.offset)
        source.end_merge()
        whole = simulated.tables[str(SHAPE.table)].whole_rows().values()
        assert {(r["world"], r["k"]): {c: r[c] for c in ("a", "f", "big")} for r in whole} == oracle.rows
    check_everything_happened(source, oracle, number)


def _check_variants(lake: TestLake) -> None:
    """Beside each document is its VARIANT, where it is wanted."""
    rows = lake.spark.read.format("delta").load(str(lake.table(SHAPE)))
    assert ("big_variant" in rows.columns) == (lake.json_as == "variant")
    if lake.json_as == "variant":
        printed = rows.select(F.to_json("big_variant").alias("own"), F.to_json(F.try_parse_json("big")).alias("right"))
        counts = printed.agg(F.count("own"), F.count_if(~F.col("own").eqNullSafe(F.col("right")))).collect()[0]
        assert counts[0] > 10 and counts[1] == 0


def check_everything_happened(source: Source, oracle: Oracle, number: int) -> None:
    """That each kind of change was among those that the source has made."""
    # Where a full dump comes first, every row is known.
    expected_kinds = (*KINDS, "ghost removed") if number else (*KINDS, "ghost removed", "withheld row")
    happened = source.seen + oracle.seen
    assert [kind for kind in expected_kinds if not happened[kind]] == []


@pytest.mark.one_of(6)
@pytest.mark.in_turn("number")
@pytest.mark.parametrize("number", range(2))
def test_the_lake_is_what_the_lines_say_after_every_merge(lake: TestLake, number: int, soak_seed: int) -> None:
    dice = random.Random(f"{soak_seed}/{number}")
    source = Source(lake.build, dice, WORLDS)
    oracle = Oracle()
    source.add_unseen_rows(0.3)
    settings: tuple[JsonAs, ...] = ("text", "variant", "variant") if number else ("variant", "text", "variant")
    for count, lake.json_as in enumerate(settings):
        burst(source, dice, count, dump=count == 2 or (count, number) == (0, 1))
        for merged in lake.merge_well(max_rows=dice.choice((100, 10_000))):
            oracle.read(source.lines, merged.offset)
        source.end_merge()
        _check_variants(lake)
        have = {(r["world"], r["k"]): {c: r[c] for c in ("a", "f", "big")} for r in lake.rows(SHAPE)}
        assert have == oracle.rows
        assert all(source.rows[key] == row for key, row in have.items()), "a row of the lake is not the source's"
        assert lake.withheld is not None
        assert oracle.waits(set(lake.withheld.keys(str(SHAPE.table), SHAPE)))
        touched = {line.key for line in source.lines}
        assert (source.rows.keys() & touched) - have.keys() <= oracle.withheld, "a row is lost"
    check_everything_happened(source, oracle, number)
