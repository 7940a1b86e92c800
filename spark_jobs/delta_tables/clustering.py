"""When a table's files are so mixed that a key may lie in too many of them, Spark puts its rows in key order: of tables
that only Spark may write. Others are put in order beside the merges (`delta_writer.rewriting.cluster_files`).

A merge carries literal ranges of its keys, and Delta leaves out the files whose smallest and largest keys lie outside.
That works while files hold keys that are near each other; rows that are changed at random come to lie in new files
with keys from everywhere. With how many others a file shares its keys is read from the Delta log. Where that is too
many, all files are written again by Z-order of the key's columns.

Z-order, and not liquid clustering: it works on the tables as they are, with no feature that a reader or the next writer
has to know, and for any key that Delta keeps statistics of; and it happens when this rule says so. Liquid clustering
below 100 GB rewrites all that was clustered before with every OPTIMIZE that finds something new, needed or not.
"""

from __future__ import annotations

from collections.abc import Sequence

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from dblog_core.delta_writer.rewriting.key_overlap import KeyRange, Overlap
from dblog_core.lake.cuts import open_table
from dblog_core.maintenance.disk_usage import actions
from dblog_core.storage.location import Location
from spark_jobs.delta_tables import join_files


def overlap(path: Location, key: Sequence[str]) -> Overlap:
    """Which files of the table share keys, by the log; none do where there are no statistics of these columns."""
    table = open_table(path)
    files = list(actions(table)) if table is not None else []
    ranges = [KeyRange(a["size_bytes"], tuple((a.get(f"min.{c}"), a.get(f"max.{c}")) for c in key)) for a in files]
    if any(low is None or high is None for key_range in ranges for low, high in key_range.ends):
        return Overlap([])
    return Overlap(ranges)


def cluster(spark: SparkSession, path: Location, key: Sequence[str]) -> None:
    """Writes all files of the table in the order of the key, as far as Delta keeps statistics of its columns."""
    join_files.prepare_session(spark)
    DeltaTable.forPath(spark, str(path)).optimize().executeZOrderBy(*columns_with_statistics(path, key))


def columns_with_statistics(path: Location, key: Sequence[str]) -> list[str]:
    """The key's columns that Delta keeps smallest and largest values of."""
    table = open_table(path)
    first = next(actions(table), {}) if table is not None else {}
    return [column for column in key if first.get(f"min.{column}") is not None]
