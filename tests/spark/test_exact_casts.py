"""Spark and Arrow agree which values are values of the lake's type too."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.delta_tables.column_types import spark_type
from spark_jobs.events.exact_casts import cast_in_spark
from tests.unit.spark_jobs.events.test_exact_casts import CASES, TABLE, cast


def _cast_in_spark(spark: SparkSession, values: list[Any], from_type: pa.DataType, to_type: pa.DataType) -> DataFrame:
    rows = spark.createDataFrame(pa.table({"n": pa.array(values, from_type), "at": range(7, 7 + len(values))}))
    types = spark_type(from_type), spark_type(to_type)
    return rows.select(cast_in_spark(F.col("n"), *types, table=TABLE, name="n", offset=F.col("at")).alias("n"))


@pytest.mark.parametrize(("from_type", "to_type", "fits", "misfits"), CASES)
def test_both_take_the_same_values(
    spark: SparkSession, from_type: pa.DataType, to_type: pa.DataType, fits: dict[Any, Any], misfits: list[Any]
) -> None:
    values = [*fits, None]
    rows = _cast_in_spark(spark, values, from_type, to_type).toArrow()["n"].to_pylist()
    assert sorted(map(repr, rows)) == sorted(map(repr, cast(values, from_type, to_type)))
    for misfit in misfits:
        with pytest.raises(PySparkException, match=r"column n: the value at offset 7 is .*, and fits no .*, which the"):
            _cast_in_spark(spark, [misfit], from_type, to_type).collect()
