"""Hashed events of one table in a stretch of the log, which grows at its end: each staged row is read and hashed once.

So what a verification reads of the log is what was staged from its lake version to its last reading of the source,
however often it reads keys again. The events wait on the local disk, by key. Where those that are read together are
many, those that a later one of the same key has superseded are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from dblog_core.lake.merge_plan import split_at_renames
from dblog_core.model.events import TRUNCATE
from dblog_core.model.schema import TableSchema
from dblog_core.rows.chunked_columns import join_chunks, join_up_to
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
        self.events = BucketedRows(placement, self._key)
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
        if after < self._after or after > self._last or self._has_read_beyond_rename(upto):
            head = self._staging.head()
            if head is None or after >= head.last_offset:
                return
            self._begin(after, self._staging.segment_of(after + 1, head) - 1)
        # A rename is met behind the rows that it concerns: these are read again then.
        while upto > self._last and not self._read_manifests(upto):
            pass

    def load(self, bucket: int, part: int = 0, parts: int = 1, *, after: int, upto: int, settled: int) -> HashedRows:
        """The events of a bucket, or of one of several parts of it, with after < offset <= upto, by growing offset. Of
        many, those are left out that a later one has superseded up to the place `settled`."""
        waiting = [event_schema(self._key).empty_table()]
        for rows in self.events.read(bucket, part, parts):
            self._check()
            waiting.append(rows)
            if sum(map(len, waiting)) > MAX_EVENTS:
                events = self._join(waiting, after, upto)
                waiting = [events.where(~find_superseded(events, settled)).rows]
        return self._join(waiting, after, upto)

    def truncates(self, after: int, upto: int) -> Numbers:
        """The offsets of TRUNCATEs with after < offset <= upto."""
        marks = (mark for mark in self._marks if mark.op == TRUNCATE)
        return np.array([mark.offset for mark in marks if after < mark.offset <= upto], np.int64)

    def count(self, after: int, upto: int) -> int:
        """How many events are in a stretch that begins and ends with segments, or with what was read before."""
        return sum(count for end, count in self._ends if after < end <= upto)

    def images(self, events: HashedRows, chosen: Numbers, *, max_bytes: int) -> pa.Table:
        """The images of these events in their order, in the table's columns, and MISFITS. Raises ValuesTooLarge where
        they have more than `max_bytes`."""
        offsets = events.offsets[chosen]
        files = events.array("file")[chosen]
        names = {**{IMAGE + column.name: column.name for column in self._schema.columns}, MISFITS: MISFITS}

        def read() -> Iterator[tuple[Numbers, pa.Table]]:
            for number in np.unique(files).tolist():
                at = np.flatnonzero(files == number)
                for rows in self._rows_of(self._files[number]):
                    row_offsets = np.asarray(rows["offset"])
                    within = at[np.isin(offsets[at], row_offsets)]
                    images = rows.select(list(names)).take(pa.array(np.searchsorted(row_offsets, offsets[within])))
                    yield within, images.rename_columns(list(names.values()))

        return gather_images(read(), self._schema, max_bytes=max_bytes, where=str(self._schema.table))

    # What was not read yet ------------------------------------------------------------------------------------------

    def _begin(self, after: int, segment: int) -> None:
        self._after = self._last = after  # the offsets that all is read between
        self._first_segment = self._segment = segment  # the last one is whole
        self.renames = Renames()
        """Those within the stretch."""
        self._marks: list[LogMark] = []
        self._ends: list[tuple[int, int]] = []  # of each manifest, or part of it, the last offset, and its events
        self._files: list[DataFile | ChunkRef] = []  # where the images are
        self._moved: list[pa.Table] = []  # events whose former keys are not linked yet
        self.events = BucketedRows(self.events.placement, self._key)

    def _has_read_beyond_rename(self, upto: int) -> bool:
        """Whether rows were hashed under names that columns have got behind a place."""
        return Renames.of(mark for mark in self._marks if mark.offset <= upto) != self.renames

    def _read_manifests(self, upto: int) -> bool:
        """Reads what follows; whether nothing is left to be read."""
        self.events.extend(self._new_events(upto))
        renames = Renames.of(self._marks)
        if renames != self.renames:
            self._begin(self._after, self._first_segment)
            self.renames = renames
            return False
        self._link_moved()
        return True

    def _new_events(self, upto: int) -> Iterator[pa.Table]:
        name = str(self._schema.table)
        for manifest in self._staging.manifests(self._segment):
            self._check()
            self._marks += [m for m in manifest.marks if m.table == name and self._last < m.offset <= upto]
            count = 0
            for rows in self._hashed_rows(manifest, self._last, upto):
                count += len(rows)
                if (moved := rows.filter(rows["moved"])).num_rows:
                    self._moved.append(moved)
                yield rows
            self._last = min(manifest.last_offset, upto)
            self._ends.append((self._last, count))
            if manifest.last_offset <= upto:
                self._segment = manifest.segment
            if manifest.last_offset >= upto:
                break

    def _link_moved(self) -> None:
        """Has keys that rows were moved between in one bucket."""
        if not self._moved:
            return
        moved = pa.concat_tables(self._moved)
        self._moved = []
        old = select_keys(moved, self._key, OLD_KEY)
        new = select_keys(moved, self._key)
        before = self.events.placement
        placement = before.with_links(old, new)
        if (before.buckets(old) != before.buckets(new)).any():
            self.events = self.events.move(placement)
        self.events.placement = placement

    def _hashed_rows(self, manifest: Manifest, after: int, upto: int) -> Iterator[pa.Table]:
        """Its events with after < offset <= upto. Small files are hashed together: a hash costs less than a table of
        few rows does."""

        def read() -> Iterator[pa.Table]:
            for file in self._files_of(manifest, after, upto):
                self._files.append(file)
                for rows in self._rows_of(file, after, upto):
                    yield rows.append_column("file", pa.array(np.full(len(rows), len(self._files) - 1, np.int64)))

        return map(self._hash_rows, join_up_to(_BYTES_AT_ONCE, read()))

    def _files_of(self, manifest: Manifest, after: int, upto: int) -> Iterator[DataFile | ChunkRef]:
        name = str(self._schema.table)
        for file in manifest.files:
            if file.table == name and file.last_offset > after and file.first_offset <= upto:
                yield from split_at_renames(file.cut(after + 1, upto), self.renames)
        for chunk in manifest.chunks:
            if chunk.table == name and chunk.first_offset + chunk.rows > after + 1 and chunk.first_offset <= upto:
                yield chunk

    def _rows_of(self, file: DataFile | ChunkRef, after: int = 0, upto: int = _FAR) -> Iterator[pa.Table]:
        """Its events without hashes, and their images in the table's columns."""
        later = self.renames.after(file.first_offset)
        shape = self._staging.schema(file.schema)
        if isinstance(file, DataFile):
            for lines in self._staging.log_batches(file):
                yield log_rows(lines, shape, self._schema, later)
        else:
            rows = self._staging.read_chunk(file.path, checksum=file.checksum)
            staged = chunk_rows(rows, file, shape, self._schema, later)
            offsets = np.asarray(staged["offset"])
            yield staged.filter(pa.array((offsets > after) & (offsets <= upto)))

    def _hash_rows(self, rows: pa.Table) -> pa.Table:
        columns = {column.name: join_chunks(rows[IMAGE + column.name]) for column in self._schema.columns}
        hashes = hash_values(columns, np.asarray(rows[MISFITS]), self._schema)
        return rows.append_column("hash", pa.array(hashes)).select(event_schema(self._key).names)

    def _join(self, parts: list[pa.Table], after: int, upto: int) -> HashedRows:
        # Files and chunks of a segment interleave.
        events = HashedRows(pa.concat_tables(parts).sort_by("offset"), self._key)
        return events.where((events.offsets > after) & (events.offsets <= upto))
