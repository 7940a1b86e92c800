"""Compares tables of the source with the lake, row by row and column by column: the judge of the demo and of the tests.

The caller has written the source's rows as Parquet (columns as in `TableSchema.arrow`). NULL equals NULL, NaN NaN.

    spark-submit … spark_jobs/compare.py TASKS.json    prints one JSON object a table; exit code 1 if any differs

TASKS.json is a list of {"schema": `TableSchema.to_json()`, "files": [PARQUET, …], "lake": the Delta table}.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dblog_core.lake import lake_at
from dblog_core.schema import TableSchema
from dblog_core.storage.location import Location
from dblog_core.values import key_to_json
from spark_jobs import delta_log
from spark_jobs.moves import as_key
from spark_jobs.session import open_session
from spark_jobs.shapes import quoted, row_shape

_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Comparison:
    """A table's differences: counts, and a few keys as JSON with the columns that differ.

    `missing`: in the source alone; `extra`: in the lake alone, or there more than once.
    """

    table: str
    rows: int
    missing: int = 0
    extra: int = 0
    different: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return not (self.missing or self.extra or self.different)


def compare(spark: SparkSession, schema: TableSchema, files: Sequence[Path | str], lake: Location) -> Comparison:
    """Compares one table; without a lake table all rows are missing."""
    shape = row_shape(schema)
    source = spark.read.schema(shape).parquet(*map(str, files)) if files else spark.createDataFrame([], shape)
    if delta_log.version(lake) is None:
        rows = source.count()
        return Comparison(str(schema.table), rows, missing=rows)
    mirrored = spark.read.format("delta").load(str(lake))
    absent = [c.name for c in schema.columns if c.name not in mirrored.columns]
    if absent:
        return Comparison(str(schema.table), source.count(), different=source.count(), examples=[{"columns": absent}])
    joined = _joined(source, mirrored, schema).localCheckpoint(eager=False)
    counts = {row["kind"]: row["count"] for row in joined.groupBy("kind").count().collect()}
    twice = mirrored.groupBy(*(F.col(quoted(n)) for n in schema.key)).count().where("count > 1").count()
    return Comparison(
        str(schema.table),
        rows=source.count(),
        missing=counts.get("missing", 0),
        extra=counts.get("extra", 0) + twice,
        different=counts.get("different", 0),
        examples=[_example(row) for row in joined.where("kind <> 'equal'").limit(_EXAMPLES).collect()],
    )


def _joined(source: DataFrame, lake: DataFrame, schema: TableSchema) -> DataFrame:
    """Every key of either side with `kind` (equal, missing, extra, different) and the `columns` that differ."""
    names = [c.name for c in schema.columns]
    left = source.select(F.struct(*(F.col(quoted(n)).alias(n) for n in names)).alias("s"))
    right = lake.select(F.struct(*(F.col(quoted(n)).alias(n) for n in names)).alias("l"))
    same = reduce(Column.__and__, [F.col(f"s.{quoted(n)}") == F.col(f"l.{quoted(n)}") for n in schema.key])
    differs = [F.when(~F.col(f"s.{quoted(n)}").eqNullSafe(F.col(f"l.{quoted(n)}")), F.lit(n)) for n in names]
    key = F.struct(*(F.coalesce(F.col(f"s.{quoted(n)}"), F.col(f"l.{quoted(n)}")).alias(n) for n in schema.key))
    kind = (
        F.when(F.col("l").isNull(), "missing")
        .when(F.col("s").isNull(), "extra")
        .when(F.size("columns") > 0, "different")
        .otherwise("equal")
    )
    both = left.join(right, same, "full_outer").withColumn("columns", F.array_compact(F.array(*differs)))
    return both.select(key.alias("key"), kind.alias("kind"), "columns")


def _example(row: Any) -> dict[str, Any]:
    found = {"key": key_to_json(as_key(row["key"])), "kind": row["kind"]}
    return {**found, "columns": row["columns"]} if row["kind"] == "different" else found


def main(arguments: Sequence[str]) -> int:
    """Compares all tables of the tasks file in one session."""
    spark = open_session(name="dblog compare")
    try:
        equal = True
        for task in orjson.loads(Path(arguments[0]).read_bytes()):
            found = compare(spark, TableSchema.from_json(task["schema"]), task["files"], lake_at(task["lake"]))
            sys.stdout.write(orjson.dumps({**asdict(found), "equal": found.equal}).decode() + "\n")
            sys.stdout.flush()
            equal = equal and found.equal
        return 0 if equal else 1
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
