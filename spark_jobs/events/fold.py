"""Many events of a key become one: what the span as a whole does to that key's row.

A folded row has `key`, `op`, `offset`, `position`, `commit_time`, `origin` (those of the key's last event), `inserted`,
`unchanged_toast` and `row`. Its op is PUT, DELETE, or WITHHOLD: the row lives, and a value of it is known to nobody.
`unchanged_toast` names columns that keep the lake's value: every event since the last that set them left them out.
`inserted`: the log itself has the row's birth in this span, so it is written even where it equals the lake's row.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dblog_core.model.events import CREATE, DELETE
from dblog_core.model.schema import TableSchema
from spark_jobs.delta_tables.column_types import quote

PUT = "p"
WITHHOLD = "w"
_LAST = ("op", "offset", "position", "commit_time", "origin")


def last_rows(events: DataFrame) -> DataFrame:
    """The fold where no event leaves a column out: the last event of each key is all there is to know."""
    newest = Window.partitionBy("key").orderBy(F.col("offset").desc())
    born = F.bool_or(F.col("op") == CREATE).over(Window.partitionBy("key"))
    last = events.withColumn("_n", F.row_number().over(newest)).withColumn("_born", born).where(F.col("_n") == 1)
    return last.select(
        "key",
        F.when(F.col("op") == DELETE, F.lit(DELETE)).otherwise(F.lit(PUT)).alias("op"),
        "offset",
        "position",
        "commit_time",
        "origin",
        (F.col("_born") & (F.col("op") != DELETE)).alias("inserted"),
        F.lit(None).cast("array<string>").alias("unchanged_toast"),
        "row",
    )


def column_by_column(events: DataFrame, schema: TableSchema) -> DataFrame:
    """The fold where events leave columns out: each column's last value within the key's present life.

    A life begins with c, and ends with d; an earlier life says nothing about a later one.
    """
    growing = Window.partitionBy("key").orderBy("offset")
    begins = F.when(F.col("op").isin(CREATE, DELETE), 1).otherwise(0)
    lives = events.withColumn("_life", F.sum(begins).over(growing.rowsBetween(Window.unboundedPreceding, 0)))
    present = lives.withColumn("_present", F.max("_life").over(Window.partitionBy("key"))).where("_life = _present")
    last = [F.max_by(name, "offset").alias(name) for name in _LAST]
    folded = present.groupBy("key").agg(
        *last,
        F.bool_or(F.col("op") == CREATE).alias("inserted"),
        F.bool_or(F.col("_life") > 0).alias("_fresh"),
        *(_last_value(c.name).alias(f"_v{i}") for i, c in enumerate(schema.columns)),
    )
    return _decide_ops(folded, schema)


def _last_value(name: str) -> Column:
    """The newest known value, in a struct so that a known NULL differs from an unknown value."""
    is_unchanged = F.coalesce(F.array_contains("unchanged", name), F.lit(False))
    known_at = F.when((F.col("op") != DELETE) & ~is_unchanged, F.col("offset"))
    return F.max_by(F.struct(F.col(f"row.{quote(name)}").alias("value")), known_at)


def _decide_ops(folded: DataFrame, schema: TableSchema) -> DataFrame:
    unknown = [F.when(F.col(f"_v{i}").isNull(), F.lit(c.name)) for i, c in enumerate(schema.columns)]
    unchanged_toast = F.array_compact(F.array(*unknown))
    deleted = F.col("op") == DELETE
    withheld = F.col("_fresh") & (F.size("_unchanged_toast") > 0)
    row = F.struct(*(F.col(f"_v{i}.value").alias(c.name) for i, c in enumerate(schema.columns)))
    return folded.withColumn("_unchanged_toast", unchanged_toast).select(
        "key",
        F.when(deleted, F.lit(DELETE)).when(withheld, F.lit(WITHHOLD)).otherwise(F.lit(PUT)).alias("op"),
        "offset",
        "position",
        "commit_time",
        "origin",
        (F.col("inserted") & ~deleted).alias("inserted"),
        F.when(~deleted & (F.size("_unchanged_toast") > 0), F.col("_unchanged_toast")).alias("unchanged_toast"),
        F.when(~deleted, row).alias("row"),
    )
