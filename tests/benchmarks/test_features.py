"""Random changes of a large table that has what other programs ask for, beside the same table without."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.storage.location import Location
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.test_delta_writer import Marked
from tests.benchmarks.test_merge import SHAPE, Filled

_CHANGES = 1_000
_PARTITIONS = "partitions"
_SET = "ALTER TABLE {{}} SET TBLPROPERTIES ('{}' = 'true')"
_FEATURES = {
    "plain": None,
    "change data feed": _SET.format("delta.enableChangeDataFeed"),
    "row tracking": _SET.format("delta.enableRowTracking"),
    "in-commit timestamps": _SET.format("delta.enableInCommitTimestamps"),
    _PARTITIONS: None,
}
"""Statements about the table, whose name is `{}`."""


class _Copied(Marked):
    """A copy of the lake table of `Filled`, with a feature."""

    def __init__(self, spark: SparkSession, filled: Filled, feature: str) -> None:
        table_path = filled.lake.table(SHAPE).local
        self._name = f"with {feature}"
        self._path = table_path.parent / self._name
        if feature == _PARTITIONS:
            rows = spark.read.format("delta").load(str(table_path))
            in_eight = rows.withColumn("active", (F.col("id") % 8).cast("byte"))
            in_eight.write.format("delta").partitionBy("active").save(str(self._path))
            spark.sql(_SET.format("delta.enableDeletionVectors").format(f"delta.`{self._path}`"))
        else:
            shutil.copytree(table_path, self._path)
        if (statement := _FEATURES[feature]) is not None:
            spark.sql(statement.format(f"delta.`{self._path}`"))
        super().__init__(filled)

    def _new(self) -> OpenTable:
        place = self.filled.lake.table(SHAPE)
        copied = Location(place.storage, f"{place.path.rpartition('/')[0]}/{self._name}".lstrip("/"))
        return OpenTable(copied, ["id"], order="_dblog_offset", mark="dblog")


@pytest.mark.timeout(3600)
def test_random_changes_of_a_table_with_a_feature(
    spark: SparkSession, tmp_path: Path, scale: Scale, results: Results
) -> None:
    """Each has an index of its keys, as after any first merge."""
    filled = Filled(spark, tmp_path, scale.lake_rows)
    tables = {feature: _Copied(spark, filled, feature) for feature in _FEATURES}
    series: dict[str, list[float]] = {feature: [] for feature in tables}
    for number in range(-1, 3 * scale.rounds):  # round -1 warms all
        changed = filled.make_changes(min(_CHANGES, scale.lake_rows // 10), scale.lake_rows)
        for feature, table in tables.items():
            seconds = table.apply(changed)
            if number >= 0:
                series[feature].append(seconds)
    for feature in (feature for feature in tables if feature != "plain"):
        title = f"{_CHANGES:,} random changes of a table of {scale.lake_rows:,} rows with {feature}"
        rounds = {OURS: series[feature], "plain": series["plain"]}
        name = f"marked_with_{feature.replace(' ', '_').replace('-', '_')}"
        results.add(Figure(name, "Lake", title, "s", rounds, (Bar(2, "plain", at_most=True),)))
