"""The merge beside a plain MERGE in the same warm session."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import random
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from dblog_core.staging.row_format import log_schema
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.spark.lakes import TestLake
from tests.spark.segments import EPOCH, SegmentBuilder, table

PLAIN = "plain MERGE"
SHAPE = table(
    "orders",
    id=pa.int64(),
    customer_id=pa.int32(),
    amount=pa.decimal128(12, 2),
    name=pa.string(),
    email=pa.string(),
    city=pa.string(),
    created=pa.timestamp("us"),
    updated=pa.timestamp("us", tz="UTC"),
    attrs=pa.string(),
    active=pa.int8(),
    score=pa.float64(),
    note=pa.string(),
)
BARS = {
    1_000: (Bar(0.01, PLAIN, at_most=True), Bar(0.15, at_most=True)),
    100_000: (Bar(0.05, PLAIN, at_most=True), Bar(2, at_most=True)),
    500_000: (Bar(1 / 3, PLAIN, at_most=True),),
}
"""By the number of changed rows."""


def spark_rows(spark: SparkSession, count: int) -> DataFrame:
    """Rows with the keys below `count`, as a dump has them, with their provenance."""
    i = F.col("id")
    names = {"name": "name ", "email": "user.", "city": "city "}
    texts = {name: F.concat(F.lit(start), i % (100 if name == "city" else count)) for name, start in names.items()}
    values = {
        "customer_id": (i % 1_000_003).cast("int"),
        "amount": ((i % 1_000_000) / 100).cast("decimal(12,2)"),
        **texts,
        "created": F.timestamp_micros(i * 1000).cast("timestamp_ntz"),
        "updated": F.timestamp_micros(i * 1000),
        "attrs": F.concat(F.lit('{"n": '), i % 100, F.lit("}")),
        "active": F.lit(1).cast("tinyint"),
        "score": F.hash(i) / 1e9,
        "note": F.md5(i.cast("string")),
    }
    rows = spark.range(0, count, 1, max(2, count // 625_000)).select("id", *(v.alias(n) for n, v in values.items()))
    provenance = {"offset": F.lit(0).cast("long"), "position": F.lit("p"), "origin": F.lit("dump")}
    provenance["commit_time"] = F.timestamp_micros(F.lit(0).cast("long"))
    ordered = [provenance[n].alias(f"_dblog_{n}") for n in ("offset", "position", "commit_time", "origin")]
    return rows.select("*", *ordered)


def make_changes(dice: random.Random, count: int, below: int) -> pa.RecordBatch:
    """New values for rows spread over the keys below a limit."""
    keys = dice.sample(range(below), count)
    day = dt.datetime(2026, 1, 1)  # noqa: DTZ001 - as a source without zones has it
    rows = [
        {
            "id": key,
            "customer_id": key % 1_000_003,
            "amount": decimal.Decimal(dice.randrange(10**6)) / 100,
            "name": f"name {key}",
            "email": f"user.{key}",
            "city": "elsewhere",
            "created": day,
            "updated": day.replace(tzinfo=dt.UTC),
            "attrs": "{}",
            "active": 0,
            "score": dice.random(),
            "note": "changed",
        }
        for key in keys
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SHAPE.arrow)


def add_lines(build: SegmentBuilder, shape: TableSchema, op: str, rows: pa.RecordBatch) -> None:
    """A line of the log for each of these rows, for the next segment."""
    count = len(rows)
    build.staging.put_schema(shape)
    first = build.next(count)
    columns = {
        "offset": pa.array(range(first, first + count), pa.int64()),
        "op": pa.repeat(op, count),
        "origin": pa.repeat("log", count),
        "transaction": pa.repeat("t", count),
        "position": pa.repeat("p", count),
        "commit_time": pa.repeat(pa.scalar(EPOCH, pa.timestamp("us", tz="UTC")), count),
        "key_only": pa.repeat(False, count),
        "after": rows.to_struct_array(),
    }
    whole = log_schema(shape)
    lines = [columns.get(f.name, pa.nulls(count, f.type)) for f in whole]
    build.batch(shape, pa.RecordBatch.from_arrays(lines, schema=whole))


class Filled:
    """A lake with one table of so many rows. The peer has the same rows and the same session, whose settings suit it
    better than Spark's own: as many partitions as a small machine has use for, no copy of the source."""

    def __init__(self, spark: SparkSession, path: Path, rows: int, *, vectors: bool = True) -> None:
        self.lake = TestLake(spark, Staging(str(path / "staging"), source="shop"), path / "lake")
        self.rows = rows
        self._dice = random.Random(rows)
        self.lake.vectors = vectors
        lake_table = LakeTable(self.lake.table(SHAPE), SHAPE, app="made", vectors=vectors)
        lake_table.prepare()
        spark_rows(spark, rows).write.format("delta").mode("append").save(str(lake_table.path))
        self._spark = spark
        self._file = path / "changed.parquet"
        self._merger = self.lake.merger()

    @functools.cached_property
    def _plain(self) -> str:
        """Path of the same rows in a Delta table as Spark makes it by default."""
        path = str(self._file.with_name("plain"))
        spark_rows(self._spark, self.rows).write.format("delta").save(path)
        return path

    def make_changes(self, count: int, below: int) -> pa.RecordBatch:
        """New values for rows spread over the keys below a limit."""
        return make_changes(self._dice, count, below)

    def ours(self, changed: pa.RecordBatch) -> float:
        """Seconds of a merge of one segment with these updates."""
        self.stage(changed)
        began = time.monotonic()
        self.merge(len(changed))
        return time.monotonic() - began

    def stage(self, changed: pa.RecordBatch) -> None:
        """Publishes a segment with these updates."""
        add_lines(self.lake.build, SHAPE, "u", changed)
        self.lake.build.seal()

    def merge(self, count: int) -> None:
        """Merges what is staged, which has so many rows."""
        merged = self._merger.run_round(retry_stopped=False)
        assert merged is not None and merged.tables[0].error is None and merged.tables[0].applied == count

    def plain(self, changed: pa.RecordBatch) -> float:
        """Seconds of what everybody writes first."""
        pq.write_table(pa.Table.from_batches([changed]), self._file)
        path = self._plain
        began = time.monotonic()
        source = self._spark.read.parquet(str(self._file))
        target = DeltaTable.forPath(self._spark, path).alias("t")
        values = {c.name: f"s.{c.name}" for c in SHAPE.columns}
        merge = target.merge(source.alias("s"), "t.id = s.id").whenMatchedUpdate(set=values)
        merge.whenNotMatchedInsert(values=values).execute()
        return time.monotonic() - began


@pytest.fixture(scope="module")
def filled_table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, scale: Scale) -> Filled:
    return Filled(spark, tmp_path_factory.mktemp("merge"), scale.lake_rows)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", BARS)
def test_merge_of_changed_rows(filled_table: Filled, count: int, scale: Scale, results: Results) -> None:
    series: dict[str, list[float]] = {OURS: [], PLAIN: []}
    for number in range(-1, scale.rounds):  # round -1 warms both
        changed = filled_table.make_changes(min(count, filled_table.rows // 10), filled_table.rows)
        seconds = {OURS: filled_table.ours(changed), PLAIN: filled_table.plain(changed)}
        if number >= 0:
            for who, rounds in series.items():
                rounds.append(seconds[who])
    title = f"merge of {count:,} changed rows into a table of {filled_table.rows:,}"
    results.add(Figure(f"merge_{count}", "Lake", title, "s", series, BARS[count]))


@pytest.mark.timeout(3600)
def test_merge_where_changes_stay_in_a_tenth_of_the_keys(
    spark: SparkSession, filled_table: Filled, scale: Scale, results: Results, tmp_path: Path
) -> None:
    small = Filled(spark, tmp_path, filled_table.rows // 10)
    ten = "ten times the table"
    whole_table = "the table"
    series: dict[str, list[float]] = {ten: [], whole_table: []}
    for number in range(-1, scale.rounds):
        seconds = {
            name: of.ours(of.make_changes(1_000, small.rows))
            for name, of in ((ten, filled_table), (whole_table, small))
        }
        if number >= 0:
            for name, rounds in series.items():
                rounds.append(seconds[name])
    title = f"merge of 1,000 rows within a tenth of the keys: {filled_table.rows:,} rows against {small.rows:,}"
    ratio = [a / b for a, b in zip(series[ten], series[whole_table], strict=True)]
    results.add(Figure("merge_tenth", "Lake", f"{title}, times as long", "×", {OURS: ratio}, (Bar(2, at_most=True),)))
