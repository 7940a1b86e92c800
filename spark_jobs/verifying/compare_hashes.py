"""The source's hashes beside those of the lake: which keys are equal, missing, extra, different, or undecided.

A source's hash counts for every place of the log from `since` to `upto`, unless its key has changed in between. Such a
key is equal if its hash is that of any state which the log has led it through there; otherwise it is undecided: it was
read between two watermarks, and another reading, in a shorter window, will tell.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from dblog_core.lake.json_variants import variant_name
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_from_json, key_to_json
from dblog_core.rows.row_hashes import HASH
from dblog_core.staging import Staging
from dblog_core.storage.location import Location
from dblog_core.verify.exchange import MAX_KEYS_NAMED, Answer, Desk, Sum, Task
from spark_jobs.delta_tables import variants
from spark_jobs.delta_tables.column_types import key_shape, quote, row_shape
from spark_jobs.delta_tables.key_ranges import literal
from spark_jobs.verifying import expected_rows
from spark_jobs.verifying.compare_history import compare_history
from spark_jobs.verifying.expected_rows import Staged
from spark_jobs.verifying.row_hashes import row_hash

_PARTITION_ROWS = 250_000
"""Of a shuffle: what one task works on at a time."""
_PARTITIONS = "spark.sql.shuffle.partitions"
_WITH_MANY_ROWS = {
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": str(16 << 20),
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1",
}
"""Spark goes by compressed bytes: millions of keys in a row have few, and take hundreds of megabytes in a broadcast."""


class Judge:
    """Answers tasks about tables of one lake; read-only."""

    def __init__(self, spark: SparkSession, staging: Staging, desk: Desk) -> None:
        self._spark = spark
        self._staging = staging
        self._desk = desk
        self._numbers = itertools.count()

    def compare(self, task: Task, table: Location, *, most: int = MAX_KEYS_NAMED) -> Answer:
        """Every key of either side, those within the ranges, or the asked ones."""
        schema = task.shape
        source = self._source(task, schema)
        staged, lake = self._read_expected(task, table, schema)
        if task.for_chosen_keys:
            lake, staged = expected_rows.of_keys(lake, staged, source.select("key"))
        rows = self._rows(task, lake, staged, schema)
        rows = self._within(rows, source.select("key")) if task.for_chosen_keys else rows
        if task.within:
            rows = rows.where(reduce(Column.__or__, (_between(schema, *ends) for ends in task.within)))
        seen = Observation()
        odd = _find_unequal(source, _hash_rows(rows, schema), seen, schema).localCheckpoint(eager=True)
        counts = seen.get
        answer = Answer(rows=int(counts["rows"] or 0), lake_rows=int(counts["lake"] or 0), staged=staged.rows)
        if odd.isEmpty():
            return answer
        judged = self._drop_changed(task, odd, lake, staged, schema)
        return _add_keys(answer, judged.orderBy("key").limit(most + 1).toArrow().to_pylist(), schema, most)

    def columns(self, task: Task, table: Location) -> Answer:
        """The columns in which rows differ, for those of the asked keys that both sides have and that do not change."""
        schema = task.shape
        source = self._spark.read.schema(row_shape(schema)).parquet(*map(self._desk.url, task.files))
        image = F.struct(*(F.col(quote(c.name)) for c in schema.columns)).alias("row")
        source = source.select(F.struct(*(F.col(quote(n)) for n in schema.key)).alias("key"), image)
        staged, lake = self._read_expected(task, table, schema)
        lake, staged = expected_rows.of_keys(lake, staged, source.select("key"))
        rows = self._within(self._rows(task, lake, staged, schema), source.select("key"))
        both = source.alias("s").join(rows.alias("l"), F.col("s.key") == F.col("l.key"))
        differs = [_differs(c.name) for c in schema.columns]
        named = both.select(F.col("s.key").alias("key"), F.array_compact(F.array(*differs)).alias("columns"))
        changed = expected_rows.states_of_keys(staged.above(task.since), named.select("key"), schema)
        if changed is not None:
            named = named.join(changed.select("key").distinct(), "key", "left_anti")
        answers = named.toArrow().to_pylist()
        return Answer(
            rows=len(answers),
            different=tuple((_json(row["key"], schema), tuple(row["columns"])) for row in answers),
        )

    def sums(self, task: Task, table: Location) -> Answer:
        """Rows and hashes of the pinned version alone, between the bounds and beyond them."""
        assert task.pin is not None
        schema = task.shape
        lake = expected_rows.lake_rows(self._spark, table, task.pin, schema)
        keys = lake.select("key", row_hash(lake, schema, lambda n: F.col(f"row.{quote(n)}")).alias("hash"))
        beyond = [(~_upto(schema, bound)).cast("int") for bound in task.bounds]
        place = reduce(Column.__add__, beyond, F.lit(0))
        total = F.sum(F.col("hash").cast("decimal(20,0)")).alias("hash")
        counted = keys.groupBy(place.alias("place")).agg(F.count(F.lit(1)).alias("rows"), total).collect()
        by_place = {int(row["place"]): Sum(int(row["rows"]), int(row["hash"])) for row in counted}
        return Answer(sums=tuple(by_place.get(i, Sum(0, 0)) for i in range(len(task.bounds) + 1)))

    def sample(self, task: Task, table: Location) -> Answer:
        """At most `rows` keys of the pinned version, drawn at random; `lake_rows`: of how many."""
        assert task.pin is not None
        schema = task.shape
        keys = expected_rows.lake_rows(self._spark, table, task.pin, schema).select("key")
        rows = keys.count()
        drawn = keys.orderBy(F.rand(task.seed)).limit(task.rows).toArrow().to_pylist() if rows else []
        return Answer(lake_rows=rows, keys=tuple(_json(row["key"], schema) for row in drawn))

    def history(self, task: Task, lake: Location) -> Answer:
        """The last lines of the history beside the table. `lake`: the whole lake, whose status names the moment."""
        return compare_history(self._spark, lake, task)

    # The two sides --------------------------------------------------------------------------------------------------

    def _source(self, task: Task, schema: TableSchema) -> DataFrame:
        """`key` and `hash`; NULL for an asked key that the source does not have."""
        shape = t.StructType([*key_shape(schema), t.StructField(HASH, t.LongType())])
        if not task.files:
            frame = self._spark.createDataFrame([], shape)
        else:
            frame = self._spark.read.schema(shape).parquet(*map(self._desk.url, task.files))
        key = F.struct(*(F.col(quote(n)) for n in schema.key)).alias("key")
        return frame.select(key, F.col(HASH).alias("hash"))

    def _read_expected(self, task: Task, table: Location, schema: TableSchema) -> tuple[Staged, DataFrame]:
        """What is staged since the pinned version, and that version. What a stopped table has staged never comes in."""
        after = task.since if task.pin is None else min(task.pin.offset, task.since)
        directory = f"{self._desk.directory}/staged/{next(self._numbers)}"
        staged = expected_rows.read_staged(self._spark, self._staging, schema, directory, after=after, upto=task.upto)
        self._widen_shuffles(staged.rows)
        if task.pin is None:
            return staged, _no_rows(self._spark, schema)
        return staged, expected_rows.lake_rows(self._spark, table, task.pin, schema, staged.work.renames)

    def _widen_shuffles(self, rows: int) -> None:
        """Has later shuffles take more partitions where so many rows need them: what one task sorts or joins must have
        room in a small heap. They never become fewer, so tables beside each other may share the session."""
        partitions = rows // _PARTITION_ROWS
        if partitions > int(self._spark.conf.get(_PARTITIONS) or 0):
            self._spark.conf.set(_PARTITIONS, str(partitions))
            for name, value in _WITH_MANY_ROWS.items():
                self._spark.conf.set(name, value)

    def _rows(self, task: Task, lake: DataFrame, staged: Staged, schema: TableSchema) -> DataFrame:
        if task.pin is None or task.pin.stopped:
            return lake.select("key", "row")
        return expected_rows.rows_at(self._spark, lake, staged.above(task.pin.offset), schema)

    def _within(self, rows: DataFrame, keys: DataFrame) -> DataFrame:
        return rows.join(F.broadcast(keys), "key", "left_semi")

    # Keys that changed meanwhile --------------------------------------------------------------------------------------

    def _drop_changed(
        self, task: Task, odd: DataFrame, lake: DataFrame, staged: Staged, schema: TableSchema
    ) -> DataFrame:
        """Of the odd keys those that are not equal after all, with their `kind`."""
        kind = (
            F.when(F.col("twice"), "twice")
            .when(~F.col("in_source"), "extra")
            .when(~F.col("expected"), "missing")
            .otherwise("different")
        )
        changed = expected_rows.states_of_keys(staged.above(task.since), F.broadcast(odd.select("key")), schema)
        if changed is None or task.pin is None or task.pin.stopped:
            return odd.select("key", kind.alias("kind"))
        changed = changed.withColumn("hash", _row_hash(changed, schema))
        agrees = (F.col("in_source") == F.col("lives")) & (
            ~F.col("in_source") | F.col("hash").eqNullSafe(F.col("source_hash"))
        )
        source_rows = odd.select("key", "in_source", F.col("hash").alias("source_hash"))
        equal = source_rows.join(changed, "key").where(F.col("whole") & agrees).select("key")
        if task.pin.offset <= task.since:
            equal = equal.union(self._equal_before(task, source_rows, lake, staged, schema))
        touched = changed.select("key").distinct().withColumn("touched", F.lit(True))
        left = odd.join(equal.distinct().join(touched, "key", "left_semi"), "key", "left_anti")
        decided = F.when(F.col("touched"), "undecided").otherwise(kind)
        return left.join(touched, "key", "left").select("key", decided.alias("kind"))

    def _equal_before(
        self, task: Task, source_rows: DataFrame, lake: DataFrame, staged: Staged, schema: TableSchema
    ) -> DataFrame:
        """Keys that the source has as they were before any change that it may not have seen."""
        keys = source_rows.select("key")
        lake, staged = expected_rows.of_keys(lake, staged, keys)
        rows = self._within(self._rows(task, lake, staged.upto(task.since), schema), keys)
        then = rows.select("key", _row_hash(rows, schema).alias("hash"))
        joined = source_rows.join(then, "key", "left")
        return joined.where(F.col("source_hash").eqNullSafe(F.col("hash"))).select("key")


def _no_rows(spark: SparkSession, schema: TableSchema) -> DataFrame:
    """A table that the lake does not have."""
    fields = [
        t.StructField("key", key_shape(schema)),
        t.StructField("row", row_shape(schema)),
        t.StructField("offset", t.LongType()),
    ]
    return spark.createDataFrame([], t.StructType(fields))


def _row_hash(rows: DataFrame, schema: TableSchema) -> Column:
    return F.when(F.col("row").isNotNull(), row_hash(rows, schema, lambda name: F.col(f"row.{quote(name)}")))


def _hash_rows(rows: DataFrame, schema: TableSchema) -> DataFrame:
    return rows.select("key", _row_hash(rows, schema).alias("hash"))


def _find_unequal(source: DataFrame, lake: DataFrame, seen: Observation, schema: TableSchema) -> DataFrame:
    """Keys that are not alike on both sides: `key`, `hash` of the source, whether it is `in_source`, whether it was
    `expected`, and whether the lake has it `twice`. One shuffle of keys and hashes; no row moves."""
    parts = [F.col(f"key.{quote(name)}").alias(f"k{i}") for i, name in enumerate(schema.key)]
    none = F.lit(None).cast("bigint")
    in_source = F.col("hash").isNotNull().cast("int")
    source_side = [F.col("hash").alias("s"), in_source.alias("sn"), none.alias("l"), F.lit(0).alias("ln")]
    lake_side = [none.alias("s"), F.lit(0).alias("sn"), F.col("hash").alias("l"), F.lit(1).alias("ln")]
    both = source.select(*parts, *source_side).unionAll(lake.select(*parts, *lake_side))
    totals = [f(name).alias(name) for f, name in ((F.max, "s"), (F.sum, "sn"), (F.max, "l"), (F.sum, "ln"))]
    by_key = both.groupBy(*(f"k{i}" for i in range(len(parts)))).agg(*totals)
    counted = by_key.observe(seen, F.sum((F.col("sn") > 0).cast("long")).alias("rows"), F.sum("ln").alias("lake"))
    alike = (F.col("sn") > 0).eqNullSafe(F.col("ln") > 0) & F.col("s").eqNullSafe(F.col("l")) & (F.col("ln") <= 1)
    key = F.struct(*(F.col(f"k{i}").alias(name) for i, name in enumerate(schema.key)))
    return counted.where(~alike).select(
        key.alias("key"),
        F.col("s").alias("hash"),
        (F.col("sn") > 0).alias("in_source"),
        (F.col("ln") > 0).alias("expected"),
        (F.col("ln") > 1).alias("twice"),
    )


def _differs(name: str) -> Column:
    """The column's name if its values differ; that of its VARIANT where only this one does."""
    source = F.col(f"s.row.{quote(name)}")
    lake = F.col(f"l.row.{quote(name)}")
    text = F.concat(F.coalesce(source.cast("string"), F.lit("")), F.lit(variants.OTHER))
    name_shown = F.when(lake.cast("string") == text, F.lit(variant_name(name))).otherwise(F.lit(name))
    return F.when(~source.eqNullSafe(lake), name_shown)


def _add_keys(answer: Answer, rows: list[dict[str, Any]], schema: TableSchema, most: int) -> Answer:
    keys: dict[str, list[Any]] = {}
    for row in rows[:most]:
        keys.setdefault(row["kind"], []).append(_json(row["key"], schema))
    named = {kind: tuple(keys.get(kind, ())) for kind in ("missing", "extra", "undecided", "twice")}
    return replace(
        answer,
        missing=named["missing"],
        extra=named["extra"],
        undecided=named["undecided"],
        twice=named["twice"],
        different=tuple((key, ()) for key in keys.get("different", ())),
        more=len(rows) > most,
    )


def _json(key: dict[str, Any], schema: TableSchema) -> Any:
    return key_to_json(tuple(key[name] for name in schema.key))


def _between(schema: TableSchema, after: Any, upto: Any) -> Column:
    inside = F.lit(True) if after is None else ~_upto(schema, after)
    return inside if upto is None else inside & _upto(schema, upto)


def _upto(schema: TableSchema, bound: Any) -> Column:
    """Keys up to `bound`; of types that Spark orders as the source does. NULL is less than all."""
    condition = F.lit(True)
    for column, part in reversed(list(zip(schema.key_columns, key_from_json(bound, schema), strict=True))):
        value = F.col(f"key.{quote(column.name)}")
        other = literal(part, column)
        condition = F.coalesce(value < other, F.lit(True)) | (value.eqNullSafe(other) & condition)
    return condition
