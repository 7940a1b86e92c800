"""Checkpoints of a table's log: readers begin with one, and Delta cleans old commits away when it makes one.

Delta makes them beside its own commits; those that are made without Spark ask for them here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dblog_core.storage.location import Location

INTERVAL = "delta.checkpointInterval"
COMMITS = 100
"""Between two checkpoints, where the table says nothing else. Delta's own 10 would have a busy table's state rewritten
every few seconds.
"""

_log = logging.getLogger(__name__)


def is_due(version: int, configuration: Mapping[str, str]) -> bool:
    """Whether the commit that made this version is followed by a checkpoint, by Delta's own rule."""
    return version > 0 and version % int(configuration.get(INTERVAL, COMMITS)) == 0


def write(spark: SparkSession, table: Location) -> None:
    """Makes one of the newest version. Where that fails nothing is lost: readers take longer until the next."""
    jvm = spark._jvm
    assert jvm is not None, "the session is one of this process"
    try:
        spark.read.format("delta").load(str(table))  # so that Delta has looked for the newest version
        jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(table)).checkpoint()
    except (PySparkException, Py4JError) as error:
        _log.warning("%s: no checkpoint is made: %s", table, str(error).split("\n", 1)[0])
