"""Views of the lake for who reads it with Spark."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from dblog_core.errors import LakeError, RequestError
from dblog_core.lake import cuts
from dblog_core.lake.cuts import At, Cut
from dblog_core.lake.lake_status import history_location, lake_at, table_location
from dblog_core.lake_engine.tables.column_types import (
    COMMIT_TIME,
    MOVED_FROM,
    OFFSET,
    OP,
    UNCHANGED,
    quote,
)
from dblog_core.model.events import DELETE, TRUNCATE
from dblog_core.model.schema import TableName
from dblog_core.storage.location import Location

_TIME_TRAVEL = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
"""Whether Delta refuses a version that was committed longer ago than VACUUM leaves files, although all are there: a cut
names the newest version of a table, however old it is."""


@dataclass(frozen=True, slots=True)
class LakeAtCut:
    """All tables of the lake as they were at one cut: joined with each other, they show one moment of the source."""

    spark: SparkSession
    lake: Location
    cut: Cut

    def table(self, name: str, *, accept_incomplete: bool = False) -> DataFrame:
        """SCHEMA.TABLE at this cut. Raises LakeError for a table that was not in the lake, had stopped before, or,
        unless the caller accepts that, lacked rows which only a dump brings."""
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
                fix="take a cut of before it stopped, or of after it was repaired (`dblog status`)",
            )
        if (cause := self.cut.incomplete.get(name)) is not None and not accept_incomplete:
            raise LakeError(
                f"{name} is incomplete in cut {self.cut.number}: {cause}",
                where=str(self.lake),
                fix="take a cut of after its dump (`dblog status`), or pass accept_incomplete=True for the rows it has",
            )
        path = table_location(self.lake, TableName.parse(name))
        self.spark.conf.set(_TIME_TRAVEL, "false")  # `at_cut` has seen that its files are there
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
        found_cut = cuts.cut_of(place, cut)
    else:
        found_cut = cuts.find_cut(place, cuts.parse_at(at) if isinstance(at, str) else at).cut
    cuts.check_readable(place, found_cut)
    return LakeAtCut(spark, place, found_cut)


def scd2(spark: SparkSession, lake: Location | str, table: str) -> DataFrame:
    """Every version that a row of SCHEMA.TABLE has had, from the table's history (slowly changing dimension, type 2).

    The source's columns, `_dblog_offset` (where the version begins), `_dblog_unchanged` (columns that nobody knew of),
    `valid_from` and `valid_to` (commit times; null: still valid) and `is_current`. A version ends with the next change
    of its key, with its delete, when its key changes, or with a TRUNCATE. Versions of one transaction may be of no
    length. Raises LakeError for a table without a key, and where a column of the source has one of these names.
    """
    place = lake_at(lake) if isinstance(lake, str) else lake
    path = history_location(place, TableName.parse(table))
    lines = spark.read.format("delta").load(str(path))
    columns = [name for name in lines.columns if not name.startswith("_dblog_")]
    if MOVED_FROM not in lines.columns:
        raise LakeError(f"{table} has no key", where=str(path), fix="a row without a key has no versions")
    if clashing := sorted({"valid_from", "valid_to", "is_current"}.intersection(columns)):
        raise LakeError(
            f"{table} has columns of its own that are named {', '.join(clashing)}",
            where=str(path),
            fix="take the statement of docs/lake.md, with other names",
        )
    key = [F.col(quote(name)) for name in lines.schema[MOVED_FROM].dataType.names]  # type: ignore[attr-defined]
    moment = F.struct(F.col(OFFSET).alias("offset"), F.col(COMMIT_TIME).alias("at"))
    emptied = lines.where(F.col(OP) == TRUNCATE).agg(F.collect_list(moment).alias("_emptied"))
    following = F.lead(moment).over(Window.partitionBy(*key).orderBy(OFFSET))
    after = F.array_min(F.filter("_emptied", lambda mark: mark["offset"] > F.col(OFFSET)))
    ended = lines.where(F.col(OP) != TRUNCATE).withColumn("_next", following).crossJoin(F.broadcast(emptied))
    versions = ended.where(F.col(OP) != DELETE).withColumn("_end", F.least("_next", after))
    return versions.select(
        *(F.col(quote(name)) for name in columns),
        OFFSET,
        UNCHANGED,
        F.col(COMMIT_TIME).alias("valid_from"),
        F.col("_end.at").alias("valid_to"),
        F.col("_end").isNull().alias("is_current"),
    )
