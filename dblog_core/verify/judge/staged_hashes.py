"""Hashed events of one table in a stretch of the log, which grows at its end: each staged row is read and hashed once.

So what a verification reads of the log is what was staged from its lake version to its last reading of the source,
however often it reads keys again. The events wait on the local disk, by key. Where those that are read together are
many, those that a later one of the same key has superseded are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dblog_core.lake.merge_plan import split_at_renames
from dblog_core.model.events import TRUNCATE
from dblog_core.model.schema import TableSchema
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.schema_evolution.renames import Renames
from dblog_core.staging import Staging
from dblog_core.staging.manifest import ChunkRef, DataFile, LogMark, Manifest
from dblog_core.verify.judge.bucketed_rows import BucketedRows, Placement
from dblog_core.verify.judge.exact_values import MISFITS, hash_values
from dblog_core.verify.judge.expected_state import find_superseded
from dblog_core.verify.judge.hashed_rows import (
    OLD_KEY,
    HashedRows,
    Numbers,
    event_schema,
    gather_images,
    key_schema,
    select_keys,
)
from dblog_core.verify.judge.staged_images import IMAGE, chunk_rows, log_rows

MAX_EVENTS = 500_000
"""Events that are read together; beyond them those that no answer needs are dropped."""

_BYTES_AT_ONCE = 16 << 20
_FAR = 1 << 62


@dataclass(slots=True)
class _Read:
    """What is read of the log: up to offset `last`, of whole manifests up to `segment`. `ends`: how many events of a
    manifest, or a part of it, end at an offset; `files`: where the images are."""

    segment: int
    last: int
    marks: list[LogMark] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    files: list[DataFile | ChunkRef] = field(default_factory=list)

    def copy(self) -> _Read:
        return _Read(self.segment, self.last, [*self.marks], [*self.ends], [*self.files])


class StagedHashes:
    """One table's; for one thread at a time."""

    def __init__(
        self, staging: Staging, schema: TableSchema, placement: Placement, check: Callable[[], None] = lambda: None
    ) -> None:
        """`schema`: the staged shape that rows are hashed in; `check` is asked now and then, and may raise."""
        self._check = check
        self._staging = staging
        self._schema = schema
        self._key = key_schema(schema)
        self.placement = placement
        self.start_again()

    def start_again(self) -> None:
        """Forgets all that was read."""
        self._begin(0, 0)

    def read_on(self, after: int, upto: int) -> None:
        """Reads and hashes all events with after < offset <= upto that are not read yet.

        Raises SegmentReplaced, or what staging raises.
        """
        if upto <= after:
            return
        if after < self._after or after > self._read.last or self._has_read_beyond_rename(upto):
            head = self._staging.head()
            if head is None or after >= head.last_offset:
                return
            self._begin(after, self._staging.segment_of(after + 1, head) - 1)
        # A rename is met behind the rows that it concerns: these are read again then.
        while upto > self._read.last and not self._read_manifests(upto):
            pass

    def load(
        self, bucket: int, part: int = 0, parts: int = 1, *, after: int, upto: int, settled: int, merged: int = 0
    ) -> tuple[HashedRows, int]:
        """The events of a bucket, or of one of several parts of it, with after < offset <= upto, by growing offset; and
        how many above `merged` are left out, since a later one has superseded them up to the place `settled`."""
        waiting = [event_schema(self._key).empty_table()]
        left_out = 0
        for rows in self._events.read(bucket, part, parts):
            self._check()
            waiting.append(rows)
            if sum(map(len, waiting)) > MAX_EVENTS:
                events = self._join(waiting, after, upto)
                superseded = find_superseded(events, settled)
                left_out += int((superseded & (events.offsets > merged)).sum())
                waiting = [events.where(~superseded).rows]
        return self._join(waiting, after, upto), left_out

    def truncates(self, after: int, upto: int) -> Numbers:
        """The offsets of TRUNCATEs with after < offset <= upto."""
        marks = (mark for mark in self._read.marks if mark.op == TRUNCATE)
        return np.array([mark.offset for mark in marks if after < mark.offset <= upto], np.int64)

    @property
    def renames(self) -> Renames:
        """The renames within the stretch."""
        return self._renames

    def size_of(self, bucket: int) -> tuple[int, int]:
        """How many events a bucket has, and their bytes in memory."""
        return self._events.size_of(bucket)

    def count(self, after: int, upto: int) -> int:
        """How many events are in a stretch that begins and ends with segments, or with what was read before."""
        return sum(count for end, count in self._read.ends if after < end <= upto)

    def images(self, events: HashedRows, chosen: Numbers, *, max_bytes: int) -> pa.Table:
        """The images of these events in their order, in the table's columns, and MISFITS. Raises ValuesTooLarge where
        they have more than `max_bytes`."""
        offsets = events.offsets[chosen]
        files = events.array("file")[chosen]
        names = {**{IMAGE + column.name: column.name for column in self._schema.columns}, MISFITS: MISFITS}

        def read() -> Iterator[tuple[Numbers, pa.Table]]:
            for number in np.unique(files).tolist():
                at = np.flatnonzero(files == number)
                for rows in self._rows_of(self._read.files[number]):
                    row_offsets = np.asarray(rows["offset"])
                    within = at[np.isin(offsets[at], row_offsets)]
                    images = rows.select(list(names)).take(pa.array(np.searchsorted(row_offsets, offsets[within])))
                    yield within, images.rename_columns(list(names.values()))

        return gather_images(read(), self._schema, max_bytes=max_bytes, where=str(self._schema.table))

    # What was not read yet ------------------------------------------------------------------------------------------

    def _begin(self, after: int, segment: int) -> None:
        self._after = after
        self._first_segment = segment
        self._read = _Read(segment, after)
        self._renames = Renames()
        self._events = BucketedRows(self.placement, self._key)

    def _has_read_beyond_rename(self, upto: int) -> bool:
        """Whether rows were hashed under names that columns have got behind a place."""
        return Renames.of(mark for mark in self._read.marks if mark.offset <= upto) != self._renames

    def _read_manifests(self, upto: int) -> bool:
        """Reads what follows; whether nothing is left to be read. What it has read counts once it is all there: a file
        may be gone, and is then read elsewhere."""
        read = self._read.copy()
        sorter = self._events.sorter()
        links: list[pa.Table] = []
        name = str(self._schema.table)
        for manifest in self._staging.manifests(read.segment):
            self._check()
            read.marks += [m for m in manifest.marks if m.table == name and read.last < m.offset <= upto]
            count = 0
            for rows in self._hashed_rows(manifest, read.files, read.last, upto):
                sorter.add(rows)
                count += len(rows)
                if (moved := rows.filter(rows["moved"])).num_rows:
                    links.append(moved)
            read.last = min(manifest.last_offset, upto)
            read.ends.append((read.last, count))
            if manifest.last_offset <= upto:
                read.segment = manifest.segment
            if manifest.last_offset >= upto:
                break
        renames = Renames.of(read.marks)
        if renames != self._renames:
            self._begin(self._after, self._first_segment)
            self._renames = renames
            return False
        sorter.finish()
        self._read = read
        if links:
            self._link(pa.concat_tables(links))
        return True

    def _link(self, moved: pa.Table) -> None:
        """Has keys that rows were moved between in one bucket."""
        old = select_keys(moved, self._key, OLD_KEY)
        new = select_keys(moved, self._key)
        placement = self.placement.with_links(old, new)
        if (self.placement.buckets(old) != self.placement.buckets(new)).any():
            self._events = self._events.move(placement)
        self.placement = self._events.placement = placement

    def _hashed_rows(
        self, manifest: Manifest, files: list[DataFile | ChunkRef], after: int, upto: int
    ) -> Iterator[pa.Table]:
        """Its events with after < offset <= upto, of which `files` gets the files. Small files are hashed together: a
        hash costs less than a table of few rows does."""
        waiting: list[pa.Table] = []
        for file in self._files_of(manifest, after, upto):
            files.append(file)
            for rows in self._rows_of(file, after, upto):
                waiting.append(rows.append_column("file", pa.array(np.full(len(rows), len(files) - 1, np.int64))))
                if sum(part.nbytes for part in waiting) > _BYTES_AT_ONCE:
                    yield self._hash_rows(waiting)
                    waiting = []
        if waiting:
            yield self._hash_rows(waiting)

    def _files_of(self, manifest: Manifest, after: int, upto: int) -> Iterator[DataFile | ChunkRef]:
        name = str(self._schema.table)
        for file in manifest.files:
            if file.table == name and file.last_offset > after and file.first_offset <= upto:
                yield from split_at_renames(file.cut(after + 1, upto), self._renames)
        for chunk in manifest.chunks:
            if chunk.table == name and chunk.first_offset + chunk.rows > after + 1 and chunk.first_offset <= upto:
                yield chunk

    def _rows_of(self, file: DataFile | ChunkRef, after: int = 0, upto: int = _FAR) -> Iterator[pa.Table]:
        """Its events without hashes, and their images in the table's columns."""
        later = self._renames.after(file.first_offset)
        shape = self._staging.schema(file.schema)
        if isinstance(file, DataFile):
            for lines in self._staging.log_batches(file):
                yield log_rows(lines, shape, self._schema, later)
        else:
            rows = self._staging.read_chunk(file.path, checksum=file.checksum)
            staged = chunk_rows(rows, file, shape, self._schema, later)
            offsets = np.asarray(staged["offset"])
            yield staged.filter(pa.array((offsets > after) & (offsets <= upto)))

    def _hash_rows(self, parts: list[pa.Table]) -> pa.Table:
        rows = pa.concat_tables(parts).combine_chunks()
        columns = {column.name: join_chunks(rows[IMAGE + column.name]) for column in self._schema.columns}
        hashes = hash_values(columns, np.asarray(rows[MISFITS]), self._schema)
        return rows.append_column("hash", pa.array(hashes)).select(event_schema(self._key).names)

    def _join(self, parts: list[pa.Table], after: int, upto: int) -> HashedRows:
        # Files and chunks of a segment interleave.
        return HashedRows(pa.concat_tables(parts).sort_by("offset"), self._key).between(after, upto)
