"""The cuts table: each merge with the Delta version of every table, so that any past cut is consistent."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from dblog_core.storage.location import Location
from spark_jobs import delta_log
from spark_jobs.record import Intent

SHAPE = t.StructType(
    [
        t.StructField("cut", t.LongType()),
        t.StructField("offset", t.LongType()),
        t.StructField("position", t.StringType()),
        t.StructField("commit_time", t.TimestampType()),
        t.StructField("tables", t.MapType(t.StringType(), t.LongType())),
        t.StructField("merged_at", t.TimestampType()),
    ]
)


def append(
    spark: SparkSession, path: Location, intent: Intent, versions: Mapping[str, int], *, app: str, now: float
) -> None:
    """Adds the row of a merge, exactly once."""
    if delta_log.version(path) is None:
        DeltaTable.createIfNotExists(spark).location(str(path)).addColumns(SHAPE).execute()
    if delta_log.committed(path, app) != intent.number:
        span = intent.span
        row = (
            intent.number,
            span.offset,
            span.position,
            _time(span.commit_time),
            dict(versions),
            _time(int(now * 1e6)),
        )
        options = {"txnAppId": app, "txnVersion": str(intent.number)}
        spark.createDataFrame([row], SHAPE).coalesce(1).write.format("delta").mode("append").options(**options).save(
            str(path)
        )
        delta_log.check_committed(path, app, intent.number)


def _time(micros: int | None) -> dt.datetime | None:
    """Exact: a float of seconds would lose microseconds."""
    return None if micros is None else dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
