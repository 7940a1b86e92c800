"""Spark commits while a change, or a rewrite, of ours is under way: Spark and delta-rs read what a model says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting import key_overlap
from dblog_core.delta_writer.rewriting.cluster_files import plan_cluster
from dblog_core.delta_writer.rewriting.join_files import plan_join
from dblog_core.delta_writer.rewriting.rewrite import FileRewrite, commit_rewritten
from dblog_core.errors import LakeError
from tests.spark.spark_tables import Row, SparkTable, row

pytestmark = pytest.mark.one_of(4)

Rival = Callable[[SparkTable, Sequence[int]], None]
RIVALS: dict[str, Rival] = {}
"""What Spark does; the numbers are the keys of the change that is under way."""


def rival(work: Rival) -> Rival:
    RIVALS[work.__name__] = work
    return work


@rival
def deletes(table: SparkTable, changed: Sequence[int]) -> None:
    table.sql("DELETE FROM TABLE_NAME WHERE id % 9 = 4")
    table.forget(lambda i: i % 9 == 4)


@rival
def updates(table: SparkTable, changed: Sequence[int]) -> None:
    table.sql("UPDATE TABLE_NAME SET note = 'updated' WHERE id % 9 = 4")
    for i, expected_row in table.rows.items():
        if i % 9 == 4:
            expected_row["note"] = "updated"


@rival
def appends(table: SparkTable, changed: Sequence[int]) -> None:
    """Twins of rows that are there, and rows of keys that are new on both sides."""
    foreign = row(10_000, "theirs")
    table.append([foreign, *(row(i, "theirs") for i in changed)])
    table.rows[10_000] = foreign


@rival
def optimizes(table: SparkTable, changed: Sequence[int]) -> None:
    table.sql("OPTIMIZE TABLE_NAME")


@rival
def purges(table: SparkTable, changed: Sequence[int]) -> None:
    table.sql("REORG TABLE TABLE_NAME APPLY (PURGE)")


@rival
def vacuums(table: SparkTable, changed: Sequence[int]) -> None:
    """Without a retention: the files go that are written, and not committed yet."""
    before = set(table.path.rglob("*.parquet"))
    check = "spark.databricks.delta.retentionDurationCheck.enabled"
    table.spark.conf.set(check, "false")
    try:
        table.sql("VACUUM TABLE_NAME RETAIN 0 HOURS")
    finally:
        table.spark.conf.unset(check)
    assert set(table.path.rglob("*.parquet")) < before


@rival
def checkpoints(table: SparkTable, changed: Sequence[int]) -> None:
    table.checkpoint()


@rival
def sets_a_property(table: SparkTable, changed: Sequence[int]) -> None:
    table.sql("ALTER TABLE TABLE_NAME SET TBLPROPERTIES ('delta.checkpointInterval' = '100')")


@pytest.mark.in_turn("what", "vectors")
@pytest.mark.parametrize("what", RIVALS)
@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "copies"])
def test_spark_commits_between_plan_and_commit(spark: SparkSession, tmp_path: Path, what: str, vectors: bool) -> None:
    table = SparkTable(spark, tmp_path, vectors=vectors)
    writer = table.writer()
    table.merge(writer, [row(i, "first") for i in range(100)])
    table.merge(writer, [row(i, "second", 2) for i in range(50, 120)], [3, 20])
    commits: list[str] = []

    def between() -> None:
        if not commits:
            commits.append(what)
            RIVALS[what](table, [*puts, *gone])

    writer.check = between
    puts, gone = (4, 13, 55, 500), (22, 61)
    table.merge(writer, [row(i, "ours", 5) for i in puts], gone, parts=2)
    assert commits
    table.check()
    writer.check = lambda: None
    table.merge(writer, [row(i, "later", 6) for i in (5, 13, 501)], [23, 55])
    table.check()


SHAPES = {
    "a column more": ("ADD COLUMNS (more INT)", lambda r: {**r, "more": r["id"]}),
    "another name": ("RENAME COLUMN note TO remark", lambda r: {("remark" if n == "note" else n): r[n] for n in r}),
}


@pytest.mark.in_turn("what", "vectors")
@pytest.mark.parametrize("what", SHAPES)
@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "copies"])
def test_spark_alters_the_table_between_plan_and_commit(
    spark: SparkSession, tmp_path: Path, what: str, vectors: bool
) -> None:
    """Rows of the older shape are refused, and none of them is in the table; rows of the new one come in."""
    statement, new_shape = SHAPES[what]
    table = SparkTable(spark, tmp_path, properties=["'delta.columnMapping.mode' = 'name'"], vectors=vectors)
    writer = table.writer()
    table.merge(writer, [row(i, "first") for i in range(100)])
    news: list[Row] = [row(i, "ours", 5) for i in (4, 13, 500)]
    writer.check = partial(table.sql, f"ALTER TABLE TABLE_NAME {statement}")
    with pytest.raises(LakeError, match="do not fit the table"):
        table.merge(writer, news, [22, 61])
    writer.check = lambda: None
    if what == "another name":
        table.columns = {("remark" if name == "note" else name): kind for name, kind in table.columns.items()}
        table.rows = {i: new_shape(r) for i, r in table.rows.items()}
    else:
        table.columns["more"] = ("INT", pa.int32())
    table.check()
    table.merge(writer, [new_shape(r) for r in news], [22, 61])
    table.check()


PLANS: dict[str, Callable[[OpenTable], FileRewrite | None]] = {
    "joined": plan_join,
    "put in order": partial(plan_cluster, target=4000),
}


@pytest.mark.in_turn("kind", "what", "vectors")
@pytest.mark.parametrize("what", RIVALS)
@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "copies"])
def test_spark_commits_while_files_are_written_again(
    spark: SparkSession, tmp_path: Path, what: str, kind: str, vectors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its DELETE marks rows in the files that are written again: they are dead in the new files. Without vectors any
    change replaces the files, so that the new ones are dropped."""
    monkeypatch.setattr(key_overlap, "FILES", 1)
    table = SparkTable(spark, tmp_path, vectors=vectors)
    writer = table.writer()
    for begin in (1, 0):
        table.merge(writer, [row(i, "first") for i in range(begin, 100, 2)])
    table.merge(writer, [row(i, "second", 2) for i in range(40, 60)], [3, 20])
    planned = PLANS[kind](writer)
    assert planned is not None
    rewritten = planned.carry_out()
    assert rewritten is not None
    puts, gone = (1, 45, 99), (2,)
    RIVALS[what](table, [*puts, *gone])
    table.merge(table.writer(), [row(i, "meanwhile", 3) for i in puts], gone)
    is_committed = commit_rewritten(writer, rewritten)
    assert is_committed == (vectors and what in ("deletes", "updates", "appends", "checkpoints"))
    table.check()
    table.merge(writer, [row(i, "ours", 5) for i in (4, 13, 55, 500)], [22, 61])
    table.check()
