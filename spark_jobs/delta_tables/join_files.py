"""Small files and deletion vectors pile up with every merge: when a table has had enough of them, they are joined.

Only files below MIN_FILE and those of which a fifth is deleted are written again, so the cost follows what was changed,
not the table. It runs between two merges, one table at a time; no row changes, and a crash leaves the table as it was.
"""

from __future__ import annotations

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from dblog_core.storage.location import Location
from spark_jobs.delta_tables import log

MIN_FILE = 16 << 20
_SETTINGS = {
    "spark.databricks.delta.optimize.minFileSize": str(MIN_FILE),
    "spark.databricks.delta.optimize.maxFileSize": str(128 << 20),
    "spark.databricks.delta.optimize.maxDeletedRowsRatio": "0.2",
}


class Turns:
    """Whose turn it is: tables that have had `after` commits since they were made or compacted. 0: never."""

    def __init__(self, after: int) -> None:
        self._after = after
        self._since: dict[Location, int] = {}

    def is_due(self, table: Location, left_at: int) -> bool:
        """`left_at`: the version that the last merge has left, by which most are known not to be due: no request."""
        if not self._after or 0 <= left_at - self._since.get(table, left_at + 1) < self._after:
            return False
        if (version := log.version(table)) is None:
            return False
        if self._since.get(table, version + 1) > version:  # not known yet, or another table by now
            self._since[table] = self._last_compaction(table, version)
        return version - self._since[table] >= self._after

    def _last_compaction(self, table: Location, version: int) -> int:
        """The last compaction's version as far as it matters: of what lies further back, the table is due anyway."""
        oldest = max(0, version - self._after)
        for number in range(version, oldest, -1):
            if log.operation(table, number) == "OPTIMIZE":
                return number
        return oldest

    def record_compaction(self, table: Location, version: int) -> None:
        """It has been compacted: this version, even if there was nothing to join."""
        self._since[table] = version


def compact(spark: SparkSession, table: Location) -> None:
    """Joins the small files of the table, in a session that no transaction is set in."""
    prepare_session(spark)
    DeltaTable.forPath(spark, str(table)).optimize().executeCompaction()


def prepare_session(spark: SparkSession) -> None:
    """What a session needs before it writes files of a table again."""
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
