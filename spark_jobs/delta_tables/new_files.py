"""Data files of rows that Spark has, written by Delta's own writer, and committed by somebody else.

Source: Delta 4.4, `OptimisticTransaction` and `TransactionalWrite.writeFiles`: it names the columns as files do, and
makes the statistics that the table wants. Nobody commits the transaction.
"""

from __future__ import annotations

from typing import Any

import orjson
from pyspark.sql import DataFrame, SparkSession

from dblog_core.storage.location import Location


def write_files(spark: SparkSession, table: Location, rows: DataFrame) -> list[dict[str, Any]]:
    """Writes the rows, which have the table's columns in their order, as files of the table that no version names yet.
    Returns their `add` actions."""
    jvm: Any = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(table))
    files = log.startTransaction().writeFiles(rows._jdf)
    written = [orjson.loads(file.json()) for file in jvm.scala.jdk.javaapi.CollectionConverters.asJava(files)]
    return [action["add"] for action in written]
