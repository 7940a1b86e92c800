"""Staged rows read as events, in the newest shape of their table: lines of the log, and rows of dumps.

An event has `offset`, `op`, `origin`, `position`, `commit_time`, whether it is a birth (`created`), its key as k0, k1,
… and its image as v0, v1, … Where the log left values out it also has their names (`unchanged`), and of a change of key
(`moved`) the old key as m0, m1, …
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.lake.merge_plan import Work, split_at_renames
from dblog_core.lake_engine.events import exact_casts
from dblog_core.model import column_defaults
from dblog_core.model.events import CREATE, DELETE, REFRESH
from dblog_core.model.schema import Column, TableSchema
from dblog_core.rows.chunked_columns import mask_named
from dblog_core.schema_evolution import compatibility
from dblog_core.schema_evolution.renames import Renames
from dblog_core.staging import Staging, parquet
from dblog_core.staging.manifest import ChunkRef

MAX_ROWS = 200_000
MAX_BYTES = 16 << 20
"""Of the files, which are compressed; what they hold is measured against MAX_DECODED."""

MAX_DECODED = 96 << 20

TOGETHER = 1 << 20
"""Decoded bytes of lines, of small segments in a row, that are made events at a time."""

_META = {
    "offset": pa.int64(),
    "op": pa.string(),
    "origin": pa.string(),
    "position": pa.string(),
    "commit_time": pa.timestamp("us", tz="UTC"),
}


def is_small(work: Work) -> bool:
    """Whether memory has room for all rows of the work, unless it turns out that they decode to far more."""
    return work.rows <= MAX_ROWS and work.bytes <= MAX_BYTES


def has_left_out_values(work: Work) -> bool:
    """Whether the log left values out."""
    return any(f.has_unchanged for f in work.files)


def read_events(
    staging: Staging, work: Work, schema: TableSchema, *, for_history: bool = False, with_unchanged: bool = False
) -> Iterator[pa.Table]:
    """All events of the work, some at a time: the key as k0, k1, … and the image in the shape `schema` as v0, v1, …
    Rows of a chunk come before lines of the log of which some are newer.

    `with_unchanged`: with `unchanged`, `moved` and old keys, whatever the log left out. `for_history`: so too, with
    `transaction` and `key_only`; the image of a deleted row is the one that the log has.
    """
    with_unchanged = with_unchanged or for_history or has_left_out_values(work)
    chunks = deque(sorted(work.chunks, key=lambda chunk: chunk.first_offset))

    def read_chunk(chunk: ChunkRef) -> Iterator[pa.Table]:
        for events in _read_chunk(staging, work, chunk, schema):
            events = _add_unchanged(events, schema) if with_unchanged else events
            yield _add_told(events) if for_history else events

    for lines, shape, later in _read_lines(staging, work):
        last = lines["offset"][-1].as_py()
        while chunks and chunks[0].first_offset < last:
            yield from read_chunk(chunks.popleft())
        # Before their values are cast: what vanishes need not fit the lake.
        lines = lines.filter(pc.greater(lines["offset"], work.removed_upto)) if work.removed_upto else lines
        events = _log_events(lines, shape, schema, later, with_unchanged=with_unchanged)
        yield _add_told(events, lines, shape, schema, later) if for_history else events
    for chunk in chunks:
        yield from read_chunk(chunk)


def _read_chunk(staging: Staging, work: Work, chunk: ChunkRef, schema: TableSchema) -> Iterator[pa.Table]:
    shape = staging.schema(chunk.schema)
    first = 0
    where = staging.storage.url(chunk.path)
    with staging.open_file(chunk) as opened:
        for rows in parquet.batches(opened, where=where):
            yield _chunk_events(pa.Table.from_batches([rows]), chunk, first, shape, schema, work)
            first += len(rows)


def _read_lines(staging: Staging, work: Work) -> Iterator[tuple[pa.Table, TableSchema, Renames]]:
    """The lines of the log files in their order, each time with their shape and the renames that come after them."""
    files = (file for whole in work.files for file in split_at_renames(whole, work.renames))
    alike = groupby(files, lambda file: (file.schema, work.renames.after(file.first_offset)))
    for (fingerprint, later), group in alike:
        shape = staging.schema(fingerprint)
        batches = chain.from_iterable(staging.log_batches(file) for file in group)
        for lines in _join_small_batches(batches):
            yield lines, shape, later


def _join_small_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """All rows in their order. A step of Arrow takes a few rows as long as many, and a segment may have few."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if waiting and size + batch.nbytes > TOGETHER:
            yield _join_batches(waiting)
            waiting = []
            size = 0
        waiting.append(batch)
        size += batch.nbytes
    if waiting:
        yield _join_batches(waiting)


def _join_batches(batches: list[pa.RecordBatch]) -> pa.Table:
    joined = pa.Table.from_batches(batches)
    return joined if len(batches) == 1 else joined.combine_chunks()  # which would copy a single one


def _log_events(
    lines: pa.Table, shape: TableSchema, schema: TableSchema, later: Renames, *, with_unchanged: bool
) -> pa.Table:
    meta = {name: _column(lines, name, kind) for name, kind in _META.items()}
    deleted = pc.equal(meta["op"], DELETE)
    before = _image(lines, "before", shape, later)
    after = _image(lines, "after", shape, later)
    created = pc.equal(meta["op"], CREATE)
    values = _values(after, schema, meta["offset"], later)
    if not with_unchanged:
        keys = {
            f"k{i}": pc.if_else(deleted, before[c.name], after[c.name]).cast(c.type)
            for i, c in enumerate(schema.key_columns)
        }
        return pa.table({**meta, "created": created, **keys, **values})
    unchanged = _rename_unchanged(_column(lines, "unchanged", pa.list_(pa.string())), shape, later)
    keys = {}
    for i, c in enumerate(schema.key_columns):  # a key so large that the log leaves it out of `after` is in `before`
        in_before = pc.or_(deleted, pa.array(mask_named(unchanged, c.name)))
        keys[f"k{i}"] = pc.if_else(in_before, before[c.name], after[c.name]).cast(c.type)
    events = pa.table({**meta, "created": created, **keys, **values})
    olds = _image(lines, "moved_from", TableSchema(shape.table, shape.key_columns, shape.key), later)
    has_moves = "moved_from" in lines.column_names
    moved = lines.column("moved_from").is_valid() if has_moves else pa.repeat(False, len(lines))
    return _add_unchanged(events, schema, unchanged=unchanged, moved=moved, olds=olds)


def _add_unchanged(
    events: pa.Table,
    schema: TableSchema,
    *,
    unchanged: pa.ChunkedArray | None = None,
    moved: pa.ChunkedArray | pa.Array | None = None,
    olds: Mapping[str, pa.ChunkedArray] | None = None,
) -> pa.Table:
    """The events with what the fold of columns that are left out needs: `unchanged`, `moved`, and old keys as m0, …"""
    count = len(events)
    olds = olds or {c.name: pa.nulls(count, c.type) for c in schema.key_columns}
    old_keys = {f"m{i}": olds[c.name].cast(c.type) for i, c in enumerate(schema.key_columns)}
    more = {
        "unchanged": unchanged if unchanged is not None else pa.nulls(count, pa.list_(pa.string())),
        "moved": moved if moved is not None else pa.repeat(False, count),
        **old_keys,
    }
    return pa.table({**{name: events[name] for name in events.column_names}, **more})


def _add_told(
    events: pa.Table,
    lines: pa.Table | None = None,
    shape: TableSchema | None = None,
    schema: TableSchema | None = None,
    later: Renames | None = None,
) -> pa.Table:
    """The events with all that a line of a history has beside the row; rows of a dump have no `lines`."""
    count = len(events)
    if lines is None or shape is None or schema is None or later is None:
        more = {"transaction": pa.nulls(count, pa.string()), "key_only": pa.repeat(False, count)}
        return pa.table({**{name: events[name] for name in events.column_names}, **more})
    deleted = pc.equal(events["op"], DELETE)
    image = _image(lines, "before", shape, later)
    gone = {name: pc.if_else(deleted, values, pa.scalar(None, values.type)) for name, values in image.items()}
    before = _values(gone, schema, events["offset"], later)
    images = {name: pc.if_else(deleted, values, events[name]) for name, values in before.items()}
    more = {
        "transaction": _column(lines, "transaction", pa.string()),
        "key_only": pc.and_(deleted, pc.fill_null(_column(lines, "key_only", pa.bool_()), False)),
    }
    return pa.table({**{name: events[name] for name in events.column_names}, **images, **more})


def _rename_unchanged(unchanged: pa.ChunkedArray, shape: TableSchema, later: Renames) -> pa.ChunkedArray:
    """The names that columns have now."""
    if not later:
        return unchanged
    now = {c.name: later.current_name(c.name) for c in shape.columns}
    lists = [None if names is None else [now.get(n, n) for n in names] for names in unchanged.to_pylist()]
    return pa.chunked_array([pa.array(lists, pa.list_(pa.string()))])


def _chunk_events(
    rows: pa.Table, chunk: ChunkRef, first: int, shape: TableSchema, schema: TableSchema, work: Work
) -> pa.Table:
    """Rows of a chunk from number `first` on, except for those that are evicted or vanish."""
    later = work.renames.after(chunk.first_offset)
    index = pa.array(range(first, first + len(rows)), pa.int64())
    if chunk.evicted or work.removed_upto:
        is_removed = pc.less_equal(index, work.removed_upto - chunk.first_offset)
        stays = pc.invert(pc.or_(pc.is_in(index, pa.array(chunk.evicted, pa.int64())), is_removed))
        rows = rows.filter(stays)
        index = index.filter(stays)
    count = len(rows)
    offsets = pc.add(index, chunk.first_offset)
    meta = {
        "offset": offsets,
        "op": pa.repeat(REFRESH, count),
        "origin": pa.repeat("dump", count),
        "position": pa.repeat(chunk.position, count),
        "commit_time": pa.repeat(pa.scalar(chunk.commit_time, pa.int64()), count).cast(_META["commit_time"]),
        "created": pa.repeat(False, count),
    }
    image = {later.current_name(c.name): _column(rows, c.name, c.type) for c in shape.columns}
    keys = {f"k{i}": image[c.name].cast(c.type) for i, c in enumerate(schema.key_columns)}
    return pa.table({**meta, **keys, **_values(image, schema, offsets, later)})


def _column(rows: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """A column, or NULLs where the file leaves it out because all are."""
    if (index := rows.schema.get_field_index(name)) < 0:
        return pa.chunked_array([pa.nulls(len(rows), kind)])
    return rows.column(index).cast(kind)


def _image(lines: pa.Table, side: str, shape: TableSchema, later: Renames) -> dict[str, pa.ChunkedArray]:
    """The columns of an image, by their names of now; NULL where the image is."""
    if (at := lines.schema.get_field_index(side)) < 0:
        return {later.current_name(c.name): pa.chunked_array([pa.nulls(len(lines), c.type)]) for c in shape.columns}
    images = lines.column(at)
    return {
        later.current_name(c.name): pc.struct_field(images, images.type.get_field_index(c.name)).cast(c.type)
        for c in shape.columns
    }


def _values(
    image: dict[str, pa.ChunkedArray], schema: TableSchema, offsets: pa.Array | pa.ChunkedArray, later: Renames
) -> dict[str, pa.ChunkedArray]:
    """The image in the newest shape: columns that came `later` are NULL or hold a constant, those that are now wider
    hold the same. Raises LakeError where the lake keeps a narrower column that cannot hold a value. `offsets`:
    of the events.
    """
    constants = later.constants
    count = len(offsets)

    def value(column: Column) -> pa.ChunkedArray:
        if (values := image.get(column.name)) is not None:
            if values.type == column.type or compatibility.is_widening(values.type, column.type):
                return values.cast(column.type)
            return exact_casts.cast_exactly(values, column.type, table=schema.table, name=column.name, offsets=offsets)
        if column.name in constants:
            return pa.chunked_array([pa.repeat(column_defaults.scalar(constants[column.name][1], column), count)])
        return pa.chunked_array([pa.nulls(count, column.type)])

    return {f"v{i}": value(c) for i, c in enumerate(schema.columns)}
