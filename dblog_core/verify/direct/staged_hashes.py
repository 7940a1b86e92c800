"""Hashed events of one table in a stretch of the log, which grows at its end: each staged row is read and hashed once.

So what a verification reads of the log is what was staged from its lake version to its last reading of the source,
however often it reads keys again. The events wait on the local disk, by key. Where those that are read together are
many, those that a later one of the same key has superseded are dropped.

Rows of older shapes are hashed in the shape that is compared: renamed columns under their names of now, columns that
were added with what rows are known to hold, and values in the types of now. A value that such a type does not have is
equal to none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dblog_core.delta_writer.features import ValuesTooLarge
from dblog_core.lake.merge_plan import split_at_renames
from dblog_core.model.events import TRUNCATE
from dblog_core.model.schema import TableSchema
from dblog_core.rows.arrow_hashes import hash_rows
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.schema_evolution.renames import Renames
from dblog_core.staging import Staging
from dblog_core.staging.manifest import ChunkRef, DataFile, LogMark, Manifest
from dblog_core.verify.direct.exact_cast import MISFITS, turn_misfits
from dblog_core.verify.direct.hashed_events import KEY, OLD_KEY, Events, event_schema
from dblog_core.verify.direct.key_buckets import BucketedRows, Placement
from dblog_core.verify.direct.key_numbers import Numbers, key_schema, make_keys
from dblog_core.verify.direct.staged_images import IMAGE, chunk_rows, log_rows
from dblog_core.verify.direct.superseded_events import find_superseded

MAX_EVENTS = 500_000
"""Events that are read together; beyond them those that no answer needs are dropped."""

_BYTES_AT_ONCE = 16 << 20
_FAR = 1 << 62
_NO_NUMBERS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Read:
    """How many events of a manifest, or a part of it, end at an offset."""

    end: int
    count: int


class StagedHashes:
    """One table's; for one thread at a time."""

    def __init__(
        self,
        staging: Staging,
        schema: TableSchema,
        placement: Placement,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`schema`: the staged shape that rows are hashed in; `check` is asked now and then, and may raise."""
        self._check = check
        self._staging = staging
        self._schema = schema
        self._kind = key_schema(schema)
        self.placement = placement
        self._begin(0, 0)

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return self._events.size

    @property
    def renames(self) -> Renames:
        """The renames within the stretch."""
        return self._renames

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
        while upto > self._last and not self._read(upto):
            pass

    def load(
        self, bucket: int, part: int = 0, parts: int = 1, *, after: int, upto: int, settled: int, merged: int = 0
    ) -> tuple[Events, int]:
        """The events of a bucket, or of one of several parts of it, with after < offset <= upto; and how many above
        `merged` are left out of them, since a later one has superseded them up to the place `settled`."""
        waiting: list[pa.Table] = [event_schema(self._kind).empty_table()]
        left_out = 0
        truncates = np.array([m.offset for m in self._marks if m.op == TRUNCATE], np.int64)
        for rows in self._events.read(bucket, part, parts):
            self._check()
            waiting.append(rows)
            if sum(map(len, waiting)) > MAX_EVENTS:
                events = self._join(waiting, truncates).between(after, upto)
                superseded = find_superseded(events, settled)
                left_out += int((superseded & (events.offsets > merged)).sum())
                waiting = [events.where(~superseded).rows()]
        return self._join(waiting, truncates).between(after, upto), left_out

    def rows_of(self, bucket: int) -> tuple[int, int]:
        """How many events a bucket has, and their bytes in memory."""
        pieces = self._events.pieces(bucket)
        return sum(piece.rows for piece in pieces), sum(piece.nbytes for piece in pieces)

    def count(self, after: int, upto: int) -> int:
        """How many events are in a stretch that begins and ends with segments, or with what was read before."""
        return sum(read.count for read in self._reads if after < read.end <= upto)

    def images(self, events: Events, chosen: Numbers, *, most: int) -> pa.Table:
        """The images of these events in their order, in the table's columns, and MISFITS. Raises ValuesTooLarge where
        they have more than `most` bytes."""
        offsets = events.offsets[chosen]
        names = [*(IMAGE + column.name for column in self._schema.columns), MISFITS]
        parts = [self._schema.arrow.append(pa.field(MISFITS, pa.bool_())).empty_table()]
        places = [_NO_NUMBERS]
        size = 0
        for number in np.unique(events.files[chosen]).tolist():
            at = np.flatnonzero(events.files[chosen] == number)
            for rows in self._rows_of(self._files[number]):
                row_offsets = np.asarray(rows["offsets"])
                within = at[np.isin(offsets[at], row_offsets)]
                chosen_rows = rows.select(names).take(pa.array(np.searchsorted(row_offsets, offsets[within])))
                chosen_rows = chosen_rows.rename_columns(parts[0].column_names)
                size += chosen_rows.nbytes
                if size > most:
                    raise ValuesTooLarge("staged rows have too large values", where=str(self._schema.table))
                parts.append(chosen_rows)
                places.append(within)
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_tables(parts).take(pa.array(order))

    # What was not read yet ------------------------------------------------------------------------------------------

    def _begin(self, after: int, segment: int) -> None:
        self._after = after
        self._first_segment = segment
        self._segment = segment
        self._last = after
        self._marks: list[LogMark] = []
        self._renames = Renames()
        self._reads: list[_Read] = []
        self._files: list[DataFile | ChunkRef] = []
        self._events = BucketedRows(self.placement, self._keys_of_rows)

    def _has_read_beyond_rename(self, upto: int) -> bool:
        """Whether rows were hashed under names that columns have got behind a place."""
        return Renames.of(mark for mark in self._marks if mark.offset <= upto) != self._renames

    def _read(self, upto: int) -> bool:
        """Reads what follows; whether nothing is left to be read. What it has read counts once it is all there: a file
        may be gone, and is then read elsewhere."""
        marks = list(self._marks)
        reads = list(self._reads)
        files = list(self._files)
        sorter = self._events.sorter()
        links: list[pa.Table] = []
        segment = self._segment
        last = self._last
        name = str(self._schema.table)
        for manifest in self._staging.manifests(segment):
            self._check()
            marks += [m for m in manifest.marks if m.table == name and last < m.offset <= upto]
            count = 0
            for rows in self._hashed_rows(manifest, files, last, upto):
                sorter.add(rows)
                count += len(rows)
                if (moved := rows.filter(rows["moved"])).num_rows:
                    links.append(moved)
            reads.append(_Read(min(manifest.last_offset, upto), count))
            last = min(manifest.last_offset, upto)
            if manifest.last_offset > upto:
                break
            segment = manifest.segment
            if last == upto:
                break
        renames = Renames.of(marks)
        if renames != self._renames:
            self._begin(self._after, self._first_segment)
            self._renames = renames
            return False
        sorter.finish()
        self._marks = marks
        self._reads = reads
        self._files = files
        self._segment = segment
        self._last = last
        if links:
            self._link(pa.concat_tables(links))
        return True

    def _link(self, moved: pa.Table) -> None:
        """Has keys that rows were moved between in one bucket."""
        old, new = (
            make_keys([moved[prefix + name] for name in self._kind.names], self._kind) for prefix in (OLD_KEY, KEY)
        )
        placement = self.placement.with_links(old, new)
        is_apart = (self.placement.buckets(old) != self.placement.buckets(new)).any()
        self._events = self._events.move(placement) if is_apart else self._events.relink(placement)
        self.placement = placement

    def _hashed_rows(
        self, manifest: Manifest, files: list[DataFile | ChunkRef], after: int, upto: int
    ) -> Iterator[pa.Table]:
        """Its events with after < offset <= upto, of which `files` gets the files. Small files are hashed together: a
        hash costs less than a table of few rows does."""
        waiting: list[pa.Table] = []
        for file in self._files_of(manifest, after, upto):
            files.append(file)
            for rows in self._rows_of(file, after, upto):
                waiting.append(rows.append_column("files", pa.array(np.full(len(rows), len(files) - 1, np.int64))))
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
        """Its events: what `Events` says of each, and the image in the table's columns."""
        later = self._renames.after(file.first_offset)
        shape = self._staging.schema(file.schema)
        if isinstance(file, DataFile):
            for lines in self._staging.log_batches(file):
                yield log_rows(lines, shape, self._schema, later)
        else:
            rows = self._staging.read_chunk(file.path, checksum=file.checksum)
            staged = chunk_rows(rows, file, shape, self._schema, later)
            offsets = np.asarray(staged["offsets"])
            yield staged.filter(pa.array((offsets > after) & (offsets <= upto)))

    def _hash_rows(self, parts: list[pa.Table]) -> pa.Table:
        rows = pa.concat_tables(parts).combine_chunks()
        columns = {column.name: join_chunks(rows[IMAGE + column.name]) for column in self._schema.columns}
        hashes = hash_rows(columns, self._schema)
        turn_misfits(hashes, np.asarray(rows[MISFITS]))
        hashed = rows.append_column("hashes", pa.array(hashes))
        return hashed.select(event_schema(self._kind).names)

    def _join(self, parts: Sequence[pa.Table], truncates: Numbers) -> Events:
        return Events.of(pa.concat_tables(parts), self._kind, truncates)

    def _keys_of_rows(self, rows: pa.Table) -> pa.Table:
        return pa.table([rows[KEY + name] for name in self._kind.names], schema=self._kind)
