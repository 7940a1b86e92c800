"""Which features a table needs for its columns and properties, and the protocol that names them: as few as possible.

A reader refuses a table for each feature that it does not know, whether the table makes use of it or not.
"""

from __future__ import annotations

from collections.abc import Collection

import orjson

from dblog_core.delta_writer.altering.column_mapping import all_fields, is_mapped
from dblog_core.delta_writer.features import READER_VERSION, WRITER_VERSION, reader_features, writer_features
from dblog_core.interfaces import Json

FIRST_PROTOCOL: Json = {"minReaderVersion": 1, "minWriterVersion": 2}
"""That of a table that needs no feature: every reader and writer knows it."""
LOCAL_TIMES = "timestampNtz"
CHANGE_FEED = "changeDataFeed"
"""Of writers alone."""
_MAPPING = "columnMapping"
_BY_TYPE = {"timestamp_ntz": LOCAL_TIMES, "variant": "variantType"}
_BY_PROPERTY = {"delta.enableDeletionVectors": "deletionVectors", "delta.enableTypeWidening": "typeWidening"}


def find_needed_features(metadata: Json) -> list[str]:
    """Those that the table's columns and properties need, by their names; readers need each of them too,
    except CHANGE_FEED."""
    configuration = metadata.get("configuration") or {}
    needed = [feature for name, feature in _BY_PROPERTY.items() if configuration.get(name) == "true"]
    if is_mapped(configuration):
        needed.append(_MAPPING)
    fields = list(all_fields(orjson.loads(metadata["schemaString"])["fields"]))
    needed += [feature for kind, feature in _BY_TYPE.items() if any(_has_type(field["type"], kind) for field in fields)]
    if configuration.get("delta.enableChangeDataFeed") == "true":
        needed.append(CHANGE_FEED)
    return needed


def enable_features(protocol: Json, needed: Collection[str]) -> Json:
    """The protocol with these features, for readers and writers, and those that it has; the same object where it has
    them."""
    features_now = reader_features(protocol), writer_features(protocol)
    of_readers = [feature for feature in needed if feature != CHANGE_FEED]
    lacking = [
        [f for f in those if f not in features]
        for those, features in zip((of_readers, needed), features_now, strict=True)
    ]
    if not any(lacking):
        return protocol
    # What a version of the times before names implies is named from then on (PROTOCOL.md, "Table Features").
    for_readers, for_writers = ([*features, *more] for features, more in zip(features_now, lacking, strict=True))
    # As Delta has it: readers of the times before names know a mapping of columns.
    version = READER_VERSION if set(for_readers) - {_MAPPING} or protocol["minReaderVersion"] == READER_VERSION else 2
    version = version if for_readers else 1
    named = {"readerFeatures": for_readers} if version == READER_VERSION else {}
    return {
        "minReaderVersion": version,
        "minWriterVersion": WRITER_VERSION,
        **named,
        "writerFeatures": for_writers,
    }


def _has_type(delta_type: str | Json, kind: str) -> bool:
    """Whether the type, or that of an element of it, is `kind`. Fields within it are asked on their own."""
    if isinstance(delta_type, str):
        return delta_type == kind
    parts = ("elementType", "keyType", "valueType")
    return any(_has_type(delta_type[part], kind) for part in parts if part in delta_type)
