"""The manifest: what one segment of the super-changelog holds, and the checkpoint from which a restart continues.

    STAGING/
      schemas/FINGERPRINT.json          table shapes, written once each
      log/SEGMENT-EPOCH-UUID/…parquet   rows of the log, per table (a file that no manifest names is a crash's leftover)
      chunks/DUMP/TASK/…parquet         chunk rows, written by dump workers, named by the manifest that places them
      manifests/SEGMENT.json            created if absent, in order, from 1: the log of manifests is the super-changelog
      compacted/FIRST-LAST.json         a manifest that stands for the segments from FIRST to LAST (see `compaction`)
      records/SEGMENT-…                 what is known of tables (see `table_records`)
      identity.json                     the random name of this super-changelog, created once
      beginning.json                    the first segment that counts, once older ones were removed (see `retention`)

A manifest's file is one line of JSON, with a checksum, and after it the rows of its small files (see `inline_rows`).

A log file has the columns `offset int64, op, origin, transaction, position string, commit_time timestamp[us, UTC],
key_only bool, unchanged list<string>, moved_from struct<key columns>, before struct, after struct`, by growing offset,
of the last four only those that hold anything.
A chunk file has the table's columns alone; its row i has the offset `first_offset + i`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from dblog_core.algorithm.task_progress import TaskProgress, tasks_from_json
from dblog_core.model.schema_changes import Pending
from dblog_core.model.task_id import TaskId
from dblog_core.staging.parquet import checksum

Raw: TypeAlias = bytes
FORMAT = 2
_NEW = (
    "probes",
    "altered",
    "layouts",
    "born",
    "records",
    "state_age",
    "log_positions",
    "starts",
    "witness",
    "seal_times",
)
_READABLE = (1, 2)  # 1 had neither rows in manifests nor manifests for many segments


@dataclass(frozen=True, slots=True)
class DataFile:
    """Rows of one table version: a Parquet file of the log, or bytes in the manifest (`inline_rows`; no `path`).

    `path` is relative to the staging root. `part`: only rows from `first_offset` to `last_offset` are meant, and there
    are more; then `rows` counts all.
    """

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
    inline: Raw = b""
    part: bool = False

    def cut(self, first_offset: int, last_offset: int) -> DataFile:
        """What of it lies in the range."""
        first = max(self.first_offset, first_offset)
        last = min(self.last_offset, last_offset)
        if (first, last) == (self.first_offset, self.last_offset):
            return self
        return replace(self, first_offset=first, last_offset=last, part=True)


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

    What is proven of the way from the table's shape before to this one (s): `renamed` {new name: old name}, and
    `filled` {added column: what rows hold that nothing has touched since, in the JSON form of `log`}.

    `whole` (s): true: the table had no row before this line, and the log has all of it; false: rows of the table
    may be missing from here on, and only a full dump that begins later brings them. None: it says nothing of that.
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
    renamed: dict[str, str] | None = None
    filled: dict[str, Any] | None = None
    whole: bool | None = None


def is_full(mark: LogMark) -> bool:
    """Whether it ends a dump of a whole table."""
    return mark.op == "f" and mark.key_from is None and mark.key_to is None


@dataclass(frozen=True, slots=True)
class Probed:
    """Where the SELECT of a verification's `window` lies: it saw every event up to offset `since`, and none above
    `offset`, the place of its high watermark. `since` None: nobody can tell, it must be read again.

    It is no line of the log and changes no row.
    """

    offset: int
    table: str
    window: str
    since: int | None
    position: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One published segment, or several in a row that were joined (`compaction`).

    `first_offset` to `last_offset` is the range it takes up (empty: last = first - 1). `position`: where the source is
    read again after it; `partial`: row changes of the transaction beginning there that are staged already (not 0: the
    transaction continues in the next segment, and a merge does not stop here). `log_position` and `commit_time`: of
    the last transaction, to show. `tasks`: progress of every unfinished dump task after this segment, as
    `tasks_to_json` gives it: what a restart and the state store's mirror are made from. `schemas`: fingerprint of each
    table's newest shape, so that a restart repeats no s mark. PostgreSQL: `unseen_after` is the largest offset before
    every event that a SELECT from here on may not see, and `start` a snapshot that it must see all of (None: it does),
    as `starts` has them of tables that came later: what a restart rebuilds its memory from. `altered`: statements that
    tables have had since their newest shape, and that no row or chunk has followed yet, as `Pending` gives them.
    `layouts`: tokens of those newest shapes for which the source has given a layout (`schema_changes.Layout`). `born`:
    tables without a shape so far that are known to have no row at this place in the log. `records`: what is known of
    tables beside their rows (`table_records`). `state_age`: how old the state store was. `witness`: the newest
    commit of our own that lies before `position` (`capture.healing.witness`).

    Of joined segments the first is `first_segment` (0: `segment` is the only one), `ends` holds the last offset of
    each, `log_positions` the `log_position` and `seal_times` the `sealed_at` of each (None: a version that did not keep
    it has joined the segment), and `earlier` the fingerprints after the first of them, where they have changed since
    (None: no such table).
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
    first_segment: int = 0
    ends: tuple[int, ...] = ()
    log_positions: tuple[str | None, ...] = ()
    earlier: dict[str, str | None] = field(default_factory=dict)
    joined_at: int = 0
    probes: tuple[Probed, ...] = ()
    altered: dict[str, Any] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    born: tuple[str, ...] = ()
    records: dict[str, str] = field(default_factory=dict)
    state_age: int = 0
    starts: dict[str, str] = field(default_factory=dict)
    witness: str = ""
    seal_times: tuple[int | None, ...] = ()

    @property
    def first(self) -> int:
        """The number of its first segment."""
        return self.first_segment or self.segment

    def progress(self) -> dict[TaskId, TaskProgress]:
        """Of every unfinished dump task. Few readers need it, so it is read from `tasks` only here."""
        return tasks_from_json(self.tasks)

    def pending_statements(self) -> Pending:
        """Statements about tables that no row or chunk has followed yet."""
        return Pending(self.altered)

    def end_of(self, segment: int) -> int:
        """The last offset of one of its segments."""
        return self.ends[segment - self.first] if self.ends else self.last_offset

    def log_position_after(self, segment: int) -> str | None:
        """The log position after one of its segments; None: it was joined by a version that did not keep it."""
        return self._positions_of_all()[segment - self.first]

    def sealed_at_of(self, segment: int) -> int | None:
        """When one of its segments was sealed; None: it was joined by a version that did not keep it."""
        return self._seal_times_of_all()[segment - self.first]

    def _seal_times_of_all(self) -> tuple[int | None, ...]:
        return self.seal_times or (*(None,) * (self.segment - self.first), self.sealed_at)

    def _positions_of_all(self) -> tuple[str | None, ...]:
        return self.log_positions or (*(None,) * (self.segment - self.first), self.log_position)

    def cut(self, *, after: int = 0, upto: int | None = None) -> Manifest:
        """Its rows, chunks, marks and schemas from segment `after` + 1 to `upto`; all else is as after its last."""
        low = max(self.first, after + 1)
        high = min(self.segment, self.segment if upto is None else upto)
        if (low, high) == (self.first, self.segment):
            return self
        first = self.first_offset if low == self.first else self.end_of(low - 1) + 1
        last = self.end_of(high)
        log_positions = self.log_positions[low - self.first : high - self.first + 1]
        return replace(
            self,
            segment=high,
            log_position=(log_positions[-1] if log_positions else None) or self.log_position,
            log_positions=log_positions,
            seal_times=self._seal_times_of_all()[low - self.first : high - self.first + 1],
            first_segment=low,
            first_offset=first,
            last_offset=last,
            files=tuple(f.cut(first, last) for f in self.files if f.first_offset <= last and f.last_offset >= first),
            chunks=tuple(c for c in self.chunks if first <= c.first_offset <= last),
            marks=tuple(m for m in self.marks if first <= m.offset <= last),
            probes=tuple(p for p in self.probes if first <= p.offset <= last),
            schemas=self._schemas_after(last),
            earlier=_differing(self._schemas_after(self.end_of(low)), self._schemas_after(last)),
            ends=self.ends[low - self.first : high - self.first + 1],
        )

    def _schemas_after(self, offset: int) -> dict[str, str]:
        schemas: dict[str, str | None] = {**self.schemas, **self.earlier}
        schemas |= {m.table: m.schema for m in self.marks if m.op == "s" and m.offset <= offset}
        return {table: schema for table, schema in schemas.items() if schema is not None}

    def to_json(self) -> dict[str, Any]:
        # What is new is left out where there is none: older versions know no such field.
        fields = {name: value for name, value in _fields(self).items() if value or name not in _NEW}
        return {
            "format": FORMAT,
            **fields,
            **({"probes": [_fields(p) for p in self.probes]} if self.probes else {}),
            "files": [{**_fields(f), "inline": bool(f.inline)} for f in self.files],
            "chunks": [_fields(c) for c in self.chunks],
            "marks": [_mark(m) for m in self.marks],
        }

    @property
    def tail(self) -> bytes:
        """The rows that lie in the manifest's own file."""
        return b"".join(f.inline for f in self.files)

    @classmethod
    def from_json(cls, data: dict[str, Any], tail: bytes = b"") -> Manifest:
        """Raises KeyError, TypeError or ValueError on anything but a manifest of this format."""
        fields = dict(data)
        if fields.pop("format") not in _READABLE:
            raise ValueError(f"format {data['format']} is newer than {FORMAT}")
        fields.pop("knowledge", None)  # a former version kept versions of nodes of the state store
        return cls(
            **{
                **fields,
                "files": tuple(_files(data["files"], tail)),
                "chunks": tuple(ChunkRef(**{**c, "evicted": tuple(c["evicted"])}) for c in data["chunks"]),
                "marks": tuple(LogMark(**m) for m in data["marks"]),
                "ends": tuple(data.get("ends", ())),
                "log_positions": tuple(data.get("log_positions", ())),
                "seal_times": tuple(data.get("seal_times", ())),
                "probes": tuple(Probed(**p) for p in data.get("probes", ())),
                "born": tuple(data.get("born", ())),
            }
        )


def join_manifests(manifests: Sequence[Manifest], files: Sequence[DataFile]) -> Manifest:
    """One manifest for segments in a row, whose log rows lie in `files`."""
    first = manifests[0]
    last = manifests[-1]
    return replace(
        last,
        first_segment=first.first,
        first_offset=first.first_offset,
        files=tuple(files),
        chunks=tuple(c for m in manifests for c in m.chunks),
        marks=tuple(mark for m in manifests for mark in m.marks),
        probes=tuple(probe for m in manifests for probe in m.probes),
        ends=tuple(end for m in manifests for end in (m.ends or (m.last_offset,))),
        log_positions=tuple(position for m in manifests for position in m._positions_of_all()),
        seal_times=tuple(time for m in manifests for time in m._seal_times_of_all()),
        earlier=_differing(first._schemas_after(first.end_of(first.first)), last.schemas),
    )


def _differing(then: dict[str, str], now: dict[str, str]) -> dict[str, str | None]:
    return {table: then.get(table) for table, schema in now.items() if then.get(table) != schema}


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def _mark(mark: LogMark) -> dict[str, Any]:
    facts = ("renamed", "filled", "whole")
    return {name: value for name, value in _fields(mark).items() if value is not None or name not in facts}


def _files(data: list[dict[str, Any]], tail: bytes) -> Iterator[DataFile]:
    """With the bytes of those that lie in the tail, one after the other. Raises ValueError where these are others."""
    place = 0
    for file in data:
        rows = b""
        if file.get("inline"):
            rows = tail[place : place + file["bytes"]]
            place += file["bytes"]
            if len(rows) != file["bytes"] or checksum(rows) != file["checksum"]:
                raise ValueError("its rows were cut short or altered")
        yield DataFile(**{**file, "inline": rows})
    if place != len(tail):
        raise ValueError("more rows follow than it names")
