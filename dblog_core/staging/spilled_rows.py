"""Rows that lie in manifests, written to files for readers that know only paths (Spark)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from dblog_core.staging import parquet
from dblog_core.staging.changelog import Staging
from dblog_core.staging.manifest import DataFile
from dblog_core.staging.row_format import log_schema


def spill(staging: Staging, files: Sequence[DataFile]) -> list[DataFile]:
    """The same rows with a path for each file: those that lie in manifests, as one Parquet file a table version.

    The new files are the caller's to remove (`remove_spilled`).
    """
    groups = _group_inline_files(files)
    return [f for f in files if f.path] + [_write_file(staging, group) for group in groups]


def remove_spilled(staging: Staging, files: Sequence[DataFile]) -> None:
    """Removes what `spill` has made of these files."""
    for group in _group_inline_files(files):
        staging.storage.remove(_path(group))


def _write_file(staging: Staging, files: Sequence[DataFile]) -> DataFile:
    rows = [batch for file in files for batch in staging.log_batches(file)]
    data = parquet.encode(log_schema(staging.schema(files[0].schema)), rows)
    path = _path(files)
    staging.storage.replace(path, data)
    return replace(
        files[0],
        path=path,
        inline=b"",
        part=False,
        rows=sum(len(batch) for batch in rows),
        bytes=data.size,
        checksum=parquet.checksum(data),
        last_offset=files[-1].last_offset,
        has_unchanged=any(f.has_unchanged for f in files),
        has_moves=any(f.has_moves for f in files),
    )


def _group_inline_files(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Those that lie in manifests, by table version."""
    groups: dict[str, list[DataFile]] = {}
    for file in files:
        if not file.path:
            groups.setdefault(file.schema, []).append(file)
    return list(groups.values())


def _path(files: Sequence[DataFile]) -> str:
    name = hashlib.blake2b("".join(f.checksum for f in files).encode(), digest_size=16).hexdigest()
    return f"tmp/{name}-{files[0].first_offset}-{files[-1].last_offset}.parquet"
