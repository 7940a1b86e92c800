"""Values that a change of key left out, where Spark folds: the lake's row of the old key has them, and no later one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dblog_core.model.schema import Column, TableName, TableSchema
from spark_jobs.events import moved_unchanged_toast

COLUMNS = (Column("id", "bigint", pa.int64()), Column("big", "text", pa.string()))
SHAPE = TableSchema(TableName("shop", "t"), COLUMNS, ("id",))
EVENT = (
    "key struct<id: long>, offset long, op string, unchanged array<string>, moved_from struct<id: long>, "
    "row struct<id: long, big: string>"
)


@pytest.mark.one_of(8)
@pytest.mark.parametrize(("lake_offset", "value"), [(14, "big"), (15, "big"), (17, None), (24, None)])
def test_a_later_row_of_the_old_key_has_no_value_for_the_row_that_moved_away(
    spark: SparkSession, lake_offset: int, value: str | None
) -> None:
    """A lake that is ahead of the events may have the row of a change before the move: that still has the value."""
    change = ((1,), 15, "u", ["big"], None, (1, None))
    move = [((1,), 16, "d", None, None, None), ((2,), 17, "c", ["big"], (1,), (2, None))]
    events = spark.createDataFrame([change, *move], EVENT)
    lake = spark.createDataFrame([(1, "big", lake_offset)], "id long, big string, _dblog_offset long")
    (moved,) = moved_unchanged_toast.resolve(spark, events, lake, SHAPE).where("op = 'c'").collect()
    assert (moved.row.big, moved.unchanged) == (value, ["big"] if value is None else [])
