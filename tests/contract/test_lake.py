"""One behaviour of both lakes: the merge on Spark, and the simulation's in memory, over the same segments.

The merge is slow, so that one takes many histories: worlds of a few keys each, and tables with a case of their own.
"""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from tests.simulation.lake import SimLake
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, SegmentBuilder, table
from tests.spark.worlds import SHAPE, Source

WORLDS = 200
WHOLE = table("whole", id=pa.int64(), v=pa.int64())
RANGE = table("range", id=pa.int64(), v=pa.int64())
EMPTIED = table("emptied", id=pa.int64(), v=pa.int64())
OLD = table("altered", id=pa.int64(), v=pa.int64())
NEW = table("altered", id=pa.int64(), v=pa.int64(), extra=pa.int64())


def rows(*keys: int, v: int) -> list[Row]:
    return [{"id": key, "v": v} for key in keys]


def _histories(build: SegmentBuilder, seed: int) -> None:
    dice = random.Random(seed)
    source = Source(build, dice, WORLDS)
    source.add_unseen_rows(0.3)
    for _ in range(4):
        for world in range(WORLDS):
            for _ in range(dice.randrange(3)):
                source.change(world)
        if dice.random() < 0.6:
            source.dump_chunk()
        build.seal(partial=dice.choice((0, 1)))


def _ghosts(build: SegmentBuilder) -> None:
    """Dumps that have seen fewer rows than there are: of a whole table, and of a range with both its ends."""
    for schema, ends in ((WHOLE, {}), (RANGE, {"key_from": 3, "key_to": 6})):
        for row in rows(*range(1, 9), v=1):
            build.create(schema, row)
        since = build.offset
        segment = build.segment + 1
        dump = f"dump-{schema.table.name}"
        build.update(schema, {"id": 5, "v": 2})  # not visible to the SELECT: its row of the chunk is evicted
        build.chunk(schema, rows(3, 5, v=1), evicted=[1], dump=dump)
        build.create(schema, {"id": 4, "v": 3})  # logged after the SELECT, and so no ghost
        build.finished(schema, dump, since=since, since_segment=segment, **ends)
        build.seal()


def _truncated_and_altered(build: SegmentBuilder) -> None:
    for row in rows(1, 2, 3, v=1):
        build.create(EMPTIED, row)
        build.create(OLD, row)
    build.truncate(EMPTIED)
    build.create(EMPTIED, {"id": 2, "v": 7})
    build.seal()
    build.schema(NEW)
    build.update(NEW, {"id": 2, "v": 8, "extra": 1})
    build.delete(NEW, {"id": 3})
    build.chunk(NEW, [{"id": 1, "v": 1, "extra": 5}])
    build.seal()


@pytest.fixture(scope="module")
def lakes(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[TestLake, SimLake]:
    """Both lakes after the same segments; the last one ends inside a transaction, so that neither may take it."""
    path = tmp_path_factory.mktemp("lakes")
    real = TestLake(spark, Staging(str(path / "staging"), source="shop"), Path(path / "lake"))
    _histories(real.build, seed=7)
    _ghosts(real.build)
    _truncated_and_altered(real.build)
    real.build.create(WHOLE, {"id": 99, "v": 1})
    real.build.seal(partial=1)
    simulated = SimLake()
    assert simulated.merge(real.staging)
    real.merge_well()
    return real, simulated


@pytest.mark.parametrize("schema", [SHAPE, WHOLE, RANGE, EMPTIED, NEW], ids=lambda schema: str(schema.table.name))
def test_both_lakes_hold_the_same_rows(lakes: tuple[TestLake, SimLake], schema: TableSchema) -> None:
    real, simulated = lakes
    rows_by_key = {tuple(row[name] for name in schema.key): row for row in real.rows(schema)}
    assert rows_by_key
    assert simulated.tables[str(schema.table)].whole_rows() == rows_by_key


def test_both_lakes_withhold_the_same_keys(lakes: tuple[TestLake, SimLake]) -> None:
    real, simulated = lakes
    assert real.withheld is not None
    withheld = set(real.withheld.keys(str(SHAPE.table), SHAPE))
    assert withheld
    assert set(simulated.tables[str(SHAPE.table)].withheld_keys()) == withheld


def test_ghosts_go_and_what_the_log_brought_since_stays(lakes: tuple[TestLake, SimLake]) -> None:
    _, simulated = lakes
    whole = {key: row["v"] for key, row in simulated.tables[str(WHOLE.table)].whole_rows().items()}
    assert whole == {(3,): 1, (4,): 3, (5,): 2}
    of_range = {key: row["v"] for key, row in simulated.tables[str(RANGE.table)].whole_rows().items()}
    assert of_range == {(1,): 1, (2,): 1, (3,): 1, (4,): 3, (5,): 2, (7,): 1, (8,): 1}


def test_a_merge_with_nothing_new_changes_nothing(lakes: tuple[TestLake, SimLake]) -> None:
    real, simulated = lakes
    assert not simulated.merge(real.staging)
    assert real.merge() == []
