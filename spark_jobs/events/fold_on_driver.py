"""Works of a few MiB, read, checked and folded on the driver with Arrow: no Spark job comes before their MERGE.

The fold is that of `fold.last_rows`: the last event of each key. What needs more (columns that the log left out, keys
whose equality is not that of their bytes, too many rows) is Spark's.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from dblog_core.model import column_defaults
from dblog_core.model.events import CREATE, DELETE, REFRESH
from dblog_core.model.schema import Column, TableSchema
from dblog_core.schema_evolution.renames import Renames
from dblog_core.staging import Staging, parquet
from dblog_core.staging.manifest import ChunkRef
from spark_jobs.delta_tables.column_types import key_shape, row_shape
from spark_jobs.events.fold import PUT
from spark_jobs.events.plan import Work, stretches

MAX_ROWS = 200_000
MAX_BYTES = 16 << 20
"""Of the files, which are compressed; what they hold is measured against MAX_DECODED before it goes to Spark."""

MAX_DECODED = 96 << 20

_META = {
    "offset": pa.int64(),
    "op": pa.string(),
    "origin": pa.string(),
    "position": pa.string(),
    "commit_time": pa.timestamp("us", tz="UTC"),
}


def fits(work: Work, schema: TableSchema) -> bool:
    """Whether the work may be folded here."""
    return (
        work.rows <= MAX_ROWS
        and work.bytes <= MAX_BYTES
        and not any(f.has_unchanged for f in work.files)
        and not any(pa.types.is_floating(c.type) for c in schema.key_columns)  # NaN and the two zeros
    )


def folded_shape(schema: TableSchema) -> t.StructType:
    """What `folded` returns, as Spark has it: the columns of a folded row (`fold`)."""
    return t.StructType(
        [
            t.StructField("key", key_shape(schema)),
            t.StructField("op", t.StringType()),
            t.StructField("offset", t.LongType()),
            t.StructField("position", t.StringType()),
            t.StructField("commit_time", t.TimestampType()),
            t.StructField("origin", t.StringType()),
            t.StructField("inserted", t.BooleanType()),
            t.StructField("missing", t.ArrayType(t.StringType())),
            t.StructField("row", row_shape(schema)),
        ]
    )


def folded(staging: Staging, work: Work, schema: TableSchema) -> pa.Table | None:
    """The folded rows of the work; None where they turn out to be too large for the driver.

    Raises CorruptSegment for a file that is missing or not the one that the manifest names.
    """
    parts: list[pa.Table] = []
    size = 0
    for part in _parts(staging, work, schema):
        size += part.nbytes
        if size > MAX_DECODED:
            return None
        parts.append(part)
    if not parts:
        return pa.table({"offset": pa.nulls(0, pa.int64())})
    events = pa.concat_tables(parts)
    if work.lower:
        events = events.filter(pc.greater(events["offset"], work.lower))
    return _last_rows(events.combine_chunks(), schema)


def _parts(staging: Staging, work: Work, schema: TableSchema) -> Iterator[pa.Table]:
    renames = work.renames
    for file in (part for whole in work.files for part in stretches(whole, renames)):
        own, later = staging.schema(file.schema), renames.after(file.first_offset)
        for lines in staging.log_batches(file):
            yield _log_events(pa.Table.from_batches([lines]), own, schema, later)
    for chunk in work.chunks:
        own, first, later = staging.schema(chunk.schema), 0, renames.after(chunk.first_offset)
        where = staging.storage.url(chunk.path)
        opened = parquet.opened(staging.read_file(chunk.path), expected=chunk.checksum, where=where)
        for rows in parquet.batches(opened, where=where):
            yield _chunk_events(pa.Table.from_batches([rows]), chunk, first, own, schema, later)
            first += len(rows)


def _last_rows(events: pa.Table, schema: TableSchema) -> pa.Table:
    """The last event of each key; `events` has its key as k0, k1, … and its image as v0, v1, …"""
    keys = [f"k{i}" for i in range(len(schema.key))]
    newest = events.group_by(keys, use_threads=False).aggregate([("offset", "max"), ("created", "any")])
    last = events.take(pc.index_in(newest["offset_max"], events["offset"].combine_chunks())).combine_chunks()
    deleted = pc.equal(last["op"], DELETE)
    none = pa.nulls(len(last), pa.list_(pa.string()))
    return pa.table(
        {
            "key": _struct(last, keys, list(schema.key)),
            "op": pc.if_else(deleted, DELETE, PUT),
            **{name: last[name] for name in ("offset", "position", "commit_time", "origin")},
            "inserted": pc.and_not(newest["created_any"], deleted),
            "missing": none,
            "row": _struct(last, [f"v{i}" for i in range(len(schema.columns))], [c.name for c in schema.columns]),
        }
    )


def _struct(rows: pa.Table, columns: list[str], names: list[str]) -> pa.Array:
    parts = [_one_array(rows[name]) for name in columns]
    return pa.StructArray.from_arrays(parts, names=names)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


def _log_events(lines: pa.Table, own: TableSchema, schema: TableSchema, later: Renames) -> pa.Table:
    meta = {name: _column(lines, name, kind) for name, kind in _META.items()}
    deleted = pc.equal(meta["op"], DELETE)
    before, after = _image(lines, "before", own, later), _image(lines, "after", own, later)
    keys = {
        f"k{i}": pc.if_else(deleted, before[c.name], after[c.name]).cast(c.type)
        for i, c in enumerate(schema.key_columns)
    }
    return pa.table(
        {**meta, "created": pc.equal(meta["op"], CREATE), **keys, **_values(after, schema, len(lines), later)}
    )


def _chunk_events(
    rows: pa.Table, chunk: ChunkRef, first: int, own: TableSchema, schema: TableSchema, later: Renames
) -> pa.Table:
    """Rows of a chunk from number `first` on, but for the evicted ones."""
    count = len(rows)
    index = pa.array(range(first, first + count), pa.int64())
    meta = {
        "offset": pc.add(index, chunk.first_offset),
        "op": pa.repeat(REFRESH, count),
        "origin": pa.repeat("dump", count),
        "position": pa.repeat(chunk.position, count),
        "commit_time": pa.repeat(pa.scalar(chunk.commit_time, pa.int64()), count).cast(_META["commit_time"]),
        "created": pa.repeat(False, count),
    }
    image = {later.current_name(c.name): _column(rows, c.name, c.type) for c in own.columns}
    keys = {f"k{i}": image[c.name].cast(c.type) for i, c in enumerate(schema.key_columns)}
    events = pa.table({**meta, **keys, **_values(image, schema, count, later)})
    if not chunk.evicted:
        return events
    return events.filter(pc.invert(pc.is_in(index, pa.array(chunk.evicted, pa.int64()))))


def _column(rows: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """A column, or NULLs where the file leaves it out because all are."""
    if (index := rows.schema.get_field_index(name)) < 0:
        return pa.chunked_array([pa.nulls(len(rows), kind)])
    return rows.column(index).cast(kind)


def _image(lines: pa.Table, side: str, own: TableSchema, later: Renames) -> dict[str, pa.ChunkedArray]:
    """The columns of an image, by their names of now; NULL where the image is."""
    if (at := lines.schema.get_field_index(side)) < 0:
        return {later.current_name(c.name): pa.chunked_array([pa.nulls(len(lines), c.type)]) for c in own.columns}
    images = lines.column(at)
    return {
        later.current_name(c.name): pc.struct_field(images, images.type.get_field_index(c.name)).cast(c.type)
        for c in own.columns
    }


def _values(
    image: dict[str, pa.ChunkedArray], schema: TableSchema, count: int, later: Renames
) -> dict[str, pa.ChunkedArray]:
    """The image in the newest shape: columns that came `later` are NULL or hold a constant, those that are wider by now
    hold the same."""
    held = later.constants

    def value(column: Column) -> pa.ChunkedArray:
        if column.name in image:
            return image[column.name].cast(column.type)
        if column.name in held:
            return pa.chunked_array([pa.repeat(column_defaults.scalar(held[column.name][1], column), count)])
        return pa.chunked_array([pa.nulls(count, column.type)])

    return {f"v{i}": value(c) for i, c in enumerate(schema.columns)}
