"""Random histories: after every merge the lake is what a line-by-line reader of the super-changelog would have."""

from __future__ import annotations

import random

import pytest

from tests.spark.lakes import TestLake
from tests.spark.worlds import SHAPE, Oracle, Source

WORLDS = 150


def _burst(source: Source, dice: random.Random, *, truncate: bool) -> None:
    """A few segments of changes all over the worlds; the last one ends between transactions."""
    for number in range(3):
        for world in range(source.worlds):
            for _ in range(dice.randrange(3)):
                source.change(world)
        if dice.random() < 0.5:
            source.dump_chunk()
        if truncate and number == 1:
            source.truncate()
        source.build.seal(partial=dice.choice((0, 1)) if number < 2 else 0)


@pytest.mark.parametrize("seed", range(2))
def test_the_lake_is_what_the_lines_say_after_every_merge(lake: TestLake, seed: int) -> None:
    dice = random.Random(seed)
    source, oracle = Source(lake.build, dice, WORLDS), Oracle()
    source.unseen(0.3)
    for burst in range(3):
        _burst(source, dice, truncate=burst == 1)
        for merged in lake.merge_well(max_rows=dice.choice((100, 10_000))):
            oracle.read(source.lines, merged.offset)
        have = {(r["world"], r["k"]): {c: r[c] for c in ("a", "f", "big")} for r in lake.rows(SHAPE)}
        assert have == oracle.rows
        assert all(source.rows[key] == row for key, row in have.items()), "a row of the lake is not the source's"
        assert lake.withheld is not None
        assert set(lake.withheld.keys(str(SHAPE.table), SHAPE)) == oracle.withheld
        touched = {line.key for line in source.lines}
        assert (source.rows.keys() & touched) - have.keys() <= oracle.withheld, "a row is lost"
