"""One version of a table's log: created if absent, so that of all writers one makes it, on every storage."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence

import orjson

from dblog_core.delta_writer.checkpoints import checkpoint_reader
from dblog_core.delta_writer.files import LOG, TableFiles
from dblog_core.delta_writer.snapshot import LiveFile, commit_path
from dblog_core.errors import LakeError, StagingError
from dblog_core.interfaces import Json

ENGINE = "dblog"
_OF_REMOVED = ("deletionVector", "tags", "baseRowId", "defaultRowCommitVersion")
"""Fields of an `add` that the `remove` of its file repeats."""


def commit_info(
    operation: str,
    metrics: Mapping[str, int],
    *,
    read_version: int,
    mark: str,
    now_ms: int,
    txn_id: uuid.UUID,
    is_blind: bool = False,
) -> Json:
    """The commit's provenance. `operation` and `metrics`: by the names that Delta has for them; `mark`: what tells our
    commits from others'; `is_blind`: what it adds depends on no row of the table."""
    return {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": operation,
            "operationParameters": {},
            "readVersion": read_version,
            "isolationLevel": "Serializable",
            # Where added rows depend on rows that were read, other writers must check for conflicts with the commit.
            "isBlindAppend": is_blind,
            "operationMetrics": {name: str(count) for name, count in metrics.items()},
            "userMetadata": mark,
            "engineInfo": ENGINE,
            "txnId": str(txn_id),
        }
    }


def removal(live: LiveFile, *, now_ms: int, data_change: bool) -> Json:
    """The `remove` action of a file as a snapshot has it, with its vector."""
    unchanged: Json = {name: live.add[name] for name in _OF_REMOVED if live.add.get(name) is not None}
    fields: Json = {
        "path": live.add["path"],
        "deletionTimestamp": now_ms,
        "dataChange": data_change,
        # Says that partitionValues, size and tags are given (PROTOCOL.md, "Remove File").
        "extendedFileMetadata": True,
        "partitionValues": live.add.get("partitionValues") or {},
        "size": live.size,
        **unchanged,
    }
    return {"remove": fields}


def commit_data(actions: Sequence[Json]) -> bytes:
    """The bytes of a commit of these actions, one of them a `commit_info` of its own id."""
    return b"".join(orjson.dumps(action) + b"\n" for action in actions)


def create_commit(files: TableFiles, version: int, data: bytes) -> bool:
    """Makes this version of `commit_data`; False if it is another's.

    An answer that is lost is looked up. Raises StagingError where nobody knows what became of it: a later reading of
    the table's log shows it. Raises LakeError where the log was cleaned meanwhile, and has newer versions.
    """
    path = commit_path(version)
    try:
        # A name that is taken may be taken by us: a client that repeats a request has then made the file. Its own
        # `txnId` tells our commit from another's of the same rows.
        if not files.create(path, data) and files.read(path) != data:
            return False
    except StagingError:
        present: bytes | None = None
        with contextlib.suppress(StagingError):  # the first error says more
            present = files.read(path)
        if present is None:
            raise
        if present != data:
            return False
        # The file is there, but after a loss of power its name may not be; the caller counts on it.
        files.settle(path)
    _check_successor(files, version)
    return True


def _check_successor(files: TableFiles, version: int) -> None:
    """A process that was stopped for so long that the log was cleaned finds any number free."""
    if version == 0 or files.exists(commit_path(version - 1)):
        return
    newest = checkpoint_reader.list_log(files.names(LOG)).newest
    if newest > version:
        raise LakeError(
            f"version {version} was made of a log that ends at {newest}: this process was stopped for too long",
            where=files.url(commit_path(version)),
            fix="remove that file, which no reader looks at, and merge again",
        )
