"""What a checkpoint of a Delta log holds: the live files, transactions, metadata and protocol of one version.

Classic checkpoints, in one file or in parts, and those of the v2 form (PROTOCOL.md, "V2 Spec"), whose files may stand
in sidecars.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblog_core.delta_writer.checkpoints.action_columns import SCHEMA, SIDECAR, batch_of
from dblog_core.delta_writer.features import refusal
from dblog_core.delta_writer.files import LOG, TableFiles
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json

_CLASSIC = re.compile(r"(\d{20})\.checkpoint\.parquet")
_PART = re.compile(r"(\d{20})\.checkpoint\.(\d{10})\.(\d{10})\.parquet")
_NAMED = re.compile(r"(\d{20})\.checkpoint\.[0-9a-f-]{36}\.(?:json|parquet)")
_COMMIT = re.compile(r"(\d{20})\.json")
SMALL_ACTIONS = ("txn", "metaData", "protocol", "domainMetadata")
"""Those that say nothing of files."""
# Without tombstones (`remove`): only VACUUM needs them, and they may be most of a checkpoint.
_LIVE = ("add", *SMALL_ACTIONS)
_PASSED_OVER = frozenset({"checkpointMetadata", "commitInfo", "cdc"})
_SIDECARS = "_sidecars"
_ROWS = 10_000  # actions that are in memory at once, beside those that are kept
_MAPS = {"partitionValues", "configuration", "options", "tags"}


@dataclass(frozen=True, slots=True)
class Listing:
    """A log as it is listed: its newest commit (-1: none), and its checkpoints by version, newest first."""

    commit: int
    checkpoints: list[tuple[int, list[str]]]
    """The names of a checkpoint's files; of a whole one only."""
    named: int
    """The newest checkpoint that has a name of the v2 form; -1 without one."""

    @property
    def newest(self) -> int:
        """The newest version that a commit or a checkpoint shows; -1: there is no table."""
        return max(self.commit, self.checkpoints[0][0] if self.checkpoints else -1, self.named)


def list_log(names: Iterable[str]) -> Listing:
    """The listing of a log's file names."""
    commit = -1
    named = -1
    whole: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], list[str]] = {}
    of_v2: dict[int, list[str]] = {}
    for name in names:
        if (match := _COMMIT.fullmatch(name)) is not None:
            commit = max(commit, int(match[1]))
        elif (match := _CLASSIC.fullmatch(name)) is not None:
            whole[int(match[1])] = [name]
        elif (match := _PART.fullmatch(name)) is not None:
            parts.setdefault((int(match[1]), int(match[3])), []).append(name)
        elif (match := _NAMED.fullmatch(name)) is not None:
            named = max(named, int(match[1]))
            of_v2[int(match[1])] = [name]
    for (version, count), found_parts in parts.items():
        # A writer that died, or is still writing, leaves some of the parts: that is no checkpoint.
        if len(found_parts) == count:
            whole.setdefault(version, sorted(found_parts))
    return Listing(commit, sorted((of_v2 | whole).items(), reverse=True), named)


def last_checkpoint(files: TableFiles) -> tuple[int, list[str]] | None:
    """The checkpoint that `_last_checkpoint` names: a hint, which may be old, wrong or missing."""
    try:
        hint = orjson.loads(files.read(f"{LOG}/_last_checkpoint") or b"")
        version = int(hint["version"])
        parts = hint.get("parts")
        if (v2 := hint.get("v2Checkpoint")) is not None:
            return version, [str(v2["path"])]
    except (ValueError, KeyError, TypeError):
        return None
    if parts is None:
        return version, [f"{version:020d}.checkpoint.parquet"]
    return version, [f"{version:020d}.checkpoint.{i:010d}.{parts:010d}.parquet" for i in range(1, parts + 1)]


def read_checkpoint(files: TableFiles, names: Iterable[str], kinds: Collection[str] = _LIVE) -> Iterator[Json]:
    """The actions of these kinds in a checkpoint's files, as a commit would have them: {"add": {...}}.

    Raises FileNotFoundError if one of the files is gone, LakeError if one cannot be read, TableRefused for an action
    that is not known.
    """
    for batch in read_batches(files, names, kinds):
        for row in batch.to_pylist():
            yield from ({name: _plain(value)} for name, value in row.items() if value is not None)


def read_batches(files: TableFiles, names: Iterable[str], kinds: Collection[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a checkpoint's files, with a column for each of these kinds of action that the file has. Raises as
    `read_checkpoint`."""
    for name in names:
        for batch in _read_file(files, f"{LOG}/{name}", {*kinds, SIDECAR.name}):
            if SIDECAR.name not in batch.schema.names:
                yield batch
                continue
            yield batch.drop_columns([SIDECAR.name])
            # Only file actions are in sidecars.
            for path in pc.struct_field(batch[SIDECAR.name], "path").drop_null().to_pylist() if "add" in kinds else ():
                yield from _read_file(files, _sidecar_path(files, path), kinds)


def _sidecar_path(files: TableFiles, path: str) -> str:
    if ":" not in path and not path.startswith("/"):
        return f"{LOG}/{_SIDECARS}/{unquote(path)}"
    if (below := files.relative(path)) is None:
        raise refusal(str(files), f"its checkpoint's file {path} lies outside of the table")
    return below


def _read_file(files: TableFiles, path: str, kinds: Collection[str]) -> Iterator[pa.RecordBatch]:
    if (data := files.read(path)) is None:
        # Cleaned away since it was listed: the caller begins with a newer one.
        raise FileNotFoundError(path)
    where = files.url(path)
    try:
        if path.endswith(".json"):
            yield _parse_lines(data, kinds, where)
        else:
            yield from _parquet_batches(pq.ParquetFile(pa.BufferReader(data)), kinds, where)
    except (pa.ArrowException, OSError, ValueError, TypeError, AttributeError) as error:
        raise LakeError(
            f"a checkpoint of the table's log cannot be read: {error}",
            where=where,
            fix="remove the file if the commits before it are all there, or restore it from a backup",
        ) from error


def _parse_lines(data: bytes, kinds: Collection[str], where: str) -> pa.RecordBatch:
    actions = [orjson.loads(line) for line in data.splitlines()]
    _check_known({name for action in actions for name in action}, where)
    return batch_of(actions, pa.schema([field for field in (*SCHEMA, SIDECAR) if field.name in kinds]))


def _parquet_batches(file: pq.ParquetFile, kinds: Collection[str], where: str) -> Iterator[pa.RecordBatch]:
    schema = file.schema_arrow
    unknown = [name for name in schema.names if name not in _KNOWN]
    columns = [column for name in schema.names if name in kinds for column in _columns(schema.field(name))]
    for batch in file.iter_batches(_ROWS, columns=[*columns, *unknown]):
        _check_known([name for name in unknown if batch[name].null_count < len(batch)], where)
        yield batch.drop_columns(unknown)


_KNOWN = frozenset({*SCHEMA.names, SIDECAR.name, *_PASSED_OVER})


def _check_known(kinds: Iterable[str], where: str) -> None:
    """An action may say which rows live: passing it over could bring dead rows back."""
    if unknown := sorted(set(kinds) - _KNOWN):
        raise refusal(where, f"its checkpoint has the action {', '.join(unknown)}", "upgrade dblog")


def _columns(action: pa.Field) -> list[str]:
    """All of an action but what repeats its text in another form."""
    return [f"{action.name}.{child.name}" for child in action.type if not child.name.endswith("_parsed")]


def _plain(value: Json) -> Json:
    """Without what is not there, and with Parquet's maps (lists of pairs) as objects."""
    with_maps = {name: _map(part) if name in _MAPS else part for name, part in value.items()}
    plain = {name: _plain(h) if isinstance(h, dict) and name not in _MAPS else h for name, h in with_maps.items()}
    return {name: part for name, part in plain.items() if part is not None}


def _map(pairs: Any) -> Json | str | None:
    # The configuration of a metadata domain is one text.
    return dict(pairs) if isinstance(pairs, list) else pairs
