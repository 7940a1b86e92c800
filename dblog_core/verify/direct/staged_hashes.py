"""Hashed events of one table in a stretch of the log, which grows at its end: each staged row is read and hashed once.

So what a verification reads of the log is what was staged from its lake version to its last reading of the source,
however often it reads keys again. What it keeps is bounded. Once these are many events, it drops those that the lake
has, and those that a later one of the same key has superseded. Where too many are left, it keeps those of some keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.model.events import CREATE, DELETE, SCHEMA, TRUNCATE
from dblog_core.model.schema import TableSchema
from dblog_core.rows.arrow_hashes import hash_rows
from dblog_core.staging import Staging
from dblog_core.staging.manifest import ChunkRef, DataFile, LogMark, Manifest
from dblog_core.verify.direct.hashed_events import ARRAYS, FLAGS, Events, Flags, join_events
from dblog_core.verify.direct.key_numbers import Numbers
from dblog_core.verify.direct.not_direct import NotDirect, TooManyStaged
from dblog_core.verify.direct.superseded_events import find_superseded

MAX_EVENTS = 3_000_000
"""Events that are kept; beyond them those that no answer needs are dropped."""

_LARGEST_SHARE = 7 / 8
"""Of MAX_EVENTS, that may be left then; beyond it Spark's executors fold those of all keys."""

_BYTES_AT_ONCE = 32 << 20
_NAMES = pa.list_(pa.string())
UNCHANGED = "columns of the row that are left out"
_KEY = "key "
_OLD_KEY = "old key "


class StagedHashes:
    """One table's; for one thread at a time."""

    def __init__(
        self,
        staging: Staging,
        schema: TableSchema,
        check: Callable[[], None] = lambda: None,
        *,
        keys: pa.Table | None = None,
    ) -> None:
        """`schema`: the staged shape that rows are hashed in; `check` is asked now and then, and may raise. `keys`:
        those whose events are kept, and perhaps some others (None: all)."""
        self._check = check
        self._keys = keys
        self._staging = staging
        self._schema = schema
        self._start_again(0, 0)

    @property
    def memory(self) -> int:
        """Bytes, about."""
        parts = list(self._parts)  # another thread may add some
        return sum(part.keys.nbytes + 40 * len(part) for part in parts)

    def between(self, after: int, upto: int, *, settled: int) -> Events:
        """All events with after < offset <= upto, except those up to `settled` that a later one of these has
        superseded. Raises NotDirect, SegmentReplaced, or what staging raises."""
        if upto <= after:
            return self._nothing
        if after < self._after or after > self._last or settled < self._settled:
            head = self._staging.head()
            if head is None or after >= head.last_offset:
                return self._nothing
            self._start_again(after, self._staging.segment_of(after + 1, head) - 1)
        self._read_on(upto, after, settled)
        return self._joined().between(after, upto)

    def has_keys(self, keys: pa.Table) -> bool:
        """Whether the events of these keys are kept."""
        return self._keys is None or bool(may_be_among(keys.cast(self._keys.schema), self._keys).all())

    def count_dropped(self, after: int) -> int:
        """How many events are not kept that stand above an offset, which is the end of a segment."""
        return sum(count for end, count in self._dropped.items() if end > after)

    def images(self, events: Events, chosen: Numbers) -> pa.Table:
        """The images of these events in their order, in the table's columns; `UNCHANGED`: those that are left out."""
        offsets = events.offsets[chosen]
        names = [UNCHANGED, *(column.name for column in self._schema.columns)]
        parts = [self._no_images]
        places = [np.empty(0, np.int64)]
        for number in np.unique(events.files[chosen]).tolist():
            at = np.flatnonzero(events.files[chosen] == number)
            for rows in self._rows_of(self._files[number]):
                row_offsets = np.asarray(rows["offsets"])
                within = at[np.isin(offsets[at], row_offsets)]
                numbers = np.searchsorted(row_offsets, offsets[within])
                parts.append(rows.select(names).take(pa.array(numbers)))
                places.append(within)
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_tables(parts).take(pa.array(order))

    @property
    def _no_images(self) -> pa.Table:
        columns = [pa.field(c.name, c.type) for c in self._schema.columns]
        return pa.schema([pa.field(UNCHANGED, _NAMES), *columns]).empty_table()

    def _start_again(self, after: int, segment: int) -> None:
        self._after = after
        self._segment = segment
        self._last = after
        self._settled = 0
        self._dropped = Counter[int]()  # by the last offset of a segment: how many of its events
        self._ends: list[int] = []  # the last offset of each segment that was read
        self._parts: list[Events] = []
        self._is_joined = False
        self._files: list[DataFile | ChunkRef] = []

    def _unread(self, upto: int) -> Iterator[Manifest]:
        """The manifests that follow, until one reaches up to the offset."""
        if self._last < upto:
            for manifest in self._staging.manifests(self._segment):
                yield manifest
                if manifest.last_offset >= upto:
                    return

    def _joined(self) -> Events:
        if not self._is_joined:
            self._parts = [join_events([self._nothing, *self._parts])]
            self._is_joined = True
        return self._parts[0]

    @property
    def _nothing(self) -> Events:
        keys = pa.schema([pa.field(c.name, c.type) for c in self._schema.key_columns]).empty_table()
        numbers = np.empty(0, np.int64)
        flags = dict.fromkeys(FLAGS, np.empty(0, np.bool_))
        return Events(keys, numbers, **flags, hashes=numbers, files=numbers, old_keys=keys, truncates=numbers)

    # What was not read yet ------------------------------------------------------------------------------------------

    def _read_on(self, upto: int, after: int, settled: int) -> None:
        """Reads what follows. Small files are hashed together: a hash costs less than a table of few rows does."""
        parts = list(self._parts)  # ours once all is read: a file may be gone, and is then read elsewhere
        rows: list[pa.Table] = []
        marks: list[LogMark] = []
        ends: list[int] = []
        dropped: list[Numbers] = []
        left_out = Counter[int]()
        manifest: Manifest | None = None
        name = str(self._schema.table)
        for manifest in self._unread(upto):
            self._check()
            ends.append(manifest.last_offset)
            marks += [mark for mark in manifest.marks if mark.table == name and mark.offset > self._after]
            for part, every in self._rows_in(manifest):
                rows.append(part)
                left_out[manifest.last_offset] += every - len(part)
                if sum(part.nbytes for part in rows) > _BYTES_AT_ONCE:
                    parts.append(self._hash_rows(rows))
                    rows = []
            if sum(map(len, (*parts, *rows))) > MAX_EVENTS:
                events, superseded = self._settle([*parts, self._hash_rows(rows)], after, settled)
                parts = [events]
                rows = []
                dropped.append(superseded)
        if manifest is None:
            return
        _check_marks(marks)
        truncates = np.array([mark.offset for mark in marks if mark.op == TRUNCATE], np.int64)
        self._parts = [*parts, replace(self._hash_rows(rows), truncates=truncates)]
        self._is_joined = False  # rows of chunks stand between those of the log
        self._segment = manifest.segment
        self._last = max(self._last, manifest.last_offset)
        self._ends += ends
        self._dropped.update(left_out)
        if dropped:
            self._after = after
            self._settled = settled
            self._count_superseded(np.concatenate(dropped))

    def _rows_in(self, manifest: Manifest) -> Iterator[tuple[pa.Table, int]]:
        """Its events of our keys, and of how many."""
        name = str(self._schema.table)
        files: list[DataFile | ChunkRef] = [f for f in manifest.files if f.table == name]
        files += [chunk for chunk in manifest.chunks if chunk.table == name]
        for file in files:
            self._files.append(file)
            number = len(self._files) - 1
            for rows in self._rows_of(file):
                yield _with_number(self._of_our_keys(rows), number), len(rows)

    def _of_our_keys(self, rows: pa.Table) -> pa.Table:
        if self._keys is None:
            return rows
        chosen = rows.filter(pa.array(may_be_among(self._key_columns(rows, _KEY), self._keys)))
        if np.asarray(chosen["moved"]).any():
            raise NotDirect("rows came from other keys, with values that the log has left out")
        return chosen

    def _settle(self, parts: list[Events], after: int, settled: int) -> tuple[Events, Numbers]:
        """Those that some answer may need, and the offsets of the others. Raises TooManyStaged where the former are
        too many."""
        events = join_events([self._nothing, *parts])
        events = events.where(events.offsets > after)
        superseded = find_superseded(events, settled)
        if len(events) - int(superseded.sum()) > MAX_EVENTS * _LARGEST_SHARE:
            raise TooManyStaged(f"more than {MAX_EVENTS:,} staged rows are not merged, most of them of different keys")
        return events.where(~superseded), events.offsets[superseded]

    def _count_superseded(self, offsets: Numbers) -> None:
        segments, counts = np.unique(np.searchsorted(self._ends, offsets), return_counts=True)
        for segment, count in zip(segments.tolist(), counts.tolist(), strict=True):
            self._dropped[self._ends[segment]] += count

    def _hash_rows(self, parts: list[pa.Table]) -> Events:
        if not parts:
            return self._nothing
        rows = pa.concat_tables(parts).combine_chunks()
        columns = {column.name: _array(rows[column.name]) for column in self._schema.columns}
        return Events(
            self._key_columns(rows, _KEY),
            hashes=hash_rows(columns, self._schema),
            **{name: np.asarray(rows[name]) for name in ARRAYS if name != "hashes"},
            old_keys=self._key_columns(rows, _OLD_KEY).filter(rows["moved"]),
            truncates=np.empty(0, np.int64),
        )

    def _key_columns(self, rows: pa.Table, prefix: str) -> pa.Table:
        return pa.table([rows[prefix + name] for name in self._schema.key], names=list(self._schema.key))

    def _rows_of(self, file: DataFile | ChunkRef) -> Iterator[pa.Table]:
        """Its events: what `Events` says of each, and the image in the table's columns."""
        self._check_shape(file)
        if isinstance(file, DataFile):
            for lines in self._staging.log_batches(file, after=self._after):
                yield self._log_rows(lines)
        else:
            yield self._chunk_rows(file)

    def _log_rows(self, lines: pa.RecordBatch) -> pa.Table:
        after = lines.column("after")
        before = lines.column("before")
        moved_from = lines.column("moved_from")
        deleted = pc.equal(lines.column("op"), DELETE)
        unchanged = lines.column("unchanged").cast(_NAMES)
        whole = pc.equal(pc.fill_null(pc.list_value_length(unchanged), 0), 0)
        columns: dict[str, pa.Array] = {
            "offsets": lines.column("offset"),
            "lives": pc.invert(deleted),
            "born": pc.equal(lines.column("op"), CREATE),
            "logged": pc.equal(lines.column("origin"), "log"),
            "whole": whole,
            "moved": pc.and_not(moved_from.is_valid(), whole),
            UNCHANGED: unchanged,
        }
        for name in self._schema.key:
            # A key so large that the log leaves it out of `after` stands in `before`.
            in_before = pc.or_(deleted, pa.array(mask_named(unchanged, name)))
            columns[_KEY + name] = pc.if_else(in_before, _field(before, name), _field(after, name))
            columns[_OLD_KEY + name] = _field(moved_from, name)
        columns |= {column.name: _field(after, column.name) for column in self._schema.columns}
        return pa.table(columns)

    def _chunk_rows(self, chunk: ChunkRef) -> pa.Table:
        rows = self._staging.read_chunk(chunk.path, checksum=chunk.checksum)
        numbers = np.setdiff1d(np.arange(len(rows)), np.array(chunk.evicted, np.int64))
        rows = rows.take(pa.array(numbers)) if len(numbers) < len(rows) else rows
        yes = np.ones(len(rows), np.bool_)
        columns: dict[str, pa.Array | pa.ChunkedArray] = {
            "offsets": pa.array(chunk.first_offset + numbers),
            **{name: pa.array(yes if name in ("lives", "whole") else ~yes) for name in FLAGS},
            UNCHANGED: pa.nulls(len(rows), _NAMES),
        }
        for column in self._schema.key_columns:
            columns[_KEY + column.name] = rows[column.name]
            columns[_OLD_KEY + column.name] = pa.nulls(len(rows), column.type)
        return pa.table(columns | {column.name: rows[column.name] for column in self._schema.columns})

    def _check_shape(self, file: DataFile | ChunkRef) -> None:
        """Raises NotDirect where the staged rows have another shape than the one that is hashed."""
        if file.schema == self._schema.fingerprint:
            return
        types = {column.name: column.type for column in self._staging.schema(file.schema).columns}
        for column in self._schema.columns:
            if types.get(column.name) != column.type:
                raise NotDirect(f"rows were staged in which {column.name} is {types.get(column.name)}")


def _check_marks(marks: list[LogMark]) -> None:
    """Raises NotDirect where a column was renamed, or got a value in all rows, within the stretch."""
    for mark in marks:
        if mark.op == SCHEMA and (mark.renamed or mark.filled):
            raise NotDirect("its columns were renamed, or added with a value, since the last merge")


def may_be_among(keys: pa.Table, requested: pa.Table) -> Flags:
    """Which keys have in each column a value of some requested key: all that are requested, and few others."""
    among = np.ones(len(keys), np.bool_)
    for name in keys.column_names:
        among &= np.asarray(pc.is_in(keys[name], value_set=requested[name].combine_chunks()))
    return among


def _with_number(rows: pa.Table, number: int) -> pa.Table:
    return rows.append_column("files", pa.array(np.full(len(rows), number, np.int64)))


def mask_named(lists: pa.Array, name: str) -> Flags:
    """The rows whose list has that name."""
    mask = np.zeros(len(lists), np.bool_)
    if lists.null_count < len(lists):
        named = pc.equal(pc.list_flatten(lists), name)
        mask[np.asarray(pc.list_parent_indices(lists).filter(named))] = True
    return mask


def _field(image: pa.Array, name: str) -> pa.Array:
    """A column of an image, NULL where the image is."""
    return pc.struct_field(image, image.type.get_field_index(name))


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])
