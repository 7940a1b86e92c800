"""Works that executors scan the keys of, and write: others commit meanwhile, and Spark, delta-rs and a model agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dblog_core.delta_writer import upsert
from dblog_core.delta_writer.features import TableRefused
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.errors import DblogError, LakeError
from dblog_core.model.values import Key
from spark_jobs.events.fold import PUT
from spark_jobs.merging.with_spark import mark_by_scan
from spark_jobs.merging.with_spark.batch import Batch, measure_on_driver
from tests.spark.segments import table
from tests.spark.spark_tables import APP, COLUMNS, OFFSET, Row, SparkTable, row
from tests.spark.test_delta_rivals import RIVALS, SHAPES

pytestmark = pytest.mark.one_of(6)

PROVENANCE = {
    "_dblog_position": ("STRING", pa.string()),
    "_dblog_commit_time": ("TIMESTAMP", pa.timestamp("us", tz="UTC")),
    "_dblog_origin": ("STRING", pa.string()),
}
SHAPE = table("t", **{name: kind for name, (_, kind) in COLUMNS.items() if name != OFFSET})


class ScannedTable(SparkTable):
    """A table that has the columns of a lake's, changed by scans of its keys."""

    def __init__(self, spark: SparkSession, lake: Path, **how: Any) -> None:
        super().__init__(spark, lake, **how)
        for name, (kind, arrow) in PROVENANCE.items():
            self.sql(f"ALTER TABLE TABLE_NAME ADD COLUMNS ({name} {kind})")
            self.columns[name] = kind, arrow

    def batch(self, puts: Sequence[Row], deletes: Sequence[int], *, origin: str = "log") -> Batch:
        rows = [*puts, *({"id": i, OFFSET: 9} for i in deletes)]
        columns = {name: pa.array([r.get(name) for r in rows], kind) for name, (_, kind) in COLUMNS.items()}
        offset = columns.pop(OFFSET)
        count = len(rows)
        folded = {
            "key": pa.StructArray.from_arrays([columns["id"]], ["id"]),
            "op": pa.array([PUT] * len(puts) + ["d"] * len(deletes), pa.string()),
            "offset": offset,
            "position": pa.nulls(count, pa.string()),
            "commit_time": pa.nulls(count, pa.timestamp("us", tz="UTC")),
            "origin": pa.array([origin] * count, pa.string()),
            "inserted": pa.array([False] * count),
            "unchanged_toast": pa.nulls(count, pa.list_(pa.string())),
            "row": pa.StructArray.from_arrays(list(columns.values()), list(columns)),
        }
        return measure_on_driver(self.spark, pa.table(folded), SHAPE)

    def scan(self, writer: OpenTable, puts: Sequence[Row], deletes: Sequence[int] = (), **how: Any) -> Any:
        """As `merge`, by a scan of the keys."""
        self.merges += 1
        options = {"broadcast": False, "may_lose_upto": None, "read_at": None, "withhold": _nothing, **how}
        batch = self.batch(puts, deletes)
        done = mark_by_scan.write(self.spark, writer, batch, SHAPE, APP, self.merges, **options)
        self.rows.update((r["id"], {**r, "_dblog_origin": "log"}) for r in puts)
        for i in deletes:
            self.rows.pop(i, None)
        return done


def _nothing(keys: list[Key]) -> None:
    assert not keys


@pytest.fixture(params=["few", "many"])
def scanned(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[ScannedTable, OpenTable]:
    """A table of two hundred rows in several files, some of them marked; and its writer. The driver takes the places as
    they come, or some at a time."""
    if request.param == "many":
        monkeypatch.setattr(mark_by_scan, "_FEW", 0)
        monkeypatch.setattr(mark_by_scan, "_PLACES_AT_ONCE", 2)
    scanned_table = ScannedTable(spark, tmp_path, properties=["'delta.columnMapping.mode' = 'name'"])
    writer = scanned_table.writer()
    scanned_table.merge(writer, [row(i, "first") for i in range(150)])
    scanned_table.merge(writer, [row(i, "second", 2) for i in range(100, 200)], [3, 20])
    return scanned_table, writer


def _before_the_commit(act: Callable[[], None]) -> Any:
    """`act` is done once, right before the first commit of a scan."""
    commit, acts = upsert.commit_files, [act]

    def act_and_commit(*arguments: Any) -> bool:
        if acts:
            acts.pop()()
        return commit(*arguments)

    return mock.patch.object(mark_by_scan, "commit_files", act_and_commit)


@pytest.mark.in_turn("what")
@pytest.mark.parametrize("what", RIVALS)
def test_spark_commits_between_plan_and_commit(scanned: tuple[ScannedTable, OpenTable], what: str) -> None:
    scanned_table, writer = scanned
    puts, gone = (4, 13, 155, 500), (22, 61)
    with _before_the_commit(lambda: RIVALS[what](scanned_table, [*puts, *gone])):
        scanned_table.scan(writer, [row(i, "ours", 5) for i in puts], gone)
    scanned_table.check()
    scanned_table.merge(writer, [row(i, "later", 6) for i in (5, 13, 501)], [23, 155])
    scanned_table.check()


@pytest.mark.in_turn("what")
@pytest.mark.parametrize("what", SHAPES)
def test_spark_alters_the_table_between_plan_and_commit(scanned: tuple[ScannedTable, OpenTable], what: str) -> None:
    """A column more is NULL in our rows; a table that lacks one is refused, and none of our rows is in it."""
    scanned_table, writer = scanned
    statement, new_shape = SHAPES[what]
    news = [row(i, "ours", 5) for i in (4, 13, 500)]
    with _before_the_commit(lambda: scanned_table.sql(f"ALTER TABLE TABLE_NAME {statement}")):
        if what == "a column more":
            scanned_table.scan(writer, news, [22])
            scanned_table.columns["more"] = ("INT", pa.int32())
        else:
            with pytest.raises(TableRefused, match="lacks the column note"):
                scanned_table.scan(writer, news, [22])
            scanned_table.columns = {
                ("remark" if name == "note" else name): kind for name, kind in scanned_table.columns.items()
            }
            scanned_table.rows = {i: new_shape(r) for i, r in scanned_table.rows.items()}
    scanned_table.check()


def test_a_key_that_others_have_doubled_becomes_one_row(scanned: tuple[ScannedTable, OpenTable]) -> None:
    scanned_table, writer = scanned
    scanned_table.append([row(7, "twin", 1), row(8, "twin", 1)])
    done = scanned_table.scan(writer, [row(7, "ours", 5)], [8])
    assert (done.inserted, done.updated, done.deleted, done.absent) == (0, 1, 1, 0)
    scanned_table.check()


def test_rows_of_a_dump_lose_against_newer_ones_and_say_nothing_new_of_equal_ones(
    scanned: tuple[ScannedTable, OpenTable],
) -> None:
    scanned_table, writer = scanned
    before = dict(scanned_table.rows)
    dumped = [row(1, "older", 1), row(2, "first", 3), row(110, "newer", 3), row(600, "new", 3)]
    batch = scanned_table.batch(dumped, [], origin="dump")
    options = {"broadcast": True, "may_lose_upto": 0, "read_at": None, "withhold": _nothing}
    done = mark_by_scan.write(scanned_table.spark, writer, batch, SHAPE, APP, 7, **options)
    assert (done.inserted, done.updated, done.older, done.unchanged) == (1, 1, 1, 1)
    scanned_table.rows = before | {i: {**r, "_dblog_origin": "dump"} for i, r in ((110, dumped[2]), (600, dumped[3]))}
    scanned_table.check()


@pytest.mark.in_turn("what")
@pytest.mark.parametrize("what", ["deletes", "appends", "optimizes", "purges"])
def test_rows_go_by_their_places_whatever_others_commit_meanwhile(
    scanned: tuple[ScannedTable, OpenTable], what: str
) -> None:
    """Those of some keys that are of the first merge."""
    scanned_table, writer = scanned
    gone = (1, 2, 22, 120)

    def choose(rows: DataFrame) -> DataFrame:
        return rows.where(F.col("id").isin(*gone) & (F.col(OFFSET) <= 1))

    with _before_the_commit(lambda: RIVALS[what](scanned_table, [4])):
        done = mark_by_scan.remove(scanned_table.spark, writer, choose, f"{APP}:gone", 7)
    before = len(scanned_table.rows)
    scanned_table.forget(lambda i: i in gone and scanned_table.rows[i][OFFSET] <= 1)
    assert done is not None and done.deleted == before - len(scanned_table.rows) > 1
    if what == "appends":
        scanned_table.scan(writer, [row(4, "one again", 5)])
    scanned_table.check()
    assert mark_by_scan.remove(scanned_table.spark, writer, choose, f"{APP}:gone", 8) is None


def test_a_merge_commits_once_whoever_runs_it(scanned: tuple[ScannedTable, OpenTable]) -> None:
    scanned_table, writer = scanned
    twin = scanned_table.writer()
    news = [row(i, "ours", 5) for i in (4, 700)]
    number = scanned_table.merges + 1
    batch = scanned_table.batch(news, [])
    options = {"broadcast": True, "may_lose_upto": None, "read_at": None, "withhold": _nothing}
    done: list[Any] = []

    def write(table: OpenTable) -> None:
        done.append(mark_by_scan.write(scanned_table.spark, table, batch, SHAPE, APP, number, **options))

    with _before_the_commit(lambda: write(twin)):
        write(writer)
    assert [each.already for each in done] == [False, True]
    with pytest.raises(LakeError, match="has committed here already"):
        write(writer)
    scanned_table.rows.update((r["id"], {**r, "_dblog_origin": "log"}) for r in news)
    scanned_table.check()


def test_values_of_an_older_version_are_not_written_over_a_newer_one(scanned: tuple[ScannedTable, OpenTable]) -> None:
    scanned_table, writer = scanned
    read_at = writer.snapshot.version
    scanned_table.append([row(800, "theirs")])
    with pytest.raises(upsert.Overtaken):
        scanned_table.scan(writer, [row(4, "ours", 5)], read_at=read_at)


def test_whoever_loses_the_lake_commits_nothing(scanned: tuple[ScannedTable, OpenTable]) -> None:
    scanned_table, writer = scanned
    version = writer.snapshot.version

    def lose() -> None:
        raise DblogError("another may merge")

    writer.check = lose
    with pytest.raises(DblogError, match="another may merge"):
        scanned_table.scan(writer, [row(4, "ours", 5)], [5])
    writer.refresh()
    assert writer.snapshot.version == version
    scanned_table.check()
