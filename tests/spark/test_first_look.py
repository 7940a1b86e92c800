"""A merge that has just started looks at its tables without Spark, whatever becomes of their shapes."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dblog_core.config.lake import SchemaChanges
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.lake.lake_status import read_status
from tests.spark.asked import ask_well
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table

pytestmark = pytest.mark.one_of(3)

FIRST = table("t", id=pa.int64(), n=pa.int32(), old=pa.string())
SECOND = table("t", id=pa.int64(), n=pa.int32(), more=pa.string())
POLICIES = ("evolve", "ignore", "fail")


@pytest.fixture
def lake(lake: TestLake) -> TestLake:
    """A lake whose small works need no Spark."""
    return lake


def change_shape(lake: TestLake, changes: SchemaChanges) -> None:
    """Rows of the first shape, then of the second, which lacks a column of it and has one more."""
    lake.changes = changes
    for key in (1, 2, 3):
        lake.build.create(FIRST, {"id": key, "n": key, "old": "x"})
    lake.build.seal()
    lake.merge_well()
    lake.build.schema(SECOND)
    lake.build.update(SECOND, {"id": 2, "n": 20, "more": "y"})
    lake.build.seal()
    if changes == "fail":
        lake.merge()
        ask_well(lake, "accept", {"table": str(SECOND.table)})
    lake.merge_well()


def check_rows(lake: TestLake, *expected: tuple[int, int, str | None, str | None]) -> None:
    """The rows by Spark and by delta-rs: id, n, `old` and, where the lake took the column, `more`."""
    names = ("id", "n", "old") if lake.changes == "ignore" else ("id", "n", "old", "more")
    rows = [dict(zip(names, values, strict=False)) for values in expected]

    def in_lake(read: list[Row]) -> list[dict[str, Any]]:
        return [{name: value for name, value in row.items() if not name.startswith("_dblog_")} for row in read]

    assert in_lake(lake.rows(SECOND)) == in_lake(lake.rust_rows(SECOND)) == rows


@pytest.mark.parametrize("changes", POLICIES)
def test_the_first_merge_of_a_process_asks_nothing_of_spark(lake: TestLake, changes: SchemaChanges) -> None:
    change_shape(lake, changes)
    lake.build.update(SECOND, {"id": 3, "n": 30, "more": "z"})
    lake.build.create(SECOND, {"id": 4, "n": 4, "more": "z"})
    lake.build.seal()
    lake.merge_well()
    check_rows(lake, (1, 1, "x", None), (2, 20, None, "y"), (3, 30, None, "z"), (4, 4, None, "z"))
    status = read_status(lake.location)
    assert status is not None
    assert status.tables[str(SECOND.table)].ignored == (["more"] if changes == "ignore" else None)


@pytest.mark.parametrize("changes", ["evolve", "ignore"])
def test_rows_of_an_earlier_shape_ask_nothing_of_spark(lake: TestLake, changes: SchemaChanges) -> None:
    """They are of a dump that began before the change."""
    change_shape(lake, changes)
    lake.build.chunk(FIRST, [{"id": 1, "n": 10, "old": "dumped"}])
    lake.build.delete(SECOND, {"id": 3})
    lake.build.seal()
    lake.merge_well()
    check_rows(lake, (1, 10, "dumped", None), (2, 20, None, "y"))


def test_a_value_that_must_be_looked_at_fits_the_narrower_column(lake: TestLake) -> None:
    """The lake's `n` is narrower than the source's."""
    change_shape(lake, "ignore")
    wider = table("t", id=pa.int64(), n=pa.int64(), more=pa.string())
    lake.build.schema(wider)
    lake.build.update(wider, {"id": 3, "n": 30, "more": "z"})
    lake.build.seal()
    lake.merge_well()
    check_rows(lake, (1, 1, "x", None), (2, 20, None, "y"), (3, 30, None, "z"))


@pytest.mark.parametrize("changes", POLICIES)
def test_a_commit_that_comes_behind_the_look_is_answered(
    lake: TestLake, spark: SparkSession, changes: SchemaChanges
) -> None:
    """The process knows the table as it has left it, and somebody else commits before it does."""
    stranger = spark.newSession()
    stranger.conf.set("spark.databricks.delta.commitInfo.userMetadata", "somebody")
    change_shape(lake, changes)
    merger = lake.merger()
    is_as_left = OpenTable.is_as_left
    looks = []

    def commit_behind(table: OpenTable) -> bool:
        found = is_as_left(table)
        looks.append(found)
        stranger.sql(f"UPDATE delta.`{lake.table(SECOND)}` SET n = -1, _dblog_offset = NULL WHERE id = 1")
        return found

    def merge_row(n: int) -> None:
        lake.build.update(SECOND, {"id": 3, "n": n, "more": "z"})
        lake.build.seal()
        merged = merger.run_round(retry_stopped=False)
        assert merged is not None and not [each.error for each in merged.tables if each.error]

    merge_row(31)
    with mock.patch.object(OpenTable, "is_as_left", commit_behind):
        merge_row(32)
    assert looks == [True]
    check_rows(lake, (1, -1, "x", None), (2, 20, None, "y"), (3, 32, None, "z"))
    first_row, *_ = lake.rows(SECOND, provenance=True)
    assert first_row["_dblog_offset"] == 0
