"""When a table's files are so mixed that a merge has to look into too many of them, its rows are put in key order.

A merge carries literal ranges of its keys, and Delta leaves out the files whose smallest and largest keys lie outside.
That works while files hold keys that are near each other; rows that are changed at random come to lie in new files
with keys from everywhere. With how many others a file shares its keys is read from the Delta log. Where that is too
many, all files are written again by Z-order of the key's columns.

Z-order, and not liquid clustering: it works on the tables as they are, with no feature that a reader or the next writer
has to know, and for any key that Delta keeps statistics of; and it happens when this rule says so. Liquid clustering
below 100 GB rewrites all that was clustered before with every OPTIMIZE that finds something new, needed or not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from dblog_core.lake.cuts import open_table
from dblog_core.maintenance.disk_usage import actions
from dblog_core.storage.location import Location
from spark_jobs.delta_tables import join_files

FILES = 4
"""So many files with the same keys cost little."""

SHARE = 0.1
"""Of all files: a larger share is too many."""


def is_mixed(path: Location, key: Sequence[str]) -> bool:
    """Whether the table's files share their keys with too many others."""
    shared, files = overlap(path, key[0])
    return shared > FILES and shared > SHARE * files


def overlap(path: Location, column: str) -> tuple[float, int]:
    """How many files may hold values of the column that lie within those of one file, itself included, on average over
    all files; and how many files there are. 0 where there are no statistics of the column."""
    table = open_table(path)
    files = list(actions(table)) if table is not None else []
    ends: list[tuple[Any, Any]] = [(a.get(f"min.{column}"), a.get(f"max.{column}")) for a in files]
    if not ends or any(low is None or high is None for low, high in ends):
        return 0.0, len(files)
    lows: list[Any] = sorted(low for low, _ in ends)
    highs: list[Any] = sorted(high for _, high in ends)
    shared = sum(bisect_right(lows, high) - bisect_left(highs, low) for low, high in ends)
    return shared / len(ends), len(ends)


def cluster(spark: SparkSession, path: Location, key: Sequence[str]) -> None:
    """Writes all files of the table in the order of the key, as far as Delta keeps statistics of its columns."""
    join_files.prepare_session(spark)
    DeltaTable.forPath(spark, str(path)).optimize().executeZOrderBy(*columns_with_statistics(path, key))


def columns_with_statistics(path: Location, key: Sequence[str]) -> list[str]:
    """The key's columns that Delta keeps smallest and largest values of."""
    table = open_table(path)
    first = next(actions(table), {}) if table is not None else {}
    return [column for column in key if first.get(f"min.{column}") is not None]
