"""The file of a manifest: a line of JSON with its checksum, and after it the rows that lie in the manifest."""

from __future__ import annotations

import orjson

from dblog_core.errors import CorruptSegment
from dblog_core.staging.compaction_blocks import Block
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.sealed_json import seal, unseal


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of its file."""
    return seal(orjson.dumps(manifest.to_json())) + manifest.tail


def decode_manifest(data: bytes, block: Block, *, source: str, where: str) -> Manifest:
    """The manifest of the block, which is of that source. Raises CorruptSegment if it is altered, or another one."""
    body, end, tail = data.partition(b"\n")
    try:
        manifest = Manifest.from_json(orjson.loads(unseal(body + end, where)), tail)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptSegment(
            f"is no manifest that this version can read: {error}",
            where=where,
            fix="upgrade dblog, or restore the file from a backup",
        ) from error
    if (manifest.first, manifest.segment, manifest.source) != (block.first, block.last, source):
        raise CorruptSegment(
            f"holds segment {manifest.segment} of source {manifest.source}",
            where=where,
            fix="restore the file from a backup",
        )
    return manifest
