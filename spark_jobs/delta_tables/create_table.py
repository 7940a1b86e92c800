"""A new Delta table without a Spark job: its first version is two actions, which say what it is."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

import orjson
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from dblog_core.delta_writer.altering.column_mapping import is_mapped, map_fields, name_in_files
from dblog_core.delta_writer.altering.needed_features import FIRST_PROTOCOL, enable_features, find_needed_features
from dblog_core.delta_writer.commit import commit_data, commit_info, create_commit
from dblog_core.delta_writer.files import LOG, TableFiles
from dblog_core.interfaces import Json
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.storage.location import Location
from spark_jobs.delta_tables.session import settings_of

_DEFAULTS = "spark.databricks.delta.properties.defaults."


def has_default_properties(spark: SparkSession) -> bool:
    """Whether Spark's settings give new tables properties of their own: then Spark makes them."""
    return any(name.startswith(_DEFAULTS) for name in settings_of(spark))


def is_place_empty(table: Location) -> bool:
    """Whether the place of a new table has no files, which Delta insists on; a process that died may have left the
    log's directory."""
    return all(name == LOG for name in table.names())


def create_table(table: Location, shape: StructType, properties: Mapping[str, str]) -> bool:
    """Makes an empty table of this shape, without a feature that it does not need; False if there is one already."""
    now = time.time_ns() // 1_000_000
    info = commit_info("CREATE TABLE", {}, read_version=-1, mark=COMMIT_MARK, now_ms=now, txn_id=uuid.uuid4())
    del info["commitInfo"]["readVersion"]  # there was none
    schema = shape.jsonValue()
    configuration = dict(properties)
    if is_mapped(configuration):
        map_fields(schema["fields"], configuration, name_in_files, schema=schema["fields"])
    metadata: Json = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": orjson.dumps(schema).decode(),
        "partitionColumns": [],
        "configuration": configuration,
        "createdTime": now,
    }
    protocol = enable_features(FIRST_PROTOCOL, find_needed_features(metadata))
    return create_commit(TableFiles.at(table), 0, commit_data([info, {"metaData": metadata}, {"protocol": protocol}]))
