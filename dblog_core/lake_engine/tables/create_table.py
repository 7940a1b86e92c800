"""A new Delta table without a Spark job: its first version is two actions, which say what it is."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

import orjson

from dblog_core.delta_writer.altering.column_mapping import is_mapped, map_fields, name_in_files
from dblog_core.delta_writer.altering.needed_features import FIRST_PROTOCOL, enable_features, find_needed_features
from dblog_core.delta_writer.commit import commit_data, commit_info, create_commit
from dblog_core.delta_writer.delta_types import StructType
from dblog_core.delta_writer.files import LOG, TableFiles
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.storage.location import Location

_DEFAULTS = "spark.databricks.delta.properties.defaults."
_FEATURES = ("delta.enable", "delta.feature.", "delta.min", "delta.constraints.", "delta.rowTracking", "delta.identity")
_OTHER_FEATURES = ("delta.columnMapping.mode", "delta.checkpointPolicy", "delta.appendOnly", "delta.isolationLevel")
_KNOWN = {
    *(
        (f"delta.{name}", value)
        for name in ("enableDeletionVectors", "enableTypeWidening")
        for value in ("true", "false")
    ),
    ("delta.columnMapping.mode", "name"),
    ("delta.enableChangeDataFeed", "true"),
    ("delta.enableExpiredLogCleanup", "true"),
    ("delta.enableExpiredLogCleanup", "false"),
}
"""Properties that begin like those of features, with values for which a table is made here."""


def default_properties(settings: Mapping[str, str]) -> dict[str, str]:
    """The properties that Spark's settings give to new tables. Raises LakeError for one that needs more of a table than
    is made here."""
    defaults = {
        f"delta.{name.removeprefix(_DEFAULTS)}": v for name, v in settings.items() if name.startswith(_DEFAULTS)
    }
    if others := [name for name, value in defaults.items() if _needs_feature(name) and (name, value) not in _KNOWN]:
        raise LakeError(
            f"new tables would have the property {others[0]}, which dblog does not give them",
            where=f"the setting {_DEFAULTS}{others[0].removeprefix('delta.')}",
            fix="remove it from [spark.conf], and give the tables the property yourself once they are there",
        )
    return defaults


def _needs_feature(name: str) -> bool:
    return name.startswith(_FEATURES) or name in _OTHER_FEATURES


def is_place_empty(table: Location) -> bool:
    """Whether the place of a new table has no files, which Delta insists on; a process that died may have left the
    log's directory."""
    return all(name == LOG for name in table.names())


def create_table(table: Location, shape: StructType, properties: Mapping[str, str]) -> bool:
    """Makes an empty table of this shape, without a feature that it does not need; False if there is one already."""
    now = time.time_ns() // 1_000_000
    info = commit_info("CREATE TABLE", {}, read_version=-1, mark=COMMIT_MARK, now_ms=now, txn_id=uuid.uuid4())
    del info["commitInfo"]["readVersion"]  # there was none
    schema = shape.json_value()
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
