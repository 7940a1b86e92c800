"""The one Spark session of a merge: set up by spark-submit, or by tests with the same settings (`dblog_core.spark`)."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession


def open_session(conf: Mapping[str, str] | None = None, *, name: str = "dblog") -> SparkSession:
    """The session of this process. `conf` only where no spark-submit has given the settings."""
    builder = SparkSession.builder.appName(name)
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
