"""A new Delta table without a Spark job: its first version is two actions, which say what it is."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from dblog_core.delta_writer.commit import commit_data, commit_info, create_commit
from dblog_core.delta_writer.features import READER_VERSION, WRITER_VERSION
from dblog_core.delta_writer.files import LOG, TableFiles
from dblog_core.interfaces import Json
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.storage.location import Location
from spark_jobs.delta_tables.session import settings_of

_DEFAULTS = "spark.databricks.delta.properties.defaults."
_ALWAYS = ("timestampNtz",)  # so that a column of that type can be added later
_WRITER = ("invariants", "appendOnly")
"""The features that Delta gives every table beside those that it is asked for."""


def has_default_properties(spark: SparkSession) -> bool:
    """Whether Spark's settings give new tables properties of their own: then Spark makes them."""
    return any(name.startswith(_DEFAULTS) for name in settings_of(spark))


def is_place_empty(table: Location) -> bool:
    """Whether the place of a new table has no files, which Delta insists on; a process that died may have left the
    log's directory."""
    return all(name == LOG for name in table.names())


def create_table(table: Location, shape: StructType, properties: Mapping[str, str], *, vectors: bool = True) -> bool:
    """Makes an empty table of this shape, whose rows go by deletion `vectors` if any go; False if there is one already.
    Its columns need no mapping, and none is a VARIANT."""
    now = time.time_ns() // 1_000_000
    info = commit_info("CREATE TABLE", {}, read_version=-1, mark=COMMIT_MARK, now_ms=now, txn_id=uuid.uuid4())
    del info["commitInfo"]["readVersion"]  # there was none
    metadata: Json = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": shape.json(),
        "partitionColumns": [],
        "configuration": dict(properties),
        "createdTime": now,
    }
    features = ["deletionVectors", *_ALWAYS] if vectors else list(_ALWAYS)
    protocol: Json = {
        "minReaderVersion": READER_VERSION,
        "minWriterVersion": WRITER_VERSION,
        "readerFeatures": features,
        "writerFeatures": [*features, *_WRITER],
    }
    return create_commit(TableFiles.at(table), 0, commit_data([info, {"metaData": metadata}, {"protocol": protocol}]))
