"""What each event of a merge found: the row as the events before it in the span, or else the lake, have it.

With it a row of a dump that changes nothing is left out, and a value that the log left out of a change is filled in.
A row of the lake is an event before all others; a key whose row waits for a dump is one of which no value is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from dblog_core.lake.merge_plan import Work
from dblog_core.model.events import CREATE, DELETE, REFRESH
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark
from spark_jobs.delta_tables import key_ranges
from spark_jobs.delta_tables.column_types import key_shape, quote, row_shape
from spark_jobs.delta_tables.key_ranges import Ranges
from spark_jobs.events import fold_on_driver

_BASE = "b"
_BROADCAST_ROWS = 200_000


def needs_previous_rows(staging: Staging, work: Work) -> bool:
    """Whether the work has rows of a dump, or leaves values out; its rows themselves tell, where they are few."""
    if work.chunks or any(f.has_unchanged for f in work.files) or work.bytes > fold_on_driver.MAX_BYTES:
        return True
    return any(
        pc.any(pc.equal(lines.column("origin"), "dump")).as_py()
        for file in work.files
        for lines in staging.log_batches(file)
    )


def add_previous_values(
    spark: SparkSession,
    events: DataFrame,
    lake: DataFrame | None,
    withheld: Sequence[Key],
    schema: TableSchema,
    truncates: Sequence[LogMark],
) -> DataFrame:
    """The events except for those of a dump that change nothing, with the values that were known before them.

    `unchanged` then names what nobody knew. `lake` (None: no table) and `withheld` are as before the first event.
    """
    asked_keys = events.where((F.col("origin") == "dump") | (F.size("unchanged") > 0)).select("key").distinct()
    count, ends = _measure_keys(asked_keys, schema)
    if not count:
        return events
    columns = events.columns
    earlier = [_rows_of(lake, asked_keys, count, ends, schema)] if lake is not None else []
    if withheld:
        earlier.append(_waiting(spark, withheld, schema))
    everything = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), earlier, events)
    judged = _with_former(everything, schema, truncates)
    return judged.where((F.col("op") != _BASE) & ~_changes_nothing(schema)).select(
        *(_fill_column(name, schema).alias(name) for name in columns)
    )


def _measure_keys(keys: DataFrame, schema: TableSchema) -> tuple[int, dict[str, Ranges]]:
    """How many keys there are, and the ends of each key column: so the lake's files without any are left out."""
    bounded = [n for n, c in zip(schema.key, schema.key_columns, strict=True) if key_ranges.has_ranges(c.type)]
    ends = [
        F.struct(*(f(F.col(f"key.{quote(n)}")).alias(n) for n in bounded)).alias(f.__name__)
        for f in (F.min, F.max)
        if bounded
    ]
    measures = keys.agg(F.count(F.lit(1)).alias("count"), *ends).toArrow()
    count = int(measures["count"][0].as_py())
    if not count or not bounded:
        return count, {}
    both = pa.concat_arrays([measures[name].combine_chunks() for name in ("min", "max")])
    return count, {n: ((r[0][0], r[-1][1]),) for n, r in key_ranges.of_keys(both, schema).items()}


def _rows_of(
    lake: DataFrame, asked_keys: DataFrame, count: int, ends: dict[str, Ranges], schema: TableSchema
) -> DataFrame:
    """The lake's rows of the keys that are asked for, as events."""
    near = reduce(DataFrame.where, key_ranges.on_key("t", ends, schema), lake.alias("t"))
    rows = near.select(
        F.struct(*(F.col(quote(n)).alias(n) for n in schema.key)).alias("key"),
        F.lit(-1).cast("long").alias("offset"),
        F.lit(_BASE).alias("op"),
        F.struct(*(F.col(quote(c.name)).alias(c.name) for c in schema.columns)).alias("row"),
    )
    keys = F.broadcast(asked_keys) if count <= _BROADCAST_ROWS else asked_keys
    return rows.join(keys, "key", "left_semi")


def _waiting(spark: SparkSession, withheld: Sequence[Key], schema: TableSchema) -> DataFrame:
    """The keys that wait for a dump, as events: alive, and no value of them known."""
    keys = spark.createDataFrame([tuple(key) for key in withheld], key_shape(schema))
    return keys.select(
        F.struct(*(F.col(quote(n)).alias(n) for n in schema.key)).alias("key"),
        F.lit(-1).cast("long").alias("offset"),
        F.lit(_BASE).alias("op"),
        F.array(*(F.lit(c.name) for c in schema.columns)).alias("unchanged"),
        F.lit(None).cast(row_shape(schema)).alias("row"),
    )


def _with_former(events: DataFrame, schema: TableSchema, truncates: Sequence[LogMark]) -> DataFrame:
    """Each event with `_alive`, whether its key had a row before it, and `_f0`, `_f1`, …: that row's known values.

    A value is a struct, so that a known NULL differs from an unknown value. A life begins with a row's birth, and ends
    with its delete or with a TRUNCATE; an earlier life says nothing about a later one.
    """
    by_key = Window.partitionBy("key").orderBy("offset")
    emptied = reduce(Column.__add__, [(F.col("offset") > m.offset).cast("int") for m in truncates], F.lit(0))
    begins = F.when(F.col("op").isin(CREATE, DELETE), 1).otherwise(0)
    lives = events.withColumn("_emptied", emptied).withColumn(
        "_life", F.sum(begins).over(by_key.rowsBetween(Window.unboundedPreceding, 0)) + F.col("_emptied")
    )
    before = F.lag(F.struct("op", "_emptied")).over(by_key)
    alive = (before["op"] != DELETE) & (before["_emptied"] == F.col("_emptied"))
    life = Window.partitionBy("key", "_life").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    former = [F.last(_value_if_set(c.name), ignorenulls=True).over(life) for c in schema.columns]
    return lives.withColumn("_alive", F.coalesce(alive, F.lit(False))).withColumns(
        {f"_f{i}": value for i, value in enumerate(former)}
    )


def _value_if_set(name: str) -> Column:
    """The value that an event tells; null if it tells none."""
    is_set = (F.col("op") != DELETE) & ~_is_unchanged(name)
    return F.when(is_set, F.struct(F.col(f"row.{quote(name)}").alias("value")))


def _is_unchanged(name: str) -> Column:
    return F.coalesce(F.array_contains("unchanged", name), F.lit(False))


def _changes_nothing(schema: TableSchema) -> Column:
    """A refresh of a row that stood like that, or a dump's delete of a row that was not there."""
    equal = [
        _is_unchanged(c.name) | (F.col(f"_f{i}").isNotNull() & F.col(f"_f{i}.value").eqNullSafe(_value(c.name)))
        for i, c in enumerate(schema.columns)
    ]
    refreshed = (F.col("op") == REFRESH) & F.col("_alive") & reduce(Column.__and__, equal)
    absent = (F.col("op") == DELETE) & ~F.col("_alive")
    return (F.col("origin") == "dump") & (refreshed | absent)


def _value(name: str) -> Column:
    return F.col(f"row.{quote(name)}")


def _fill_column(name: str, schema: TableSchema) -> Column:
    """A column of the events, in which former values stand for what was left out."""
    if name == "unchanged":
        lost = [
            F.when(_is_unchanged(c.name) & F.col(f"_f{i}").isNull(), F.lit(c.name))
            for i, c in enumerate(schema.columns)
        ]
        names = F.array_compact(F.array(*lost))
        return F.when(F.size(names) > 0, names)
    if name == "row":
        values = [
            F.when(_is_unchanged(c.name), F.col(f"_f{i}.value")).otherwise(_value(c.name)).alias(c.name)
            for i, c in enumerate(schema.columns)
        ]
        return F.when(F.col("row").isNotNull(), F.struct(*values))
    return F.col(name)
