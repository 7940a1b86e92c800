"""What `delta_writer` writes is Delta: Spark and delta-rs read what a model says, whoever writes in between."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as RustTable
from pyspark.sql import SparkSession

from dblog_core.delta_writer.rewriting import key_overlap
from dblog_core.delta_writer.rewriting.cluster_files import cluster_files
from dblog_core.delta_writer.rewriting.join_files import join_files
from tests.spark.spark_tables import SparkTable, row

pytestmark = pytest.mark.one_of(4)


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
    table.checkpoint()
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


def test_spark_keeps_how_many_rows_were_replaced(spark: SparkSession, tmp_path: Path) -> None:
    """In its checkpoints, and where it marks more rows of a file. A file that gets another count alone brings nobody a
    row."""
    table = SparkTable(spark, tmp_path)
    writer = table.writer()
    table.merge(writer, [row(i, "first") for i in range(100)])
    table.merge(writer, [row(i, "second", 2) for i in (1, 2, 3)])
    table.merge(writer, [row(200, "third", 3)], [1])  # its first version too counts as deleted from now on
    table.check()
    stream = spark.readStream.format("delta").option("startingVersion", 3).option("ignoreChanges", "true")
    query = stream.load(str(table.path)).writeStream.format("memory").queryName("changes").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "stream")).start().awaitTermination()
    assert {r.id for r in spark.table("changes").select("id").collect()} == {2, 3, 200}

    def counts() -> list[tuple[int, int]]:
        new = table.writer()
        new.refresh()
        return sorted(
            (live.replaced_count, live.deleted_count) for live in new.snapshot.files.values() if live.vector is not None
        )

    assert counts() == [(0, 1), (2, 1)]
    table.checkpoint()
    for version in range(3):
        (table.path / "_delta_log" / f"{version:020d}.json").unlink()
    assert counts() == [(0, 1), (2, 1)]
    table.sql("DELETE FROM TABLE_NAME WHERE id IN (50, 51)")
    table.forget(lambda i: i in (50, 51))
    assert counts() == [(0, 1), (2, 3)]
    table.merge(table.writer(), [row(60, "ours", 5)], [61])
    assert counts() == [(0, 1), (3, 4)]
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


@pytest.mark.parametrize("vectors", [True, False])
def test_rows_below_an_offset_go_with_the_changes_for_all_readers(
    spark: SparkSession, tmp_path: Path, vectors: bool
) -> None:
    """Whole files, files with rows of both kinds, and those that Spark has marked rows in."""
    table = SparkTable(spark, tmp_path, vectors=vectors)
    writer = table.writer()
    table.append([row(i, "by Spark", 1 + i % 3) for i in range(200)])
    table.rows = {i: row(i, "by Spark", 1 + i % 3) for i in range(200)}
    table.merge(writer, [row(i, "second", 5 + i % 4) for i in range(150, 300)], [7])
    table.sql("DELETE FROM TABLE_NAME WHERE id % 10 = 1")
    table.forget(lambda i: i % 10 == 1)
    table.merge(writer, [row(i, "third", 20) for i in (3, 160, 400)])
    for below in (3, 7, 30):
        before = dict(table.rows)
        version = writer.snapshot.version
        table.merge(writer, [row(i, "behind", 40 + below) for i in (below, 160, 500)], [162], below=below)
        assert len(table.rows) < len(before)
        table.check()
        old = spark.read.format("delta").option("versionAsOf", version).load(str(table.path))
        assert old.count() == len(before), "one version follows the other"
        assert writer.snapshot.version == version + 1
    last = DeltaTable.forPath(spark, str(table.path)).history(1).collect()[0]
    assert last.operationMetrics["numTargetRowsNotMatchedBySourceDeleted"] == str(len(before) - 4)
    assert sorted(table.rows) == [3, 7, 30, 160, 500] and {r["note"] for r in table.rows.values()} == {"behind"}


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
        "numTargetRowsMatchedDeleted": "1",
        "numTargetRowsNotMatchedBySourceDeleted": "0",
        "numTargetRowsCopied": "0",
    }
    before = spark.read.format("delta").option("versionAsOf", 1).load(str(table.path))
    assert before.count() == 20, "time travel"
