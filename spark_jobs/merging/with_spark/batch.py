"""The folded rows of one table, with what the way to write them wants to know of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dblog_core.model.schema import TableSchema
from spark_jobs.delta_tables import key_ranges
from spark_jobs.delta_tables.column_types import quote
from spark_jobs.delta_tables.key_ranges import Ranges
from spark_jobs.delta_tables.session import compute_once
from spark_jobs.events import fold_on_driver
from spark_jobs.events.fold import PUT


@dataclass(frozen=True, slots=True)
class Batch:
    """Folded rows of one table, computed once; how many there are, and the ranges of each key column."""

    rows: DataFrame
    count: int = 0
    deletes: bool = False
    has_unchanged_toast: bool = False
    """Whether a row has columns whose value the log left out: the lake's row keeps its own."""
    dumped: bool = False
    """Whether a row comes from a dump: it may say nothing new."""
    births: bool = False
    """Whether every row was born in this span, or comes from a dump: rows that the lake may well lack."""
    ranges: dict[str, Ranges] = field(default_factory=dict)


def measure_rows(rows: DataFrame, schema: TableSchema) -> Batch:
    """Computes the folded rows once, and what the MERGE wants to know of them."""
    cached = compute_once(rows)
    bounded = [n for n, c in zip(schema.key, schema.key_columns, strict=True) if key_ranges.has_ranges(c.type)]
    ends = [
        F.struct(*(f(F.col(f"key.{quote(n)}")).alias(n) for n in bounded)).alias(f.__name__)
        for f in (F.min, F.max)
        if bounded
    ]
    measures = cached.agg(
        F.count(F.lit(1)).alias("count"),
        F.coalesce(F.bool_or(F.col("op") != PUT), F.lit(False)).alias("deletes"),
        F.coalesce(F.bool_or(F.col("unchanged_toast").isNotNull()), F.lit(False)).alias("has_unchanged_toast"),
        F.coalesce(F.bool_or(F.col("origin") == "dump"), F.lit(False)).alias("dumped"),
        F.coalesce(F.bool_and(F.col("inserted") | (F.col("origin") == "dump")), F.lit(False)).alias("births"),
        *ends,
    ).toArrow()
    names = ("count", "deletes", "has_unchanged_toast", "dumped", "births")
    count, deletes, has_unchanged_toast, dumped, births = (measures[name][0].as_py() for name in names)
    keys = pa.concat_arrays([c.combine_chunks() for c in measures.columns[len(names) :]]) if count and bounded else None
    key_ends = key_ranges.of_keys(keys, schema) if keys is not None else {}
    ranges: dict[str, Ranges] = {n: ((r[0][0], r[-1][1]),) for n, r in key_ends.items()}
    return Batch(cached, count, deletes, has_unchanged_toast, dumped, births, ranges)


def measure_on_driver(spark: SparkSession, rows: pa.Table, schema: TableSchema) -> Batch:
    """The batch of rows that the driver has folded (`small`): all is known without a job."""
    dumped = pc.equal(rows["origin"], "dump")
    births = pc.or_(rows["inserted"], dumped)
    return Batch(
        rows=spark.createDataFrame(rows, fold_on_driver.folded_shape(schema)),
        count=len(rows),
        deletes=bool(len(rows)) and pc.any(pc.not_equal(rows["op"], PUT)).as_py(),
        dumped=bool(len(rows)) and pc.any(dumped).as_py(),
        births=bool(len(rows)) and pc.all(births).as_py(),
        ranges=key_ranges.of_keys(rows["key"].combine_chunks(), schema),
    )
