"""What Spark sees of the lake at a cut, and what it is told where that cannot be shown."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dblog_core.errors import LakeError, RequestError
from dblog_core.lake import table_location
from dblog_core.schema import TableName
from spark_jobs.views import at_cut
from tests.spark.lakes import TestLake
from tests.spark.segments import table


def test_a_view_says_what_it_cannot_show(spark: SparkSession, lake: TestLake) -> None:
    one = table("one", id=pa.int64(), v=pa.string())
    lake.build.create(one, {"id": 1, "v": "a"})
    lake.build.seal()
    lake.build.update(one, {"id": 1, "v": "b"})
    lake.build.seal()
    lake.merge_well(max_rows=1)
    assert [r.v for r in at_cut(spark, lake.location, at=1).table("shop.one").collect()] == ["a"]
    assert [r.v for r in at_cut(spark, str(lake.path)).table("shop.one").collect()] == ["b"]
    with pytest.raises(LakeError, match=r"shop\.two is not in cut 2"):
        at_cut(spark, lake.location, cut=2).table("shop.two")
    with pytest.raises(RequestError, match="both a cut and a moment"):
        at_cut(spark, lake.location, cut=2, at=1)
    for file in Path(str(table_location(lake.location, TableName("shop", "one")))).glob("*.bin"):
        file.unlink()  # as VACUUM removes them: deletion vectors, without which rows come back
    for file in Path(str(table_location(lake.location, TableName("shop", "one")))).glob("part-*.parquet"):
        file.unlink()
    with pytest.raises(LakeError, match="cut 2 is no longer whole"):
        at_cut(spark, lake.location)
