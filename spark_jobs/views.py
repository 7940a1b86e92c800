"""Views of the lake for who reads it with Spark."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from dblog_core import cuts, time_travel
from dblog_core.cuts import At, Cut
from dblog_core.errors import LakeError, RequestError
from dblog_core.lake import lake_at, table_location
from dblog_core.schema import TableName
from dblog_core.storage.location import Location


@dataclass(frozen=True, slots=True)
class LakeAtCut:
    """All tables of the lake as they were at one cut: joined with each other, they show one moment of the source."""

    spark: SparkSession
    lake: Location
    cut: Cut

    def table(self, name: str) -> DataFrame:
        """SCHEMA.TABLE at this cut. Raises LakeError for a table that was not in the lake, or had stopped before."""
        version = self.cut.tables.get(name)
        if version is None:
            raise LakeError(
                f"{name} is not in cut {self.cut.number}",
                where=str(self.lake),
                fix=f"its tables are: {', '.join(sorted(self.cut.tables)) or 'none'}",
            )
        if (offset := self.cut.behind.get(name)) is not None:
            raise LakeError(
                f"{name} had stopped at offset {offset}, and cut {self.cut.number} is at {self.cut.offset}",
                where=str(self.lake),
                fix="take a cut of before it stopped, or of after it was mended (`dblog status`)",
            )
        path = table_location(self.lake, TableName.parse(name))
        return self.spark.read.format("delta").option("versionAsOf", version).load(str(path))


def at_cut(
    spark: SparkSession, lake: Location | str, *, cut: int | None = None, at: At | str | None = None
) -> LakeAtCut:
    """The lake at cut number `cut`, or at the newest one that is not after `at` (an offset, or a commit time), or else
    at the newest.

    Raises LakeError where there is no such cut, or where it is no longer whole; RequestError where both are given.
    """
    if cut is not None and at is not None:
        raise RequestError("both a cut and a moment are given", fix="give one of the two")
    place = lake_at(lake) if isinstance(lake, str) else lake
    if cut is not None:
        found = cuts.cut_of(place, cut)
    else:
        found = cuts.find(place, cuts.parse_at(at) if isinstance(at, str) else at).cut
    time_travel.check(place, found)
    return LakeAtCut(spark, place, found)
