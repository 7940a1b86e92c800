"""Staged rows as one DataFrame of events: log files, and chunks by reference, in the newest shape.

An event has the columns `key` (struct; null in a table without a key), `offset`, `op`, `origin`, `transaction`,
`position`, `commit_time`, `unchanged` (list of column names, null if none), `moved_from` (key struct or null), `row`
(the image after; null on d), and for a d `before` (the image that the log has) and `key_only` (it is the key alone).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from dblog_core.errors import CorruptSegment
from dblog_core.lake.merge_plan import Work, split_at_renames
from dblog_core.model.events import DELETE, REFRESH
from dblog_core.model.schema import Column as TableColumn
from dblog_core.model.schema import TableSchema
from dblog_core.schema_evolution import compatibility
from dblog_core.schema_evolution.renames import Renames
from dblog_core.staging import Staging, parquet
from dblog_core.staging.manifest import ChunkRef, DataFile
from dblog_core.staging.spilled_rows import spill
from spark_jobs.delta_tables.column_types import key_shape, log_shape, quote, row_shape, spark_type
from spark_jobs.events import exact_casts

_REF = t.StructType(
    [
        t.StructField("path", t.StringType()),
        t.StructField("first_offset", t.LongType()),
        t.StructField("position", t.StringType()),
        t.StructField("commit_micros", t.LongType()),
        t.StructField("evicted", t.ArrayType(t.LongType())),
    ]
)
_File = TypeVar("_File", bound=DataFile | ChunkRef)


CHECKED_HERE = 64 << 20
"""Bytes of files that the driver compares alone: less than it costs to ask the executors."""


def check_files(spark: SparkSession, staging: Staging, work: Work) -> None:
    """Raises CorruptSegment for the first file that is missing or not the one that the manifest names.

    Large works are read by the executors, a file at a time.
    """
    every: list[DataFile | ChunkRef] = [*work.files, *work.chunks]
    files = [file for file in every if file.path]  # others: compared with their manifest
    sums = _sums(staging, files) if work.bytes <= CHECKED_HERE else _sums_apart(spark, staging, files)
    for file in files:
        size, checksum = sums[file.path]
        if (size, checksum) != (file.bytes, file.checksum):
            raise CorruptSegment(
                f"the file was changed: {size} bytes, {file.bytes} were staged, or another checksum",
                where=staging.storage.url(file.path),
                fix="restore it from a backup; the merge of this table waits before it",
            )


def _sums(staging: Staging, files: Sequence[DataFile | ChunkRef]) -> dict[str, tuple[int, str]]:
    """Bytes and checksum of each file, by path."""
    sums = {}
    for file in files:
        data = staging.read_file(file.path)
        sums[file.path] = len(data), parquet.checksum(data)
    return sums


def _sums_apart(
    spark: SparkSession, staging: Staging, files: Sequence[DataFile | ChunkRef]
) -> dict[str, tuple[int, str]]:
    """As `_sums`, by the executors, which need no code of dblog: the function goes to them by value."""

    def compute_sums(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            data = [value.as_buffer() for value in batch.column("content")]
            sums = [hashlib.blake2b(part, digest_size=16).hexdigest() for part in data]
            sizes = pa.array([part.size for part in data], pa.int64())
            yield pa.RecordBatch.from_arrays([batch.column("path"), sizes, pa.array(sums)], ["path", "size", "sum"])

    urls = {staging.storage.url(file.path): file.path for file in files}
    for path in urls.values():
        if not staging.storage.exists(path):
            staging.read_file(path)  # tells what has become of it
    apart = spark.newSession()
    apart.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")  # one file in memory
    read = apart.read.format("binaryFile").load([_escape_pattern(url) for url in urls]).select("path", "content")
    rows = read.mapInArrow(compute_sums, "path string, size long, sum string").toArrow().to_pylist()
    return {urls[row["path"].removeprefix("file:")]: (row["size"], row["sum"]) for row in rows}


def read_events(spark: SparkSession, staging: Staging, work: Work, schema: TableSchema) -> DataFrame:
    """All events of the work, in the shape `schema`; not yet one per key."""
    renames = work.renames
    files = [part for file in spill(staging, work.files) for part in split_at_renames(file, renames)]
    frames = [_log_events(spark, staging, alike, schema, later) for alike, later in _group_files(files, renames)]
    frames += [
        _chunk_events(spark, staging, alike, schema, later) for alike, later in _group_files(work.chunks, renames)
    ]
    events = reduce(DataFrame.unionByName, frames)
    return events.where(F.col("offset") > work.removed_upto) if work.removed_upto else events


def _group_files(files: Iterable[_File], renames: Renames) -> list[tuple[list[_File], Renames]]:
    """Files that one read can take together, and the renames that came after them."""
    groups: dict[tuple[str, Renames], list[_File]] = {}
    for file in files:
        groups.setdefault((file.schema, renames.after(file.first_offset)), []).append(file)
    return [(group, later) for (_, later), group in groups.items()]


def _log_events(
    spark: SparkSession, staging: Staging, files: Sequence[DataFile], schema: TableSchema, later: Renames
) -> DataFrame:
    shape = staging.schema(files[0].schema)
    lines = spark.read.schema(log_shape(shape)).parquet(*_paths(staging, files))
    if any(f.part for f in files):  # the files of a work follow each other: one range is all of it
        first = min(f.first_offset for f in files)
        last = max(f.last_offset for f in files)
        lines = lines.where(F.col("offset").between(first, last))
    lines, shape = _rename_columns(lines, shape, later)
    constants = later.constants
    key = F.lit(None)
    moved_from = F.lit(None)
    if schema.key:
        key = F.struct(*(_key_part(name).alias(name) for name in schema.key)).cast(key_shape(schema))
        moved_from = F.col("moved_from").cast(key_shape(schema))
    deleted = F.col("op") == DELETE
    return lines.select(
        key.alias("key"),
        "offset",
        "op",
        "origin",
        "transaction",
        "position",
        "commit_time",
        _unchanged_names(shape, schema).alias("unchanged"),
        moved_from.alias("moved_from"),
        F.when(~deleted, _image(F.col("after"), shape, schema, F.col("offset"), constants)).alias("row"),
        F.when(deleted, _image(F.col("before"), shape, schema, F.col("offset"), constants)).alias("before"),
        (deleted & F.col("key_only")).alias("key_only"),
    )


def _rename_columns(lines: DataFrame, shape: TableSchema, later: Renames) -> tuple[DataFrame, TableSchema]:
    """The lines with the names that columns have now."""
    if not later:
        return lines, shape
    now = later.rename_columns(shape)
    names = [F.lit(n) for was, is_now in zip(shape.columns, now.columns, strict=True) for n in (was.name, is_now.name)]
    unchanged = F.transform("unchanged", lambda name: F.element_at(F.create_map(*names), name))
    images = {side: F.col(side).cast(row_shape(now)) for side in ("before", "after")}  # by their order
    moved = {"moved_from": F.col("moved_from").cast(key_shape(now))} if shape.key else {}
    return lines.withColumns({**images, **moved, "unchanged": unchanged}), now


def _key_part(name: str) -> Column:
    """A delete has its key in `before`; so has an update with a key so large that the log leaves it out of `after`."""
    is_unchanged = F.coalesce(F.array_contains("unchanged", name), F.lit(False))
    return F.when((F.col("op") == DELETE) | is_unchanged, F.col(f"before.{quote(name)}")).otherwise(
        F.col(f"after.{quote(name)}")
    )


def _unchanged_names(shape: TableSchema, schema: TableSchema) -> Column:
    """The columns that the log left out, of those that the newest shape has."""
    names = {c.name for c in schema.columns}
    if not (dropped := [c.name for c in shape.columns if c.name not in names]):
        return F.col("unchanged")
    left = F.array_except("unchanged", F.array(*map(F.lit, dropped)))
    return F.when(F.size(left) > 0, left)


def _image(
    image: Column, shape: TableSchema, schema: TableSchema, offset: Column, constants: Mapping[str, tuple[int, Any]]
) -> Column:
    """An image in the shape `schema`: columns that came later are NULL, or what `constants` says, those that are
    wider there hold the same. Where the lake keeps a narrower one, the value of `offset` must be one of that, too."""
    if shape.columns == schema.columns:
        return image
    have = {c.name: c for c in shape.columns}

    def value(column: TableColumn, to_type: t.DataType) -> Column:
        if (is_now := have.get(column.name)) is None:
            return F.lit(constants.get(column.name, (0, None))[1]).cast(to_type)
        field = image.getField(column.name)
        if is_now.type == column.type or compatibility.is_widening(is_now.type, column.type):
            return field.cast(to_type)
        return exact_casts.cast_in_spark(
            field, spark_type(is_now.type), to_type, table=schema.table, name=column.name, offset=offset
        )

    fields = zip(schema.columns, row_shape(schema), strict=True)
    # NULL where the image is: a struct of NULLs would be a row.
    return F.when(image.isNotNull(), F.struct(*(value(c, f.dataType).alias(c.name) for c, f in fields)))


def _chunk_events(
    spark: SparkSession, staging: Staging, chunks: Sequence[ChunkRef], schema: TableSchema, later: Renames
) -> DataFrame:
    staged = staging.schema(chunks[0].schema)
    shape = later.rename_columns(staged)
    offset = F.col("ref.first_offset") + F.col("index")
    return (
        chunk_rows(spark, staging, chunks, staged)
        .withColumn("row", F.col("row").cast(row_shape(shape)))
        .where(~F.array_contains("ref.evicted", F.col("index")))
        .select(
            F.struct(*(F.col(f"row.{quote(name)}").alias(name) for name in schema.key))
            .cast(key_shape(schema))
            .alias("key"),
            offset.alias("offset"),
            F.lit(REFRESH).alias("op"),
            F.lit("dump").alias("origin"),
            F.lit(None).cast("string").alias("transaction"),
            F.col("ref.position").alias("position"),
            F.timestamp_micros("ref.commit_micros").alias("commit_time"),
            F.lit(None).cast("array<string>").alias("unchanged"),
            F.lit(None).cast(key_shape(schema)).alias("moved_from"),
            _image(F.col("row"), shape, schema, offset, later.constants).alias("row"),
            F.lit(None).cast(row_shape(schema)).alias("before"),
            F.lit(False).alias("key_only"),
        )
    )


def chunk_rows(spark: SparkSession, staging: Staging, chunks: Sequence[ChunkRef], shape: TableSchema) -> DataFrame:
    """Every row of the chunks, evicted ones too: `row` (struct), `index` in its file, and `ref`, its chunk."""
    depth = chunks[0].path.count("/") + 1
    refs = spark.createDataFrame(
        [(c.path, c.first_offset, c.position, c.commit_time, list(c.evicted)) for c in chunks], _REF
    )
    image = F.struct(*(F.col(quote(c.name)) for c in shape.columns))
    rows = spark.read.schema(row_shape(shape)).parquet(*_paths(staging, chunks))
    # Only the end of the path compares: Spark escapes the beginning as a URL does, while staged names need no escape.
    place = F.substring_index(rows.metadataColumn("_metadata").getField("file_path"), "/", -depth)
    index = rows.metadataColumn("_metadata").getField("row_index")
    placed = rows.select(image.alias("row"), index.alias("index"), place.alias("place"))
    with_refs = placed.join(F.broadcast(refs), placed.place == refs.path, "left")
    ref = F.when(
        refs.path.isNull(), F.raise_error(F.concat(F.lit("a chunk row of no known chunk: "), placed.place)).cast(_REF)
    )
    return with_refs.select("row", "index", ref.otherwise(F.struct(*(refs[name] for name in _REF.names))).alias("ref"))


def _paths(staging: Staging, files: Sequence[DataFile] | Sequence[ChunkRef]) -> list[str]:
    return [_escape_pattern(staging.storage.url(f.path)) for f in files]


def _escape_pattern(url: str) -> str:
    """The path as Spark takes it, to which some characters are a pattern of many paths."""
    return re.sub(r"([\\*?{}\[\]])", r"\\\1", url)
