"""Unchanged TOAST values in a MERGE: PostgreSQL does not log a large value that stays, so the lake's row keeps its own.

This is the way of a MERGE by Spark. The way without Spark is `dblog_core.delta_writer.unchanged_toast`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key
from spark_jobs.delta_tables.column_types import key_shape, quote
from spark_jobs.events import moved_unchanged_toast
from spark_jobs.events.fold import PUT, WITHHOLD
from spark_jobs.merging.with_spark.batch import Batch


def is_left_out(name: str) -> Column:
    """Whether the row of the batch (`s`) has no value for the column (`fold`): then the lake's row (`t`) has it."""
    # The list is NULL where nothing was left out. Without the default, "equal or left out" would be NULL for a row that
    # differs, and the MERGE would skip its update.
    return F.coalesce(F.array_contains("s.unchanged_toast", name), F.lit(False))


def keep_lake_value(name: str, lake_column: str, new_value: Column) -> Column:
    """What `lake_column` becomes: its present value where the log left column `name` out, otherwise `new_value`.

    The two names differ for a VARIANT, which stays or changes with its text.
    """
    return F.when(is_left_out(name), F.col(f"t.{quote(lake_column)}")).otherwise(new_value)


def keys_of(rows: DataFrame, schema: TableSchema) -> DataFrame:
    """The keys of the table's rows, as `key`."""
    return rows.select(F.struct(*(F.col(quote(n)).alias(n) for n in schema.key)).alias("key"))


def find_unknown(batch: Batch, lake_rows: DataFrame, schema: TableSchema) -> list[Key]:
    """Keys of the rows with a value that nobody has: neither this span nor the lake."""
    partial = batch.rows.where(F.col("unchanged_toast").isNotNull() & (F.col("op") == PUT)).select("key")
    lost = batch.rows.where(F.col("op") == WITHHOLD).select("key")
    unknown = partial.join(keys_of(lake_rows, schema), "key", "left_anti").union(lost)
    return [moved_unchanged_toast.as_key(row.key) for row in unknown.collect()]


def find_keys(spark: SparkSession, rows: DataFrame, asked_keys: Sequence[Key], schema: TableSchema) -> list[Key]:
    """Those of the wanted keys that the rows have."""
    asked_rows = keys_of(spark.createDataFrame(list(asked_keys), key_shape(schema)), schema)
    same = rows.join(F.broadcast(asked_rows), "key", "left_semi").select("key")
    return [moved_unchanged_toast.as_key(row.key) for row in same.collect()]
