"""The super-changelog as lines: what `dblog log` prints, and what any consumer outside Spark reads.

Within a segment, log files, chunks and marks interleave by offset. Files are read one after the other where their
ranges allow it, and in batches, so memory holds one chunk and a batch per table, not a segment.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.errors import CorruptSegment, SegmentReplaced
from dblog_core.model.events import FINISHED, REFRESH, SCHEMA
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import to_json
from dblog_core.staging import parquet
from dblog_core.staging.changelog import Staging
from dblog_core.staging.manifest import ChunkRef, DataFile, LogMark, Manifest

Row = dict[str, Any]


class Line(dict[str, Any]):
    """A line, and the shape of its row; a mark has the one that it names, or none."""

    __slots__ = ("shape",)
    shape: TableSchema | None


_TIME = pa.timestamp("us", tz="UTC")
_WITHOUT_TRANSACTION = {REFRESH, SCHEMA, FINISHED}


def lines(staging: Staging, *, from_offset: int = 0, tables: set[str] | None = None) -> Iterator[Line]:
    """The lines of `log` (CONTRACT, command line) from `from_offset` on, up to the newest published segment.

    `tables`: only these (SCHEMA.TABLE). Two runs give the same lines.
    Raises CorruptSegment for a file that is missing or was altered.
    """
    return Follower(staging, from_offset=from_offset, tables=tables).lines()


class Follower:
    """A place in the super-changelog, from which to read on.

    `whole`: segments that end inside a transaction wait until the rest of it is published. `pause`: asked between
    segments whether `lines` should end here for now.
    """

    def __init__(
        self,
        staging: Staging,
        *,
        from_offset: int = 0,
        tables: Container[str] | None = None,
        whole: bool = False,
        pause: Callable[[], bool] = lambda: False,
    ) -> None:
        self._staging = staging
        self._tables = tables
        self._whole = whole
        self._pause = pause
        self._whole_upto = 0  # a segment that ends between transactions, and is published
        self._offset = from_offset  # the next one to be read
        self._segment: int | None = None  # the last one that is read whole

    @property
    def passed(self) -> int:
        """The offset up to which all is read."""
        return self._offset - 1

    def is_behind(self) -> bool:
        """Whether another segment is published, or the next one was removed: a few probes."""
        if self._segment is None or self._staging.is_published(self._segment + 1):
            return True
        return self._staging.beginning().segment > self._segment + 1

    def lines(self) -> Iterator[Line]:
        """What is published and not read yet."""
        if self._segment is None and not self._begin():
            return
        assert self._segment is not None
        while True:
            for manifest in self._staging.manifests(self._segment):
                if self._whole and not self._ends(manifest):
                    return
                try:
                    for line in _segment(_Place(self._staging, self._offset, self._tables), manifest):
                        self._offset = line["offset"] + 1
                        yield line
                except SegmentReplaced:
                    break  # its rows lie elsewhere by now: on from the next line
                self._segment = manifest.segment
                self._offset = max(self._offset, manifest.last_offset + 1)
                if self._pause() and not manifest.partial:
                    return
            else:
                return

    def _ends(self, manifest: Manifest) -> bool:
        """Whether the transaction in which the segment ends, if any, is published to its end."""
        if manifest.partial and manifest.segment >= self._whole_upto:
            later = self._staging.manifests(manifest.segment)
            self._whole_upto = next((m.segment for m in later if not m.partial), 0)
        return not manifest.partial or manifest.segment < self._whole_upto

    def _begin(self) -> bool:
        """Finds the place; False: there is nothing yet. A reader that has read up to a place must not miss what came
        next.
        """
        if (head := self._staging.head()) is None:
            return False
        if self._offset > 1:
            self._staging.check_begun(self._offset)
        far = head.last_offset < self._offset
        self._segment = head.segment if far else self._staging.segment_of(self._offset, head) - 1
        return True


@dataclass(frozen=True, slots=True)
class _Place:
    staging: Staging
    from_offset: int
    tables: Container[str] | None

    def wants(self, table: str, last_offset: int) -> bool:
        return last_offset >= self.from_offset and (self.tables is None or table in self.tables)


def _segment(place: _Place, manifest: Manifest) -> Iterator[Line]:
    files = [f for f in manifest.files if place.wants(f.table, f.last_offset)]
    logged = [(line for f in chain for line in _log_lines(place, f)) for chain in _chains(files)]
    # Chunks have ranges of their own, so that only one is open at a time.
    chunks = sorted(manifest.chunks, key=lambda c: c.first_offset)
    dumped = (
        line for c in chunks if place.wants(c.table, c.first_offset + c.rows - 1) for line in _chunk_lines(place, c)
    )
    marks = sorted((m for m in manifest.marks if place.wants(m.table, m.offset)), key=lambda m: m.offset)
    return heapq.merge(*logged, dumped, (_mark_line(place, m) for m in marks), key=itemgetter("offset"))


def _chains(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Files of a table that follow each other in one list each: only one of these is open at a time."""
    chains: list[list[DataFile]] = []
    for file in sorted(files, key=lambda f: (f.table, f.first_offset)):
        before = (c for c in chains if c[-1].table == file.table and c[-1].last_offset < file.first_offset)
        if (chain := next(before, None)) is None:
            chains.append([file])
        else:
            chain.append(file)
    return chains


def _log_lines(place: _Place, file: DataFile) -> Iterator[Line]:
    staging = place.staging
    schema = staging.schema(file.schema)
    for batch in staging.log_batches(file, after=place.from_offset - 1):
        yield from _log_batch(batch, file.table, schema)


def _log_batch(batch: pa.RecordBatch, table: str, schema: TableSchema) -> Iterator[Line]:
    key_only = batch.column("key_only").to_pylist()
    rows = zip(
        *(batch.column(name).to_pylist() for name in ("offset", "op", "origin", "transaction", "position")),
        batch.column("commit_time").cast(pa.int64()).to_pylist(),
        _images(batch.column("before")),
        _images(batch.column("after")),
        batch.column("unchanged").to_pylist(),
        _images(batch.column("moved_from")) if schema.key else [None] * len(batch),
        strict=True,
    )
    for number, (offset, op, origin, transaction, position, time, before, after, unchanged, moved) in enumerate(rows):
        key = _key(schema, before, after, unchanged)
        if before is not None and key_only[number]:
            before = {name: before[name] for name in schema.key}
        if after is not None and unchanged:
            after = {name: value for name, value in after.items() if name not in unchanged}
        line = _line(offset, op, table, key, before, after, unchanged, position, transaction, time, origin, schema)
        if moved is not None:
            line["moved_from"] = moved
        yield line


def _line(
    offset: int,
    op: str,
    table: str,
    key: Row | None,
    before: Row | None,
    after: Row | None,
    unchanged: list[str] | None,
    position: str,
    transaction: str | None,
    commit_time: int,
    origin: str,
    shape: TableSchema | None = None,
) -> Line:
    line = Line(
        offset=offset,
        op=op,
        table=table,
        key=key,
        before=before,
        after=after,
        unchanged=unchanged or [],
        position=position,
        transaction=None if op in _WITHOUT_TRANSACTION else transaction,
        commit_time=_time(commit_time),
        origin=origin,
    )
    line.shape = shape
    return line


def _key(schema: TableSchema, before: Row | None, after: Row | None, unchanged: list[str] | None) -> Row | None:
    """The key that the row has after the change (a deleted one: had); None for a table without a key."""
    if not schema.key:
        return None
    row = before if after is None else after
    if row is None:
        return None
    if after is not None and before is not None and unchanged:
        return {name: before[name] if name in unchanged else after[name] for name in schema.key}
    return {name: row[name] for name in schema.key}


def _chunk_lines(place: _Place, chunk: ChunkRef) -> Iterator[Line]:
    staging = place.staging
    schema = staging.schema(chunk.schema)
    where = staging.storage.url(chunk.path)
    opened = parquet.open_file(staging.read_file(chunk.path), expected=chunk.checksum, where=where)
    if not opened.schema_arrow.equals(schema.arrow):
        raise CorruptSegment("has other columns than its table version", where=where, fix="restore it from a backup")
    evicted = set(chunk.evicted)
    first = chunk.first_offset
    for batch in parquet.batches(opened, where=where):
        for offset, row in enumerate(_rows(batch.columns, schema.arrow), first):
            if offset >= place.from_offset and offset - chunk.first_offset not in evicted:
                key = _key(schema, None, row, None)
                place_in_log = (chunk.position, None, chunk.commit_time, "dump")
                yield _line(offset, REFRESH, chunk.table, key, None, row, None, *place_in_log, schema)
        first += len(batch)


def _mark_line(place: _Place, mark: LogMark) -> Line:
    origin = "dump" if mark.op == FINISHED else "log"
    line = _line(
        mark.offset,
        mark.op,
        mark.table,
        None,
        None,
        None,
        None,
        mark.position,
        mark.transaction,
        mark.commit_time,
        origin,
    )
    if mark.op == FINISHED:
        line |= {"dump": mark.dump, "since": mark.since}
        if mark.key_from is not None or mark.key_to is not None:
            line |= {"key_from": mark.key_from, "key_to": mark.key_to}
    if mark.op == SCHEMA and mark.schema is not None:
        schema = place.staging.schema(mark.schema)
        columns = [{"name": c.name, "type": str(c.type), "source_type": c.source_type} for c in schema.columns]
        line |= {"schema": columns, "key_columns": list(schema.key)}
        line.shape = schema
        line |= {"renamed": mark.renamed} if mark.renamed else {}
        line |= {"filled": mark.filled} if mark.filled else {}
    return line


def _images(images: pa.StructArray) -> list[Row | None]:
    """The images as JSON objects, null where there is none."""
    if images.null_count == len(images):
        return [None] * len(images)
    rows = _rows([images.field(i) for i in range(images.type.num_fields)], images.type)
    if not images.null_count:
        return list(rows)
    return [row if valid else None for row, valid in zip(rows, images.is_valid().to_pylist(), strict=True)]


def _rows(columns: list[pa.Array], fields: Iterable[pa.Field]) -> Iterator[Row]:
    names = [field.name for field in fields]
    return (dict(zip(names, row, strict=True)) for row in zip(*(_json(column) for column in columns), strict=True))


def _json(column: pa.Array) -> list[Any]:
    """The JSON form of every value, as `values.to_json` gives it; by whole columns where Arrow knows the same form."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        text = pc.replace_substring(column.cast(pa.string()), " ", "T")
        return list(pc.replace_substring(text, ".000000", "").to_pylist())
    if pa.types.is_date(kind):
        return list(column.cast(pa.string()).to_pylist())
    if pa.types.is_decimal(kind):
        text = column.cast(pa.string())
        if not pc.any(pc.match_substring(text, "E")).as_py():  # very small ones get an exponent
            return list(text.to_pylist())
    values: list[Any] = column.to_pylist()
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return values
    return [to_json(value) for value in values]


@lru_cache(maxsize=4096)
def _time(microseconds: int) -> Any:
    return to_json(pa.scalar(microseconds, _TIME).as_py())
