"""A classic checkpoint of a table's newest version, made of the checkpoint before it and of the commits since then.

The commits give the newest action of each key (a file with its vector, an application, a domain). The older checkpoint
gives its rows without those that such an action replaces. These rows stay Arrow: memory holds the actions of the
commits, one batch of rows, and the compressed bytes of both checkpoints.

The file is created if its name is free, so that no reader sees half a file and a second writer changes nothing.
`_last_checkpoint` follows. It is a hint: after a crash between the two, readers find the checkpoint in the listing of
the log.

A table with v2 checkpoints may have classic ones too (PROTOCOL.md, "V2 Checkpoint Table Feature").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import unquote

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblog_core.delta_writer.checkpoints.action_columns import SCHEMA, batch_of, with_all_columns
from dblog_core.delta_writer.checkpoints.checkpoint_reader import (
    SMALL_ACTIONS,
    last_checkpoint,
    list_log,
    read_batches,
    read_checkpoint,
)
from dblog_core.delta_writer.data_file import codec_of
from dblog_core.delta_writer.features import alter, check_checkpointable, refusal
from dblog_core.delta_writer.files import LOG, TableFiles
from dblog_core.delta_writer.snapshot import commit_path, known_actions_of
from dblog_core.delta_writer.vectors import unique_id
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json

Key: TypeAlias = "tuple[str | None, ...]"
"""The kind of an action, and what a later action of the kind must share to replace it."""

_ATTEMPTS = 5  # at a log that is cleaned while it is read
_ROW_GROUP = 10_000  # actions
_FILE = "file"
_LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"
_CHECKSUM = f"{LOG}/._last_checkpoint.crc"
"""Hadoop writes it next to the file. With a stale one Spark waits for seconds before it lists the log instead."""


def write_checkpoint(files: TableFiles, now_ms: int) -> None:
    """Makes a checkpoint of the table's newest version, and has `_last_checkpoint` name it; neither is made again.
    `now_ms`: milliseconds since the epoch.

    Raises LakeError; TableRefused for a table of which this package cannot say all that a checkpoint must hold.
    """
    for attempt in range(_ATTEMPTS):
        try:
            _write_newest(files, now_ms)
        except pa.ArrowException as error:
            raise LakeError(
                f"actions of the table's log do not fit a checkpoint: {error}",
                where=str(files),
                fix="report this with the newest commits of the log; readers take longer, and nothing is lost",
            ) from error
        except FileNotFoundError as error:  # cleaned away since the log was listed
            if attempt + 1 == _ATTEMPTS:
                raise LakeError(
                    f"the table's log lacks {error}",
                    where=str(files),
                    fix="restore its log, or see who else removes its files",
                ) from error
        else:
            return


def _write_newest(files: TableFiles, now_ms: int) -> None:
    listing = list_log(files.names(LOG))
    if listing.newest < 0:
        raise LakeError("there is no Delta table", where=str(files))
    before, names = listing.checkpoints[0] if listing.checkpoints else (-1, [])
    path = f"{LOG}/{listing.newest:020d}.checkpoint.parquet"
    if before < listing.newest:
        commit = files.read(commit_path(listing.newest))
        if files.create(path, _checkpoint_data(files, before, names, listing.newest, now_ms)):
            _check_commit(files, listing.newest, commit, path)
    elif names != [path.removeprefix(f"{LOG}/")]:  # another program's, of another form
        return
    _point_to(files, listing.newest, path)


def _check_commit(files: TableFiles, version: int, commit: bytes | None, path: str) -> None:
    """Removes our checkpoint if the table's log no longer has the commit that it ends with: a process that was stopped
    for long finds the name free in the log of another table in its place."""
    if files.read(commit_path(version)) != commit:
        files.remove(path)
        raise LakeError(f"commit {version} was replaced or removed while a checkpoint was made of it", where=str(files))


def _checkpoint_data(files: TableFiles, before: int, names: list[str], version: int, now_ms: int) -> pa.Buffer:
    later = _LaterActions(str(files))
    for number in range(before + 1, version + 1):
        if (data := files.read(commit_path(number))) is None:
            raise FileNotFoundError(commit_path(number))
        later.apply_commit(known_actions_of(data, files.url(commit_path(number))))
    later.add_older(read_checkpoint(files, names, SMALL_ACTIONS))
    configuration = later.configuration
    retention = Retention.of(configuration, now_ms)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, SCHEMA, compression=codec_of(configuration), store_schema=False) as writer:
        for batch in later.batches(retention):
            writer.write_batch(with_all_columns(batch))
        for batch in read_batches(files, names, SCHEMA.names):
            _check_statistics(batch, str(files))
            writer.write_batch(later.without_replaced(with_all_columns(batch), retention))
    return sink.getvalue()


def _check_statistics(batch: pa.RecordBatch, where: str) -> None:
    """Raises TableRefused where another program's checkpoint has them only as columns: we have them as text."""
    adds = batch["add"] if "add" in batch.schema.names else None
    if adds is not None and adds.null_count < len(adds) and "stats" not in adds.type.names:
        setting = "delta.checkpoint.writeStatsAsJson"
        fix = alter(where, f"SET TBLPROPERTIES ('{setting}' = 'true')")
        raise refusal(where, f"its checkpoint has no statistics as text ({setting} = false)", fix)


def _point_to(files: TableFiles, version: int, path: str) -> None:
    """Has `_last_checkpoint` name the checkpoint, unless it names that version or a later one."""
    hinted = last_checkpoint(files)
    if hinted is not None and hinted[0] >= version:
        return
    if (data := files.read(path)) is None:
        raise FileNotFoundError(path)
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    hint = {"version": version, "size": metadata.num_rows, "sizeInBytes": len(data)}
    files.remove(_CHECKSUM)
    files.replace(_LAST_CHECKPOINT, orjson.dumps(hint))


@dataclass(frozen=True, slots=True)
class Retention:
    """Since when a removal, or a transaction, must have been made for a checkpoint to have it: milliseconds since the
    epoch. `transactions_ms` None: each is kept."""

    removals_ms: int
    transactions_ms: int | None

    @classmethod
    def of(cls, configuration: Mapping[str, str], now_ms: int) -> Retention:
        removals = configuration.get("delta.deletedFileRetentionDuration", "interval 1 week")
        transactions = configuration.get("delta.setTransactionRetentionDuration")
        return cls(
            now_ms - _interval_ms(removals, now_ms),
            None if transactions is None else now_ms - _interval_ms(transactions, now_ms),
        )

    def keeps(self, action: Json) -> bool:
        """Whether a checkpoint has the action, as the newest of its key."""
        ((kind, fields),) = action.items()
        if kind == "remove":
            return int(fields.get("deletionTimestamp") or 0) > self.removals_ms
        if kind == "txn" and self.transactions_ms is not None:
            return int(fields.get("lastUpdated") or 0) > self.transactions_ms
        return not (kind == "domainMetadata" and fields.get("removed"))


_UNITS_MS = {
    "week": 604_800_000.0,
    "day": 86_400_000.0,
    "hour": 3_600_000.0,
    "minute": 60_000.0,
    "second": 1_000.0,
    "millisecond": 1.0,
    "microsecond": 0.001,
}


def _interval_ms(text: str, longest: int) -> int:
    """The length of an interval as Delta's properties have it, such as `interval 1 week`; `longest` for a text that is
    none: nothing is left out then."""
    words = text.lower().removeprefix("interval").split()
    try:
        pairs = zip(words[::2], words[1::2], strict=True)
        parts = [int(count) * _UNITS_MS[unit.removesuffix("s")] for count, unit in pairs]
    except (KeyError, ValueError):
        return longest
    return int(sum(parts)) if parts else longest


class _LaterActions:
    """The newest action of each key, of those that follow the file actions of a checkpoint."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._newest: dict[Key, Json] = {}
        self._changed = set[str]()

    def apply_commit(self, actions: Iterable[Json]) -> None:
        """Takes in those of the next commit, whose order means nothing: a file that it removes and adds is there."""
        for action in sorted(actions, key=lambda action: "add" in action):
            if (key := _key(action)) is not None:
                self._newest[key] = action
                if key[0] == _FILE:
                    self._changed.add(str(key[1]))

    def add_older(self, actions: Iterable[Json]) -> None:
        """Takes in actions from before all others."""
        for action in actions:
            if (key := _key(action)) is not None:
                self._newest.setdefault(key, action)

    @property
    def configuration(self) -> Mapping[str, str]:
        """The table's. Raises LakeError where there is no metadata or protocol, TableRefused for a feature that is not
        known."""
        protocol = self._newest.get(("protocol",))
        metadata = self._newest.get(("metaData",))
        if protocol is None or metadata is None:
            raise LakeError(
                "the table's log has no metadata or protocol",
                where=self._where,
                fix="restore the log from a backup",
            )
        check_checkpointable(protocol["protocol"], self._where)
        return metadata["metaData"].get("configuration") or {}

    def batches(self, retention: Retention) -> Iterator[pa.RecordBatch]:
        """Those that a checkpoint has."""
        unexpired = [action for action in self._newest.values() if retention.keeps(action)]
        for start in range(0, len(unexpired), _ROW_GROUP):
            yield batch_of(unexpired[start : start + _ROW_GROUP])

    def without_replaced(self, batch: pa.RecordBatch, retention: Retention) -> pa.RecordBatch:
        """The file actions of an older checkpoint's rows that no later one replaces, without expired removals."""
        add, remove = batch["add"], batch["remove"]
        removed_ms = pc.fill_null(pc.struct_field(remove, "deletionTimestamp"), 0)
        is_recent = pc.and_(pc.is_valid(remove), pc.greater(removed_ms, retention.removals_ms))
        is_kept = np.array(pc.or_(pc.is_valid(add), is_recent))
        path = pc.coalesce(pc.struct_field(add, "path"), pc.struct_field(remove, "path"))
        # A path has several forms where characters of it are encoded.
        is_changed = pc.or_(pc.is_in(path, pa.array(self._changed, pa.string())), pc.match_substring(path, "%"))
        rows = np.flatnonzero(is_kept & np.array(pc.fill_null(is_changed, False)))
        for row, text in zip(rows.tolist(), path.take(pa.array(rows)).to_pylist(), strict=True):
            if unquote(text) in self._changed and _file_key(add[row].as_py() or remove[row].as_py()) in self._newest:
                is_kept[row] = False
        return batch.filter(pa.array(is_kept))


def _key(action: Json) -> Key | None:
    """None for an action that no checkpoint has."""
    ((kind, fields),) = action.items()
    if kind in ("add", "remove"):
        return _file_key(fields)
    if kind == "txn":
        return kind, fields["appId"]
    if kind == "domainMetadata":
        return kind, fields["domain"]
    return (kind,) if kind in ("metaData", "protocol") else None


def _file_key(fields: Json) -> Key:
    """A file is its path and its vector (PROTOCOL.md)."""
    return _FILE, unquote(fields["path"]), unique_id(fields.get("deletionVector"))
