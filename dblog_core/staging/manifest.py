"""The manifest: what one segment of the super-changelog holds, and where a restart goes on.

    STAGING/
      schemas/FINGERPRINT.json          table shapes, written once each
      log/SEGMENT-EPOCH-UUID/…parquet   rows of the log, per table (a file that no manifest names is a crash's leftover)
      chunks/DUMP/TASK/…parquet         chunk rows, written by dump workers, named by the manifest that places them
      manifests/SEGMENT.json            created if absent, in order, from 1: the log of manifests is the super-changelog

A log file has the columns `offset int64, op, origin, transaction, position string, commit_time timestamp[us, UTC],
key_only bool, unchanged list<string>, moved_from struct<key columns>, before struct, after struct`, by growing offset.
A chunk file has the table's columns alone; its row i has the offset `first_offset + i`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = 1


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of the log: rows of one table version. `path` is relative to the staging root."""

    table: str
    schema: str
    path: str
    rows: int
    bytes: int
    checksum: str
    first_offset: int
    last_offset: int
    has_unchanged: bool
    has_moves: bool


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """A chunk placed by reference. Rows whose number is in `evicted` are not in the super-changelog.

    `position` and `commit_time` (microseconds) are those of the place in the log.
    """

    table: str
    schema: str
    dump: str
    task: str
    ordinal: int
    path: str
    rows: int
    bytes: int
    checksum: str
    first_offset: int
    evicted: tuple[int, ...]
    position: str
    commit_time: int


@dataclass(frozen=True, slots=True)
class LogMark:
    """A line that is not a row: op t (truncate), s (schema) or f (a dump of the table has finished).

    `schema` is a fingerprint (s). To f belong `dump` and `since`, whose chunks lie in segments from `since_segment` on,
    and the ends (JSON keys, included; None: open) of the range that the dump was of.
    """

    offset: int
    op: str
    table: str
    position: str
    commit_time: int
    transaction: str | None = None
    schema: str | None = None
    dump: str | None = None
    since: int | None = None
    since_segment: int | None = None
    key_from: Any = None
    key_to: Any = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One published segment.

    `first_offset` to `last_offset` is the range it takes up (empty: last = first - 1). `position`: where the source is
    read again after it; `partial`: row changes of the transaction beginning there that are staged already (not 0: the
    transaction goes on in the next segment, and a merge does not stop here). `log_position` and `commit_time`: of the
    last transaction, to show. `tasks`: progress of every unfinished dump task after this segment (`dumps.TaskProgress`
    as JSON): what a restart and the state store's mirror are made from. `schemas`: fingerprint of each table's
    newest shape, so that a restart repeats no s mark. PostgreSQL: `unseen_after` is the largest offset before every
    event that a SELECT from here on may not see, and `start` a snapshot that it must see all of (None: it does): what a
    restart rebuilds its memory from.
    """

    source: str
    segment: int
    epoch: int
    first_offset: int
    last_offset: int
    position: str
    partial: int
    log_position: str
    commit_time: int | None
    sealed_at: int
    files: tuple[DataFile, ...] = ()
    chunks: tuple[ChunkRef, ...] = ()
    marks: tuple[LogMark, ...] = ()
    tasks: dict[str, Any] = field(default_factory=dict)
    schemas: dict[str, str] = field(default_factory=dict)
    unseen_after: int | None = None
    start: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Manifest:
        """Raises KeyError, TypeError or ValueError on anything but a manifest of this format."""
        fields = dict(data)
        if fields.pop("format") != FORMAT:
            raise ValueError(f"format {data['format']} is newer than {FORMAT}")
        return cls(
            **{
                **fields,
                "files": tuple(DataFile(**f) for f in data["files"]),
                "chunks": tuple(ChunkRef(**{**c, "evicted": tuple(c["evicted"])}) for c in data["chunks"]),
                "marks": tuple(LogMark(**m) for m in data["marks"]),
            }
        )
