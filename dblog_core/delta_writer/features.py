"""Which tables this package may write: what it does not know by name is refused, with the reason.

Our commit must be right for every other reader and writer, so a feature is on the list only where a commit of
removed and added files keeps to all that it asks for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
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
    _FEED,  # readers derive it from vectors that grow and files that come, or `rewriting.change_files` writes it
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
"""Some only name what a table may have: properties and `_COLUMN` tell whether it has it. A classic checkpoint holds all
that they ask of one: fields of `add`, `remove` and `domainMetadata`, and the metadata as it is."""

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
_UPGRADE = "upgrade dblog to a version that knows it"
_ENABLED = "upgrade dblog; or unset the properties that the feature belongs to, and"
_MAPPINGS = ("none", "name", "id")
_CODEC_NAME = "delta.parquet.compression.codec"
_FORMAT = "delta.parquet.format.version"
_CODEC = re.compile("zstd|snappy|gzip|none|uncompressed", re.IGNORECASE)


class TableRefused(LakeError):
    """The table has what this package does not write, or does not read: its merges stop until it is removed."""

    @property
    def feature(self) -> str:
        """What it has."""
        return self.message.removeprefix(_REFUSED)


class BatchRefused(TableRefused):
    """This batch is not written; the table's next one may be."""


class ValuesTooLarge(BatchRefused):
    """What changes keep, or are compared with, has no room in memory: that of fewer changes may have."""


_REFUSED = "the table cannot be written: "
_AGAIN = (
    "write the table again without that, in Spark with the option overwriteSchema (a dump is requested then); "
    "merges continue by themselves"
)


def refusal(where: str, reason: str, fix: str = _AGAIN) -> TableRefused:
    return TableRefused(f"{_REFUSED}{reason}", where=where, fix=fix)


def alter(where: str, statement: str) -> str:
    """The fix that a statement is, of the table there."""
    return f"run in Spark: ALTER TABLE delta.`{where}` {statement}; merges continue by themselves"


def unset(where: str, *properties: str) -> str:
    """The fix that it is to unset properties of the table there."""
    return alter(where, f"UNSET TBLPROPERTIES ({', '.join(map(repr, properties))})")


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
        raise refusal(where, f"its protocol for readers is {version}", _UPGRADE)
    _check_features(protocol.get("readerFeatures") or (), _READABLE, "reader feature", where)
    _check_mapping(metadata.get("configuration") or {}, where)


def check_writable(protocol: Json, metadata: Json, where: str) -> None:
    """Raises TableRefused where a commit of removed and added files would not be all that the table asks for."""
    check_appendable(protocol, metadata, where)
    if is_on(metadata, _APPEND_ONLY):
        raise refusal(where, "it takes appended rows alone", unset(where, _APPEND_ONLY))


def check_appendable(protocol: Json, metadata: Json, where: str) -> None:
    """Raises TableRefused where a commit of added files, or of metadata and protocol, would not be all that the table
    asks for."""
    _check_protocol(protocol, metadata, where)
    _check_settings(metadata, where)


def check_checkpointable(protocol: Json, where: str) -> None:
    """Raises TableRefused where it is not known what a checkpoint of the table must hold."""
    _check_versions(protocol, where)
    features = [*reader_features(protocol), *writer_features(protocol)]
    _check_features(features, _WRITABLE, "feature", where)


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
    _check_versions(protocol, where)
    _check_features(reader_features(protocol), _READABLE, "reader feature", where)
    features = writer_features(protocol)
    _check_features(features, _WRITABLE, "feature", where)
    mapping = (metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none")
    if mapping in _MAPPINGS[1:] and "columnMapping" not in features:
        supported = "SET TBLPROPERTIES ('delta.feature.columnMapping' = 'supported')"
        raise refusal(where, "it maps its columns, and its protocol does not know that", alter(where, supported))


def _check_versions(protocol: Json, where: str) -> None:
    versions = protocol.get("minReaderVersion"), protocol.get("minWriterVersion")
    if versions[0] not in range(1, READER_VERSION + 1) or versions[1] not in range(1, WRITER_VERSION + 1):
        raise refusal(where, f"its protocol is {versions[0]}, {versions[1]}, and not at most 3, 7", _UPGRADE)


def _check_features(features: Iterable[str], known: Collection[str], kind: str, where: str) -> None:
    if unknown := sorted(set(features) - set(known)):
        fix = alter(where, f"DROP FEATURE {unknown[0]}")
        raise refusal(where, f"it has the {kind} {', '.join(unknown)}", f"{_ENABLED} {fix}")


def _check_mapping(configuration: Mapping[str, str], where: str) -> None:
    if (mapping := configuration.get("delta.columnMapping.mode", "none")) not in _MAPPINGS:
        named = "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
        raise refusal(where, f"its column mapping is {mapping}", alter(where, named))


def _check_settings(metadata: Json, where: str) -> None:
    conf = metadata.get("configuration") or {}
    if constraints := [name for name in conf if name.startswith(_CONSTRAINT)]:
        name = constraints[0].removeprefix(_CONSTRAINT)
        raise refusal(where, f"it has the constraint {name}", alter(where, f"DROP CONSTRAINT {name}"))
    _check_mapping(conf, where)
    if not _CODEC.fullmatch(codec := conf.get(_CODEC_NAME, "zstd")):
        raise refusal(where, f"its files are to be compressed by {codec}", unset(where, _CODEC_NAME))
    if not (form := conf.get(_FORMAT, "1.0.0")).startswith("1."):
        raise refusal(where, f"its files are of Parquet's format {form}", unset(where, _FORMAT))


def check_column(name: str, metadata: Mapping[str, Any], where: str) -> None:
    """Raises TableRefused for a column whose values a writer must make or check. `metadata`: from the schema."""
    for key in metadata:
        for prefix, what in _COLUMN.items():
            if key == prefix or key.startswith(f"{prefix}."):
                raise refusal(where, f"column {name} has {what}")
