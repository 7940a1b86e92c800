"""What `delta_writer` writes is Delta: Spark and delta-rs read what a model says, whoever writes in between."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as RustTable
from deltalake import QueryBuilder
from pyspark.sql import DataFrame, SparkSession

from dblog_core.delta_writer.changes import Changes
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting import key_overlap
from dblog_core.delta_writer.rewriting.cluster_files import cluster_files, plan_cluster
from dblog_core.delta_writer.rewriting.join_files import join_files, plan_join
from dblog_core.delta_writer.rewriting.rewrite import FileRewrite, commit_rewritten
from dblog_core.delta_writer.upsert import upsert
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location
from tests.duckdb_reader import read_delta

pytestmark = pytest.mark.one_of(4)

Row = dict[str, Any]
APP = "dblog:shop:shop.orders"
OFFSET = "_dblog_offset"
COLUMNS = {
    "id": ("BIGINT", pa.int64()),
    "flag": ("BOOLEAN", pa.bool_()),
    "tiny": ("TINYINT", pa.int8()),
    "small": ("SMALLINT", pa.int16()),
    "number": ("INT", pa.int32()),
    "single": ("FLOAT", pa.float32()),
    "double": ("DOUBLE", pa.float64()),
    "price": ("DECIMAL(38,10)", pa.decimal128(38, 10)),
    "cents": ("DECIMAL(9,2)", pa.decimal128(9, 2)),
    "day": ("DATE", pa.date32()),
    "at": ("TIMESTAMP", pa.timestamp("us", tz="UTC")),
    "wall": ("TIMESTAMP_NTZ", pa.timestamp("us")),
    "note": ("STRING", pa.string()),
    "raw": ("BINARY", pa.binary()),
    OFFSET: ("BIGINT", pa.int64()),
}


def row(i: int, note: str, offset: int = 1) -> Row:
    """Every seventh row has NULLs, every fifth the values at an end."""
    if i % 7 == 6:
        return {"id": i, "note": note, OFFSET: offset}
    far = i % 5 == 4
    return {
        "id": i,
        "flag": i % 2 == 0,
        "tiny": -128 if far else i % 100,
        "small": 32767 if far else i,
        "number": -(2**31) if far else i,
        "single": float(np.float32(-3.4e38 if far else i / 4)),
        "double": 5e-324 if far else i / 3,
        "price": Decimal("9999999999999999999999999999.9999999999") if far else Decimal(i) / 8,
        "cents": Decimal("-9999999.99") if far else Decimal(i) / 4,
        "day": dt.date(9999, 12, 31) if far else dt.date(2024, 1, 1) + dt.timedelta(days=i % 900),
        "at": dt.datetime(2024, 1, 1, 0, 0, 0, i % 1000, tzinfo=dt.UTC),
        "wall": dt.datetime(1900, 1, 1) if far else dt.datetime(1969, 12, 31, 23, 59, 59, i % 1000),  # noqa: DTZ001
        "note": note + "é😀" * (20 if far else 0),
        "raw": bytes([i % 256] * (i % 4)),
        OFFSET: offset,
    }


class SparkTable:
    """A table as the lake makes them, and what its rows should be."""

    def __init__(self, spark: SparkSession, lake: Path, *, properties: Sequence[str] = ()) -> None:
        self.spark = spark
        self.lake = lake
        self.path = lake / "table"
        self.rows: dict[int, Row] = {}
        self.columns = dict(COLUMNS)
        self.merges = 0
        properties_text = ", ".join(["'delta.enableDeletionVectors' = 'true'", *properties])
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
        self.sql(f"CREATE TABLE {self.name} ({columns}) USING delta TBLPROPERTIES ({properties_text})")

    @property
    def name(self) -> str:
        return f"delta.`{self.path}`"

    def sql(self, text: str) -> None:
        self.spark.sql(text.replace("TABLE_NAME", self.name)).collect()

    def arrow(self, rows: Sequence[Row]) -> pa.Table:
        return pa.table({n: pa.array([r.get(n) for r in rows], kind) for n, (_, kind) in self.columns.items()})

    def frame(self, rows: Sequence[Row]) -> DataFrame:
        return self.spark.createDataFrame(self.arrow(rows), self.spark.table(self.name).schema)

    def append(self, rows: Sequence[Row]) -> None:
        """By Spark."""
        frame = self.frame(rows)
        frame.coalesce(1).write.format("delta").mode("append").save(str(self.path))

    def writer(self) -> OpenTable:
        place = Location(LocalStorage(self.lake, temporary="_dblog/tmp"), "table")
        return OpenTable(place, ["id"], order=OFFSET, mark="dblog")

    def changes(self, puts: Sequence[Row], deletes: Sequence[int] = (), *, dump: bool = False) -> Changes:
        rows = [*puts, *({"id": i} for i in deletes)]
        return Changes(self.arrow(rows), np.arange(len(rows)) >= len(puts), np.full(len(rows), dump))

    def merge(self, writer: OpenTable, puts: Sequence[Row], deletes: Sequence[int] = (), *, parts: int = 1) -> None:
        """`parts`: in how many of them the changes come."""
        self.merges += 1
        changes = [self.changes(puts[i::parts], deletes[i::parts]) for i in range(parts)]
        upsert(writer, changes, APP, self.merges)
        self.rows.update((r["id"], r) for r in puts)
        for i in deletes:
            self.rows.pop(i, None)

    def check(self, *, by_both: bool = True) -> None:
        """Spark, delta-rs and DuckDB read what the model says."""
        expected_rows = self.arrow([self.rows[i] for i in sorted(self.rows)])
        rows_read = self.spark.sql(f"SELECT * FROM {self.name}").toArrow().sort_by("id")
        assert rows_read.cast(expected_rows.schema).equals(expected_rows), "Spark reads other rows"
        if not by_both:
            return
        others = {
            "delta-rs": pa.table(QueryBuilder().register("t", RustTable(str(self.path))).execute("select * from t")),
            "DuckDB": read_delta(self.path),
        }
        for name, other in others.items():
            rows_read = other.select(expected_rows.column_names).cast(expected_rows.schema).sort_by("id")
            assert rows_read.equals(expected_rows), f"{name} reads other rows"

    def forget(self, is_gone: Callable[[int], bool]) -> None:
        self.rows = {i: r for i, r in self.rows.items() if not is_gone(i)}


@pytest.mark.one_of(8)
def test_spark_and_our_writer_change_a_table_by_turns(spark: SparkSession, tmp_path: Path) -> None:
    table = SparkTable(spark, tmp_path)
    first = [row(i, f"first {i}") for i in range(600)]
    table.append(first[:300])
    table.append(first[300:])
    table.rows = {r["id"]: r for r in first}
    writer = table.writer()
    offset = 10

    def ours(step: int, *, fresh: bool = False) -> None:
        nonlocal offset, writer
        offset += 1
        if fresh:
            writer = table.writer()
        puts = [row(i, f"step {step}", offset) for i in range(step, 700, 13)]
        table.merge(writer, puts, sorted(set(range(step + 5, 650, 29)) - {r["id"] for r in puts}))
        table.check()

    ours(1)
    table.sql("DELETE FROM TABLE_NAME WHERE id BETWEEN 100 AND 180 OR id % 50 = 3")  # runs, on our vectors
    table.forget(lambda i: 100 <= i <= 180 or i % 50 == 3)
    table.check()
    ours(2)
    ours(3, fresh=True)  # reads Spark's vectors, and ours
    table.sql("OPTIMIZE TABLE_NAME")
    ours(4)
    table.sql("DELETE FROM TABLE_NAME WHERE id = 20")
    table.forget(lambda i: i == 20)
    table.sql("REORG TABLE TABLE_NAME APPLY (PURGE)")
    ours(5)
    table.append([row(i, "twin", 5) for i in (5, 18, 31)])  # keys that are there, and that step 5 + 13 changes again
    ours(18 % 13)
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]
    log.forTable(spark._jsparkSession, str(table.path)).checkpoint()
    checkpoint = max((table.path / "_delta_log").glob("*.checkpoint.parquet")).name[:20]
    for commit in (table.path / "_delta_log").glob("*.json"):
        if commit.stem < checkpoint:
            commit.unlink()
    ours(6, fresh=True)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    table.sql("VACUUM TABLE_NAME RETAIN 0 HOURS")
    spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    ours(7, fresh=True)
    assert join_files(writer) > 0
    table.check()
    ours(8)
    RustTable(str(table.path)).create_checkpoint()
    ours(9, fresh=True)
    table.sql("ALTER TABLE TABLE_NAME ADD COLUMNS (more INT)")
    table.columns["more"] = ("INT", pa.int32())
    ours(10)
    source = table.frame([row(i, "merged", 900) for i in (2, 4, 9999)])
    same = DeltaTable.forPath(spark, str(table.path)).alias("t").merge(source.alias("s"), "t.id = s.id")
    same.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    table.rows.update((i, row(i, "merged", 900)) for i in (2, 4, 9999))
    table.check()
    ours(11)


RIVALS = {
    "DELETE": "DELETE FROM TABLE_NAME WHERE id % 9 = 4",
    "UPDATE": "UPDATE TABLE_NAME SET note = 'updated' WHERE id % 9 = 4",
    "OPTIMIZE": "OPTIMIZE TABLE_NAME",
    "PURGE": "REORG TABLE TABLE_NAME APPLY (PURGE)",
    "a property": "ALTER TABLE TABLE_NAME SET TBLPROPERTIES ('delta.checkpointInterval' = '100')",
}


@pytest.mark.in_turn("what")
@pytest.mark.parametrize("what", RIVALS)
def test_spark_commits_between_plan_and_commit(spark: SparkSession, tmp_path: Path, what: str) -> None:
    table = SparkTable(spark, tmp_path)
    writer = table.writer()
    table.merge(writer, [row(i, "first") for i in range(100)])
    table.merge(writer, [row(i, "second", 2) for i in range(50, 120)], [3, 20])
    commits: list[str] = []

    def between() -> None:
        if not commits:
            commits.append(what)
            table.sql(RIVALS[what])
            if what == "DELETE":
                table.forget(lambda i: i % 9 == 4)
            for i, expected_row in table.rows.items():
                if what == "UPDATE" and i % 9 == 4:
                    expected_row["note"] = "updated"

    writer.check = between
    table.merge(writer, [row(i, "ours", 5) for i in (4, 13, 55, 500)], [22, 61], parts=2)
    table.check()


PLANS: dict[str, Callable[[OpenTable], FileRewrite | None]] = {
    "joined": plan_join,
    "put in order": partial(plan_cluster, target=4000),
}


@pytest.mark.in_turn("kind", "what")
@pytest.mark.parametrize("what", RIVALS)
@pytest.mark.parametrize("kind", PLANS)
def test_spark_commits_while_files_are_written_again(
    spark: SparkSession, tmp_path: Path, what: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its DELETE marks rows in the files that are written again: they are dead in the new files."""
    monkeypatch.setattr(key_overlap, "FILES", 1)
    table = SparkTable(spark, tmp_path)
    writer = table.writer()
    for begin in (1, 0):
        table.merge(writer, [row(i, "first") for i in range(begin, 100, 2)])
    table.merge(writer, [row(i, "second", 2) for i in range(40, 60)], [3, 20])
    planned = PLANS[kind](writer)
    assert planned is not None
    rewritten = planned.carry_out()
    assert rewritten is not None
    table.sql(RIVALS[what])
    if what == "DELETE":
        table.forget(lambda i: i % 9 == 4)
    for i, expected_row in table.rows.items():
        if what == "UPDATE" and i % 9 == 4:
            expected_row["note"] = "updated"
    table.merge(table.writer(), [row(i, "meanwhile", 3) for i in (1, 45, 99)], [2])
    is_committed = commit_rewritten(writer, rewritten)
    assert is_committed == (what in ("DELETE", "UPDATE"))
    table.check()
    table.merge(writer, [row(i, "ours", 5) for i in (4, 13, 55, 500)], [22, 61])
    table.check()


def test_files_that_were_put_in_order_are_read_and_written_by_all(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark and delta-rs read them, by their statistics too; Spark marks rows in them, and joins and purges them."""
    monkeypatch.setattr(key_overlap, "FILES", 1)
    table = SparkTable(spark, tmp_path)
    writer = table.writer()
    for begin in range(4):
        table.merge(writer, [row(i, f"{i}") for i in range(begin, 800, 4)])
    table.merge(writer, [row(i, "second", 2) for i in range(0, 800, 13)], [3, 20])
    assert cluster_files(writer, target=8_000) and len(writer.snapshot.files) > 2
    table.check()
    added = pa.table(RustTable(str(table.path)).get_add_actions(flatten=True)).to_pylist()
    for i in (0, 399, 799):
        files = [action["path"] for action in added if action["min.id"] <= i <= action["max.id"]]
        assert len(files) == 1
        found = spark.sql(f"SELECT id, note, input_file_name() FROM {table.name} WHERE id = {i}").collect()
        assert [(r[0], r[1]) for r in found] == [(i, table.rows[i]["note"])] and found[0][2].split("/")[-1] in files
    versions = spark.sql(f"DESCRIBE HISTORY {table.name}").collect()
    before = spark.read.format("delta").option("versionAsOf", versions[1].version).load(str(table.path))
    assert versions[0].operation == "OPTIMIZE" and before.count() == len(table.rows), "time travel"
    table.sql("DELETE FROM TABLE_NAME WHERE id % 9 = 4")
    table.forget(lambda i: i % 9 == 4)
    table.merge(writer, [row(i, "ours", 5) for i in (4, 13, 55, 5000)], [22, 61])
    table.check()
    table.sql("OPTIMIZE TABLE_NAME")
    table.sql("REORG TABLE TABLE_NAME APPLY (PURGE)")
    table.merge(writer, [row(i, "ours", 6) for i in range(0, 900, 11)], [23, 62])
    table.check()


@pytest.mark.one_of(6)
def test_spark_leaves_no_row_out_by_our_statistics(spark: SparkSession, tmp_path: Path) -> None:
    """Mutant: statistics too tight. Rows are asked for by each of their values."""
    table = SparkTable(spark, tmp_path)
    writer = table.writer()
    for i in (1, 4, 6, 2):
        table.merge(writer, [row(i, "x" * 31), row(i + 100, "y")])
    table.merge(writer, [row(101, "x" * 40, 2)], [102])
    collected = table.frame(list(table.rows.values())).collect()
    read = spark.sql(f"SELECT * FROM {table.name}")
    for collected_row in (r for r in collected if r.id in (4, 6, 101)):  # values at an end, NULLs, a long text
        for name in table.columns:
            value = collected_row[name]
            condition = read[name].isNull() if value is None else read[name] == value
            assert collected_row.id in [r.id for r in read.where(condition).select("id").collect()], (
                collected_row.id,
                name,
            )


def test_days_of_any_year_are_read_as_spark_3_would(spark: SparkSession, tmp_path: Path) -> None:
    """It reads none before 1582 where the file does not tell of its calendar."""
    table = SparkTable(spark, tmp_path)
    old = dt.datetime(1, 1, 1)  # noqa: DTZ001
    table.merge(table.writer(), [{**row(1, "old"), "day": old.date(), "at": old.replace(tzinfo=dt.UTC), "wall": old}])
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "EXCEPTION")
    try:
        table.check()
    finally:
        spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInRead")


@pytest.mark.in_turn("mode")
@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_columns_keep_their_names(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    table = SparkTable(spark, tmp_path, properties=[f"'delta.columnMapping.mode' = '{mode}'"])
    writer = table.writer()
    table.merge(writer, [row(i, "first") for i in range(20)])
    table.sql("ALTER TABLE TABLE_NAME RENAME COLUMN note TO remark")
    table.columns = {("remark" if n == "note" else n): kind for n, kind in table.columns.items()}
    table.rows = {i: {("remark" if n == "note" else n): v for n, v in r.items()} for i, r in table.rows.items()}
    table.sql("ALTER TABLE TABLE_NAME DROP COLUMN raw")
    table.columns.pop("raw")
    news = [{**row(i, "second", 2), "remark": "second"} for i in (1, 50)]
    table.merge(writer, news, [2])
    table.check()


def test_older_files_have_narrower_types(spark: SparkSession, tmp_path: Path) -> None:
    table = SparkTable(spark, tmp_path, properties=["'delta.enableTypeWidening' = 'true'"])
    writer = table.writer()
    table.merge(writer, [row(i, "first") for i in range(20)])
    wider = {"number": ("BIGINT", pa.int64()), "tiny": ("INT", pa.int32()), "single": ("DOUBLE", pa.float64())}
    wider["cents"] = ("DECIMAL(12,3)", pa.decimal128(12, 3))
    for name, (kind, _) in wider.items():
        table.sql(f"ALTER TABLE TABLE_NAME ALTER COLUMN {name} TYPE {kind}")
    table.columns |= wider
    table.merge(writer, [{**row(i, "second", 2), "number": 2**40 + i, "tiny": 70_000} for i in (1, 50)], [2])
    table.check(by_both=False)  # delta-rs refuses such tables
    table.merge(table.writer(), [row(i, "third", 3) for i in (1, 51)])
    assert join_files(writer) > 0
    table.check(by_both=False)


def test_spark_tells_what_we_did(spark: SparkSession, tmp_path: Path) -> None:
    table = SparkTable(spark, tmp_path)
    writer = table.writer()
    table.merge(writer, [row(i, "first") for i in range(20)])
    table.merge(writer, [row(1, "second", 2), row(90, "second", 2)], [5])
    last = DeltaTable.forPath(spark, str(table.path)).history(1).collect()[0]
    assert last.operation == "MERGE" and last.userMetadata == "dblog"
    assert {k: v for k, v in last.operationMetrics.items() if k.startswith("numTargetRows")} == {
        "numTargetRowsInserted": "1",
        "numTargetRowsUpdated": "1",
        "numTargetRowsDeleted": "1",
        "numTargetRowsCopied": "0",
    }
    before = spark.read.format("delta").option("versionAsOf", 1).load(str(table.path))
    assert before.count() == 20, "time travel"
