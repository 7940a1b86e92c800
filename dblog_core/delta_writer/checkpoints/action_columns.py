"""The columns of a checkpoint: one for each kind of action, a struct of its fields (PROTOCOL.md, "Checkpoint Schema").

Every field may be NULL, so that each writer's checkpoints have a place here.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.interfaces import Json

_TEXT = pa.string()
_LONG = pa.int64()
_INTEGER = pa.int32()
_FLAG = pa.bool_()
_TEXTS = pa.list_(_TEXT)
_TEXT_MAP = pa.map_(_TEXT, _TEXT)
_VECTOR = pa.struct(
    {"storageType": _TEXT, "pathOrInlineDv": _TEXT, "offset": _INTEGER, "sizeInBytes": _INTEGER, "cardinality": _LONG}
)
_ROW_IDS = {"baseRowId": _LONG, "defaultRowCommitVersion": _LONG}
ADD = pa.struct(
    {
        "path": _TEXT,
        "partitionValues": _TEXT_MAP,
        "size": _LONG,
        "modificationTime": _LONG,
        "dataChange": _FLAG,
        "stats": _TEXT,
        "tags": _TEXT_MAP,
        "deletionVector": _VECTOR,
        **_ROW_IDS,
        "clusteringProvider": _TEXT,
    }
)
REMOVE = pa.struct(
    {
        "path": _TEXT,
        "deletionTimestamp": _LONG,
        "dataChange": _FLAG,
        "extendedFileMetadata": _FLAG,
        "partitionValues": _TEXT_MAP,
        "size": _LONG,
        "deletionVector": _VECTOR,
        **_ROW_IDS,
    }
)
"""Without `stats` and `tags`, as the protocol says: only a VACUUM reads it."""
SCHEMA = pa.schema(
    {
        "txn": pa.struct({"appId": _TEXT, "version": _LONG, "lastUpdated": _LONG}),
        "add": ADD,
        "remove": REMOVE,
        "metaData": pa.struct(
            {
                "id": _TEXT,
                "name": _TEXT,
                "description": _TEXT,
                "format": pa.struct({"provider": _TEXT, "options": _TEXT_MAP}),
                "schemaString": _TEXT,
                "partitionColumns": _TEXTS,
                "configuration": _TEXT_MAP,
                "createdTime": _LONG,
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": _INTEGER,
                "minWriterVersion": _INTEGER,
                "readerFeatures": _TEXTS,
                "writerFeatures": _TEXTS,
            }
        ),
        "domainMetadata": pa.struct({"domain": _TEXT, "configuration": _TEXT, "removed": _FLAG}),
    }
)
SIDECAR = pa.field("sidecar", pa.struct({"path": _TEXT}))
"""Of a checkpoint of the v2 form: the name of a file that has some of its actions."""


def batch_of(actions: Sequence[Json], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """A row for each action, as a commit has it: {"add": {...}}. Fields that no column has are left out."""
    return pa.RecordBatch.from_pylist(list(actions), schema)


def with_all_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of any writer's checkpoint in these columns. Files of a checkpoint change no data."""
    columns = []
    for field in SCHEMA:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(len(batch), field.type))
            continue
        column = batch[field.name].cast(field.type)
        columns.append(_without_data_change(column) if "dataChange" in field.type.names else column)
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _without_data_change(column: pa.StructArray) -> pa.StructArray:
    unchanged = pa.repeat(pa.scalar(value=False), len(column))
    parts = [unchanged if part.name == "dataChange" else pc.struct_field(column, part.name) for part in column.type]
    return pa.StructArray.from_arrays(parts, fields=list(column.type), mask=pc.is_null(column))
