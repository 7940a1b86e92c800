"""Which tables this package may write: what it does not know by name is refused, with the reason.

Our commit must be right for every other reader and writer, so a feature is on the list only where a commit of
removed and added files keeps to all that it asks for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from dblog_core.errors import LakeError
from dblog_core.interfaces import Json

READER_VERSION = 3
WRITER_VERSION = 7
"""The protocol of tables with features by name, deletion vectors among them."""
_MAPPING_VERSION = 2
"""The version for readers of the times before names that map columns."""
_SINCE = {
    "appendOnly": 2,
    "invariants": 2,
    "checkConstraints": 3,
    "changeDataFeed": 4,
    "generatedColumns": 4,
    "columnMapping": 5,
    "identityColumns": 6,
}
"""The versions for writers since which a table of the times before names may have a feature: settings and columns say
whether it has it."""

_READABLE = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "v2Checkpoint",  # such checkpoints are read; one of the classic form is as good
        "vacuumProtocolCheck",
        "variantType",  # the parts of values are carried as they are; shredded ones need a feature of their own
        "variantType-preview",
    }
)
_PROTECTION = "checkpointProtection"
ROW_TRACKING = "rowTracking"
IN_COMMIT_TIMESTAMP = "inCommitTimestamp"
CLUSTERING = "clustering"
_FEED = "changeDataFeed"
_WRITABLE = _READABLE | {
    "allowColumnDefaults",  # a value is written in every column, so no default is due
    "appendOnly",
    _FEED,  # readers derive it from vectors that grow and files that come (`check_writable`)
    "checkConstraints",
    CLUSTERING,  # binds who chooses which rows share a file, and which columns have statistics
    _PROTECTION,  # left by DROP FEATURE: it binds who removes the log, and no commit (`protects_log`)
    "domainMetadata",  # domains stay as they are; those that ask for more are features of their own
    "generatedColumns",
    "identityColumns",
    IN_COMMIT_TIMESTAMP,
    "invariants",
    ROW_TRACKING,
}
"""Some only name what a table may have: properties and `_COLUMN` tell whether it has it."""

_CHECKPOINTED = _WRITABLE - {_PROTECTION, "v2Checkpoint"}
"""Features of tables of which a classic checkpoint tells all that the log before it does."""

_APPEND_ONLY = "delta.appendOnly"
CHANGE_DATA_FEED = "delta.enableChangeDataFeed"
_CONSTRAINT = "delta.constraints."
_COLUMN = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "a generated value",
    "delta.identity": "an identity",
    "__CHAR_VARCHAR_TYPE_STRING": "a bounded length",
    "__COLLATIONS": "a collation",
}
_MAPPINGS = ("none", "name", "id")
_CODEC = re.compile("zstd|snappy|gzip|none|uncompressed", re.IGNORECASE)


class TableRefused(LakeError):
    """The table has what this package does not write: Spark must."""

    @property
    def feature(self) -> str:
        """What it has."""
        return self.message.removeprefix(_REFUSED)


class BatchRefused(TableRefused):
    """Spark must write this batch; the table's next one may do without."""


class ValuesTooLarge(BatchRefused):
    """What changes keep, or are compared with, has no room in memory: that of fewer changes may have."""


_REFUSED = "the table cannot be written without Spark: "


def refusal(where: str, reason: str) -> TableRefused:
    return TableRefused(f"{_REFUSED}{reason}", where=where, fix="Spark writes it")


def reader_features(protocol: Json) -> list[str]:
    """Those that a reader must know: named, or implied by a version of the times before names."""
    version = protocol["minReaderVersion"]
    if version >= READER_VERSION:
        return list(protocol.get("readerFeatures") or ())
    return ["columnMapping"] if version == _MAPPING_VERSION else []


def writer_features(protocol: Json) -> list[str]:
    """As `reader_features`, of a writer."""
    version = protocol["minWriterVersion"]
    if version >= WRITER_VERSION:
        return list(protocol.get("writerFeatures") or ())
    return [name for name, since in _SINCE.items() if version >= since]


def check_rows_readable(protocol: Json, metadata: Json, where: str) -> None:
    """Raises TableRefused unless the table's rows are those of its data files, without the dead ones; values of columns
    that it is partitioned by are in the log."""
    version = protocol.get("minReaderVersion")
    if version not in (1, 2, READER_VERSION):
        raise refusal(where, f"its protocol for readers is {version}")
    if unknown := set(protocol.get("readerFeatures") or ()) - _READABLE:
        raise refusal(where, f"it has the reader feature {', '.join(sorted(unknown))}")
    mapping = (metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none")
    if mapping not in _MAPPINGS:
        raise refusal(where, f"its column mapping is {mapping}")


def check_writable(protocol: Json, metadata: Json, where: str) -> None:
    """Raises TableRefused where a commit of removed and added files would not be all that the table asks for."""
    _check_protocol(protocol, metadata, where)
    _check_settings(metadata, where)
    if is_on(metadata, _APPEND_ONLY):
        raise refusal(where, "it takes appended rows alone")
    # Without vectors rows that stay are written again, and a reader of the feed would take them for changes.
    if is_on(metadata, CHANGE_DATA_FEED) and not takes_vectors(protocol, metadata):
        raise refusal(where, "its change data feed is on, and its deletion vectors are not")


def check_appendable(protocol: Json, metadata: Json, where: str) -> None:
    """Raises TableRefused where a commit of added files, or of metadata and protocol, would not be all that the table
    asks for."""
    _check_protocol(protocol, metadata, where)
    _check_settings(metadata, where)


def takes_vectors(protocol: Json, metadata: Json) -> bool:
    """Whether rows may go by deletion vectors. Files that have some may be left in a table that takes none."""
    return has_feature(protocol, "deletionVectors") and is_on(metadata, "delta.enableDeletionVectors")


def has_feature(protocol: Json, name: str) -> bool:
    """Whether writers have to keep to a feature of tables."""
    return name in writer_features(protocol)


def is_on(metadata: Json, setting: str) -> bool:
    """Whether a property of a table is `true`."""
    return str((metadata.get("configuration") or {}).get(setting, "")).lower() == "true"


def protects_log(features: Collection[str]) -> bool:
    """Whether the log is left to Delta, which knows where it may be cut: older versions may need features that were
    dropped since, and what a feature that is not known here asks for nobody can say."""
    return not _CHECKPOINTED.issuperset(features)


def _check_protocol(protocol: Json, metadata: Json, where: str) -> None:
    versions = protocol.get("minReaderVersion"), protocol.get("minWriterVersion")
    if versions[0] not in range(1, READER_VERSION + 1) or versions[1] not in range(1, WRITER_VERSION + 1):
        raise refusal(where, f"its protocol is {versions[0]}, {versions[1]}, and not at most 3, 7")
    if unknown := set(reader_features(protocol)) - _READABLE:
        raise refusal(where, f"it has the reader feature {', '.join(sorted(unknown))}")
    features = writer_features(protocol)
    if unknown := set(features) - _WRITABLE:
        raise refusal(where, f"it has the feature {', '.join(sorted(unknown))}")
    mapping = (metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none")
    if mapping in _MAPPINGS[1:] and "columnMapping" not in features:
        raise refusal(where, "it maps its columns, and its protocol does not know that")


def _check_settings(metadata: Json, where: str) -> None:
    conf = metadata.get("configuration") or {}
    if constraints := [name for name in conf if name.startswith(_CONSTRAINT)]:
        raise refusal(where, f"it has the constraint {constraints[0].removeprefix(_CONSTRAINT)}")
    if (mapping := conf.get("delta.columnMapping.mode", "none")) not in _MAPPINGS:
        raise refusal(where, f"its column mapping is {mapping}")
    if not _CODEC.fullmatch(codec := conf.get("delta.parquet.compression.codec", "zstd")):
        raise refusal(where, f"its files are to be compressed by {codec}")
    if not conf.get("delta.parquet.format.version", "1.0.0").startswith("1."):
        raise refusal(where, f"its files are of Parquet's format {conf['delta.parquet.format.version']}")


def check_column(name: str, metadata: Mapping[str, Any], where: str) -> None:
    """Raises TableRefused for a column whose values a writer must make or check. `metadata`: from the schema."""
    for key in metadata:
        for prefix, what in _COLUMN.items():
            if key == prefix or key.startswith(f"{prefix}."):
                raise refusal(where, f"column {name} has {what}")
